"""The Spark session of the tests of the jobs."""

from tests.spark_session import spark

__all__ = ["spark"]
