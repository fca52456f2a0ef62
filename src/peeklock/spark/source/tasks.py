"""How a read is divided into tasks: by its size, or by the keys of its messages.

The number of tasks depends on the messages and the options alone, never on a machine: a batch that is asked
for again, on another machine or cluster, has the same tasks, so the sink makes the same message ids. Spark
does not tell the process that plans how many cores its cluster has; the cluster runs as many tasks at a time
as it has cores.

Option partitionBy: the key of a message decides which task reads it. Brokers cannot select by key, so each
task reads all messages of the batch and keeps its share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from peeklock.client.browsing import sequence_number
from peeklock.spark.options import Key, Mode, Options
from peeklock.spark.source.rows import key_of

TASK_MESSAGES: Final = {Mode.CURSOR: 25_000, Mode.PEEK_LOCK: 1000, Mode.BROWSE: 25_000}
"""Messages of a task. Our choice: a full batch of mode cursor makes 8 tasks, which 2, 4 or 8 cores share
evenly (each opens a connection: 32 tasks take half as much CPU again in Spark); one of mode peekLock makes 2
to 10; a task of mode browse reads for a quarter of a second. With other numbers, batches that are in a
checkpoint get other tasks."""

TASK_BYTES: Final = 32 << 20
"""Bytes of a task's messages, where they are known. Our choice: 8 tasks in 256 MiB, as above."""

TASKS_MAX: Final = 200
"""Our choice: as many as Spark makes by default of a shuffle."""

SHARES_MAX: Final = 4
"""Tasks with option partitionBy. Our choice: each reads all messages, so more tasks load the broker more."""


@dataclass(frozen=True, slots=True)
class Share:
    """The messages of one task by their keys."""

    no: int
    of: int
    by: Key

    def has(self, message: bytes) -> bool:
        """Return whether this task keeps an encoded message. Without a key, its sequence number decides.

        Raises: DecodeError.
        """
        key = key_of(message, self.by)
        if key is None:
            return sequence_number(message) % self.of == self.no
        # Session ids that differ in case alone are one session (C27).
        return crc32(key.upper().encode(errors="surrogatepass")) % self.of == self.no


def tasks_for(options: Options, messages: int, size_bytes: int = 0) -> int:
    """Return how many tasks a read is divided into, at least 1."""
    if options.partitions_min is not None:
        return options.partitions_min
    tasks = max(1, -(-messages // TASK_MESSAGES[options.mode]), -(-size_bytes // TASK_BYTES))
    return min(tasks, TASKS_MAX if options.partition_by is None else SHARES_MAX)


def apportioned(tasks: int, sizes: Sequence[int]) -> list[int]:
    """Return how many of the tasks each of some reads gets, at least 1."""
    total = max(1, sum(sizes))
    return [max(1, round(tasks * size / total)) for size in sizes]


def shares(options: Options, tasks: int) -> list[Share | None]:
    """Return the share of each task that reads the same messages; one task without option partitionBy."""
    by = options.partition_by
    return [None] if by is None else [Share(no, tasks, by) for no in range(tasks)]
