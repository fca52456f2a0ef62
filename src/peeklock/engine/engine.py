"""Batches: the open one, the one in flight, and the placing of bodies.

Must not know clocks, threads, how a store works, nor when a batch is taken (see `engine.driver`).

`offer` applies a command at once and collects its changes and effects in the open batch. `take_batch` closes
it, and the next batch fills meanwhile. `committed` returns the effects of the batch in flight.

    open batch --take_batch--> in flight --committed--> effects, in order

An effect without changes waits with its batch; `release` returns it when that batch has no changes and
nothing is in flight.

A command of many messages takes many steps, so that the owner's loop has turns in between: `offer` does the
first one, and the owner calls `go_on` once a turn while `under_way`. All steps are in one batch, so whole or
absent after a crash: no batch is taken between them. Other commands and due timers wait meanwhile, so each
step finds what the one before left. This delays nothing: no effect leaves before the batch anyway.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Final, Protocol

from peeklock.broker.content.overlay import is_bodiless
from peeklock.broker.queue.timers import Timers
from peeklock.broker.vocabulary.changes import (
    QUEUES_PER_ENTITY,
    Change,
    EntityRemoved,
    EntityStored,
    MessageIdSeen,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
    RuleStored,
)
from peeklock.broker.vocabulary.commands import Command
from peeklock.broker.vocabulary.effects import Effect
from peeklock.broker.vocabulary.events import EventTuple
from peeklock.broker.vocabulary.message import LOST_BODY, Message
from peeklock.engine.bodies import BodyCache, has_lost
from peeklock.engine.journal import extra_bytes, numbers_bytes
from peeklock.engine.reclaim import BodyRow, ReclaimFound, ReclaimRead, SpaceLedger
from peeklock.store.base import Batch, FrameKeys, Store

ROW_BYTES_MAX = 256 * 1024
"""A body row is closed before it grows larger. Source: architecture, durable store."""

RECORD_BYTES: Final = 512
"""Bytes of an uncommitted message besides its payload: record, change, effects. Our choice: without it a
flood of tiny messages would count for nothing."""

WAITING_A_TURN: Final = 256
"""Waiting commands, and further messages of each, that one call applies: at 5 to 10 us each, 2.5 ms."""

EVENT_ROWS_A_BATCH: Final = 64
"""Exported event rows that one commit drops: a row may have 100 KB."""


class Decisions(Protocol):
    """What the engine needs of a namespace; see `broker.namespace.Namespace`."""

    timers: Timers

    def apply(self, command: Command, now_ms: int) -> tuple[list[Change], list[Effect]]: ...
    @property
    def unfinished(self) -> bool: ...
    def go_on(self, now_ms: int) -> tuple[list[Change], list[Effect]]: ...
    def advance(self, now_ms: int, purged_max: int | None = None) -> tuple[list[Change], list[Effect]]: ...
    @property
    def is_purging(self) -> bool: ...
    def numbers_issued(self) -> list[NumbersIssued]: ...
    @property
    def events_due(self) -> bool: ...
    def take_events(self) -> list[EventTuple] | None: ...
    def restore_entity(self, entity: EntityStored) -> None: ...
    def restore_rule(self, rule: RuleStored) -> None: ...
    def restore(self, changes: Iterable[Change]) -> None: ...
    def finish_restore(self, now_ms: int, next_entity_id: int) -> None: ...
    def find(self, queue_id: int, position: int) -> Message | None: ...
    def still_holds(self, change: NumbersIssued | MessageIdSeen, now_ms: int) -> Change | None: ...
    def look_for_bodies(self, in_memory: Callable[[Message], bool], /) -> None: ...
    def removed_entity_messages(self, entity_id: int) -> Iterable[Message]: ...


class Engine:
    """Batches of one namespace. All calls come from one thread; the owner commits one batch at a time."""

    def __init__(self, namespace: Decisions, bodies: BodyCache) -> None:
        """Start with an empty namespace at batch 1, or call `recover` before anything else."""
        self.namespace = namespace
        self.bodies = bodies
        self.ledger = SpaceLedger()
        self._apply = namespace.apply
        self.timers = namespace.timers
        """When `advance` has something to do."""
        namespace.look_for_bodies(partial(_in_memory, bodies))
        self._waiting: deque[Command] = deque()
        self.under_way = False
        """Whether to call `go_on`: a command is unfinished, or others wait behind it."""
        self._no = 1  # of the open batch
        self._changes: list[Change] = []
        self._effects: list[Effect] = []
        self.in_flight = False
        """Whether a batch is being committed."""
        self.work_left = False
        """Whether the last commit left work for another one."""
        self._flying_effects: list[Effect] = []
        self._flying_rows: Iterable[int] = ()
        self._next_row = 1
        self._row: BodyRow | None = None  # the open body row, and below what is in it
        self._row_no = 0
        self._row_bytes = 0
        self._row_payloads: list[bytes] = []
        self._closed_rows: dict[int, list[bytes]] = {}
        self.open_bytes = 0
        """Bytes of uncommitted messages: payloads and `RECORD_BYTES` each."""
        self._flying_bytes = 0  # of those, in the batch in flight
        self._numbers: dict[int, tuple[int, NumbersIssued]] = {}  # queue -> (frame, counters), oldest first
        self._reading = False
        self._reading_rows: set[int] = set()  # must not be dropped before they are read
        self._first_event_no: Callable[[], int | None] = lambda: None
        self._events_dropped_to = 0
        self.events_exported_to = 0
        """Event rows up to this number may be dropped; the exporter sets it, and it only grows."""

    @property
    def idle(self) -> bool:
        """Whether nothing waits: no batch in flight, no change, no effect, no command."""
        return not self.in_flight and not self._changes and not self._effects and not self.under_way

    # Commands in

    def offer(self, command: Command, now_ms: int) -> None:
        """Apply a command, or queue it behind the one under way."""
        if self.under_way:
            self._waiting.append(command)
            return
        changes, effects = self._apply(command, now_ms)
        if changes:
            self.ledger.now_ms = now_ms
            self._record(changes)
        if effects:
            self._effects += effects
        if self.namespace.unfinished:
            self.under_way = True

    def go_on(self, now_ms: int) -> None:
        """Do the next step of the command under way; when it is done, apply some that waited for it.

        A batch can be taken in between: else one large command after another would block all commits.
        """
        namespace = self.namespace
        if namespace.unfinished:
            changes, effects = namespace.go_on(now_ms)
            self.ledger.now_ms = now_ms
            self._record(changes)
            self._effects += effects
            self.under_way = len(self._waiting) > 0 or self.namespace.unfinished
            return
        self.under_way = False
        left = WAITING_A_TURN
        while self._waiting and left > 0:
            command = self._waiting.popleft()
            left -= 1 + len(getattr(command, "further", ()))
            self.offer(command, now_ms)
            if self.under_way:
                return
        self.under_way = len(self._waiting) > 0

    def advance(self, now_ms: int, purged_max: int | None = None) -> None:
        """Do what is due, unless a command is unfinished; see `Namespace.advance`."""
        if self.namespace.unfinished:
            return
        self.ledger.now_ms = now_ms
        changes, effects = self.namespace.advance(now_ms, purged_max)
        if changes:
            self._record(changes)
        if effects:
            self._effects += effects

    def _record(self, changes: list[Change]) -> None:
        ledger = self.ledger
        journal = ledger.journal
        frame_live = journal.frame_live
        ids = 0
        first: Message | None = None  # of the body that was placed last
        placed: bytes | None = None
        for change in changes:
            if type(change) is MessageStored:
                message = change.message
                if message.journal_no:
                    frame_live[message.journal_no - journal.first_no] -= 1
                else:
                    message.queue_id = change.queue_id
                    payload = change.payload
                    if payload is None:
                        ledger.share(message)
                    elif first is not None and payload is placed:
                        message.body_row = first.body_row
                        message.body_slot = first.body_slot
                        ledger.share(message)
                        self.open_bytes += RECORD_BYTES
                    else:
                        self._place(message, payload)
                        self.open_bytes += len(payload) + RECORD_BYTES
                        first, placed = message, payload
                    journal.live_messages += 1
                frame_live[-1] += 1
                message.journal_no = self._no
            elif type(change) is MessageRemoved:
                ledger.release(change.message)
            elif type(change) is MessageIdSeen:
                ids += 1
            elif type(change) is EntityRemoved:
                ledger.delete(self.namespace.removed_entity_messages(change.entity_id))
        if ids:
            journal.add_ids(ids)
        self._changes += changes

    def _place(self, message: Message, payload: bytes) -> None:
        row = self._row
        size_bytes = len(payload)
        if row is not None and self._row_bytes + size_bytes > ROW_BYTES_MAX:
            self._close_row()
            row = None
        if row is None:
            self._row_no = self._next_row
            self._next_row += 1
            row = self._row = self.ledger.open_row(self._row_no)
            self._row_payloads = []
            self._row_bytes = 0
            self.bodies.pin(self._row_no, self._row_payloads)
        self._row_bytes += size_bytes
        message.body_row = self._row_no
        message.body_slot = len(row.owners)
        row.owners.append(message)
        self._row_payloads.append(payload)

    def _close_row(self) -> None:
        self.ledger.close_row(self._row_no, self._row_bytes)
        self._closed_rows[self._row_no] = self._row_payloads
        self._row = None

    # Batches out, effects back

    def take_batch(self, now_ms: int) -> Batch | None:
        """Close and return the open batch; None if empty, one is in flight or a command is unfinished."""
        if self.in_flight or self.namespace.unfinished:
            return None
        ledger, journal = self.ledger, self.ledger.journal
        ledger.now_ms = now_ms
        if ledger.deleting:
            ledger.release_deleting()
        for numbers in self.namespace.numbers_issued():
            self._add_numbers(numbers)
        changes = self._changes
        no = self._no
        dropped = ledger.take_dropped(self.bodies.wanted, self._reading_rows, alone=not changes)
        truncate_before = journal.take_truncation() if journal.is_long else 0
        if self.events_exported_to > self._events_dropped_to:
            self._skip_events()
        drops_events = self.events_exported_to > self._events_dropped_to
        needed = changes or dropped or truncate_before or ledger.deleting or drops_events
        if not needed and not self.namespace.events_due:
            return None
        if truncate_before:
            self._keep_numbers(truncate_before, now_ms)
        if self._row is not None:
            self._close_row()
        ledger.settle_rows()
        for row in dropped:
            self.bodies.drop(row)
        batch = Batch(no, changes, self._closed_rows, list(dropped), sum(dropped.values()), truncate_before)
        batch.events = self.namespace.take_events()
        if drops_events:
            dropped_to = min(self.events_exported_to, self._events_dropped_to + EVENT_ROWS_A_BATCH)
            batch.events_exported_to = self._events_dropped_to = dropped_to
        self.in_flight = True
        self._flying_effects = self._effects
        self._flying_rows = self._closed_rows
        self._flying_bytes = self.open_bytes
        self._no = no + 1
        self._changes = []
        self._effects = []
        self._closed_rows = {}
        journal.frame_live.append(0)
        return batch

    def committed(self, no: int, frame_bytes: int, now_ms: int) -> list[Effect]:
        """Note that batch `no` is on stable storage, with a frame of this size; return its effects."""
        assert self.in_flight, f"batch {no} is not in flight, none is"
        assert no == self._no - 1, f"batch {no} is not in flight, {self._no - 1} is"
        ledger = self.ledger
        ledger.now_ms = now_ms
        ledger.journal.add_frame(frame_bytes)
        self.bodies.unpin(self._flying_rows)
        effects = self._flying_effects
        self.in_flight = False
        self._flying_effects = []
        self.open_bytes -= self._flying_bytes
        self.work_left = bool(
            ledger.deleting
            or self.events_exported_to > self._events_dropped_to
            or ledger.drops_alone
            or ledger.journal.is_long
        )
        return effects

    def release(self) -> list[Effect]:
        """Return effects that nothing durable precedes; none while a batch is in flight, the open batch has
        changes, or a command is unfinished."""
        if self.in_flight or self._changes or self.namespace.unfinished:
            return []
        effects = self._effects
        self._effects = []
        return effects

    def _skip_events(self) -> None:
        """Skip numbers before the store's first event row: millions of batches without capture have none."""
        first_no = self._first_event_no()
        exported_to = self.events_exported_to
        gone_to = exported_to if first_no is None else min(first_no - 1, exported_to)
        self._events_dropped_to = max(self._events_dropped_to, gone_to)

    def _add_numbers(self, numbers: NumbersIssued) -> None:
        self._numbers.pop(numbers.queue_id, None)
        self._numbers[numbers.queue_id] = (self._no, numbers)
        self._changes.append(numbers)

    def _keep_numbers(self, truncate_before: int, now_ms: int) -> None:
        """Record again the counters whose last record is about to be forgotten."""
        while self._numbers:
            queue_id, (no, numbers) = next(iter(self._numbers.items()))
            if no >= truncate_before:
                break
            del self._numbers[queue_id]
            again = self.namespace.still_holds(numbers, now_ms)
            if again is not None:
                assert isinstance(again, NumbersIssued)
                self._add_numbers(again)
                self.ledger.journal.add_extra(numbers_bytes(again), no)

    # Space

    def reclaim_wanted(self, now_ms: int) -> ReclaimRead | None:
        """Return the next read that wins space; None if there is none, or while one is under way."""
        if self._reading:
            return None
        self.ledger.now_ms = now_ms  # rows settle while nothing else happens
        wanted = self.ledger.wanted(self.bodies.pinned)
        if wanted is not None:
            self._reading = True
            self._reading_rows = set(wanted.rows)
        return wanted

    def reclaim_offer(self, found: ReclaimFound, now_ms: int) -> None:
        """Add records made again and bodies copied forward to the open batch."""
        self._reading = False
        self._reading_rows = set()
        ledger = self.ledger
        ledger.now_ms = now_ms
        texts: set[str | None] = set()
        for keys in found.head:
            self._record(self._still_true(keys, texts))
            if not ledger.deleting:
                ledger.journal.check_head(keys.no)
        # A wanted row stays until it has been read, and one with a damaged payload for rescue.
        damaged = {row for row, payloads in found.rows.items() if has_lost(payloads)}
        ledger.keep_rows(damaged)
        rows = [row for row in found.rows if row not in self.bodies.wanted and row not in damaged]
        for row, slot, messages in ledger.living_in(rows):
            ledger.release_bodies(messages)
            first, *others = messages
            self._place(first, found.rows[row][slot])
            for other in others:
                other.body_row, other.body_slot = first.body_row, first.body_slot
                ledger.share(other)
            self._record([MessageStored(message.queue_id, message) for message in messages])
        if found.listed is not None:
            ledger.take_listed(found.listed)

    def _still_true(self, keys: FrameKeys, texts: set[str | None]) -> list[Change]:
        """Return the facts of a frame that nothing has replaced, as they are now.

        `texts` are those that the open batch has from earlier frames.
        """
        find = self.namespace.find
        changes: list[Change] = []
        taken: set[int] = set()  # a message may have several records in one frame
        for queue_id, positions in keys.stored:
            for position in positions:
                message = find(queue_id, position)
                if message is None or message.journal_no != keys.no or id(message) in taken:
                    continue
                taken.add(id(message))
                changes.append(MessageStored(queue_id, message))
                self.ledger.journal.add_extra(extra_bytes(message, texts), keys.no)
        for seen in keys.ids:
            again = self.namespace.still_holds(seen, self.ledger.now_ms)
            if again is not None:
                changes.append(again)
        self.ledger.journal.forget_ids(keys.no)
        return changes

    def needing(self, found: Mapping[int, Sequence[bytes]]) -> list[Message]:
        """Return the messages with damaged payloads in rows that were read, not dead letters without body."""
        return [
            message
            for row, payloads in found.items()
            if has_lost(payloads)
            for slot, messages in self.ledger.owners_in(row)
            if payloads[slot] is LOST_BODY
            for message in messages
            if not is_bodiless(message)
        ]

    # Recovery

    async def recover(self, store: Store, now_ms: int) -> None:
        """Build the namespace and the ledger from an opened store. Raises: StoreDamaged.

        Garbage collection is off meanwhile: it would visit millions of new records repeatedly and free none.
        """
        collecting = gc.isenabled()
        gc.disable()
        try:
            await self._recover(store, now_ms)
        finally:
            if collecting:
                gc.enable()

    async def _recover(self, store: Store, now_ms: int) -> None:
        namespace, ledger = self.namespace, self.ledger
        definitions = await store.load_definitions()
        for entity in definitions.entities:
            namespace.restore_entity(entity)
        for rule in definitions.rules:
            namespace.restore_rule(rule)
        namespace.restore([*definitions.cursors, *definitions.claims])
        known = {entity.entity_id for entity in definitions.entities}
        live = await store.load_live()
        ledger.journal.restore(live.first_no, live.frame_sizes, live.id_frames)
        for queue_id, changes in live.messages:
            if queue_id // QUEUES_PER_ENTITY in known:  # else a deleted entity's
                namespace.restore(changes)
                ledger.adopt([change.message for change in changes])
        for no, numbers in sorted(live.numbers, key=itemgetter(0)):
            if numbers.queue_id // QUEUES_PER_ENTITY in known:
                self._numbers[numbers.queue_id] = (no, numbers)
        namespace.restore([numbers for _, numbers in self._numbers.values()])
        namespace.restore([seen for seen in live.ids if seen.queue_id // QUEUES_PER_ENTITY in known])
        namespace.finish_restore(now_ms, definitions.next_entity_id)
        self._no = live.first_no + len(live.frame_sizes)
        self._first_event_no = lambda: store.event_backlog.first_no
        self._events_dropped_to = (self._first_event_no() or self._no) - 1
        # The number of a missing row that messages name is not used again.
        self._next_row = max(await store.last_body_row(), max(ledger.rows(), default=0)) + 1
        ledger.now_ms = now_ms
        ledger.list_rows_before(self._next_row)


def _in_memory(bodies: BodyCache, message: Message) -> bool:
    """Whether a body can be delivered now: it is in memory, and not damaged unless dead-lettered."""
    if not message.body_row:
        return True  # it comes with the command that is being applied
    payload = bodies.get(message.body_row, message.body_slot)
    return payload is not None and (payload is not LOST_BODY or is_bodiless(message))
