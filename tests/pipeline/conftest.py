"""The Spark session and the broker of the tests of the jobs."""

from tests.spark.conftest import administration, broker, client, make_queue, own, settings
from tests.spark_session import spark

__all__ = ["administration", "broker", "client", "make_queue", "own", "settings", "spark"]
