"""The durable store of one namespace in a PostgreSQL database.

Owns: the commit, and what is done when a commit is in doubt. Must not know: what the facts mean.

A commit is one transaction over blobs that were packed on the event loop, and one round trip (`writing`).
It begins with the fence (`leases`): another process that has taken the store over makes it fail. All calls
to the database run in threads that the stores of a process share, over connections that are lent for one
job.

A connection that is lost during a commit leaves it in doubt. Then the store takes its own lease again: what
was sent before has ended then, nothing can come after it, and what is visible is replicated. The number of
the last batch says whether the commit is durable; if it is not, it is sent again. A store that cannot find
this out in time raises StoreUnknown, and one whose lease is another's StoreDeposed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import psycopg

from peeklock.store.base import (
    Batch,
    Definitions,
    Frame,
    FrameKeys,
    LiveFacts,
    StoreDamaged,
    StoreDeposed,
    StoreError,
    StoreUnknown,
)
from peeklock.store.encoding import body_rows, definitions, event_rows, frames
from peeklock.store.encoding.fold import Chain, Fold
from peeklock.store.encoding.packed import PackedBatch, pack
from peeklock.store.event_backlog import EventBacklog
from peeklock.store.postgres.connections import Unreachable
from peeklock.store.postgres.database import Database
from peeklock.store.postgres.errors import Kind, kind_of, store_error
from peeklock.store.postgres.format import release_entry
from peeklock.store.postgres.leases import Lease, boottime_s
from peeklock.store.postgres.reader import PostgresReader, as_entry
from peeklock.store.postgres.refusals import Db
from peeklock.store.postgres.writing import write
from peeklock.store.worker import Worker

T = TypeVar("T")

LOAD_ROWS = 64
"""Frames asked for at a time: some MB."""

HEAD_ROWS = 16

GIVE_UP_S = 30.0
"""A commit or a read is tried for so long while the database cannot be reached. Our choice: a promotion of a
standby takes some seconds."""

PAUSE_S = 0.2
"""Between two tries."""

FULL_PAUSE_S = 1.0
"""Likewise, while the disk of the database is full: that has no end of its own."""

WAIT_S = 0.25
"""Between two looks at the lease of another process."""


class PostgresStore:
    """See `store.base.Store` for the contract. Call from one event loop."""

    def __init__(
        self, database: Database, name: str, *, on_wait: Callable[[str], None] = lambda owner: None
    ) -> None:
        """Name the store; nothing is touched before `open`.

        `on_wait` is called once with the owner if `open` waits for the lease of another process.
        """
        self._database = database
        self._name = name
        self._on_wait = on_wait
        self._lease: Lease | None = None
        self._writer: Worker | None = None
        self._reader: Worker | None = None
        self._created_at_ms = 0
        self._last_no = 0
        self._last_checksum = 0  # of frame `_last_no`
        self._next_entity_id = 1
        self._failure: StoreError | None = None
        self._is_full = False
        self._writing_pid = 0
        """Process number of the server's backend that has the last commit."""
        self._events = EventBacklog(())

    @property
    def _shown(self) -> str:
        return f"the store '{self._name}' in {self._database.shown}"

    # Opening

    async def open(self) -> None:
        """Take the lease, and wait for it while another process has it; see `Store`."""
        self._writer = Worker(self._database.writers)
        self._reader = Worker(self._database.readers)
        try:
            await self._take_lease(self._writer)
            await self._writer.submit(self._begin)
        except BaseException:
            await self.close()
            raise

    async def _take_lease(self, writer: Worker) -> None:
        waits = False
        while True:
            try:
                taken = await writer.submit(partial(self._database.leases.take, self._name))
            except Unreachable:
                if not waits:
                    raise
                taken = None  # it was there: the primary may be another one soon
            if isinstance(taken, Lease):
                self._lease = taken
                return
            if taken is not None and not waits:
                waits = True
                self._on_wait(taken.owner)
            await asyncio.sleep(WAIT_S if taken is None else min(WAIT_S, max(0.0, taken.left_s)))

    def _begin(self) -> None:
        """Read what the next commit needs."""
        lease = self._held()
        shard = lease.shard
        last = self._rows(
            "SELECT no, substring(meta FROM 1 FOR 5) FROM peeklock.journal WHERE shard = %s "
            "ORDER BY no DESC LIMIT 1",
            shard,
        )
        self._last_no = last[0][0] if last else 0
        self._last_checksum = frames.checksum_of(last[0][1]) if last else 0
        if self._last_no != lease.batch_no:
            raise StoreDamaged(
                f"{self._shown} ends with batch {self._last_no}, and batch {lease.batch_no} was "
                "acknowledged: the database is not what it was, such as a copy of another time. Restore a "
                "back-up"
            )
        self._created_at_ms = self._read_created_at(shard)
        query = "SELECT no, length(data) FROM peeklock.event WHERE shard = %s ORDER BY no"
        self._events = EventBacklog(self._rows(query, shard))

    def _read_created_at(self, shard: int) -> int:
        """Return when the namespace was created, UTC ms: now, if the store is new."""
        created_at, release = definitions.CREATED_AT_KEY, definitions.RELEASE_KEY
        found = {
            key: text
            for key, text, _ in map(
                as_entry,
                self._rows(
                    "SELECT k, v, checksum FROM peeklock.kv WHERE shard = %s AND k = ANY(%s)",
                    shard,
                    [created_at.encode(), release.encode()],
                ),
            )
        }
        if created_at not in found:
            found[created_at] = str(time.time_ns() // 1_000_000)
            for entry in (definitions.entry(created_at, found[created_at]), release_entry()):
                key, text, checksum = entry
                self._rows(
                    "INSERT INTO peeklock.kv VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
                    *(shard, key.encode(), text.encode(), checksum),
                )
        return int(found[created_at]) if found[created_at].isdecimal() else 0

    def _held(self) -> Lease:
        assert self._lease is not None, "the store is not open"
        return self._lease

    # Writing

    def commit(self, batch: Batch) -> asyncio.Future[int]:
        """Make a batch durable; see `Store`."""
        no = batch.no
        assert self._writer is not None, "the store is not open"
        assert no == self._last_no + 1 or not self._last_no, (
            f"batch {no} was offered after batch {self._last_no}"
        )
        self._last_no = no
        packed = pack(batch, self._last_checksum, self._next_entity_id)
        self._last_checksum = packed.checksum
        if packed.entries is not None:
            self._next_entity_id = packed.entries.next_entity_id
        return self._writer.submit(partial(self._write, packed, batch.dropped_bytes))

    def _write(self, packed: PackedBatch, dropped_bytes: int) -> int:
        no = packed.no
        if self._failure is not None:
            raise type(self._failure)(f"batch {no} was not written: {self._failure}")
        # Compressed here: many events are worth the thread.
        event_row = None if packed.events is None else event_rows.seal(no, packed.events)
        try:
            self._write_for_sure(packed, event_row)
        except StoreError as error:
            # Only the database knows what is durable now: rule 3 of the engine.
            self._failure = error
            raise
        if event_row is not None:
            self._events.add(no, len(event_row))
        if packed.exported_to:
            self._events.drop_to(packed.exported_to)
        dropped = sum(last - first + 1 for first, last in packed.dropped)
        if dropped or packed.truncate_before or packed.exported_to:
            self._database.vacuum.dropped(dropped + 1, dropped_bytes)
        return len(packed.meta)

    def _write_for_sure(self, packed: PackedBatch, event_row: bytes | None) -> None:
        """Write a batch, again if it was not written. Raises: StoreError."""
        lease, trying = self._held(), _Trying(self._database, f"write batch {packed.no} of {self._shown}")
        in_doubt = False
        while True:
            try:
                if in_doubt:
                    if self._is_durable(lease, packed.no):
                        return
                    in_doubt = False
                if self._write_once(lease, packed, event_row):
                    self._is_full = False
                    return
                in_doubt = True
            except Unreachable as error:
                trying.again(error, in_doubt=in_doubt)
            except psycopg.Error as error:
                failure = store_error(trying.doing, error)
                kind = kind_of(error)
                if kind is Kind.FULL:
                    self._is_full = True  # sends are refused until there is room: see `free_bytes`
                    self._database.leases.pause(FULL_PAUSE_S)
                elif kind in (Kind.LOST, Kind.AGAIN):
                    in_doubt = in_doubt or kind is Kind.LOST
                    trying.again(failure, in_doubt=in_doubt)
                else:
                    raise failure from error

    def _write_once(self, lease: Lease, packed: PackedBatch, event_row: bytes | None) -> bool:
        """Write a batch; return whether it is durable for sure. Raises: psycopg.Error, StoreError."""
        with self._database.connections.lent() as link:
            self._writing_pid = link.db.info.backend_pid
            sent_s = boottime_s()
            lease.commits = True
            try:
                write(link.db, lease, packed, event_row, self._database.leases.ttl_s)
            finally:
                lease.commits = False
            if link.warnings:  # nobody knows whether it is on the standby
                return False
        lease.renewed(sent_s)
        return True

    def _is_durable(self, lease: Lease, no: int) -> bool:
        """Return whether the batch in doubt is durable. Raises: psycopg.Error, StoreError."""
        last_no = self._database.leases.take_again(lease, self._writing_pid)
        if last_no is None:
            raise StoreDeposed(f"another process owns {self._shown} now")
        if last_no not in (no, no - 1):
            raise StoreUnknown(
                f"{self._shown} ends with batch {last_no}, and batch {no - 1} was acknowledged: a standby "
                "that did not have it was promoted, or the database is a copy of another time"
            )
        return last_no == no

    # Reading

    async def load_definitions(self) -> Definitions:
        query = "SELECT k, v, checksum FROM peeklock.kv WHERE shard = %s ORDER BY k"
        rows = await self._read(lambda: self._rows(query, self._held().shard))
        found = definitions.read_all(map(as_entry, rows))
        self._next_entity_id = found.next_entity_id
        return found

    async def load(self) -> AsyncIterator[Frame]:
        chain = Chain()
        after = -1
        while rows := await self._read(partial(self._frames, after)):
            for no, meta in rows:
                frame = frames.decode(no, meta)
                chain.follow(no, meta)
                yield frame
            after = rows[-1][0]

    async def load_live(self) -> LiveFacts:
        return await self._read(self._fold)

    def _fold(self) -> LiveFacts:
        fold, chain, after = Fold(), Chain(), -1
        while rows := self._frames(after):
            for no, meta in rows:
                fold.add(no, meta)
                chain.follow(no, meta)
            after = rows[-1][0]
        return fold.finish()

    def _frames(self, after: int, count: int = LOAD_ROWS) -> list[tuple[int, bytes]]:
        query = "SELECT no, meta FROM peeklock.journal WHERE shard = %s AND no > %s ORDER BY no LIMIT %s"
        return self._rows(query, self._held().shard, after, count)

    async def read_body_rows(self, rows: Sequence[int]) -> dict[int, Sequence[bytes]]:
        found = await self._read(partial(self._body_rows, rows))
        # Read again before acting on damage: the bytes may have changed on the way.
        damaged = [row for row in rows if not body_rows.read_what_is_left(row, found.get(row))[1]]
        if damaged:
            found |= await self._read(partial(self._body_rows, damaged))
        return {row: body_rows.read_what_is_left(row, found.get(row))[0] for row in rows}

    def _body_rows(self, rows: Sequence[int]) -> dict[int, bytes]:
        query = "SELECT no, data FROM peeklock.body WHERE shard = %s AND no = ANY(%s)"
        return dict(self._rows(query, self._held().shard, list(rows)))

    async def list_body_rows(self, after: int, count_max: int) -> list[tuple[int, int]]:
        """See `Store`; the contents of the rows are not read."""
        query = "SELECT no, length(data) FROM peeklock.body WHERE shard = %s AND no > %s ORDER BY no LIMIT %s"
        return await self._read(lambda: self._rows(query, self._held().shard, after, count_max))

    async def last_body_row(self) -> int:
        query = "SELECT coalesce(max(no), 0) FROM peeklock.body WHERE shard = %s"
        [(last,)] = await self._read(lambda: self._rows(query, self._held().shard))
        return int(last)

    async def read_head(self, bytes_max: int) -> list[FrameKeys]:
        return await self._read(partial(self._head, bytes_max))

    def _head(self, bytes_max: int) -> list[FrameKeys]:
        head: list[FrameKeys] = []
        size_bytes, after = 0, -1
        while rows := self._frames(after, HEAD_ROWS):
            for no, meta in rows:
                if head and size_bytes + len(meta) > bytes_max:
                    return head
                size_bytes += len(meta)
                head.append(frames.read_keys(no, meta))
            after = rows[-1][0]
        return head

    async def _read(self, job: Callable[[], T]) -> T:
        assert self._reader is not None, "the store is not open"
        return await self._reader.submit(job)

    def _rows(self, sql: str, *values: object) -> list[Any]:
        """Return the rows of a statement that may be tried again. Raises: StoreError."""
        trying = _Trying(self._database, f"read {self._shown}")
        while True:
            try:
                with self._database.connections.lent() as link:
                    return _select(link.db, sql, values)
            except Unreachable as error:
                trying.again(error)
            except psycopg.Error as error:
                failure = store_error(trying.doing, error)
                if kind_of(error) not in (Kind.LOST, Kind.AGAIN):
                    raise failure from error
                trying.again(failure)

    # Figures

    @property
    def created_at_ms(self) -> int:
        return self._created_at_ms

    @property
    def event_backlog(self) -> EventBacklog:
        return self._events

    def free_bytes(self) -> int | None:
        """Return 0 while the disk of the database is full; how much is free there is not known."""
        return 0 if self._is_full else None

    def valid_until_s(self) -> float:
        lease = self._lease
        if lease is None or lease.is_lost or self._failure is not None:
            return 0.0
        return lease.valid_until_s

    def failure(self) -> StoreError | None:
        """Return what has ended the ownership, None = nothing has."""
        if self._failure is None and self._lease is not None and self._lease.is_lost:
            self._failure = StoreDeposed(f"another process owns {self._shown} now")
        return self._failure

    def reader(self) -> PostgresReader:
        return PostgresReader(self._database.connections, self._name)

    # Closing

    async def close(self) -> None:
        """Release the store: others may take it at once."""
        writer, self._writer = self._writer, None
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.submit(_nothing)  # after the reads under way
            reader.stop()
        if writer is not None:
            await writer.submit(self._release)
            writer.stop()

    def _release(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            self._database.leases.release(lease)


class _Trying:
    """The tries of one job."""

    def __init__(self, database: Database, doing: str) -> None:
        self._database = database
        self.doing = doing
        self._until_s: float | None = None

    def again(self, failure: StoreError, *, in_doubt: bool = False) -> None:
        """Wait before the next try. Raises: StoreFailed, StoreUnknown after `GIVE_UP_S`."""
        now_s = boottime_s()
        if self._until_s is None:
            self._until_s = now_s + GIVE_UP_S
        if now_s >= self._until_s:
            if in_doubt:
                raise StoreUnknown(f"{failure}; whether it is durable is unknown") from failure
            raise failure
        self._database.leases.pause(PAUSE_S)


def _select(db: Db, sql: str, values: tuple[object, ...]) -> list[Any]:
    cursor = db.execute(sql, values, binary=True)
    return cursor.fetchall() if cursor.description else []


def _nothing() -> None:
    pass
