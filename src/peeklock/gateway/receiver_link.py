"""A link on which a client receives from an entity, and the settlement of what it was given.

Owns: credit towards the broker, the outbox of deliveries whose body is not in memory, the unsettled
deliveries of a session, and the answers to settlements. Must not know: what a settlement does to a message.

Credit is told to the broker as totals since the link was opened, so that deliveries under way need no care:
the client allows deliveries, the connection's free output allows bytes.
Source: wire contract 2.4, 2.7, 4.2, 4.3; requirements L-05, L-11, L-16.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from peeklock.amqp.events import DispositionReceived, LinkAttached, LinkFlow
from peeklock.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Accepted,
    DeliveryState,
    Modified,
    Rejected,
    Released,
    TransactionalState,
)
from peeklock.amqp.serial import ids_in_range
from peeklock.amqp.types import Role
from peeklock.broker.commands import (
    Abandon,
    Command,
    Complete,
    DeadLetter,
    Defer,
    ReceiveMode,
    Release,
    ReplyTo,
    SetCredit,
)
from peeklock.broker.effects import Deliver, Drained, ReceiverOpened, Settled, SettlementFailed
from peeklock.broker.errors import MessageLockLost, NotSupported, ServiceBusError, SessionLockLost
from peeklock.gateway.address import Node, shown
from peeklock.gateway.annotations import encode_for_receiver
from peeklock.gateway.context import Context

_OUR_ROLE = Role.SENDER

REASON = "DeadLetterReason"
DESCRIPTION = "DeadLetterErrorDescription"


class Unsettled(dict[int, "ReceiverLink"]):
    """The unsettled deliveries of one AMQP session, by delivery id: which link each was sent over."""

    __slots__ = ("of_message_session",)

    def __init__(self) -> None:
        self.of_message_session = False
        """Whether the latest receiver opened on it holds a message session: what is not found here was then
        lost with that. A disposition does not name its link."""


class ReceiverLink:
    """One attached receiver. `number` names it towards the broker, once and for all of the connection."""

    __slots__ = (
        "_bytes_max",
        "_drain_asked",
        "_echoes",
        "_given",
        "_given_bytes",
        "_kept",
        "_missing",
        "_outbox",
        "_partitioned",
        "_settled",
        "_tokens",
        "_wanted",
        "channel",
        "context",
        "handle",
        "link",
        "mode",
        "node",
        "number",
        "queue_id",
        "unsettled",
    )

    def __init__(
        self,
        context: Context,
        event: LinkAttached,
        number: int,
        node: Node,
        mode: ReceiveMode,
        unsettled: Unsettled,
    ) -> None:
        """`unsettled` is the AMQP session's: delivery ids count per session, not per link."""
        self.context = context
        self.channel = event.channel
        self.handle = event.handle
        self.number = number
        self.link = (context.connection_id, event.channel, number)
        self.node = node
        self.mode = mode
        self.unsettled = unsettled
        self.queue_id: int | None = None
        self._partitioned = False
        self._settled = mode is ReceiveMode.RECEIVE_AND_DELETE
        self._wanted = 0  # deliveries that the client allows in all
        self._drain_asked = False
        self._given = 0  # deliveries taken from the broker and not waiting here, sent or given back
        self._given_bytes = 0
        self._bytes_max = 0
        self._outbox: deque[Deliver | Drained | Settled | SettlementFailed] = deque()
        # Payloads of what waits in the outbox, by lock token: a message that is gone from its queue meanwhile
        # (received and deleted, or completed by another after its lock lapsed) can be read nowhere else.
        self._kept: dict[bytes, bytes] = {}
        self._missing: dict[int, list[Deliver]] = {}  # body row -> deliveries that wait for it
        self._tokens: dict[int, bytes] = {}  # lock tokens of this link's unsettled deliveries
        self._echoes: dict[int, DeliveryState] = {}  # what to answer when it is not `accepted`

    # Credit

    def opened(self, effect: ReceiverOpened) -> None:
        """Pass on the credit that came before the link was open."""
        self.queue_id = effect.queue_id
        self._partitioned = effect.partitioned
        self.unsettled.of_message_session = effect.session_id is not None
        if self._wanted or self._drain_asked:
            self._set_credit(drain=self._drain_asked)

    def flow(self, event: LinkFlow, now_ms: int) -> None:
        """Take the client's credit: what it may be sent now, so in all that much more than it was given.

        The event's own figure may be old: further flows, and deliveries of ours, may have come since.
        """
        self._wanted = self._given + self.context.connection.credit(self.channel, self.handle)
        self._drain_asked = event.drain
        if self.queue_id is not None:
            self._set_credit(drain=event.drain)
            self.retry(now_ms)  # deliveries that waited for credit

    def allow_bytes(self) -> bool:
        """Allow further bytes once half of what was allowed is used, as far as the connection's output is
        free.

        False: that would be due, but there is no room; to be called again when output has drained.
        """
        if self._wanted <= self._given:
            return True
        if self._bytes_max - self._given_bytes > self.context.limits.output_bytes_max // 2:
            return True
        if self._free_bytes_max() <= max(self._bytes_max, self._given_bytes):
            return False
        self._set_credit(drain=False)
        return True

    def _free_bytes_max(self) -> int:
        free = self.context.limits.output_bytes_max - self.context.output_bytes
        return self._given_bytes + max(0, free)

    def _set_credit(self, *, drain: bool) -> None:
        self._bytes_max = max(self._bytes_max, self._free_bytes_max())
        self.context.commands.append(SetCredit(self.link, self._wanted, self._bytes_max, drain))

    # Deliveries

    def deliver(self, effect: Deliver) -> None:
        """Send a message, or keep it until its body or the credit for it is there."""
        if self._outbox or not self._send(effect):
            self._outbox.append(effect)
            self._keep_payload(effect)

    def drained(self, effect: Drained) -> None:
        """Tell the client that nothing more is available, after the deliveries that came before."""
        if self._outbox and self._given < self._wanted:
            self._outbox.append(effect)
        else:  # what waits without credit goes out with the next one
            self._give_back_credit()

    def retry(self, now_ms: int) -> None:
        """Send what waits, as far as it goes."""
        outbox = self._outbox
        while outbox:
            effect = outbox[0]
            if type(effect) is Deliver:
                if not self._send(effect):
                    return
            elif type(effect) is Drained:
                self._give_back_credit()
            elif type(effect) is Settled:
                self._answer(effect.reply_to[3])
            elif type(effect) is SettlementFailed:
                self._answer_failure(effect, now_ms)
            outbox.popleft()

    def bodies_arrived(self, now_ms: int) -> None:
        """Look again for the bodies that were missing, then send what can go."""
        missing, self._missing = self._missing, {}
        del self.context.waiting_links[self.number]
        for effects in missing.values():
            for effect in effects:
                self._keep_payload(effect)
        self.retry(now_ms)

    def body_rows_wanted(self) -> Iterable[int]:
        """Name the body rows that the outbox waits for."""
        return self._missing.keys()

    def _keep_payload(self, effect: Deliver) -> None:
        payload = None if self.context.payloads is None else self.context.payloads(effect.message)
        if payload is None:
            self.context.waiting_links[self.number] = self
            self._missing.setdefault(effect.message.body_row, []).append(effect)
        else:
            assert effect.lock_token is not None
            self._kept[effect.lock_token] = payload

    def _send(self, effect: Deliver) -> bool:
        message = effect.message
        tag = effect.lock_token
        assert tag is not None
        payload = self._kept.get(tag) if self._kept else None
        if payload is None:
            if self._outbox:  # it waits here already, for its body
                return False
            payloads = self.context.payloads
            payload = None if payloads is None else payloads(message)
            if payload is None:
                return False
        connection = self.context.connection
        if self._given >= self._wanted:
            # The client took its credit back while this was under way.
            if self._settled:
                return False  # it is gone from the queue: wait for new credit
            self._given += 1
            self._given_bytes += message.size_bytes
            self._kept.pop(tag, None)
            self.release_undelivered(effect)
            return True
        encoded = encode_for_receiver(effect, payload, tag_only=self._settled, partitioned=self._partitioned)
        delivery_id = connection.send(self.channel, self.handle, tag, encoded, settled=self._settled)
        if delivery_id < 0:  # the client has ended the link, its event is on the way
            self.release_undelivered(effect)
            return True
        self._given += 1
        self._given_bytes += message.size_bytes
        if self._kept:
            self._kept.pop(tag, None)
        if not self._settled:
            self.unsettled[delivery_id] = self
            self._tokens[delivery_id] = tag
        return True

    def release_undelivered(self, effect: Deliver) -> None:
        """Make a locked message available again that the client never got (L-16)."""
        if self._settled or self.queue_id is None or effect.lock_token is None:
            return
        self.context.commands.append(Release(self.queue_id, effect.lock_token, None))

    def _give_back_credit(self) -> None:
        if not self._drain_asked:
            return  # the client has given credit anew while this was under way
        self._wanted = self._given
        self._drain_asked = False
        self.context.connection.drained(self.channel, self.handle)

    # Settlement

    def reply_to(self, delivery_id: int) -> ReplyTo:
        return (*self.link, delivery_id)

    def take_token(self, delivery_id: int) -> bytes:
        """Give the lock token of a delivery that is being settled; it is unsettled no longer."""
        return self._tokens.pop(delivery_id)

    def expect(self, delivery_id: int, echo: DeliveryState) -> None:
        """Remember which outcome to echo when the settlement has succeeded."""
        self._echoes[delivery_id] = echo

    def settled(self, effect: Settled) -> None:
        """Answer a settlement that was performed."""
        if self._outbox:
            self._outbox.append(effect)
        else:
            self._answer(effect.reply_to[3])

    def settlement_failed(self, effect: SettlementFailed, now_ms: int) -> None:
        """Answer a settlement that was refused."""
        if self._outbox:
            self._outbox.append(effect)
        else:
            self._answer_failure(effect, now_ms)

    def _answer(self, delivery_id: int) -> None:
        echo = self._echoes.pop(delivery_id, ACCEPTED) if self._echoes else ACCEPTED
        self.context.connection.disposition(self.channel, _OUR_ROLE, delivery_id, delivery_id, echo)

    def _answer_failure(self, effect: SettlementFailed, now_ms: int) -> None:
        delivery_id = effect.reply_to[3]
        self._echoes.pop(delivery_id, None)
        refusal = self.context.reporter.report(effect.error, shown(self.node.address), now_ms)
        self.context.connection.disposition(
            self.channel, _OUR_ROLE, delivery_id, delivery_id, Rejected(refusal)
        )

    def forget(self) -> None:
        """Drop what belongs to this link. Locks stay with the broker (L-13), those not delivered do not."""
        for effect in self._outbox:
            if type(effect) is Deliver:
                self.release_undelivered(effect)
        self._outbox.clear()
        self._kept.clear()
        self._missing.clear()
        self.context.waiting_links.pop(self.number, None)
        for delivery_id in self._tokens:
            self.unsettled.pop(delivery_id, None)
        self._tokens.clear()


