"""Registers the data source `servicebus` with Spark.

Spark searches for top-level packages whose names begin with `pyspark_` and takes their `DefaultSource`.
"""

from __future__ import annotations

from peeklock.spark.source.data_source import ServiceBusSource as DefaultSource

__all__ = ["DefaultSource"]
