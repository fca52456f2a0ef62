"""Forwards between entities: ForwardTo and ForwardDeadLetteredMessagesTo at run time.

Theory of operation. A message is numbered by the entity it arrives at and passed on in the same call, so in
the same frame of the journal; at its target it arrives like any other and gets a number there. An obstacle is
decided at once and not tried again:

    target missing, disabled, full, its size limit too small, a session id required and missing
                                        -> transfer dead-letter queue of the source
    more than four hops, or more than 10,000 copies of one accepted message
                                        -> dead-letter queue of the source

A sender is refused first if the target is full (`operations`). A target may need the message id, session id
or partition key. The gateway reads them for senders to an entity that forwards there; those of a stored
message are read with an effect `Fetch`, and the message is pending in its queue until the answer. Pending
messages are passed on in order, and so are those that were stored before the entity began to forward. A
scheduled message of a topic takes the same way to the subscriptions, whose rules must read it.

Forwards may form a cycle, with the entity itself and with dead letters too: the limit of hops ends it. A dead
letter that may not be passed on rests where it is.
Source: semantics F-01, F-02; wire contract 3.8, 10.3; Learn "Chaining Service Bus entities with
autoforwarding".
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from peeklock.broker.content import overlay as overlays
from peeklock.broker.content.routing import read_routing
from peeklock.broker.content.subject import without_body
from peeklock.broker.entities.validation import forwards_of
from peeklock.broker.queue import enqueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.timers import FAR_MS
from peeklock.broker.vocabulary.effects import Fetch
from peeklock.broker.vocabulary.message import COPIES_FOLLOWING_MAX, NEVER_MS, Message

if TYPE_CHECKING:
    from peeklock.amqp.messaging import Sections
    from peeklock.broker.entities.entities import Entities
    from peeklock.broker.entities.entity import Entity
    from peeklock.broker.entities.fan_out import FanOut
    from peeklock.broker.queue.message_queue import MessageQueue

HOPS_MAX = 4
"""Source: wire contract 10.1, auto-forward hops."""

FETCH_MAX = 64
"""Pending messages of a queue that are fetched at once."""

_TOO_MANY_HOPS = (
    "MaxTransferHopCountExceeded",
    "The maximum number of allowed hops when forwarding between queues has been exceeded. "
    f"The maximum is set to {HOPS_MAX}.",
)

_TOO_MANY_COPIES = (
    _TOO_MANY_HOPS[0],
    "The maximum number of copies that follow from one message when forwarding to topics has been exceeded. "
    f"The maximum is set to {COPIES_FOLLOWING_MAX}.",
)

SESSION_ID_IS_NULL = (
    "Session ID is null.",
    "Session enabled entity doesn't allow a message whose session identifier is null.",
)
"""Source: wire contract 3.8."""

_Reason = tuple[str, str]
"""DeadLetterReason and DeadLetterErrorDescription."""


class Forwarding:
    """Forwards between the entities of a namespace."""

    def __init__(self, entities: Entities) -> None:
        self._entities = entities
        # What was read of pending messages, None until then: by queue id and position, from the cursor on.
        self._asked: dict[int, dict[int, _Read | None]] = {}
        self._ahead: dict[str, dict[int, FanOut]] = {}  # by the path of a target

    # For senders

    def reads_routing(self, queue: MessageQueue, destination: str | None = None) -> bool:
        """Return whether messages sent here may end in a queue that decides by their routing fields."""
        return queue.reads_routing or any(
            target.main.reads_routing for target in self.chain(queue, destination)
        )

    def chain(self, queue: MessageQueue, destination: str | None = None) -> list[Entity]:
        """Return the entities that a message sent to or via a queue is passed on to, with the last one."""
        path = destination or queue.forward_to
        chain: list[Entity] = []
        while path is not None and len(chain) < HOPS_MAX:
            target = self._entities.target(path)
            if target is None:
                break
            chain.append(target)
            path = target.main.forward_to
        return chain

    # For topics

    def topics_ahead(self, entity: Entity) -> dict[int, FanOut]:
        """Return the topics that messages or dead letters of an entity reach next, by id."""
        ahead: dict[int, FanOut] = {}
        for path in forwards_of(entity.description):
            known = self._ahead.get(path)
            if known is None:
                known = self._ahead[path] = self._find_ahead(path)
            ahead = ahead | known if ahead else known
        return ahead

    def _find_ahead(self, path: str) -> dict[int, FanOut]:
        topics: dict[int, FanOut] = {}
        seen: set[int] = set()
        paths = [path]
        for _ in range(HOPS_MAX):
            found = dict.fromkeys(map(self._entities.target, paths))
            at = [each for each in found if each is not None and each.entity_id not in seen]
            seen.update(each.entity_id for each in at)
            topics.update((each.entity_id, each.fan_out) for each in at if each.fan_out is not None)
            paths = [path for each in at for path in forwards_of(each.description)]
        return topics

    def routes_changed(self) -> None:
        """Forget what is ahead: an entity was added, removed, or forwards elsewhere."""
        self._ahead = {}

    # Passing on

    def pass_on(
        self,
        source: MessageQueue,
        path: str,
        message: Message,
        sections: Sections | None,
        out: Outcome,
        *,
        head: Sections | None = None,
    ) -> None:
        """Pass a message that `source` has numbered, but not stored, to the entity at `path`.

        Args:
            sections: None for a message whose body is stored already.
            head: of such a message, what was read of it.
        """
        entity = self._entities.of_queue(source.queue_id)
        assert entity is not None
        out.copies += 1
        if message.hops >= HOPS_MAX:
            assert entity.dead_letters is not None
            _dead_letter(source, message, sections, _TOO_MANY_HOPS, entity.dead_letters, out)
            return
        target = self._entities.target(path)
        head = head if sections is None else sections
        if _is_unread(target, message, head):
            if self._obstacle(target, path, message, routing_known=False) is None:
                enqueue.hold_pending(source, message, sections, out)
                return
        reason = self._obstacle(target, path, message, routing_known=True)
        if reason is not None or target is None:
            assert reason is not None
            transfers = self._entities.transfers_of(entity)
            _dead_letter(source, message, sections, reason, transfers, out)
        elif _makes_too_many_copies(target, message, head):
            self._dead_letter_copies(source, entity, message, sections, out)
        else:
            _deliver(source, entity, target, message, sections, out)

    def _dead_letter_copies(
        self,
        source: MessageQueue,
        entity: Entity,
        message: Message,
        sections: Sections | None,
        out: Outcome,
    ) -> None:
        """Dead-letter a message that would become too many copies; dead letters may be forwarded."""
        dead_letters = entity.dead_letters
        assert dead_letters is not None
        if source is dead_letters:
            _dead_letter(source, message, sections, _TOO_MANY_COPIES, dead_letters, out)
            return
        _mark_dead_letter(message, _TOO_MANY_COPIES)
        out.dead_lettered(source, message, message.overlay, dead_letters.name)
        enqueue.dead_letter_arriving(dead_letters, message, sections, out)

    def _obstacle(
        self, target: Entity | None, path: str, message: Message, *, routing_known: bool
    ) -> _Reason | None:
        """Return why a target cannot take a message, None if it can."""
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
            return SESSION_ID_IS_NULL
        return None

    # Stored messages

    def pass_on_stored(self, source: MessageQueue, count_max: int, out: Outcome) -> int:
        """Pass on pending messages in order, until messages, copies and forwards are about `count_max`;
        return the number of messages."""
        source.forward_due_ms = FAR_MS
        path = source.forward_to
        if not source.passes_on:
            return 1
        is_dead_letter = source.holds_dead_letters
        asked = self._asked.get(source.queue_id, {})
        work = 0
        copies_max = out.copies + count_max
        for message in list(islice(source.active.iterate(source.forward_cursor), count_max)):
            if work + out.copies >= copies_max:
                break  # a topic's messages may become thousands each
            work += 1
            position = message.position
            expired = source.has_expired(message, out.now_ms)
            at_end = is_dead_letter and (message.hops >= HOPS_MAX or overlays.is_bodiless(message))
            if message.lock is not None or expired or at_end:
                source.forward_cursor = position + 1
                asked.pop(position, None)
                continue  # a dead letter that is locked, left to the sweep, or at its end
            target = None if path is None else self._entities.target(path)
            read = asked.get(position)
            if read is None and (path is None or (target is not None and target.main.reads_routing)):
                source.forward_cursor = position
                self._ask(source, out)
                return work
            source.forward_cursor = position + 1
            asked.pop(position, None)
            head = None if read is None else read.head
            if is_dead_letter and target is not None and _rests(target, message, head):
                continue
            source.remove(message, out)
            moved = message.moved()
            moved.routing = None if read is None else read.routing
            moved.scheduled_at_ms = message.scheduled_at_ms  # set by an action, for the target
            if path is not None:
                self.pass_on(source, path, moved, None, out, head=head)
            else:
                assert head is not None
                _to_subscriptions(source, moved, head, out)
        if work + out.copies >= copies_max:
            source.forward_due_ms = out.now_ms
        else:
            self.forget(source.queue_id)
        return work

    def fetched(self, queue: MessageQueue, position: int, payload: bytes) -> None:
        """Take the body of a pending message. If the message is gone, the next ones follow."""
        asked = self._asked.get(queue.queue_id, {})
        if not len(queue.active):
            self.forget(queue.queue_id)
        elif position in asked:
            message = queue.active.get(position)
            if message is not None:
                asked[position] = _Read(payload, message.overlay)
            queue.forward_stored_from(position)

    def forget(self, queue_id: int) -> None:
        """Forget what was read for a queue."""
        self._asked.pop(queue_id, None)

    def _ask(self, source: MessageQueue, out: Outcome) -> None:
        """Fetch the first messages from the cursor on, each once."""
        before = self._asked.get(source.queue_id, {})
        asked = self._asked[source.queue_id] = {
            position: read
            for position, read in before.items()
            if position >= source.forward_cursor and source.active.get(position) is not None
        }
        for message in islice(source.active.iterate(source.forward_cursor), FETCH_MAX):
            if message.position not in asked:
                asked[message.position] = None
                out.effects.append(Fetch(source.queue_id, message))


class _Read:
    """What was read of a pending message."""

    __slots__ = ("head", "routing")

    def __init__(self, payload: bytes, overlay: bytes | None) -> None:
        self.head = without_body(payload)
        self.routing = read_routing(self.head, overlay)


def _to_subscriptions(topic: MessageQueue, message: Message, head: Sections, out: Outcome) -> None:
    """Copy a pending message of a topic to its subscriptions."""
    assert topic.fan_out is not None
    message.delivery_count = 0
    turn = None if topic.partitions is None else topic.partitions.of_number(message.sequence_number)
    forwarded = out.forwarded(topic, message)
    count = topic.fan_out.send_on(message, None, head, turn, out)
    out.fanned_out(forwarded, count)


def _is_short_of_copies(target: Entity, message: Message) -> bool:
    """Return whether the rules of a topic decide if a message may be forwarded there."""
    return target.fan_out is not None and message.copies_left < len(target.fan_out)


def _makes_too_many_copies(target: Entity, message: Message, head: Sections | None) -> bool:
    """Return whether a topic would make more copies of a message than may follow from it.

    Args:
        head: the sections that rules read, perhaps without the body; not None if the answer depends on it.
    """
    if not _is_short_of_copies(target, message):
        return False
    assert target.fan_out is not None
    assert head is not None
    return target.fan_out.copies_of(message, head) > message.copies_left


def _rests(target: Entity, message: Message, head: Sections | None) -> bool:
    """Return whether a dead letter was refused for its copies and would be again."""
    if message.overlay is None or overlays.dead_letter_reason(message.overlay) != _TOO_MANY_COPIES[0]:
        return False
    return _makes_too_many_copies(target, message, head)


def _is_unread(target: Entity | None, message: Message, head: Sections | None) -> bool:
    """Return whether the body must be read before a message can go to its target."""
    if target is None:
        return False
    if target.main.reads_routing and message.routing is None:
        return True
    return head is None and _is_short_of_copies(target, message)


def _deliver(
    source: MessageQueue,
    entity: Entity,
    target: Entity,
    message: Message,
    sections: Sections | None,
    out: Outcome,
) -> None:
    """Enqueue a message in its target, as one that arrives there."""
    forwarded = out.forwarded(source, message, target.main.name)
    message.hops += 1
    if source.holds_dead_letters:
        message.dead_letter_source = entity.name
    if message.expires_at_ms != NEVER_MS:  # it was stored: its time-to-live begins again
        message.ttl_ms = message.expires_at_ms - message.enqueued_at_ms
        message.expires_at_ms = NEVER_MS
    elif message.ttl_ms is not None:
        message.ttl_ms = min(message.ttl_ms, source.default_ttl_ms)
    message.delivery_count = 0
    message.session_id = None
    target.main.accessed_at_ms = out.now_ms
    number = enqueue.store(target.main, message, sections, out)
    out.passed_on(source, forwarded, number)
    out.touch(target.main)


def _dead_letter(
    source: MessageQueue,
    message: Message,
    sections: Sections | None,
    reason: _Reason,
    to: MessageQueue,
    out: Outcome,
) -> None:
    """Store a message that cannot be passed on in a dead-letter queue, where it rests."""
    _mark_dead_letter(message, reason)
    if source is not to:  # a dead letter that rests keeps its life there
        out.dead_lettered(source, message, message.overlay, to.name)
        out.arrived(to, message, sections)
    enqueue.store_dead_letter(to, message, sections, out)
    out.touch(to)


def _mark_dead_letter(message: Message, reason: _Reason) -> None:
    message.overlay = overlays.with_reason(message.overlay, *reason)
    message.ttl_ms = None  # dead letters neither expire nor wait for a time
    message.scheduled_at_ms = None
