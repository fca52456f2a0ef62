"""The broker and the entities of the data source's tests."""

from __future__ import annotations

from tests.spark.conftest import administration, broker, client, make_queue, own, settings

__all__ = ["administration", "broker", "client", "make_queue", "own", "settings"]
