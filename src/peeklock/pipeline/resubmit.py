"""Resubmission of dead letters that Spark has chosen, by their numbers.

`peeklock.jobs` decides, as for `peeklock dead-letters resubmit`; sending and settling happens here, on one
connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from peeklock.client.connection import BlockingConnection
from peeklock.jobs.checkpoint import Checkpoint
from peeklock.jobs.job import Job
from peeklock.jobs.plan import Plan
from peeklock.jobs.survey import highest_of
from peeklock.spark.options import SubQueue
from peeklock.worker.job_driver import JobDriver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(slots=True)
class Outcome:
    """Counts of the chosen dead letters."""

    sent: int = 0
    unsettled: int = 0
    """Sent, but their locks were lost: they are still dead letters."""
    missing: int = 0
    """Not received: others hold them or have settled them."""


def resubmit(
    connection: BlockingConnection,
    entity: str,
    target: str,
    wanted: Collection[int],
    *,
    keep_ids: bool,
    tell: Callable[[int], None],
) -> Outcome:
    """Send the dead letters with the sequence numbers `wanted` again.

    Args:
        entity: the owner of the dead-letter queue.
        target: a queue or topic.
        tell: called with the number of messages sent so far.

    Raises:
        ServiceBusError: refused, or the connection broke; messages not completed are still dead letters.
    """
    plan = Plan(
        work="resubmit",
        namespace=connection.host,
        source=entity + SubQueue.DEAD_LETTER.value,
        target_namespace=connection.host,
        target=target,
        numbers=frozenset(wanted),
        has_new_ids=not keep_ids,
    )
    driver = JobDriver(plan, connection, connection, tell=tell)
    highest = highest_of(wanted)
    is_one_partition = not any(highest)  # a transaction is of one
    driver.plan = plan = replace(plan, by_transactions=is_one_partition and driver.has_transactions())
    job = Job(Checkpoint(plan, highest), due=len(wanted), sessions=None)
    driver.run(job)
    return Outcome(job.done + job.unsettled, job.unsettled, job.left - job.unsettled)


def default_target(entity: str) -> str:
    """Return the entity, or the topic of a subscription."""
    return re.split("/subscriptions/", entity, flags=re.IGNORECASE)[0]


def choose(
    dead_letters: DataFrame, reasons: tuple[str, ...], where: str | None, limit: int | None
) -> DataFrame:
    """Return the messages of a dead-letter queue that fit the options."""
    from peeklock.pipeline.running import rows_where

    chosen = dead_letters
    if reasons:
        chosen = chosen.where(chosen.deadLetterReason.isin(*reasons))
    chosen = rows_where(chosen, where)
    return chosen if limit is None else chosen.orderBy("sequenceNumber").limit(limit)
