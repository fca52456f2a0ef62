"""Passing messages on from one entity to another.

Owns: ForwardTo and ForwardDeadLetteredMessagesTo at run time: where a message goes, what becomes of one that
cannot go there, the limit of hops. Must not know: who sent it, which forwards may be defined
(`validation`).

Theory of operation. A message is numbered by the entity it arrives at, then passed on in the same call, and
so in the same frame of the journal; there it arrives like any other and gets a number of its own. What stands
in the way is decided at once and never tried again:

    target missing, disabled, full, its size limit too small, a session id wanted and missing
                                        -> transfer dead-letter queue of the entity it was to leave
    more than four hops                 -> dead-letter queue of that entity

A sender is refused beforehand when the target is full (`operations`). A target may need to know a message
id, session id or partition key. The gateway reads them for whoever sends to an entity that forwards there; of
a stored message they are asked for with an effect `Fetch`, and it stays parked in its queue until the answer
comes. Parked messages are passed on in their order, and so are those that were there when an entity began to
forward. A scheduled message of a topic takes the same way to the subscriptions when it falls due: their rules
must read it.
Source: semantics F-01, F-02; wire contract 3.8, 10.3; Learn "Chaining Service Bus entities with
autoforwarding".
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from peeklock.amqp.codec import DecodeError
from peeklock.amqp.messaging import scan
from peeklock.broker import arrival
from peeklock.broker import properties as overlays
from peeklock.broker.changes import Change
from peeklock.broker.effects import Effect, Fetch
from peeklock.broker.events import EventType
from peeklock.broker.message import NEVER_MS, Message
from peeklock.broker.routing import read_routing
from peeklock.broker.subject import MessageSubject
from peeklock.broker.timers import FAR_MS

if TYPE_CHECKING:
    from peeklock.broker.entities import Entities
    from peeklock.broker.entity import Entity
    from peeklock.broker.message_queue import MessageQueue

HOPS_MAX = 4
"""Source: wire contract 10.1, auto-forward hops."""

FETCH_MAX = 64
"""Parked messages of a queue whose fields are asked for at once."""

_TOO_MANY_HOPS = (
    "MaxTransferHopCountExceeded",
    "The maximum number of allowed hops when forwarding between queues has been exceeded. "
    f"The maximum is set to {HOPS_MAX}.",
)

_Reason = tuple[str, str]
"""DeadLetterReason and DeadLetterErrorDescription."""


class Forwarding:
    """Forwards between the entities of a namespace."""

    def __init__(self, entities: Entities) -> None:
        self._entities = entities
        # What was read of parked messages, None until it comes: by queue id and position, at or behind the
        # cursor.
        self._asked: dict[int, dict[int, _Read | None]] = {}

    # What senders ask

    def reads_routing(self, queue: MessageQueue, destination: str | None = None) -> bool:
        """Whether a sender's messages may end in a queue that decides by their routing fields."""
        return queue.reads_routing or any(
            target.main.reads_routing for target in self.chain(queue, destination)
        )

    def chain(self, queue: MessageQueue, destination: str | None = None) -> list[Entity]:
        """Give the entities that a message sent to a queue, or via it, is passed on to; it rests at the last
        one."""
        path = destination or queue.forward_to
        chain: list[Entity] = []
        while path is not None and len(chain) < HOPS_MAX:
            target = self._entities.target(path)
            if target is None:
                break
            chain.append(target)
            path = target.main.forward_to
        return chain

    # Passing on

    def pass_on(
        self,
        source: MessageQueue,
        path: str,
        message: Message,
        payload: bytes | None,
        now_ms: int,
        changes: list[Change],
        effects: list[Effect],
    ) -> None:
        """Give a message that is numbered, but not stored, by `source` to the entity at `path`, or to where
        it goes instead.

        Args:
            payload: None for a message whose body is stored already.
        """
        entity = self._entities.of_queue(source.queue_id)
        assert entity is not None
        is_dead_letter = source.holds_dead_letters
        if message.hops >= HOPS_MAX:
            _bury(message, _TOO_MANY_HOPS)
            assert entity.dead_letters is not None
            _record_burial(source, message, payload, entity.dead_letters)
            arrival.take_in(entity.dead_letters, message, payload, changes)
            source.shared.touch(entity.dead_letters)
            return
        target = self._entities.target(path)
        wants_routing = target is not None and target.main.reads_routing and message.routing is None
        if wants_routing and self._obstacle(target, path, message, routing_known=False) is None:
            if is_dead_letter:
                arrival.take_in(source, message, payload, changes)
                source.forward_stored_from(message.position)
            else:
                arrival.park(source, message, payload, now_ms, changes)
            return
        reason = self._obstacle(target, path, message, routing_known=True)
        if reason is not None or target is None:
            assert reason is not None
            _bury(message, reason)
            transfers = self._entities.transfers_of(entity)
            _record_burial(source, message, payload, transfers)
            arrival.take_in(transfers, message, payload, changes)
            source.shared.touch(transfers)
            return
        events = source.shared.events
        forwarded = None if events is None else events.forwarded(source, message, target.main.name)
        message.hops += 1
        if is_dead_letter:
            message.dead_letter_source = entity.name
        if message.expires_at_ms != NEVER_MS:  # it was stored: its time-to-live counts anew from the arrival
            message.ttl_ms = message.expires_at_ms - message.enqueued_at_ms
            message.expires_at_ms = NEVER_MS
        elif message.ttl_ms is not None:
            message.ttl_ms = min(message.ttl_ms, source.default_ttl_ms)
        message.delivery_count = 0
        message.session_id = None
        target.main.accessed_at_ms = now_ms
        number = arrival.store(target.main, message, payload, now_ms, changes, effects)
        if events is not None and forwarded is not None:
            events.went(forwarded, number)
        source.shared.touch(target.main)

    def _obstacle(
        self, target: Entity | None, path: str, message: Message, *, routing_known: bool
    ) -> _Reason | None:
        """Say why a target cannot take a message."""
        if target is None:
            return "MessagingEntityNotFound", f"The forwarding destination '{path}' could not be found."
        queue = target.main
        if not queue.accepts_sends:
            status = target.description.status.value
            return "MessagingEntityDisabled", f"The forwarding destination '{path}' is {status}."
        if message.size_bytes > queue.message_size_bytes_max:
            return (
                "MessageSizeExceeded",
                f"The message has {message.size_bytes} bytes; the forwarding destination '{path}' takes "
                f"{queue.message_size_bytes_max}.",
            )
        full = queue.forward_to is None and self._entities.is_full(target, message.size_bytes)
        if full or (queue.duplicates is not None and queue.duplicates.full):
            return "QuotaExceeded", f"The forwarding destination '{path}' is full."
        if not routing_known or queue.sessions is None:
            return None
        if message.routing is None or message.routing.session_id is None:
            return (
                "Session ID is null.",
                "Session enabled entity doesn't allow a message whose session identifier is null.",
            )
        return None

    # What is stored already

    def pass_on_stored(
        self,
        source: MessageQueue,
        now_ms: int,
        count_max: int,
        changes: list[Change],
        effects: list[Effect],
    ) -> int:
        """Pass on what stands parked in a queue, in order, about `count_max` messages; answer the work
        done."""
        source.forward_due_ms = FAR_MS
        path = source.forward_to
        if not source.passes_on:
            return 1
        is_dead_letter = source.holds_dead_letters
        asked = self._asked.get(source.queue_id, {})
        work = 0
        for message in list(islice(source.active.iterate(source.forward_cursor), count_max)):
            if work >= count_max:
                break  # a topic's messages may become thousands each
            work += 1
            position = message.position
            expired = source.has_expired(message, now_ms)
            if message.lock is not None or expired or (is_dead_letter and message.hops >= HOPS_MAX):
                source.forward_cursor = position + 1
                asked.pop(position, None)
                continue  # a dead letter in somebody's hands, or for the sweep, or at its end
            target = None if path is None else self._entities.target(path)
            read = asked.get(position)
            if read is None and (path is None or (target is not None and target.main.reads_routing)):
                source.forward_cursor = position
                self._ask(source, effects)
                return work
            source.forward_cursor = position + 1
            asked.pop(position, None)
            source.remove(message, changes)
            moved = message.moved()
            moved.routing = None if read is None else read.routing
            moved.scheduled_at_ms = message.scheduled_at_ms  # by an action, for where it goes on to
            if path is not None:
                self.pass_on(source, path, moved, None, now_ms, changes, effects)
            else:
                assert read is not None
                work += _to_subscriptions(source, moved, read.head, now_ms, changes, effects)
        if work >= count_max:
            source.forward_due_ms = now_ms
        else:
            self.forget(source.queue_id)
        return work

    def fetched(self, queue: MessageQueue, position: int, payload: bytes) -> None:
        """Take the body of a parked message. It may be gone; then those behind it are next."""
        asked = self._asked.get(queue.queue_id)
        message = queue.active.get(position)
        if not len(queue.active):
            self.forget(queue.queue_id)
        elif asked is not None and position in asked and message is None:
            queue.forward_stored_from(position)
        elif asked is not None and position in asked:
            assert message is not None
            asked[position] = _Read(payload, message.overlay)
            queue.forward_stored_from(position)

    def forget(self, queue_id: int) -> None:
        """Keep nothing of what was asked about a queue: nothing waits there, or not for that any more."""
        self._asked.pop(queue_id, None)

    def _ask(self, source: MessageQueue, effects: list[Effect]) -> None:
        """Ask for the fields of the first messages from the cursor on, each once."""
        before = self._asked.get(source.queue_id, {})
        asked = self._asked[source.queue_id] = {
            position: read
            for position, read in before.items()
            if position >= source.forward_cursor and source.active.get(position) is not None
        }
        for message in islice(source.active.iterate(source.forward_cursor), FETCH_MAX):
            if message.position not in asked:
                asked[message.position] = None
                effects.append(Fetch(source.queue_id, message))