def settle(
    context: Context,
    unsettled: Unsettled,
    event: DispositionReceived,
    now_ms: int,
) -> None:
    """Turn a receiver's disposition into commands.

    Known deliveries of the range are settled one by one. Those that are not known (any more) are answered
    lock lost in one range each, unless the client wants no answer.
    """
    state = event.state
    if state is None:
        if not event.settled:
            return
        state = RELEASED  # settled without an outcome: it was not processed
    first = event.first
    last = event.last
    make = _SETTLERS.get(type(state))
    if make is None:
        if isinstance(state, TransactionalState) and not event.settled:
            refusal = context.reporter.report(NotSupported("Transactions are not supported."), "", now_ms)
            context.connection.disposition(event.channel, _OUR_ROLE, first, last, Rejected(refusal))
        return  # `received` is no outcome: the delivery stays unsettled
    emit = context.commands.append
    if first == last:
        link = unsettled.pop(first, None)
        if link is not None:
            token = link.take_token(first)
            emit(make(link, token, first, state, None if event.settled else (*link.link, first)))
            return
    known = ids_in_range(first, last, unsettled)
    at = first
    for delivery_id in known:
        if delivery_id != at and not event.settled:
            _answer_unknown(context, unsettled, event.channel, at, (delivery_id - 1) & 0xFFFFFFFF, now_ms)
        link = unsettled.pop(delivery_id)
        token = link.take_token(delivery_id)
        emit(make(link, token, delivery_id, state, None if event.settled else (*link.link, delivery_id)))
        at = (delivery_id + 1) & 0xFFFFFFFF
    if at != (last + 1) & 0xFFFFFFFF and not event.settled:
        _answer_unknown(context, unsettled, event.channel, at, last, now_ms)


