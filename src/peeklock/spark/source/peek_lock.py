"""Mode peekLock as a stream: deferred messages as offsets, on any Service Bus.

Theory of operation. `latestOffset` receives messages, and the offset holds their sequence numbers.
`partitions` runs when Spark has logged the offset, and defers them: every deferred message is in a
checkpoint. A deferred message stays until a client requests its number. Tasks peek at the numbers, as often
as they like; `commit` receives and deletes them. After a crash a batch has those of its numbers that are
deferred: the others were never read, their locks lapse, and they come in a later batch. A message that its
deferral dead-lettered is in no batch: a peek before the tasks shows which are there.

Spark commits a batch once, when it has logged the next one. A crash in between would leave the messages
deferred, so an offset also names the messages of the batch before; a start from there removes them.

In an entity with sessions nothing is deferred: others would receive the later messages of a session first.
The sessions are held and their locks renewed until `commit` completes the messages. After a crash the broker
delivers them again, so there a message can come twice. Source: Spark 4.3 as traced: latestOffset, offset log,
commit of the batch before, partitions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from peeklock.client.connection import connection, wall_ms
from peeklock.client.links import COMPLETE, DEFER, RELEASE
from peeklock.spark.options import Options
from peeklock.spark.source.browse import PARTITION_SHIFT, Browser
from peeklock.spark.source.deferred import Entity, Taken
from peeklock.spark.source.offsets import (
    IDLE_S,
    PAUSE_S,
    Budget,
    Json,
    Origin,
    PeekLockOffset,
    Ranges,
    numbers_of,
    to_ranges,
    without,
)
from peeklock.spark.source.rows import record_batches
from peeklock.spark.source.schema import chosen_schema
from peeklock.spark.source.tasks import Share, apportioned, shares, tasks_for
from peeklock.spark.versions import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

_log: Final = logging.getLogger("peeklock.spark")

MESSAGES_PER_TRIGGER: Final = 2_000
"""Default of maxMessagesPerTrigger. Our choice: the offset names each message that has no neighbour."""

MESSAGES_MAX: Final = 10_000
"""Maximum messages of a batch, whatever the options say: its offset has some 100 KiB then."""

BYTES_PER_TRIGGER: Final = 64 << 20
"""Default of maxBytesPerTrigger. Messages are locked until they are deferred, so it must not take long."""

LATE_S: Final = 1.0
"""Time after a broken connection in which its last frames may still reach the broker."""


@dataclass(frozen=True)
class PeekLockPartition(InputPartition):
    """Messages of one entity that one task reads."""

    path: str
    ranges: tuple[tuple[int, int], ...]
    share: Share | None = None
    """Which of the messages; None = all."""


class PeekLockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream of deferred messages; see the module. Pickled for the workers, so it connects on first use."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = chosen_schema(schema)
        self._origin = Origin(options.mode.value, options.settings.host)
        self._entities: dict[str, Entity] = {}
        """By path in lower case, as in offsets."""
        self._held: dict[int, dict[str, list[Taken]]] = {}
        """By batch and path: messages received and neither deferred nor completed."""
        self._rows: dict[int, dict[str, Ranges]] = {}
        """By batch and path: the numbers that its tasks read."""
        self._exceeded: dict[str, int] = {}
        """By path: messages that their deferral dead-lettered."""
        self._latest = PeekLockOffset()
        self._settled = -1
        """The last batch that was settled here."""
        self._stops_at: dict[str, dict[int, int]] | None = None
        """With AvailableNow, by path and partition: the highest number when the query started."""
        self._ended: set[str] = set()
        self._turn = 0
        self._busy_at = 0.0

    # What Spark asks, in the driver

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the limit of messages; the reader applies the limit of bytes."""
        return ReadMaxRows(min(self._options.messages_max or MESSAGES_PER_TRIGGER, MESSAGES_MAX))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Stop at the highest sequence numbers of now."""
        self._stops_at = {}
        for path, entity in self._opened().items():
            browser = Browser(self._options, entity.path)
            firsts = browser.firsts()
            self._stops_at[path] = {at: browser.last(first).number for at, first in firsts.items()}

    def initialOffset(self) -> Json:  # noqa: N802  # Spark's name
        """Return an offset without messages."""
        return PeekLockOffset().to_json(self._origin)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802  # Spark's name
        """Receive messages for the next batch and return its end.

        Raises:
            CheckpointMismatch: the checkpoint is of another stream.
            ServiceBusError: the broker refused, or was unreachable for longer than option operationTimeout.
        """
        offset = self._parse(start)
        if self._settled < 0:
            self._settled = 0
            self._remove(offset.settle, 0)
        taken = self._receive(limit)
        batch = offset.batch + 1
        before = self._rows.get(offset.batch, offset.read) if self._settled < offset.batch else {}
        if taken:
            return self._batch_of(batch, taken, before).to_json(self._origin)
        if before and (self._stops_at is not None or time.monotonic() - self._busy_at >= IDLE_S):
            self._latest = PeekLockOffset(batch, {}, before)
            return self._latest.to_json(self._origin)
        if self._stops_at is None:
            time.sleep(PAUSE_S)
        return start

    def resumed_offset(self) -> Json:
        """Receive messages for the next batch, after one that the checkpoint alone names; return its end.

        Its number is later than all before. Raises: ServiceBusError.
        """
        self._settled = 0
        taken = self._receive(self.getDefaultReadLimit())
        return self._batch_of(wall_ms(), taken, {}).to_json(self._origin)

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Defer a batch's messages and divide them among tasks.

        Raises:
            CheckpointMismatch: the checkpoint is of another stream.
            ServiceBusError: the broker refused.
        """
        self._parse(start)
        offset = self._parse(end)
        if offset.batch not in self._rows:
            self._rows = {no: rows for no, rows in self._rows.items() if no >= offset.batch - 1}
            kept = {path: self._keep(path, ranges, offset.batch) for path, ranges in offset.read.items()}
            self._rows[offset.batch] = {path: ranges for path, ranges in kept.items() if ranges}
        return [*self._divide(self._rows[offset.batch], offset.size_bytes)]

    def commit(self, end: Json) -> None:
        """Remove the messages of the batch that ends at `end`; complete them in entities with sessions.

        Raises: ServiceBusError.
        """
        offset = self._parse(end)
        rows = self._rows.get(offset.batch, offset.read)
        count = sum(len(numbers_of(ranges)) for ranges in offset.read.values())
        self._remove(without(rows, self._latest.read), offset.size_bytes // max(1, count))
        if offset.batch not in self._rows:  # of an earlier process, which may not have removed these
            self._remove(offset.settle, 0)
        for path, taken in self._held.pop(offset.batch, {}).items():
            entity = self._opened()[path]
            if entity.has_sessions():
                if not entity.settle(taken, COMPLETE):
                    _log.warning(
                        "entity '%s': locks of batch %d were lost before it was done; messages come again",
                        entity.path,
                        offset.batch,
                    )
                later = [each.receiver for held in self._held.values() for each in held.get(path, ())]
                entity.close_sessions(later)
        self._settled = max(self._settled, offset.batch)

    # What Spark asks, in a worker

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Return the messages of a partition, the same in each attempt. Raises: ServiceBusError."""
        assert isinstance(partition, PeekLockPartition)
        options = self._options
        entity = Entity(connection(options.settings), partition.path)
        share = partition.share
        found = entity.peek([*partition.ranges], options.fetch_size)
        answers = (
            (entity.path, [payload for _, payload in part if share is None or share.has(payload)])
            for part in found
        )
        return record_batches(answers, self._schema, include_body=options.include_body)

    # Internal

    def _opened(self) -> dict[str, Entity]:
        if not self._entities:
            connected = connection(self._options.settings)
            self._entities = {path.lower(): Entity(connected, path) for path in self._options.entities}
        return self._entities

    def _parse(self, offset: Json) -> PeekLockOffset:
        options = self._options
        return PeekLockOffset.parse(offset, self._origin, options.entities, strict=options.fail_on_data_loss)

    def _receive(self, limit: ReadLimit) -> dict[str, list[Taken]]:
        """Receive from each entity in turn its share of the budget."""
        count = limit.max_rows if isinstance(limit, ReadMaxRows) else MESSAGES_MAX
        budget = Budget(min(count, MESSAGES_MAX), self._options.bytes_max or BYTES_PER_TRIGGER)
        paths = [*self._opened()]
        self._turn = (self._turn + 1) % len(paths)
        waiting = [path for path in paths[self._turn :] + paths[: self._turn] if path not in self._ended]
        taken: dict[str, list[Taken]] = {}
        while waiting and not budget.is_spent:
            path = waiting.pop(0)
            share = max(1, budget.count // (len(waiting) + 1))
            share_bytes = max(1, budget.size_bytes // (len(waiting) + 1))
            found = self._until_end(path, self._entities[path].receive(share, share_bytes))
            budget.take(len(found), sum(each.size_bytes for each in found))
            if found:
                taken[path] = found
        return taken

    def _batch_of(
        self, batch: int, taken: dict[str, list[Taken]], before: Mapping[str, Ranges]
    ) -> PeekLockOffset:
        """Hold the messages of a batch until it is logged; return its end."""
        self._busy_at = time.monotonic()
        self._held = {no: held for no, held in self._held.items() if no >= batch - 1}
        self._held[batch] = taken
        read = {path: to_ranges(each.number for each in held) for path, held in taken.items()}
        size_bytes = sum(each.size_bytes for held in taken.values() for each in held)
        self._latest = PeekLockOffset(batch, read, without(before, read), size_bytes)
        return self._latest

    def _until_end(self, path: str, taken: list[Taken]) -> list[Taken]:
        """With AvailableNow, release messages that came after the start of the query; return the others."""
        if self._stops_at is None:
            return taken
        stops = self._stops_at[path]
        ours: list[Taken] = []
        newer: list[Taken] = []
        for each in taken:
            there = each.number <= stops.get(each.number >> PARTITION_SHIFT, -1)
            (ours if there else newer).append(each)
        if newer:
            self._entities[path].settle(newer, RELEASE)
        if newer or not taken:
            self._ended.add(path)
        return ours

    def _keep(self, path: str, ranges: Ranges, batch: int) -> Ranges:
        """Defer a batch's messages of an entity; return the numbers that stay there for its tasks."""
        entity = self._opened().get(path)
        if entity is None:
            return []
        held = self._held.get(batch, {}).get(path)
        if entity.has_sessions():
            kept = ranges if held is not None else entity.still_there(ranges)
        elif held is not None and entity.settle(held, DEFER):
            self._held[batch].pop(path)
            kept = ranges if entity.none_exceeded(held) else entity.still_deferred(ranges)
        else:
            if held is not None:
                time.sleep(LATE_S)
            kept = entity.still_deferred(ranges)
        for lost in without({path: ranges}, {path: kept}).values():
            self._explain(path, lost, batch)
        return kept

    def _explain(self, path: str, lost: Ranges, batch: int) -> None:
        """Log why a batch has fewer messages than its offset."""
        entity = self._entities[path]
        exceeded, attempts_max = (0, 0) if entity.has_sessions() else entity.exceeded(lost)
        if exceeded and path not in self._exceeded:
            _log.warning(
                "entity '%s': MaxDeliveryCount is %d, and mode peekLock defers messages, which counts: %d "
                "messages of batch %d are in the dead-letter queue, not in the stream. Raise "
                "MaxDeliveryCount, or read with mode cursor",
                entity.path,
                attempts_max,
                exceeded,
                batch,
            )
        if exceeded:
            total = self._exceeded[path] = self._exceeded.get(path, 0) + exceeded
            text = "entity '%s': %d messages of batch %d are in the dead-letter queue, %d of all batches"
            _log.info(text, entity.path, exceeded, batch, total)
        others = len(numbers_of(lost)) - exceeded
        if others:
            _log.warning(
                "entity '%s': %d messages of batch %d are no longer locked; they are read when they return",
                entity.path,
                others,
                batch,
            )

    def _divide(self, rows: dict[str, Ranges], size_bytes: int) -> Iterator[PeekLockPartition]:
        """Divide numbers into tasks of about equal size, each of one entity."""
        options = self._options
        numbers = {path: numbers_of(ranges) for path, ranges in rows.items()}
        counts = [len(each) for each in numbers.values()]
        tasks = tasks_for(options, sum(counts), size_bytes)
        size = max(1, -(-sum(counts) // tasks))
        for (path, wanted), count in zip(numbers.items(), apportioned(tasks, counts), strict=True):
            if options.partition_by is not None:
                size = len(wanted)
            for at in range(0, len(wanted), size):
                part = tuple(to_ranges(wanted[at : at + size]))
                for share in shares(options, count):
                    yield PeekLockPartition(self._entities[path].path, part, share)

    def _remove(self, ranges: Mapping[str, Ranges], mean_bytes: int) -> None:
        for path, numbers in ranges.items():
            entity = self._opened().get(path)
            if entity is not None and not entity.has_sessions():
                entity.remove(numbers, mean_bytes)
