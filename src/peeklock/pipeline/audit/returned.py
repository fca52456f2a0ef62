"""The messages that a restore brought back: settled after the back-up, and live again.

Owns their list. A message keeps its sequence number through a restore. So it came back if its life ended
between the last batch of the back-up and the restore, and did not begin there. No check is violated by that;
but a handler may see it twice.
"""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's documentation has it

from peeklock.pipeline.audit.checks import RETURNED_MAX, ReturnedMessage, Verdict
from peeklock.pipeline.audit.life_table import ENDS
from peeklock.pipeline.audit.log import Log, milliseconds, order

_BEGINS = ("enqueued", "scheduled", "number_issued")


def list_returned(log: Log, verdict: Verdict) -> None:
    """Add the messages to the verdict, and a note of how many there are."""
    restores = log.events.where(F.col("event_type") == "restored").select(
        "namespace", F.col("sequence_number").alias("cut_no"), F.col("batch_no").alias("restored_no")
    )
    if not restores.limit(1).count():
        return
    event_type = F.col("event_type")
    is_undone = F.col("batch_no") < F.col("restored_no")
    ends, place = event_type.isin(*ENDS), ("namespace", "restored_no", "entity", "sequence_number")
    end = F.struct(order(), event_type.alias("settled"), "batch_no", "event_time")
    found = (
        log.events.where(event_type.isin(*ENDS, *_BEGINS))
        .join(F.broadcast(restores), "namespace")
        .where(F.col("batch_no") > F.col("cut_no"))
        .groupBy(*place)
        .agg(
            F.min(F.when(ends & is_undone, end)).alias("end"),
            F.min(F.when(~ends & is_undone, order())).alias("begun"),
            F.min(F.when(ends & ~is_undone, F.struct(order(), event_type.alias("settled")))).alias("since"),
        )
        # An entity that was made again meanwhile gives the number to a message that is undone.
        .where(F.col("end").isNotNull() & (F.col("begun").isNull() | (F.col("begun") > F.col("end.order"))))
        .select(
            *place,
            "end.*",
            F.col("since.settled").alias("settled_since"),
            milliseconds("end.event_time").alias("settled_at_ms"),
        )
    )
    counts = found.agg(F.count("*").alias("all"), F.count_if(F.col("settled_since").isNull()).alias("live"))
    row = counts.collect()[0]
    verdict.returned_count, verdict.returned_live = row["all"], row["live"]
    names = ReturnedMessage.__dataclass_fields__
    first = found.orderBy("namespace", "entity", "sequence_number", "restored_no").limit(RETURNED_MAX)
    verdict.returned = [ReturnedMessage(*row) for row in first.select(*names).collect()]
    if verdict.returned_count:
        verdict.notes.append(
            f"{verdict.returned_count:,} messages were settled after the back-up and came back with the "
            f"restore, under the same sequence numbers; {verdict.returned_live:,} are live at the end. "
            f"--report lists {RETURNED_MAX:,} of them."
        )
