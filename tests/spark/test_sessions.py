"""Sessions of their own: a catalog that lasts, what Spark writes down, and workers without the package."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from peeklock.testing.served import ServedBroker
from tests.spark.sink.test_sink import arrived
from tests.spark_session import QUICK_JAVA

pytestmark = [pytest.mark.spark, pytest.mark.soak]

PAGE = (Path(__file__).parents[2] / "docs/reference/spark.md").read_text(encoding="utf-8")

SESSION = """\
import sys
from pathlib import Path
from peeklock.spark.session import spark_session

folder = Path(sys.argv[1])
spark = spark_session("own", "local[1]", **{
    "spark.driver.memory": "512m",
    "spark.sql.catalogImplementation": "hive",
    "spark.sql.warehouse.dir": str(folder / "warehouse"),
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": (folder / "log").as_uri(),
    "spark.eventLog.compress": "false",
})
"""

CREATES = """
connection = Path(sys.argv[2])
text = connection.read_text()
spark.sql(f"CREATE TABLE kept USING servicebus OPTIONS (connection 'file:{connection}', entity 'kept')")
spark.sql(f"CREATE TEMPORARY VIEW seen USING servicebus OPTIONS (connectionString '{text}', entity 'kept')")
spark.sql("INSERT INTO seen (body) SELECT X'31'")
print(spark.sql("EXPLAIN EXTENDED INSERT INTO seen (body) SELECT X'31'").first()[0])
rows = spark.sql("SELECT '2' AS body")
rows.write.format("servicebus").options(connectionString=text, entity="kept").mode("append").save()
"""

USES = """
spark.sql("INSERT INTO kept (body) VALUES ('3')")
print([row.body for row in spark.sql("SELECT body FROM kept ORDER BY sequenceNumber").collect()])
"""

READS = """\
import sys
from peeklock.spark.session import spark_session
from peeklock.spark.source.data_source import ServiceBusSource

spark = spark_session("bare", "local[1]", **{"spark.driver.memory": "512m"})

def fails():
    try:
        spark.read.format("servicebus").options(entity="orders").load().collect()
    except Exception as failure:
        print(failure)

fails()
spark.dataSource.register(ServiceBusSource)
fails()
"""


def run(program: str, folder: Path, *arguments: str, **environment: str) -> str:
    """Run a program with a session of its own; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "SPARK_SUBMIT_OPTS": QUICK_JAVA, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def absolute_path() -> str:
    """Return PYTHONPATH for a program in another folder."""
    return os.pathsep.join(str(Path(one).absolute()) for one in sys.path if one)


def test_a_table_lasts_over_sessions_and_nothing_that_spark_writes_has_the_secret(
    broker: ServedBroker, administration: Any, client: Any, tmp_path: Path
) -> None:
    """The catalog, the event log (which the UI shows) and plans; also of `connectionString`."""
    administration.create_queue("kept")
    connection = tmp_path / "shop"
    connection.write_text(broker.connection_string)
    folder = tmp_path / "session"
    (folder / "log").mkdir(parents=True)
    places = str(folder), str(connection)
    said = run(SESSION + CREATES, folder, *places, PYTHONPATH=absolute_path())
    assert "RelationV2" in said
    assert (
        run(SESSION + USES, folder, *places, PYTHONPATH=absolute_path()).split("\n")[-2] == "['1', '2', '3']"
    )
    assert sorted(str(message) for message in arrived(client, "kept", 3)) == ["1", "2", "3"]
    secret = broker.connection_string.partition("SharedAccessKey=")[2].partition(";")[0].encode()
    files = [file for file in folder.rglob("*") if file.is_file()]
    log = b"".join(file.read_bytes() for file in files if folder / "log" in file.parents)
    assert b"connectionString -> *********(redacted)" in log
    assert any((folder / "metastore_db").iterdir())
    assert [file for file in files if secret in file.read_bytes()] == []
    assert secret.decode() not in said


def test_a_python_without_the_package_is_told_in_words_that_the_page_explains(tmp_path: Path) -> None:
    """Its Spark is whole, so that only the package is missing."""
    site = tmp_path / "site"
    site.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "peeklock" not in entry.name and entry.name != "pyspark_servicebus" and entry.suffix != ".pth":
            (site / entry.name).symlink_to(entry)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{site}" exec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    said = run(READS, tmp_path, PYTHONPATH=absolute_path(), PYSPARK_PYTHON=str(python))
    unknown, bare = (
        "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: servicebus",
        "No module named 'peeklock'",
    )
    assert unknown in said
    assert bare in said
    for text in (unknown.partition(":")[0], bare):
        assert text in PAGE
