"""`python -m tests.spark.matrix.driver PLAN`: queries in their own process, which ends itself by SIGKILL.

Owns: the queries, the instant at which the process dies, the format's own list of transactions. Must not
know: what was sent, what must have come out. PLAN is a file with a `Plan` as JSON. Each line that it prints
is a `Said` as JSON. The merges are those of the how-to page.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peeklock.spark.session import spark_session
from peeklock.spark.versions import HANDS_START_IN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/how-to/tables.md"

CURSOR = "cursor"
MERGED = "merged"
PEEK_LOCK = "peekLock"
BROWSE = "browse"
WRITTEN = "written"
WORKS = (CURSOR, MERGED, PEEK_LOCK, BROWSE, WRITTEN)
"""Streams of each mode into a table, a merge, and a stream into another queue."""

PER_TRIGGER = 60
"""Few, so that there are batches to kill."""

ALL = 100_000
OLDER_STARTS = 3
"""Before Spark 4.2, with the trigger AvailableNow, one start repeats the batch that was cut short, the next
takes all, the third settles it."""
DEADLINE_S = 240.0
"""Longest time until a query comes to the batch in which it dies. Our choice: many times that of an idle
machine."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of one process."""

    connection_string: str
    format: str
    jars: list[str]
    work: list[str]
    """One query each, whose queues have their names."""
    die_in: str | None = None
    """The query in whose batch the process dies: the table has the batch, and Spark's log does not."""


@dataclass(frozen=True, slots=True)
class Said:
    """One line of output."""

    work: str
    rows: list[Any] = field(default_factory=list)
    transactions: list[tuple[str, int]] = field(default_factory=list)
    """What the format recorded: the id of the query, and the batch."""
    failure: str | None = None
    dies_in: int | None = None
    """The batch, in the line before the end."""


def session(plan: Plan, folder: Path) -> SparkSession:
    """Return a session with the jars."""
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": str(folder / "local"),
        # What costs more than it saves on a few rows.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    if plan.format != "Parquet":
        settings |= names_of_page(plan.format, 0, {"lake/iceberg": str(folder / "lake")})["settings"]
        settings["spark.jars"] = ",".join(plan.jars)
    return spark_session("matrix", "local[2]", **settings)


class Work:
    """One query, and the table that it writes."""

    def __init__(self, spark: SparkSession, plan: Plan, folder: Path, name: str) -> None:
        self._spark = spark
        self._plan = plan
        self.name = name
        self.mode = name if name in (PEEK_LOCK, BROWSE) else CURSOR
        self.checkpoint = folder / f"checkpoint-{name}"
        iceberg = plan.format == "Iceberg"
        self.table = f"lake.matrix.{name}" if iceberg else str(folder / name)
        self.folder = folder / "lake/matrix" / name if iceberg else folder / name

    def start(self, *, finish: bool) -> StreamingQuery:
        """Start the query from its checkpoint; `finish`: it takes what is there, and ends."""
        rows = (
            self._spark.readStream.format("servicebus")
            .option("connectionString", self._plan.connection_string)
            .option("entity", self.name)
            .option("mode", self.mode)
            .option("maxMessagesPerTrigger", ALL if finish else PER_TRIGGER)
            .option("minPartitions", 2)
            .options(**({"consumerName": "matrix"} if self.mode == CURSOR else {}))
            .load()
        )
        texts = rows.selectExpr("CAST(body AS STRING) AS customer")
        if self.name == MERGED:
            sink = texts.writeStream.foreachBatch(self._merge(texts))
        elif self.name == WRITTEN:
            sink = rows.select("body").writeStream.format("servicebus")
            sink = sink.option("connectionString", self._plan.connection_string).option("entity", "copies")
        else:
            sink = texts.writeStream.format(self._plan.format.lower())
        sink = sink.option("checkpointLocation", str(self.checkpoint))
        if finish:
            sink = sink.trigger(availableNow=True)
        if self.name in (MERGED, WRITTEN):
            return sink.start()
        return sink.toTable(self.table) if self._plan.format == "Iceberg" else sink.start(self.table)

    def finish(self) -> None:
        """Take all that is there."""
        for _ in range(1 if HANDS_START_IN else OLDER_STARTS):
            query = self.start(finish=True)
            query.awaitTermination()

    def die_after_the_table(self) -> None:
        """End this process once the table has a batch which Spark's log does not have."""
        while True:
            in_table = self.batches_in_table()
            if in_table >= 2 and in_table > last(self.checkpoint / "commits") + 1:
                die(self.name, last(self.checkpoint / "offsets"))
            time.sleep(0.0005)

    def batches_in_table(self) -> int:
        """Return how many commits a table has, without its format's own code."""
        if self._plan.format == "Delta":
            return sum(1 for _ in self.folder.glob("_delta_log/*[0-9].json"))
        if self._plan.format == "Iceberg":  # the first version is the empty table
            return sum(1 for _ in self.folder.glob("metadata/v*.metadata.json")) - 1
        return last(self.folder / "_spark_metadata") + 1

    def rows(self) -> list[Any]:
        """Return the rows of the table."""
        if self.name == WRITTEN:
            return []
        if self._plan.format == "Iceberg":
            # Merges ran in a session of their own; this one keeps what it has read for 30 s.
            self._spark.catalog.refreshTable(self.table)
            table = self._spark.table(self.table)
        else:
            table = self._spark.read.format(self._plan.format.lower()).load(self.table)
        return [list(row) if self.name == MERGED else row[0] for row in table.collect()]

    def transactions(self) -> list[tuple[str, int]]:
        """Return what the format itself recorded of its transactions, in their order."""
        if self.name == WRITTEN:
            return []
        if self._plan.format == "Delta":
            lines = [
                json.loads(line)
                for file in sorted(self.folder.glob("_delta_log/*[0-9].json"))
                for line in file.read_text().splitlines()
            ]
            return [(line["txn"]["appId"], line["txn"]["version"]) for line in lines if "txn" in line]
        if self._plan.format == "Iceberg":
            query, batch = (
                ("orders.query", "orders.batch")
                if self.name == MERGED
                else ("spark.sql.streaming.queryId", "spark.sql.streaming.epochId")
            )
            snapshots = self._spark.table(f"{self.table}.snapshots").orderBy("committed_at").collect()
            summaries = [snapshot.summary for snapshot in snapshots]
            return [(one[query], int(one[batch])) for one in summaries if batch in one]
        files = [file.name for file in (self.folder / "_spark_metadata").glob("[0-9]*")]
        return sorted({("", int(name.partition(".")[0])) for name in files})

    def _merge(self, texts: DataFrame) -> Callable[[DataFrame, int], None]:
        """Return the merge of the how-to page, into this table."""
        places = {"/data/lake/totals": self.table, "lake.shop.totals": self.table}
        names_of_page(self._plan.format, 2, places, spark=self._spark)
        merge = names_of_page(self._plan.format, 3, places)["merge"]

        def merge_and_die(batch: DataFrame, batch_id: int) -> None:
            merge(batch, batch_id)
            if self._plan.die_in == MERGED and batch_id >= 1:
                die(MERGED, batch_id)

        return merge_and_die


