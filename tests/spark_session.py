"""The one Spark session of a test run, as a fixture; Spark is imported on first use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

QUICK_JAVA = " ".join(
    (
        "-XX:TieredStopAtLevel=1",  # the second compiler would cost more than it saves
        "-XX:ReservedCodeCacheSize=256m",  # of 48 MB, its default then, a session is full after a minute
        "-XX:+UseSerialGC",
        "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",  # a tenth of a start
    )
)
"""Options of a Java that lives for minutes. Tests that start a process with a session pass these to it, in
`SPARK_SUBMIT_OPTS` where they cannot set the session's."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a small local session: two cores, two shuffle partitions, UTC, quick to start.

    Tests that ask for it are marked `spark`. Views and streams are theirs to stop.
    """
    from peeklock.spark.session import spark_session

    folder: Path = tmp_path_factory.mktemp("spark")
    session = spark_session(
        "tests",
        "local[2]",
        **{
            "spark.driver.extraJavaOptions": QUICK_JAVA,
            # To compile a plan costs more than to interpret it on a few rows. The rows are the same. The
            # sessions of `tests.audit`, `tests.kill` and the demo compile their plans.
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.codegen.wholeStage": "false",
            "spark.driver.memory": "1g",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    yield session
    session.stop()
