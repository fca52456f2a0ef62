"""The loop of one namespace, sans-IO and without a clock: commands in, batches to commit, effects out.

Owns: when a batch closes, what leaves when and for whom, which body rows are read and which connections wait
for them, how a purge leaves time for clients. Must not know sockets, threads, or how a store works.

Three rules; only this module hands out effects:

1. Effects leave in order, never before their batch is durable, and only while the caller's lease on the store
   holds: no commit checks locks. One without a batch never overtakes one that waits for a batch.
2. While a batch commits, the next one fills. It is taken when all effects of the one before have left, since
   it may drop a body row that one of them needs.
3. Undeliverable messages go back: a locked message whose connection is over is released. A failed commit ends
   the process: memory is ahead of the disk then.

The caller, an adapter, calls `offer`, `committed`, `rows_read` and `reclaimed` as things happen, then `step`,
and `step` again while there is `more`. A step returns actions, to be done in this order:

    offer -> step -> Commit --(store)--> committed -> step -> HandOut ... -> step -> Commit
                     ReadRows --(store)--> rows_read -> step -> BodiesRead
                     Reclaim --(store)--> reclaimed -> step
                     WakeAt --(timer)--> step

A step tries to close the open batch only if something has happened since the last try that found nothing, or
if something is due. After a HandOut or BodiesRead the adapter calls `want` with the body rows that the
connection waits for. All calls come from one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from peeklock.broker.content.overlay import is_bodiless
from peeklock.broker.vocabulary.commands import (
    NOWHERE,
    OWN_CONNECTION_ID,
    Command,
    Fetched,
    LoseBodies,
    Release,
)
from peeklock.broker.vocabulary.effects import BY_LINK, Deliver, Effect, Fetch
from peeklock.broker.vocabulary.message import EMPTY_PAYLOAD, LOST_BODY, Message
from peeklock.engine.engine import Engine
from peeklock.engine.reclaim import ReclaimFound, ReclaimRead
from peeklock.store.base import Batch, StoreDamaged

WINDOW = 256
"""Effects that one step hands out. Our choice: at some 4 us each, a millisecond."""

READ_ROWS_MAX = 16
"""Body rows that one action reads: some 4 MB."""

AHEAD_ROWS: Final = 8
"""Rows read ahead of one that a deletion or a forward waits for: some 2 MB. Our choice: it raises
receive-and-delete of a backlog of 100 KB messages from 950 to 1,400 a second."""

LOST_BODIES_MAX = 1000
"""Damaged bodies whose messages one process dead-letters. Our choice: with more, the disk is checked before a
whole backlog is dead-lettered."""

CLIENTS_WAIT_MS: Final = 100
"""Clients count as active for so long after a command."""

BESIDE_CLIENTS: Final = 125
"""Messages of a purge's slice while clients are active: a send waits for the current slice and its commit, a
millisecond in all. Our choice: 250 doubled or tripled the p99 of sends to other queues, 1,000 made it five
times as long."""

REST_FACTOR: Final = 3
"""Rest of a purge, as a multiple of the time of a slice and its commit: clients have three quarters of the
loop and of the disk. Our choice. Other timers wait for the rest too: a few milliseconds of the two seconds
that they have."""

REST_MS_MAX: Final = 1000
"""Longest rest of a purge, even after a slow commit. Our choice."""

NEVER: Final = float("inf")
"""End of the lease on a store without leases."""


@dataclass(slots=True)
class Commit:
    """Make a batch durable, then call `committed`, or `failed`. One at a time."""

    batch: Batch


@dataclass(slots=True)
class ReadRows:
    """Read these body rows, ascending and at most `READ_ROWS_MAX`, then call `rows_read`."""

    rows: list[int]


@dataclass(slots=True)
class Reclaim:
    """Read from the store to win space, then call `reclaimed`. One at a time."""

    wanted: ReclaimRead


@dataclass(slots=True)
class HandOut:
    """Pass effects to a connection, in order, then call `want`; call `undelivered` if it is gone."""

    connection_id: int
    effects: list[Effect]
    batch_no: int | None
    """The batch that made them durable; None: they have none, and the lease allows it."""


@dataclass(slots=True)
class BodiesRead:
    """Have a connection retry what waits for bodies, then call `want`."""

    connection_id: int


@dataclass(slots=True)
class WakeAt:
    """Call `step` at this UTC ms, or at no time (None). It replaces the one before."""

    at_ms: int | None


Action: TypeAlias = Commit | ReadRows | Reclaim | HandOut | BodiesRead | WakeAt


class Driver:
    """See the module docstring."""

    def __init__(self, engine: Engine) -> None:
        """Drive a recovered engine; nothing else may drive it from now on."""
        self._engine = engine
        self.timers = engine.timers
        self._may_close = True
        """Whether there may be a batch to close or an effect to release."""
        self._closings = 0
        """How often a batch was closed, or looked for."""
        self._wake = WakeAt(None)
        self._connections = {OWN_CONNECTION_ID}
        self._leaving: list[Effect] = []
        self._left = 0  # so many of these have left
        self._leaving_no: int | None = None
        self._under_way: set[int] = set()
        """Rows that are being read."""
        self._waiting: dict[int, None] = {}
        """Connections that wait for bodies, oldest first."""
        self._fetches: dict[int, list[tuple[Fetch, int]]] = {}
        """Fetches of routing fields and their slots, by row under way."""
        self._reads: list[Action] = []
        self._arrived: list[int] = []  # connections that are to retry
        self._looks_for_space = False
        self._failed = False
        self._asked_at_ms = 0
        self._slice_started_ms: int | None = None  # of the last one, if more is due
        self._rest_until_ms = 0
        self._resting = False
        self._lease_over = False  # at the last step
        self._awaits_lease = False
        """Whether effects without a batch wait in the engine for a new lease."""
        self.lost_bodies = 0
        """Damaged bodies found since the start."""

    # State

    @property
    def unfinished(self) -> bool:
        """Whether to call `go_on`: a command has steps left, or others wait behind it."""
        return self._engine.under_way

    @property
    def more(self) -> bool:
        """Whether to call `step` again, once its last actions are done."""
        if self._failed:
            return False
        if (self._leaving or self._arrived) and not self._lease_over:
            return True
        return (self._may_close and self._closes) or self._looks_for_space or bool(self._reads)

    @property
    def _closes(self) -> bool:
        """Whether a batch may be closed: the effects of the one before have left."""
        return not self._engine.in_flight and not (self._leaving and self._leaving_no is not None)

    @property
    def in_flight(self) -> bool:
        """Whether a batch is being committed."""
        return self._engine.in_flight

    @property
    def mark(self) -> int | None:
        """A number that stays the same while nothing happens in the namespace; None = something just has."""
        return None if self._may_close else self._closings

    @property
    def idle(self) -> bool:
        """Whether everything offered is durable and has left; connections may still wait for bodies."""
        return self._engine.idle and not self._leaving and not self._arrived

    @property
    def open_bytes(self) -> int:
        """Bytes of messages that are not durable yet, as `Engine.open_bytes`."""
        return self._engine.open_bytes

    def body(self, message: Message) -> bytes | None:
        """Return a message's body if it is in memory, `LOST_BODY` for a damaged one. A dead letter that
        replaces such a message has an empty body."""
        payload = self._engine.bodies.get(message.body_row, message.body_slot)
        if payload is LOST_BODY and is_bodiless(message):
            return EMPTY_PAYLOAD
        return payload

    # Connections

    def connect(self, connection_id: int) -> None:
        """Add a connection that effects can reach."""
        self._connections.add(connection_id)

    def disconnect(self, connection_id: int) -> None:
        """Remove a connection: its further effects go back or are dropped."""
        self._connections.discard(connection_id)
        self._waiting.pop(connection_id, None)

    # What happens

    def offer(self, commands: Iterable[Command], now_ms: int) -> None:
        """Apply commands of clients; their effects leave when they are durable.

        Raises: what the core raises, a defect after which its state cannot be trusted.
        """
        self._asked_at_ms = now_ms
        self._may_close = True
        offer = self._engine.offer
        for command in commands:
            offer(command, now_ms)

    def offer_some(
        self, commands: Sequence[Command], now_ms: int, stop: Callable[[], bool]
    ) -> Sequence[Command]:
        """Apply commands until `stop` says so, at least one; return the rest. Raises: as `offer`."""
        self._asked_at_ms = now_ms
        self._may_close = True
        offer = self._engine.offer
        for number, command in enumerate(commands, 1):
            offer(command, now_ms)
            if stop():
                return commands[number:]
        return ()

    def _offer(self, command: Command, now_ms: int) -> None:
        """Apply a command of the driver itself."""
        self._may_close = True
        self._engine.offer(command, now_ms)

    def go_on(self, now_ms: int) -> None:
        """Do the next step of a long command, once a turn while `unfinished`."""
        self._may_close = True
        self._engine.go_on(now_ms)

    def committed(self, no: int, size_bytes: int, now_ms: int) -> None:
        """Note that a batch is on stable storage, with a frame of this size."""
        if self._slice_started_ms is not None:
            self._pause(now_ms, self._slice_started_ms)
        engine = self._engine
        effects = engine.committed(no, size_bytes, now_ms)
        if engine.work_left:
            self._may_close = True
        # Effects that have waited since the lease ended leave first.
        self._leaving = self._leaving[self._left :] + effects if self._leaving else effects
        self._left = 0
        self._leaving_no = no
        self._looks_for_space = True

    def failed(self) -> None:
        """Stop for good: the store or the core has failed, and `step` returns nothing."""
        self._failed = True

    def undelivered(self, effects: Iterable[Effect], now_ms: int) -> None:
        """Take back effects whose connection is over: the client never got these messages (L-16)."""
        for effect in effects:
            if type(effect) is Deliver and effect.lock_token is not None:
                self._offer(Release(effect.message.queue_id, effect.lock_token, None), now_ms)

    def want(self, connection_id: int, rows: set[int]) -> None:
        """Set the body rows that a connection waits for; the row after them is read too, for backlogs."""
        if not rows:
            self._waiting.pop(connection_id, None)
            return
        self._waiting[connection_id] = None
        if rows := rows - self._under_way:
            behind = max(rows) + 1
            self._read(rows | self._absent((behind,)))

    def rows_read(self, found: Mapping[int, Sequence[bytes]], now_ms: int) -> None:
        """Add body rows that were read; waiting connections retry.

        Raises: StoreDamaged if more bodies are damaged than `LOST_BODIES_MAX`.
        """
        self._may_close = True
        self._under_way.difference_update(found)
        self._lose(found, now_ms)  # first: damaged messages lose their locks before a connection retries
        engine = self._engine
        for row, payloads in found.items():
            engine.bodies.put(row, payloads)
            for fetch, slot in self._fetches.pop(row, ()):
                self._offer(_fetched(fetch, payloads[slot]), now_ms)
        self._arrived = list(self._waiting)

    def reclaimed(self, found: ReclaimFound, now_ms: int) -> None:
        """Use what was read to win space. Raises: StoreDamaged, as `rows_read`."""
        self._may_close = True
        self._lose(found.rows, now_ms)
        self._engine.reclaim_offer(found, now_ms)

    def look_for_space(self) -> None:
        """Look for space to win in the next step, as after each commit."""
        self._looks_for_space = True

    def forget_events(self, no: int) -> None:
        """Drop the event rows of batches up to this one, with future commits."""
        self._may_close = True
        self._engine.events_exported_to = max(self._engine.events_exported_to, no)

    def rest(self) -> None:
        """Run no timers from now on."""
        self._may_close = True
        self._resting = True

    # What follows

    def step(self, now_ms: int, lease_until_ms: float = NEVER) -> list[Action]:
        """Return the next actions, in order; call it again while there is `more`.

        `now_ms` is UTC and never decreases. From `lease_until_ms` on another process may have written to the
        store: what would leave waits for a new lease.
        """
        actions: list[Action] = []
        if self._failed:
            return actions
        self._lease_over = now_ms >= lease_until_ms
        if self._leaving and not self._lease_over:
            self._hand_out(actions, now_ms)
        elif self._arrived and not self._lease_over:
            actions += map(BodiesRead, self._arrived)
            self._arrived = []
        elif self._closes:
            at_ms = self._wake.at_ms
            if self._may_close or self._awaits_lease or (at_ms is not None and at_ms <= now_ms):
                self._close_batch(actions, now_ms)
        if not (self._engine.in_flight or self._leaving or self._may_close):
            actions.append(self._wake)  # an adapter whose timer has fired needs another
        if self._looks_for_space:
            self._looks_for_space = False
            wanted = self._engine.reclaim_wanted(now_ms)
            if wanted is not None:
                actions.append(Reclaim(wanted))
        if self._reads:
            actions += self._reads
            self._reads = []
        return actions

    def _close_batch(self, actions: list[Action], now_ms: int) -> None:
        engine = self._engine
        self._may_close = self._awaits_lease = False
        self._closings += 1
        due_ms = self.timers.next_ms
        if due_ms is not None and max(due_ms, self._rest_until_ms) <= now_ms and not self._resting:
            self._advance(now_ms)
        batch = engine.take_batch(now_ms)
        if batch is not None:
            actions.append(Commit(batch))
        else:
            if self._slice_started_ms is not None:
                self._pause(now_ms, self._slice_started_ms)
            if not self._lease_over:
                self._leaving, self._left, self._leaving_no = engine.release(), 0, None
                if self._leaving:
                    self._hand_out(actions, now_ms)
            else:
                self._awaits_lease = True
        due_ms = None if self._resting else self.timers.next_ms
        if due_ms is not None and due_ms < self._rest_until_ms:
            due_ms = self._rest_until_ms
        if due_ms != self._wake.at_ms:
            self._wake = WakeAt(due_ms)

    def _hand_out(self, actions: list[Action], now_ms: int) -> None:
        """Add the effects that leave next, a HandOut for each connection."""
        end = self._left + WINDOW
        window, no = self._leaving[self._left : end], self._leaving_no
        if end < len(self._leaving):
            self._left = end
        else:
            self._leaving = []
        handed_out: dict[int, list[Effect]] = {}
        fetches: list[Fetch] = []
        undelivered: list[Effect] = []
        connections, by_link = self._connections, BY_LINK
        for effect in window:
            if type(effect) in by_link:
                to: int = effect.link.connection_id  # type: ignore[union-attr]  # so says BY_LINK
            elif type(effect) is Fetch:
                fetches.append(effect)
                continue
            else:
                to = effect.reply_to.connection_id  # type: ignore[union-attr]  # all others have one
            effects = handed_out.get(to)
            if effects is None:
                if to not in connections:
                    undelivered.append(effect)
                    continue
                effects = handed_out[to] = []
                actions.append(HandOut(to, effects, no))
            effects.append(effect)
        if undelivered:
            self.undelivered(undelivered, now_ms)
        if fetches:
            self._fetch_routing(fetches, now_ms)

    # Time

    def _advance(self, now_ms: int) -> None:
        """Do what is due, a slice for each commit; beside clients, a purge has smaller slices and rests."""
        engine = self._engine
        if not engine.namespace.is_purging or now_ms - self._asked_at_ms >= CLIENTS_WAIT_MS:
            engine.advance(now_ms)
            return
        engine.advance(now_ms, BESIDE_CLIENTS)
        if engine.namespace.is_purging:
            self._slice_started_ms = now_ms

    def _pause(self, now_ms: int, started_ms: int) -> None:
        """Rest after the slice that began then."""
        self._rest_until_ms = now_ms + min(REST_FACTOR * (now_ms - started_ms), REST_MS_MAX)
        self._slice_started_ms = None

    # Bodies

    def _fetch_routing(self, fetches: list[Fetch], now_ms: int) -> None:
        """Offer the routing fields of stored messages when their bodies are in memory."""
        rows = set()
        for fetch in fetches:
            payload = self.body(fetch.message)
            if payload is None:
                # Its place now: a body that is copied forward meanwhile is still there too.
                row, slot = fetch.message.body_row, fetch.message.body_slot
                self._fetches.setdefault(row, []).append((fetch, slot))
                rows.add(row)
            else:
                self._offer(_fetched(fetch, payload), now_ms)
        if rows := rows - self._under_way:
            self._read(rows)
            # Separately, so that nothing waits for them yet: the next fetches ask for them, row by row.
            self._read(self._absent(range(max(rows) + 1, max(rows) + 1 + AHEAD_ROWS)))

    def _absent(self, rows: Iterable[int]) -> set[int]:
        """Return the live rows among these that are neither in memory nor being read."""
        engine, under_way = self._engine, self._under_way
        return {
            row
            for row in rows
            if row not in under_way and engine.ledger.holds_row(row) and engine.bodies.get(row, 0) is None
        }

    def _read(self, rows: set[int]) -> None:
        """Read rows that are not being read; they are not dropped meanwhile."""
        self._under_way |= rows
        for row in rows:
            self._engine.bodies.want(row)
        ordered = sorted(rows)
        self._reads += [
            ReadRows(ordered[first : first + READ_ROWS_MAX])
            for first in range(0, len(ordered), READ_ROWS_MAX)
        ]

    def _lose(self, found: Mapping[int, Sequence[bytes]], now_ms: int) -> None:
        """Dead-letter the messages with damaged bodies in rows that were read.

        The answer, `BodiesLost`, goes to `NOWHERE`: the adapter logs it.
        """
        needing = self._engine.needing(found)
        if not needing:
            return
        self.lost_bodies += len({(message.body_row, message.body_slot) for message in needing})
        if self.lost_bodies > LOST_BODIES_MAX:
            raise StoreDamaged(
                f"more than {LOST_BODIES_MAX:,} bodies are damaged: the disk is failing. Check it before the "
                "next start, which dead-letters up to as many again"
            )
        places = [(message.queue_id, message.position) for message in needing]
        self._offer(LoseBodies(places, NOWHERE), now_ms)


def _fetched(fetch: Fetch, payload: bytes) -> Fetched:
    """Return the answer with a payload, empty for a lost one: its message is being dead-lettered."""
    payload = EMPTY_PAYLOAD if payload is LOST_BODY else payload
    return Fetched(fetch.queue_id, fetch.message.position, payload)
