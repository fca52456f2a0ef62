"""The stream of cursor mode: claims of messages as offsets.

Owns: what Spark asks of a stream in cursor mode, which claims a batch has, when a batch is settled, what is
said when claims and checkpoint do not fit. Must not know: requests on the wire (`claims`), rows (`rows`).

Theory of operation. The offset of an entity is the number of the last claim that a batch has.
`latestOffset` claims, and `read` fetches what was claimed, which never changes, so a batch can be read again
after any crash. Claims that no offset knows of, since a crash came in between, are found in the cursor and
come first. `commit` removes a batch's messages when Spark has logged the next batch; it only asks for that,
and the next call waits for the answer. When nothing comes any more, the offset is advanced once without a
claim: the batch without rows makes Spark commit the last one.
Source: Spark 4.3, pyspark/sql/streaming/python_streaming_source_runner.py; order of calls as traced.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from peeklock.client.claims import (
    CLAIM_BYTES_MAX,
    CLAIM_COUNT_MAX,
    CLAIMS_MAX,
    Claim,
    Cursor,
    Slice,
    divide,
    fetch,
)
from peeklock.client.connection import connection
from peeklock.client.management import Ticket
from peeklock.spark.options import Options
from peeklock.spark.source.offsets import Budget, CursorOffset, DataLoss, Json, Origin, Position
from peeklock.spark.source.rows import record_batch
from peeklock.spark.source.schema import chosen_schema

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

_log: Final = logging.getLogger("peeklock.spark")

MESSAGES_PER_TRIGGER: Final = 50_000
"""Default of maxMessagesPerTrigger. Our choice: some seconds of work, so that a batch's own cost (0.3 s) is
small beside it, and what a crash makes Spark read again stays bounded."""

BYTES_PER_TRIGGER: Final = 256 << 20
"""Default of maxBytesPerTrigger; five times what 50,000 messages of 1 KiB take."""

UNLIMITED: Final = 1 << 62
"""Where Spark asks for all that is available."""

CLAIMS_UNDER_WAY: Final = 8
"""Requests for claims under way for one entity, once it has filled one. Our choice."""

IDLE_S: Final = 1.0
"""How long nothing must have come before a batch without rows settles the last one. Our choice: under steady
traffic no such batch is ever made."""

PAUSE_S: Final = 0.05
"""The pause between two looks when nothing is there. Our choice: Spark waits 10 ms."""

PARTITION_ROWS: Final = 1000
"""A task for fewer messages costs more than it saves. Our choice; option minPartitions goes before."""


@dataclass(frozen=True)
class CursorPartition(InputPartition):
    """What one task reads."""

    slices: tuple[Slice, ...]


class CursorStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Do nothing yet: Spark pickles the reader for the workers."""
        self._options = options
        self._schema = chosen_schema(schema)
        self._origin = Origin(options.mode.value, options.settings.host, options.consumer_name)
        self._cursors: dict[str, Cursor] = {}
        """By path in lower case, as in offsets."""
        self._lives: dict[str, int] = {}
        """By path: the life of a cursor that was found gone and made anew."""
        self._stops_at_end = False
        self._up_to_ms: int | None = None
        self._turn = 0
        self._busy_at = 0.0
        self._advanced: Mapping[str, Position] | None = None

    # What Spark asks, in the driver

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Give the limit that `latestOffset` is called with; that of bytes is the reader's own."""
        return ReadMaxRows(self._options.messages_max or MESSAGES_PER_TRIGGER)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Stop at what is there now, by the broker's clock."""
        self._stops_at_end = True
        self._up_to_ms = max(cursor.now_ms for cursor in self._look().values()) or None

    def initialOffset(self) -> Json:  # noqa: N802  # Spark's name
        """Begin behind what is committed: what another checkpoint left claimed comes again."""
        positions = {path: Position(cursor.committed) for path, cursor in self._look().items()}
        return CursorOffset(positions).to_json(self._origin)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802  # Spark's name
        """Claim what the next batch may have.

        Raises:
            CheckpointMismatch: the checkpoint is of another stream.
            DataLoss: what the checkpoint goes on from is gone.
            CursorShared: another query claims with the same cursor.
            ServiceBusError: the broker refused, or stayed away for longer than option operationTimeout.
        """
        for cursor in self._look().values():
            cursor.finish_commit()
        offset = self._parse(start)
        positions = self._positions(offset)
        ends = {path: position.claim for path, position in positions.items()}
        budget = self._budget(limit)
        self._take_found(ends, budget)
        self._take_new(ends, budget)
        if budget.taken:
            self._busy_at = time.monotonic()
            moved = {path: Position(ends[path], position.life) for path, position in positions.items()}
            return CursorOffset(moved, offset.idle).to_json(self._origin)
        moved_on = any(
            positions[path] != offset.positions[path] for path in offset.positions if path in positions
        )
        if moved_on or self._must_settle(positions):
            self._advanced = positions
            return CursorOffset(positions, offset.idle + 1).to_json(self._origin)
        if not self._stops_at_end:
            time.sleep(PAUSE_S)
        return start

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Divide the claims of a batch among tasks.

        Raises:
            CheckpointMismatch: the checkpoint is of another stream.
            DataLoss: claims of the batch are gone.
        """
        cursors = self._look()
        first, last = self._parse(start), self._parse(end)
        claims: list[tuple[str, Claim]] = []
        for path, stop in last.positions.items():
            cursor = cursors.get(path)
            if cursor is None:
                continue
            begin = first.positions.get(path, Position(cursor.committed, stop.life))
            if begin.life != stop.life:
                begin = Position(0, stop.life)
            elif lost := [no for no in range(begin.claim + 1, stop.claim + 1) if no not in cursor.claims]:
                self._lost(cursor, begin, f"claims {lost[0]} to {lost[-1]} of its next batch")
            claims += (
                (cursor.path, claim) for no, claim in cursor.claims.items() if begin.claim < no <= stop.claim
            )
        total = sum(claim.count for _, claim in claims)
        wanted = self._options.partitions_min or min(os.cpu_count() or 1, -(-total // PARTITION_ROWS))
        return [CursorPartition(tuple(slices)) for slices in divide(claims, wanted)]

    def commit(self, end: Json) -> None:
        """Ask for the removal of what is claimed up to an offset.

        Raises:
            ServiceBusError: the broker refused an earlier commit.
        """
        for path, position in self._parse(end).positions.items():
            cursor = self._look().get(path)
            if cursor is not None and position.life == self._lives.get(path, position.life):
                cursor.start_commit(position.claim)

    # What Spark asks, in a worker

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Give the messages of a partition, the same whenever asked.

        Raises:
            DataLoss: some are gone.
            ServiceBusError: their claim is gone, or the broker refused otherwise.
        """
        assert isinstance(partition, CursorPartition)
        options = self._options
        connected = connection(options.settings)
        for part, payloads in fetch(connected, options.consumer_name, partition.slices, options.fetch_size):
            if len(payloads) < part.count:
                gone = f"{part.count - len(payloads)} messages of claim {part.no} from the {part.skip}th on"
                self._say_lost(part.path, gone, "they were removed from the entity")
            if payloads:
                yield record_batch(payloads, part.path, self._schema, include_body=options.include_body)

    # Inside

    def _look(self) -> dict[str, Cursor]:
        """Give the cursors, with what was claimed before this process began."""
        if not self._cursors:
            options = self._options
            connected = connection(options.settings)
            cursors = [Cursor(connected, path, options.consumer_name) for path in options.entities]
            for cursor, ticket in [(cursor, cursor.start_look()) for cursor in cursors]:
                cursor.finish_look(ticket)
            self._cursors = {cursor.path.lower(): cursor for cursor in cursors}
        return self._cursors

    def _parse(self, offset: Json) -> CursorOffset:
        options = self._options
        return CursorOffset.parse(offset, self._origin, options.entities, strict=options.fail_on_data_loss)

    def _positions(self, offset: CursorOffset) -> dict[str, Position]:
        """Say where each entity goes on; one that the offset does not have, behind what is committed."""
        positions: dict[str, Position] = {}
        for path, cursor in self._look().items():
            position = offset.positions.get(path, Position(cursor.committed))
            if position.claim > cursor.last:
                self._lost(cursor, position, f"what the cursor had claimed; its last claim is {cursor.last}")
                position = Position(cursor.committed, position.life + 1)
                self._lives[path] = position.life
            elif position.claim < cursor.committed:
                self._lost(cursor, position, f"claims {position.claim + 1} to {cursor.committed}")
                position = Position(cursor.committed, position.life)
            positions[path] = position
        return positions

    def _lost(self, cursor: Cursor, position: Position, what: str) -> None:
        self._say_lost(
            cursor.path,
            what,
            f"the checkpoint is at claim {position.claim}, and the broker has cursor '{cursor.name}' at "
            f"claim {cursor.last}, committed {cursor.committed}: the cursor was released or has expired, the "
            f"entity was made anew, or the checkpoint is older than what was committed",
        )

    def _say_lost(self, path: str, what: str, why: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"Entity '{path}' does not have any more {what}: {why}. Use option checkpointLocation with a "
                f"new folder to begin with what is there, or option failOnDataLoss=false to go on without."
            )
        _log.warning("skipped in entity '%s': %s: %s (failOnDataLoss=false)", path, what, why)

    def _budget(self, limit: ReadLimit) -> Budget:
        if isinstance(limit, ReadMaxRows):
            return Budget(limit.max_rows, self._options.bytes_max or BYTES_PER_TRIGGER)
        return Budget(UNLIMITED, UNLIMITED)

    def _take_found(self, ends: dict[str, int], budget: Budget) -> None:
        """Take claims that no offset knows of yet, from each entity in turn."""
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
        """Claim in rounds: what is left is shared among the entities that may have more."""
        paths = [*self._cursors]
        self._turn = (self._turn + 1) % len(paths)
        windows = {
            path: 1
            for path in paths[self._turn :] + paths[: self._turn]
            if ends[path] == self._cursors[path].last and len(self._cursors[path].claims) < CLAIMS_MAX
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
                    del windows[path]  # less than asked for, and room for more: nothing else is there now
                elif len(self._cursors[path].claims) >= CLAIMS_MAX:
                    del windows[path]
                elif got and budget.size_bytes < got_bytes // got:
                    return  # not one more would fit

    def _ask(self, path: str, window: int, budget: Budget, entities: int) -> tuple[list[Ticket], int, int]:
        """Ask for an entity's share of what is left; give the requests, and how much they may bring."""
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
        """Say whether it is time for a batch without rows, so that Spark commits the last one."""
        if self._advanced == positions:
            return False
        if not self._stops_at_end and time.monotonic() - self._busy_at < IDLE_S:
            return False
        return any(cursor.committed < positions[path].claim for path, cursor in self._cursors.items())