def names_of_page(table_format: str, block: int, places: dict[str, str], **names: Any) -> dict[str, Any]:
    """Run a block of a format's section of the how-to page, with other places; return its names."""
    section = PAGE.read_text().partition(f"\n## {table_format}")[2].partition("\n## ")[0]
    code = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[block]
    for shown, place in places.items():
        code = code.replace(shown, place)
    exec(compile(code, str(PAGE), "exec"), names)
    return names


def last(log: Path) -> int:
    """Return the last batch in a log, -1 if there is none."""
    return max((int(entry.stem) for entry in log.glob("[0-9]*")), default=-1)


def die(work: str, batch: int) -> None:
    """End this process, and Java with it."""
    say(Said(work, dies_in=batch))
    os.killpg(0, signal.SIGKILL)


def say(said: Said) -> None:
    """Print a line to the parent."""
    print(json.dumps(asdict(said)), flush=True)


def finish(work: Work) -> None:
    """Run a query until it has taken all that is there, and say what its table has."""
    try:
        work.finish()
        say(Said(work.name, work.rows(), work.transactions()))
    except Exception as failure:  # whatever a Spark raises with a jar of another
        say(Said(work.name, failure=str(failure)))


def run_until_death(works: list[Work], die_in: str) -> None:
    """Run queries until one is in the batch in which the process dies, or one fails."""
    queries: dict[Work, StreamingQuery] = {}
    for work in works:
        if work.name == CURSOR == die_in:
            threading.Thread(target=work.die_after_the_table, daemon=True).start()
        try:
            queries[work] = work.start(finish=False)
        except Exception as failure:  # whatever a Spark raises with a jar of another
            say(Said(work.name, failure=str(failure)))
            return
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        for work, query in queries.items():
            if not query.isActive:
                say(Said(work.name, failure=str(query.exception())))
                return
        time.sleep(0.1)
    say(Said(die_in, failure="no batch came in which to die"))


def run(plan: Plan, folder: Path) -> None:
    """Do the work, or die in the middle of it."""
    spark = session(plan, folder)
    works = [Work(spark, plan, folder, name) for name in plan.work]
    if plan.die_in is not None:
        run_until_death(works, plan.die_in)
        return
    for work in works:
        finish(work)
    spark.stop()


if __name__ == "__main__":
    file = Path(sys.argv[1])
    run(Plan(**json.loads(file.read_text())), file.parent)