class _Read:
    """What was read of a parked message."""

    __slots__ = ("head", "routing")

    def __init__(self, payload: bytes, overlay: bytes | None) -> None:
        self.routing = read_routing(payload, overlay)
        self.head = _without_body(payload)


def _without_body(payload: bytes) -> bytes:
    """Give what filters can ask for: the body may have 100 MB, and many messages are read at a time."""
    try:
        sections = scan(payload)
    except DecodeError:
        return b""
    rest = sections.body or sections.footer
    return payload if rest is None else payload[: rest[0]]


def _to_subscriptions(
    topic: MessageQueue,
    message: Message,
    head: bytes,
    now_ms: int,
    changes: list[Change],
    effects: list[Effect],
) -> int:
    """Give the subscriptions a message that was parked in its topic; answer how many copies it became."""
    assert topic.fan_out is not None
    message.delivery_count = 0
    subject = MessageSubject(message, head, topic.shared.tokens)
    turn = None if topic.partitions is None else topic.partitions.of_number(message.sequence_number)
    events = topic.shared.events
    forwarded = None if events is None else events.forwarded(topic, message)
    count = topic.fan_out.send_on(message, None, subject, turn, now_ms, changes, effects)
    if events is not None and forwarded is not None:
        events.fanned_out(forwarded, count)
    return count


def _record_burial(source: MessageQueue, message: Message, payload: bytes | None, to: MessageQueue) -> None:
    events = source.shared.events
    if events is not None:
        events.dead_lettered(EventType.DEAD_LETTERED, source, message, message.overlay, to.name)
        events.arrived(to, message, payload)


def _bury(message: Message, reason: _Reason) -> None:
    message.overlay = overlays.with_reason(message.overlay, *reason)
    message.ttl_ms = None  # nothing expires where it goes, or waits for its time
    message.scheduled_at_ms = None
