"""A Spark session in this process, set up by pip alone.

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
    """pyspark is not installed; the text says how to get it."""


def spark_session(app_name: str, master: str = "local[*]", **conf: str) -> SparkSession:
    """Return the active session, else a new one.

    `conf` takes settings by their names: `spark_session("x", **{"spark.driver.memory": "2g"})`. It, `master`
    and the defaults apply to a new session only.

    Raises:
        SparkMissing: pyspark is not installed.
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
    settings: dict[str, str] = {}
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started Java and knows the master
        use_java()
        # The default is the first `python3` on PATH, which may lack our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master)
        _start_quietly()
        if master.startswith("local"):
            # The default looks up the host's name, which may resolve to an address that does not exist.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
            # Spark's default is 200: on one machine most are empty, and each costs some 10 ms.
            settings["spark.sql.shuffle.partitions"] = str(4 * cores_of(master))
        settings |= _DEFAULTS
    return builder.config(map={**settings, **conf}).getOrCreate()


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
