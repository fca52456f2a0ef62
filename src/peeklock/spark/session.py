"""A Spark session in this process, set up by pip alone, or one over Spark Connect.

Under spark-submit or on a cluster the active session is used as it is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from peeklock.spark.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HERE: Final = Path(__file__).parent

_DEFAULTS: Final = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",  # as the broker's times
    "spark.ui.enabled": "false",  # it would listen on every address of the machine
    "spark.ui.showConsoleProgress": "false",  # the jobs show their own
}


class SparkMissing(Exception):
    """pyspark, or what Spark Connect needs, is not installed; the text says how to get it."""


def is_remote(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect: there is no Java in this process."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def spark_session(
    app_name: str, master: str = "local[*]", *, remote: str | None = None, **conf: str
) -> SparkSession:
    """Return the active session, else a new one.

    `conf` takes settings by their names: `spark_session("x", **{"spark.driver.memory": "2g"})`. It, `master`
    and the defaults apply to a new session only. `remote` is the address of a Spark Connect server, such as
    `sc://host:15002`, in place of `master`; its settings are the server's.

    Raises:
        SparkMissing: pyspark, or what Spark Connect needs, is not installed.
        JavaMissing: no Java can run it.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkMissing(f"Spark is not installed ({error}): run pip install 'peeklock[spark]'") from None

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    builder = SparkSession.builder.appName(app_name)
    if remote is not None:
        return _connect(builder.remote(remote), remote, conf)
    settings: dict[str, str] = {}
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started Java and knows the master
        builder = builder.master(master)
        settings = _prepare_java(master)
    return builder.config(map={**settings, **conf}).getOrCreate()


def _connect(builder: SparkSession.Builder, remote: str, conf: dict[str, str]) -> SparkSession:
    """Return a session of a Spark Connect server; `local[N]` starts one. Raises: SparkMissing."""
    settings = {"spark.sql.session.timeZone": "UTC"}  # the others of `_DEFAULTS` are the server's
    if remote.startswith("local"):
        settings = _prepare_java(remote) | {"spark.connect.grpc.binding.address": "127.0.0.1"}
    try:
        return builder.config(map={**settings, **conf}).getOrCreate()
    except ImportError as error:
        raise SparkMissing(
            f"Spark Connect lacks packages ({' '.join(str(error).split())}): run "
            "pip install 'peeklock[spark-connect]'"
        ) from None


def _prepare_java(master: str) -> dict[str, str]:
    """Prepare the environment of the Java that a session starts; return its settings."""
    use_java()
    # The default is the first `python3` on PATH, which may lack our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _start_quietly()
    if not master.startswith("local"):
        return dict(_DEFAULTS)
    # The default looks up the host's name, which may resolve to an address that does not exist.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return _DEFAULTS | {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Spark's default is 200: on one machine most are empty, and each costs some 10 ms.
        "spark.sql.shuffle.partitions": str(4 * cores_of(master)),
    }


def cores_of(master: str) -> int:
    """Return the cores of a local master: N of `local[N]`, the machine's of `local[*]`."""
    number = master.removeprefix("local").strip("[]").partition(",")[0].strip()
    if number == "*":
        return os.cpu_count() or 1
    return int(number) if number.isdigit() else 1


def _start_quietly() -> None:
    """Set Java's log level to errors from its first line on; a session can set it only later."""
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if "log4j2.configurationFile" not in given:
        quiet = f"-Dlog4j2.configurationFile={(_HERE / 'log4j2.properties').as_uri()}"
        os.environ["SPARK_SUBMIT_OPTS"] = f"{given} {quiet}".strip()
