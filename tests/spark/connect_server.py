"""`python -m tests.spark.connect_server FOLDER`: a Spark Connect server on loopback.

Prints its address, and ends when its standard input ends.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peeklock.spark.session import spark_session
from tests.spark_session import QUICK_JAVA

ROOT = Path(__file__).parents[2]


def serve(folder: Path) -> None:
    """Serve until standard input ends."""
    spark = spark_session(
        "connect",
        "local[2]",
        **{
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.driver.extraJavaOptions": QUICK_JAVA,
            "spark.driver.memory": "1g",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    service: Any = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    print(f"sc://127.0.0.1:{getattr(service, 'MODULE$').localPort()}", flush=True)
    sys.stdin.read()
    spark.stop()


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Run a server in a process of its own; yield its address."""
    with (folder / "connect.log").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.connect_server", str(folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("sc://"), (folder / "connect.log").read_text()
        yield address
    finally:
        process.stdin.close()
        process.wait(60)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
