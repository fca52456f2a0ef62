"""`python -m tests.kill.spark_driver PLAN`: streaming queries in their own process, made to be killed.

Owns: the queries, and starting them again as an operator would. Must not know: what is killed when, what must
come out, how rows are written (`spark_targets`). PLAN is a file with a `Plan` as JSON. It prints `ready` once
each query has done a batch, and `again LANE: TEXT` for each that failed and was started again. With `finish`
it takes what is there now, writes the bodies in tables to `rows-LANE.json` beside PLAN, and ends.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from peeklock.spark.session import spark_session
from tests.kill.spark_targets import Place, Target
from tests.spark_session import QUICK_JAVA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MESSAGES_PER_TRIGGER = 100
"""Few, so that there are many batches to kill."""

FINISH_S_MAX = 120.0
"""Only a hang takes as long: on a quiet machine the last driver needs 20 s."""
STARTS_MAX = 40
"""How often queries may be started again; a run that needs more has another defect."""


@dataclass(frozen=True)
class Lane:
    """One query: from the queue of its name to a target."""

    name: str
    mode: str
    target: str
    """`module:class` of a `Target`."""
    sessions: bool = False
    """Its queue requires sessions."""

    def load(self) -> Target:
        """Return its target."""
        made: Target = resolve_name(self.target)()
        return made

    @property
    def once(self) -> bool:
        """The promise: every message exactly once, else at least once."""
        return self.load().once and not (self.sessions and self.mode == "peekLock")


@dataclass(frozen=True)
class Plan:
    """The work of one driver."""

    connection_string: str
    lanes: list[Lane]
    finish: bool

    @classmethod
    def read(cls, file: Path) -> Plan:
        """Return what `write` has written."""
        about = json.loads(file.read_text())
        return cls(**about | {"lanes": [Lane(**lane) for lane in about["lanes"]]})

    def write(self, file: Path) -> None:
        """Write it as JSON."""
        file.write_text(json.dumps(asdict(self)))

    def place(self, folder: Path, lane: Lane) -> Place:
        """Return where a lane writes."""
        return Place(folder / lane.name, self.connection_string, copies_of(lane))


def copies_of(lane: Lane) -> str:
    """Return the queue that a lane fills."""
    return f"{lane.name}-copies"


def start(spark: SparkSession, plan: Plan, folder: Path, lane: Lane) -> StreamingQuery:
    """Start the query of a lane from its checkpoint, and wait until its source has a Python.

    Without the wait, all start one at once, and may miss the 10 s that Spark gives to each.
    """
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
    sink = lane.load().write(rows, plan.place(folder, lane))
    sink = sink.option("checkpointLocation", str(folder / f"checkpoint-{lane.name}"))
    query = (sink.trigger(availableNow=True) if plan.finish else sink).start()
    while query.isActive and query.status["message"] == "Initializing sources":
        time.sleep(0.02)
    return query


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
    for lane in plan.lanes:
        settings |= lane.load().settings
    # A task whose worker is killed is tried again, as on a cluster.
    spark = spark_session("kill", "local[2,4]", **settings)
    queries = {lane: start(spark, plan, folder, lane) for lane in plan.lanes}
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
    for lane in plan.lanes:
        bodies = lane.load().read(spark, plan.place(folder, lane))
        if bodies is not None:
            (folder / f"rows-{lane.name}.json").write_text(json.dumps(bodies))
    spark.stop()
    tell("done")


def tell(text: str) -> None:
    """Print a line to the parent process."""
    print(text, flush=True)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    run(Plan.read(file), file.parent)