def _answer_unknown(
    context: Context, unsettled: Unsettled, channel: int, first: int, last: int, now_ms: int
) -> None:
    lost: ServiceBusError
    if unsettled.of_message_session:
        lost = SessionLockLost(
            "The session lock has expired on the message session, or the message was settled before "
            f"(delivery {first})."
        )
    else:
        lost = MessageLockLost(
            "The lock supplied is invalid. Either the lock expired, or the message has already been removed "
            f"from the queue (delivery {first})."
        )
    refusal = context.reporter.report(lost, "", now_ms)
    context.connection.disposition(channel, _OUR_ROLE, first, last, Rejected(refusal))


def _complete(
    link: ReceiverLink, token: bytes, delivery_id: int, state: Any, reply_to: ReplyTo | None
) -> Command:
    assert link.queue_id is not None
    return Complete(link.queue_id, token, reply_to)


def _release(
    link: ReceiverLink, token: bytes, delivery_id: int, state: Any, reply_to: ReplyTo | None
) -> Command:
    assert link.queue_id is not None
    if reply_to is not None:
        link.expect(delivery_id, RELEASED)
    return Release(link.queue_id, token, reply_to)


def _modify(
    link: ReceiverLink, token: bytes, delivery_id: int, state: Modified, reply_to: ReplyTo | None
) -> Command:
    """`undeliverable-here` alone tells defer from abandon (wire contract 4.2)."""
    assert link.queue_id is not None
    if reply_to is not None:
        link.expect(delivery_id, Modified(state.delivery_failed, state.undeliverable_here))
    kind = Defer if state.undeliverable_here else Abandon
    return kind(link.queue_id, token, reply_to, _text_keys(state.message_annotations))


def _dead_letter(
    link: ReceiverLink, token: bytes, delivery_id: int, state: Rejected, reply_to: ReplyTo | None
) -> Command:
    assert link.queue_id is not None
    if reply_to is not None:
        link.expect(delivery_id, Rejected(None))  # with an error it would mean failure (wire contract 4.3)
    reason = description = None
    properties: Mapping[str, Any] | None = None
    if state.error is not None:
        info = _text_keys(state.error.info) or {}
        reason = _text(info.pop(REASON, None))
        description = _text(info.pop(DESCRIPTION, None)) or state.error.description or None
        properties = info or None
    return DeadLetter(link.queue_id, token, reply_to, reason, description, properties)


def _text_keys(pairs: Mapping[Any, Any] | None) -> dict[str, Any] | None:
    """Take properties to modify: keys come as symbols or strings, other keys are no property names."""
    if not pairs:
        return None
    return {str(key): value for key, value in pairs.items() if isinstance(key, str)}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


_SETTLERS: dict[type, Callable[[ReceiverLink, bytes, int, Any, ReplyTo | None], Command]] = {
    Accepted: _complete,
    Modified: _modify,
    Rejected: _dead_letter,
    Released: _release,
}
