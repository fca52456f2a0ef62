"""`python -m tests.kill.spark_driver PLAN`: streaming queries in their own process, made to be killed.

Owns: the queries, and starting them again as an operator would. Must not know: what is killed when, what must
come out. PLAN is a file with a `Plan` as JSON. It prints `ready` once each query has done a batch, and `again
LANE: TEXT` for each that failed and was started again. With `finish` it takes what is there now, writes the
tables' rows to `rows-LANE.json` beside PLAN, and ends.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peeklock.spark.session import spark_session
from tests.spark_session import QUICK_JAVA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MESSAGES_PER_TRIGGER = 100
"""Few, so that there are many batches to kill."""

FINISH_S_MAX = 120.0
STARTS_MAX = 40
"""How often a query may be started again; a test that needs more has another defect."""


@dataclass(frozen=True)
class Lane:
    """One query: from the queue of its name to a table, or to another queue."""

    name: str
    mode: str
    table: str | None = None
    """The format of the table."""
    queue: str | None = None
    """The other queue."""
    once: bool = True
    """The promise: every message exactly once, else at least once."""


LANES = {
    lane.name: lane
    for lane in (
        Lane("cursor-to-table", "cursor", "parquet"),
        Lane("cursor-to-delta", "cursor", "delta"),
        Lane("cursor-to-queue", "cursor", queue="copies"),
        Lane("cursor-to-forgetful-queue", "cursor", queue="forgetful-copies", once=False),
        Lane("peek-lock-to-table", "peekLock", "parquet"),
        Lane("sessions-to-table", "peekLock", "parquet", once=False),
        Lane("browse-to-table", "browse", "parquet"),
    )
}


@dataclass(frozen=True)
class Plan:
    """The work of one driver."""

    connection_string: str
    lanes: list[str]
    finish: bool


def start(spark: SparkSession, plan: Plan, folder: Path, lane: Lane) -> StreamingQuery:
    """Start the query of a lane from its checkpoint."""
    rows = (
        spark.readStream.format("servicebus")
        .option("connectionString", plan.connection_string)
        .option("entity", lane.name)
        .option("mode", lane.mode)
        .option("maxMessagesPerTrigger", 10_000 if plan.finish else MESSAGES_PER_TRIGGER)
        .option("minPartitions", 2)
        .options(**({"consumerName": lane.name} if lane.mode == "cursor" else {}))
        .load()
    )
    if lane.queue is not None:
        # Without ids: the sink's own ids must be the same each time.
        sink = rows.select("body").writeStream.format("servicebus")
        sink = sink.option("connectionString", plan.connection_string).option("entity", lane.queue)
    else:
        assert lane.table is not None, "a lane has a queue or a table"
        texts = rows.selectExpr("CAST(body AS STRING) AS body", "sequenceNumber")
        sink = texts.writeStream.format(lane.table)
        sink = sink.option("path", str(folder / lane.name))
    sink = sink.option("checkpointLocation", str(folder / f"checkpoint-{lane.name}"))
    return (sink.trigger(availableNow=True) if plan.finish else sink).start()


def run(plan: Plan, folder: Path) -> None:
    """Run all lanes until they are done; without `finish`, until killed."""
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    if "cursor-to-delta" in plan.lanes:
        settings["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
        settings["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    # A task whose worker is killed is tried again, as on a cluster.
    spark = spark_session("kill", "local[2,4]", **settings)
    lanes = [LANES[name] for name in plan.lanes]
    queries = {lane: start(spark, plan, folder, lane) for lane in lanes}
    ready = plan.finish
    deadline = time.monotonic() + FINISH_S_MAX
    starts = 0
    while queries:
        if not ready and all(query.lastProgress is not None for query in queries.values()):
            ready = True
            tell("ready")
        for lane, query in [*queries.items()]:
            if query.isActive:
                continue
            failure = query.exception()
            if failure is None:
                del queries[lane]
                continue
            text = str(failure)
            if len(text) > 4000:
                text = f"{text[:1500]} ... {text[-2500:]}"  # what failed, and which query
            tell(f"again {lane.name}: {json.dumps(text)}")
            starts += 1
            if starts > STARTS_MAX:
                raise SystemExit(f"started again {starts} times")
            queries[lane] = start(spark, plan, folder, lane)
        if plan.finish and time.monotonic() > deadline:
            raise SystemExit(f"not finished after {FINISH_S_MAX:.0f} s: {[lane.name for lane in queries]}")
        time.sleep(0.02)  # interval of the check whether a query has ended
    for lane in lanes:
        if lane.table is not None:
            write_rows(spark, lane, folder)
    spark.stop()
    tell("done")


def write_rows(spark: SparkSession, lane: Lane, folder: Path) -> None:
    """Write the rows of a lane's table beside the plan."""
    rows: list[Any] = []
    if (folder / lane.name).exists():
        rows = [
            list(row) for row in spark.read.format(lane.table or "").load(str(folder / lane.name)).collect()
        ]
    (folder / f"rows-{lane.name}.json").write_text(json.dumps(rows))


def tell(text: str) -> None:
    """Print a line to the parent process."""
    print(text, flush=True)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    run(Plan(**json.loads(file.read_text())), file.parent)
