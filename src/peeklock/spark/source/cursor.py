"""Mode cursor as a stream: claims of messages as offsets.

Theory of operation. The offset of an entity is the number of the last claim of a batch. `latestOffset`
claims, and `read` fetches the claimed messages, which never change, so a batch can be read again after any
crash. Claims that no offset names, because a crash came in between, are found in the cursor and come first.

Each offset names the reader: the cursor, and the owner that `initialOffset` makes up. The broker refuses
others as soon as the owner has read, and `partitions` does so: the offset is in the log then. Before that a
crash may lose the name, so the broker lets the next reader have the cursor.

`commit` runs when Spark has logged the next batch; it requests the removal of the batch's messages, and the
next call waits for the answer. When the stream is idle, the offset advances once without a claim: the batch
without rows makes Spark commit the last one. Source: Spark 4.3,
pyspark/sql/streaming/python_streaming_source_runner.py; order of calls as traced.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from peeklock.client.browsing import sequence_number
from peeklock.client.claims import (
    CLAIM_BYTES_MAX,
    CLAIM_COUNT_MAX,
    CLAIMS_MAX,
    Claim,
    Cursor,
    Lag,
    Slice,
    divide,
    fetch,
)
from peeklock.client.connection import connection, wall_ms
from peeklock.client.errors import ServiceBusError
from peeklock.client.management import Ticket
from peeklock.spark.options import Options
from peeklock.spark.source.offsets import (
    IDLE_S,
    PAUSE_S,
    Budget,
    CursorOffset,
    DataLoss,
    Json,
    Origin,
    Position,
    Rate,
    ReaderName,
)
from peeklock.spark.source.reader_names import new_reader, require_name
from peeklock.spark.source.rows import record_batches
from peeklock.spark.source.schema import chosen_schema
from peeklock.spark.source.tasks import Share, shares, tasks_for
from peeklock.spark.versions import HANDS_START_IN, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

_log: Final = logging.getLogger("peeklock.spark")

MESSAGES_PER_TRIGGER: Final = 200_000
"""Default of maxMessagesPerTrigger. Our choice: some seconds of work, large against the overhead of a batch
(0.3 s), small enough to read again after a crash."""

BYTES_PER_TRIGGER: Final = 256 << 20
"""Default of maxBytesPerTrigger: 200,000 messages of 1 KiB."""

UNLIMITED: Final = 1 << 62
"""The budget if Spark requests all that is available."""

REPORT_S: Final = 1.0
"""Time between two looks at the backlog."""

REPORT_WAIT_S: Final = 1.0
"""How long to wait for the answer to one: a report is not worth a late batch."""

EXPIRES_AFTER_MS: Final = 7 * 24 * 3600 * 1000
UNLOGGED_EXPIRES_AFTER_MS: Final = 10 * 60 * 1000
"""How long after its last use a cursor is forgotten whose name the query made: as the broker's default; but
before Spark has logged the name, after a time that no query needs from its claim to its log."""

CLAIMS_UNDER_WAY: Final = 8
"""Concurrent claim requests for one entity, once it has filled one. Our choice."""


@dataclass(frozen=True)
class CursorPartition(InputPartition):
    """Messages that one task reads."""

    reader: ReaderName
    slices: tuple[Slice, ...]
    share: Share | None = None
    """Which of the messages; None = all."""


class CursorStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream of claims; see the module. Pickled for the workers, so it connects on first use."""

    def __init__(self, options: Options, schema: StructType) -> None:
        require_name(options.consumer_name, hands_start_in=HANDS_START_IN)
        self._options = options
        self._schema = chosen_schema(schema)
        self._origin = Origin(options.mode.value, options.settings.host, options.consumer_name)
        self._minted: ReaderName | None = None
        """A new reader, for a query without a checkpoint or with one of an older release."""
        self._reader: ReaderName | None = None
        """Whose the cursors are."""
        self._is_confirmed = False
        """The broker knows that the reader reads."""
        self._rate = Rate(options.messages_per_second)
        self._reported: Json | None = None
        self._reported_at = -math.inf
        self._cursors: dict[str, Cursor] = {}
        """By path in lower case, as in offsets."""
        self._lives: dict[str, int] = {}
        """By path: the life of a cursor that was lost and created again."""
        self._stops_at_end = False
        self._up_to_ms: int | None = None
        self._turn = 0
        self._busy_at = 0.0
        self._advanced: Mapping[str, Position] | None = None

    # What Spark asks, in the driver

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the limit of messages; the reader applies the limit of bytes."""
        return ReadMaxRows(self._options.messages_max or MESSAGES_PER_TRIGGER)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Stop at the messages of now, by the broker's clock."""
        self._stops_at_end = True
        self._up_to_ms = max(cursor.now_ms for cursor in self._looked_at().values()) or None

    def initialOffset(self) -> Json:  # noqa: N802  # Spark's name
        """Return the committed claims: messages that another checkpoint left claimed come again."""
        positions = {path: Position(cursor.committed) for path, cursor in self._looked_at().items()}
        return CursorOffset(self._new_reader(), positions).to_json(self._origin)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802  # Spark's name
        """Claim messages for the next batch and return its end.

        Raises:
            CheckpointMismatch: the checkpoint is of another stream.
            DataLoss: messages after the checkpoint's offset are gone.
            ServiceBusError: the broker refused, as for the cursor of another query; or it was unreachable for
                longer than option operationTimeout.
        """
        offset = self._parse(start)
        reader = offset.reader
        if reader.owner is None:
            reader = ReaderName(reader.cursor, self._new_reader().owner)
        for cursor in self._opened(reader).values():
            cursor.finish_commit()
        positions = self._positions(offset)
        ends = {path: position.claim for path, position in positions.items()}
        budget = self._budget(limit)
        if budget.count > 0:
            self._take_found(ends, budget)
            self._take_new(ends, budget)
        if budget.taken:
            self._rate.take(budget.taken)
            self._busy_at = time.monotonic()
            moved = {path: Position(ends[path], position.life) for path, position in positions.items()}
            return CursorOffset(reader, moved, offset.idle).to_json(self._origin)
        moved_on = any(
            positions[path] != offset.positions[path] for path in offset.positions if path in positions
        )
        if moved_on or self._must_settle(positions):
            self._advanced = positions
            return CursorOffset(reader, positions, offset.idle + 1).to_json(self._origin)
        if not self._stops_at_end:
            time.sleep(PAUSE_S)
        return start

    def resumed_offset(self) -> Json:
        """Return the end of the claims that are there, and of new ones. Raises: as `latestOffset`.

        No claim before it may be left out: the checkpoint, which is not known, may name the last one.
        """
        reader = self._new_reader()
        ends = {path: cursor.last for path, cursor in self._opened(reader).items()}
        self._take_new(ends, self._budget(self.getDefaultReadLimit()))
        self._busy_at = time.monotonic()
        positions = {path: Position(no) for path, no in ends.items()}
        return CursorOffset(reader, positions, wall_ms()).to_json(self._origin)

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Divide the claims of a batch among tasks.

        Raises:
            CheckpointMismatch: the checkpoint is of another stream.
            DataLoss: claims of the batch are gone.
        """
        first, last = self._parse(start), self._parse(end)
        cursors = self._opened(last.reader)
        claims: list[tuple[str, Claim]] = []
        for path, stop in last.positions.items():
            cursor = cursors.get(path)
            if cursor is None:
                continue
            begin = first.positions.get(path, Position(cursor.committed, stop.life))
            if begin.life == stop.life and begin.claim > stop.claim:  # after `resumed_offset`
                self._lost(cursor, begin, f"the claims of the checkpoint; the last claim is {cursor.last}")
                begin = Position(0, stop.life)
            elif begin.life != stop.life:
                begin = Position(0, stop.life)
            elif cursor.has_undone(begin.claim):  # after `resumed_offset`
                self._lost(cursor, begin, "the claims of the checkpoint")
            elif lost := cursor.lacks(begin.claim, stop.claim):
                at = stop if cursor.has_undone(stop.claim) else begin
                self._lost(cursor, at, f"claims {lost[0]} to {lost[-1]} of its next batch")
            claims += (
                (cursor.path, claim) for no, claim in cursor.claims.items() if begin.claim < no <= stop.claim
            )
        self._confirm()
        count, size_bytes = sum(each.count for _, each in claims), sum(each.size_bytes for _, each in claims)
        tasks = tasks_for(self._options, count, size_bytes)
        parts = divide(claims, tasks if self._options.partition_by is None else 1)
        return [
            CursorPartition(last.reader, tuple(slices), share)
            for slices in parts
            for share in shares(self._options, tasks)
        ]

    def commit(self, end: Json) -> None:
        """Request the removal of the messages claimed up to an offset. Raises: ServiceBusError."""
        offset = self._parse(end)
        cursors = self._cursors or self._opened(offset.reader)
        for path, position in offset.positions.items():
            cursor = cursors.get(path)
            if cursor is None or cursor.has_undone(position.claim):
                continue
            if position.life == self._lives.get(path, position.life):
                cursor.start_commit(position.claim)

    def reportLatestOffset(self) -> Json | None:  # noqa: N802  # Spark's name
        """Return how far each entity is behind, at most a second old: `latestOffset` in the query's progress.

        None before the first batch, and while the broker does not answer.
        """
        if not self._cursors or time.monotonic() - self._reported_at < REPORT_S:
            return self._reported
        self._reported_at = time.monotonic()
        try:
            for cursor in self._cursors.values():
                cursor.look_at_lag(REPORT_WAIT_S)
        except ServiceBusError as error:
            _log.info("the backlog is not known: %s", error)
            self._reported = None
        else:
            self._reported = report_of(self._cursors)
        return self._reported

    # What Spark asks, in a worker

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Return the messages of a partition, the same in each attempt.

        Raises:
            DataLoss: some are gone.
            ServiceBusError: their claim is gone, or the broker refused.
        """
        assert isinstance(partition, CursorPartition)
        parts = self._fetched(partition)
        if partition.share is not None:
            parts = in_sequence(parts, partition.share)
        return record_batches(parts, self._schema, include_body=self._options.include_body)

    # Internal

    def _fetched(self, partition: CursorPartition) -> Iterator[tuple[str, list[bytes]]]:
        """Yield the messages of a partition's claims in their order, with their entity."""
        reader, options = partition.reader, self._options
        connected = connection(options.settings)
        for part, payloads in fetch(
            connected, reader.cursor, reader.owner, partition.slices, options.fetch_size
        ):
            if len(payloads) < part.count:
                gone = f"{part.count - len(payloads)} messages of claim {part.no} from the {part.skip}th on"
                self._report_loss(part.path, gone, "they were removed from the entity")
            yield part.path, payloads

    def _new_reader(self) -> ReaderName:
        """Return the reader that this query is if its checkpoint names none; always the same."""
        if self._minted is None:
            self._minted = new_reader(self._options.consumer_name, hands_start_in=HANDS_START_IN)
        return self._minted

    def _looked_at(self) -> dict[str, Cursor]:
        """Return the cursors as they are now, whoever owns them."""
        return self._found(self._new_reader(), lambda cursor: cursor.start_look())

    def _opened(self, reader: ReaderName) -> dict[str, Cursor]:
        """Return the cursors; the first call for a reader takes them, and reads their earlier claims."""
        if reader != self._reader:
            take_over = self._options.take_over
            expires_after_ms = None
            if self._options.consumer_name is None:
                # Nobody knows the name before it is logged.
                expires_after_ms = UNLOGGED_EXPIRES_AFTER_MS if reader == self._minted else EXPIRES_AFTER_MS
            self._cursors = self._found(
                reader,
                lambda cursor: (
                    cursor.start_take(take_over=take_over, expires_after_ms=expires_after_ms)
                    if reader.owner is not None
                    else cursor.start_look()
                ),
            )
            self._reader = reader
            self._is_confirmed = reader.owner is None
        return self._cursors

    def _found(self, reader: ReaderName, ask: Callable[[Cursor], Ticket]) -> dict[str, Cursor]:
        connected = connection(self._options.settings)
        cursors = [Cursor(connected, path, reader.cursor, reader.owner) for path in self._options.entities]
        for cursor, ticket in [(cursor, ask(cursor)) for cursor in cursors]:
            cursor.finish_look(ticket)
        return {cursor.path.lower(): cursor for cursor in cursors}

    def _confirm(self) -> None:
        """Tell the broker that the reader reads: its name is in the log."""
        if self._is_confirmed:
            return
        if self._options.consumer_name is None:
            for cursor, ticket in [
                (cursor, cursor.start_take(expires_after_ms=EXPIRES_AFTER_MS))
                for cursor in self._cursors.values()
            ]:
                cursor.finish_confirm(ticket)
        for cursor, ticket in [(cursor, cursor.start_confirm()) for cursor in self._cursors.values()]:
            cursor.finish_confirm(ticket)
        self._is_confirmed = True

    def _parse(self, offset: Json) -> CursorOffset:
        options = self._options
        return CursorOffset.parse(offset, self._origin, options.entities, strict=options.fail_on_data_loss)

    def _positions(self, offset: CursorOffset) -> dict[str, Position]:
        """Return where each entity continues: at the offset, else at the committed claim."""
        positions: dict[str, Position] = {}
        for path, cursor in self._cursors.items():
            position = offset.positions.get(path, Position(cursor.committed))
            if cursor.undone is not None and cursor.has_undone(position.claim):
                self._lost(cursor, position, "the claims of the checkpoint")
                position = Position(cursor.undone[1] + 1, position.life)
            elif position.claim > cursor.last:
                self._lost(cursor, position, f"the claims of the checkpoint; the last claim is {cursor.last}")
                position = Position(cursor.committed, position.life + 1)
                self._lives[path] = position.life
            elif position.claim < cursor.committed:
                self._lost(cursor, position, f"claims {position.claim + 1} to {cursor.committed}")
                position = Position(cursor.committed, position.life)
            positions[path] = position
        return positions

    def _lost(self, cursor: Cursor, position: Position, what: str) -> None:
        why = (
            f"the broker has cursor '{cursor.name}' at claim {cursor.last}, committed {cursor.committed}: "
            f"the cursor was released or has expired, the entity was created again, the broker was restored "
            f"from a back-up without the cursor, or the checkpoint is older than the last commit"
        )
        if cursor.undone is not None and cursor.has_undone(position.claim):
            why = (
                f"the broker was restored from a back-up that ends with claim {cursor.undone[0] - 1} of "
                f"cursor '{cursor.name}'. What the query has read since then comes again"
            )
        self._report_loss(cursor.path, what, f"the checkpoint is at claim {position.claim}, and {why}")

    def _report_loss(self, path: str, what: str, why: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"Entity '{path}' no longer has {what}: {why}. Set option checkpointLocation to a new folder "
                f"to begin with what is there, or option failOnDataLoss=false to continue without."
            )
        _log.warning("skipped in entity '%s': %s: %s (failOnDataLoss=false)", path, what, why)

    def _budget(self, limit: ReadLimit) -> Budget:
        """Return what the batch may take; with AvailableNow, wait until the rate allows a message."""
        allowed = self._rate.allows(time.monotonic())
        while allowed == 0 and self._stops_at_end:
            time.sleep(PAUSE_S)
            allowed = self._rate.allows(time.monotonic())
        count, size_bytes = UNLIMITED, UNLIMITED
        if isinstance(limit, ReadMaxRows):
            count, size_bytes = limit.max_rows, self._options.bytes_max or BYTES_PER_TRIGGER
        return Budget(count if allowed is None else min(count, allowed), size_bytes)

    def _take_found(self, ends: dict[str, int], budget: Budget) -> None:
        """Take claims that no offset names yet, from each entity in turn."""
        found = {
            path: deque(claim for no, claim in cursor.claims.items() if no > ends[path])
            for path, cursor in self._cursors.items()
        }
        while any(found.values()):
            for path, claims in found.items():
                if claims and not budget.fits(claims[0].count, claims[0].size_bytes):
                    return
                if claims:
                    claim = claims.popleft()
                    budget.take(claim.count, claim.size_bytes)
                    ends[path] = claim.no

    def _take_new(self, ends: dict[str, int], budget: Budget) -> None:
        """Claim in rounds; the entities that may have more share the rest of the budget."""
        paths = [*self._cursors]
        self._turn = (self._turn + 1) % len(paths)
        windows = {
            path: 1
            for path in paths[self._turn :] + paths[: self._turn]
            if self._cursors[path].has_all_up_to(ends[path]) and len(self._cursors[path].claims) < CLAIMS_MAX
        }
        while windows and not budget.is_spent:
            asked = [
                (path, self._ask(path, windows[path], budget, len(windows)))
                for path in [*windows][: budget.count]
            ]
            for path, (tickets, count, size_bytes) in asked:
                claims = self._cursors[path].finish_claims(tickets)
                got = sum(claim.count for claim in claims)
                got_bytes = sum(claim.size_bytes for claim in claims)
                budget.take(got, got_bytes)
                ends[path] = self._cursors[path].last
                windows[path] = CLAIMS_UNDER_WAY
                if got < count and got_bytes <= size_bytes // 2:
                    del windows[path]  # it gave less than requested without reaching the bytes: it is empty
                elif len(self._cursors[path].claims) >= CLAIMS_MAX:
                    del windows[path]
                elif got and budget.size_bytes < got_bytes // got:
                    return  # not one more would fit

    def _ask(self, path: str, window: int, budget: Budget, entities: int) -> tuple[list[Ticket], int, int]:
        """Request an entity's share of the budget; return the requests and their maximum result."""
        count = max(1, budget.count // entities)
        size_bytes = max(1, budget.size_bytes // entities)
        requests = min(window, -(-count // CLAIM_COUNT_MAX), max(1, size_bytes // CLAIM_BYTES_MAX))
        tickets: list[Ticket] = []
        count_asked = 0
        each_bytes = min(size_bytes // requests or 1, CLAIM_BYTES_MAX)
        for _ in range(requests):
            wanted = min(CLAIM_COUNT_MAX, count - count_asked)
            tickets.append(self._cursors[path].start_claim(wanted, each_bytes, self._up_to_ms))
            count_asked += wanted
        return tickets, count_asked, requests * each_bytes

    def _must_settle(self, positions: Mapping[str, Position]) -> bool:
        """Return whether a batch without rows is due, which makes Spark commit the last one."""
        if self._advanced == positions:
            return False
        if not self._stops_at_end and time.monotonic() - self._busy_at < IDLE_S:
            return False
        return any(cursor.committed < positions[path].claim for path, cursor in self._cursors.items())


def in_sequence(parts: Iterable[tuple[str, list[bytes]]], share: Share) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the messages of a share, of each entity in the order of sequence numbers.

    A later claim may have a message that was abandoned before, below those of an earlier one.
    """
    kept: dict[str, list[bytes]] = {}
    for path, payloads in parts:
        kept.setdefault(path, []).extend(payload for payload in payloads if share.has(payload))
    for path, payloads in kept.items():
        payloads.sort(key=sequence_number)
        for start in range(0, len(payloads), CLAIM_COUNT_MAX):
            yield path, payloads[start : start + CLAIM_COUNT_MAX]


def report_of(cursors: Mapping[str, Cursor]) -> Json:
    """Return the backlog of each entity, and the age of its oldest message; null where there is none."""
    report: Json = {}
    for path, cursor in cursors.items():
        lag = cursor.lag or Lag(0, None)
        age_s = None if lag.oldest_ms is None else round(max(0, lag.oldest_ms) / 1000, 3)
        report[path] = {"claim": cursor.last, "backlog": lag.backlog, "oldestAgeSeconds": age_s}
    return report
