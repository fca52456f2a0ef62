"""The bodies that deliveries and forwards wait for: read from the store, then handed on.

Owns: which rows are being read, and who waits for them. Must not know: what is done with a body.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from peeklock.broker.commands import Command, Fetched, LoseBodies, ReplyTo
from peeklock.broker.effects import BodiesLost, Effect, Fetch
from peeklock.broker.message import EMPTY_PAYLOAD, LOST_BODY
from peeklock.broker.properties import is_bodiless
from peeklock.engine.engine import Engine
from peeklock.server import log
from peeklock.store.base import Store, StoreDamaged, StoreError

if TYPE_CHECKING:
    from peeklock.broker.message import Message

READ_ROWS_MAX = 16
"""Body rows read in one go: some 4 MB."""

AHEAD_ROWS = 8
"""Rows read ahead of one that a deletion or a forward waits for: some 2 MB. Our choice: of a backlog of
messages of 100 KB some 1,400 a second are received and deleted, without it 950."""

LOST_BODIES_MAX = 1000
"""Damaged bodies whose messages one start dead-letters. With more of them the disk is to be looked at before
a whole backlog is taken apart. Our choice."""


class Connection(Protocol):
    """What the shard needs of a connection: a place to hand effects to."""

    def handle(self, effect: Effect, now_ms: int) -> None:
        """Take one effect; nothing is written yet."""

    def flush(self, now_ms: int) -> None:
        """Write what the effects of this turn have led to."""

    def bodies_wanted(self) -> set[int]:
        """Return the body rows that deliveries wait for."""

    def bodies_arrived(self, now_ms: int) -> None:
        """Try the waiting deliveries again."""


class BodyReader:
    """Reads rows of bodies for the connections of one namespace."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        *,
        now_ms: Callable[[], int],
        offer: Callable[[Iterable[Command]], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        on_failure: Callable[[BaseException], None],
        submit: Callable[[Callable[[ReplyTo], Command]], Future[Effect]],
    ) -> None:
        """Read rows that `engine` knows from `store`.

        Args:
            now_ms: the broker's clock, UTC.
            offer: takes the answers to `Fetch`.
            spawn: runs a coroutine beside the loop's other work.
            on_failure: is called when a row cannot be read, or when more is damaged than one start may lose.
            submit: asks something of the core for this process itself.
        """
        self._engine = engine
        self._store = store
        self._now_ms = now_ms
        self._offer = offer
        self._spawn = spawn
        self._on_failure = on_failure
        self._submit = submit
        self.lost_bodies = 0
        """Damaged bodies that were found since the start."""
        self._rows_under_way: set[int] = set()
        self._waiting: dict[int, Connection] = {}
        self._fetches: dict[int, list[tuple[Fetch, int]]] = {}  # by row under way, with their slots

    def forget(self, connection_id: int) -> None:
        """Drop a connection that is closed: it waits for nothing."""
        self._waiting.pop(connection_id, None)

    def body(self, message: Message) -> bytes | None:
        """Return a message's body if it is in memory; `LOST_BODY` for one that is damaged.

        A dead letter that stands for such a message has an empty one.
        """
        payload = self._engine.bodies.get(message.body_row, message.body_slot)
        if payload is LOST_BODY and is_bodiless(message):
            return EMPTY_PAYLOAD
        return payload

    def fetch(self, connection_id: int, connection: Connection) -> None:
        """Read the body rows that a connection's deliveries wait for, and the row after: backlogs are read in
        order."""
        wanted = connection.bodies_wanted()
        if not wanted:
            self._waiting.pop(connection_id, None)
            return
        self._waiting[connection_id] = connection
        rows = {row for row in wanted if row not in self._rows_under_way}
        if rows:
            self._want(rows | self._absent(range(max(rows) + 1, max(rows) + 2)))

    def fetch_routing(self, fetches: list[Fetch]) -> None:
        """Offer the routing fields of stored messages, once their bodies are in memory."""
        answers: list[Command] = []
        rows = set()
        for fetch in fetches:
            payload = self.body(fetch.message)
            if payload is LOST_BODY:
                payload = EMPTY_PAYLOAD  # it is on its way to where nobody forwards it
            if payload is None:
                # Named now: a body that is copied forward meanwhile is still where it was.
                row, slot = fetch.message.body_row, fetch.message.body_slot
                self._fetches.setdefault(row, []).append((fetch, slot))
                rows.add(row)
            else:
                answers.append(_fetched(fetch, payload))
        if answers:
            self._offer(answers)
        if rows := rows - self._rows_under_way:
            self._want(rows)
            # Beside it, so that nobody waits for them now: who asks comes to them next, a row at a time.
            if ahead := self._absent(range(max(rows) + 1, max(rows) + 1 + AHEAD_ROWS)):
                self._want(ahead)

    def _absent(self, rows: Iterable[int]) -> set[int]:
        """Return those of these rows that live and are neither in memory nor on their way there."""
        engine, under_way = self._engine, self._rows_under_way
        return {
            row
            for row in rows
            if row not in under_way and engine.holds_row(row) and engine.bodies.get(row, 0) is None
        }

    def _want(self, rows: set[int]) -> None:
        """Read rows that are not under way; they are not dropped meanwhile."""
        self._rows_under_way |= rows
        for row in rows:
            self._engine.bodies.want(row)
        self._spawn(self._read_bodies(sorted(rows)))

    async def _read_bodies(self, rows: list[int]) -> None:
        for first in range(0, len(rows), READ_ROWS_MAX):
            try:
                found = await self._store.read_body_rows(rows[first : first + READ_ROWS_MAX])
            except StoreError as failure:
                self._on_failure(failure)
                return
            self._rows_under_way.difference_update(found)
            self._take_bodies(found)

    def lose(self, found: dict[int, list[bytes]]) -> None:
        """Have the messages dead-lettered whose bodies are damaged in rows that were read."""
        needing = self._engine.needing(found)
        if not needing:
            return
        self.lost_bodies += len({(message.body_row, message.body_slot) for message in needing})
        if self.lost_bodies > LOST_BODIES_MAX:
            self._on_failure(
                StoreDamaged(
                    f"more than {LOST_BODIES_MAX:,} bodies are damaged: the disk fails. Look at it "
                    "before the next start, which dead-letters as many again"
                )
            )
            return
        places = [(message.queue_id, message.position) for message in needing]
        self._submit(partial(LoseBodies, places)).add_done_callback(_tell_lost)

    def _take_bodies(self, found: dict[int, list[bytes]]) -> None:
        now = self._now_ms()
        self.lose(found)  # before anybody is told: what was locked is free of its lock then
        answers: list[Command] = []
        for row, payloads in found.items():
            self._engine.bodies.put(row, payloads)
            for fetch, slot in self._fetches.pop(row, ()):
                payload = payloads[slot]
                answers.append(_fetched(fetch, EMPTY_PAYLOAD if payload is LOST_BODY else payload))
        if answers:
            self._offer(answers)
        for connection_id, connection in list(self._waiting.items()):
            connection.bodies_arrived(now)
            connection.flush(now)
            self.fetch(connection_id, connection)


def _tell_lost(answering: Future[Effect]) -> None:
    """Say which messages have lost their body, once that is durable."""
    answer = answering.result()
    assert isinstance(answer, BodiesLost)
    for lost in answer.lost:
        fields = {"queue": lost.queue_name, "sequence_number": lost.sequence_number}
        if lost.session_id is not None:
            fields["session_id"] = lost.session_id
        log.error("a body is damaged on the disk; its message was dead-lettered without it", fields)


def _fetched(fetch: Fetch, payload: bytes) -> Fetched:
    return Fetched(fetch.queue_id, fetch.message.position, payload)
