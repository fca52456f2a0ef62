"""The one Spark session of a test run, as a fixture; nothing of Spark is imported before it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A small local session: two cores, two shuffle partitions, UTC, quick to start.

    Tests that ask for it are marked `spark`. Views and streams are theirs to stop.
    """
    from peeklock.spark.session import spark_session

    folder: Path = tmp_path_factory.mktemp("spark")
    session = spark_session(
        "tests",
        "local[2]",
        **{
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.driver.memory": "1g",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    yield session
    session.stop()
