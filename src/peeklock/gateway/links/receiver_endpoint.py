"""A link on which a client receives from an entity.

Owns: credit towards the broker, the outbox of deliveries whose body is not in memory, the unsettled
deliveries, and the answers to settlements. Must not know: what a client's disposition means; that is
`settlement`.

Credit is told to the broker as totals since the link was opened, so that deliveries under way need no care:
the client allows deliveries, the connection's free output allows bytes.
Source: wire contract 2.4, 2.7, 4.2, 4.3; requirements L-05, L-11, L-16.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from peeklock.amqp.events import LinkAttached, LinkFlow
from peeklock.amqp.performatives import ACCEPTED, DeliveryState, Rejected, TransactionalState
from peeklock.amqp.types import SENDER
from peeklock.broker.vocabulary.commands import (
    DELIVERY_BYTES,
    LinkId,
    ReceiveMode,
    Release,
    ReplyTo,
    SetCredit,
)
from peeklock.broker.vocabulary.effects import Deliver, Drained, ReceiverOpened, Settled, SettlementFailed
from peeklock.broker.vocabulary.errors import ServiceBusError
from peeklock.broker.vocabulary.message import LOST_BODY
from peeklock.gateway.address import Node, shown
from peeklock.gateway.annotations import encode_for_receiver
from peeklock.gateway.context import Context

SHARE_BYTES_MIN = 16_384
"""Output that each receiver of a connection may fill, however many there are. Our choice: less, and a link
with small messages would ask the broker for more after every few of them."""

Answer = tuple[int, int, DeliveryState, bool]
"""First and last delivery id, what becomes of the deliveries, and whether that settles them: the client has
asked for it."""


class Unsettled(dict[int, "ReceiverEndpoint"]):
    """The unsettled deliveries of one AMQP session, by delivery id: which link each was sent over."""

    __slots__ = ("detached_with", "of_message_session")

    def __init__(self) -> None:
        self.of_message_session = False
        """Whether the latest receiver opened on it holds a message session: what is not found here was then
        lost with that. A disposition does not name its link."""
        self.detached_with: ServiceBusError | None = None
        """Why the broker has detached a receiver since: that is what stands in the way of who settles."""


class ReceiverEndpoint:
    """One attached receiver. `number` names it towards the broker, once and for all of the connection."""

    __slots__ = (
        "_bytes_max",
        "_drain_asked",
        "_echoes",
        "_given",
        "_given_bytes",
        "_holds_session",
        "_is_open",
        "_kept",
        "_missing",
        "_outbox",
        "_partitioned",
        "_settled",
        "_tokens",
        "_wanted",
        "_within",
        "channel",
        "context",
        "handle",
        "link",
        "mode",
        "node",
        "number",
        "queue_id",
        "session_name",
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
        self.link = LinkId(context.connection_id, number)
        self.node = node
        self.mode = mode
        self.unsettled = unsettled
        self.queue_id: int | None = None
        self.session_name: str | None = None
        """The link's name, if it holds a message session."""
        self._partitioned = False
        self._settled = mode is ReceiveMode.RECEIVE_AND_DELETE
        self._holds_session = False
        self._wanted = 0  # deliveries that the client allows in all
        self._drain_asked = False
        self._given = 0  # deliveries taken from the broker and not waiting here, sent or given back
        self._given_bytes = 0
        self._bytes_max = 0
        self._is_open = False
        self._outbox: deque[Deliver | Drained | Answer] = deque()
        # Payloads of what waits in the outbox, by lock token: a message that is gone from its queue meanwhile
        # (received and deleted, or completed by another after its lock lapsed) can be read nowhere else.
        self._kept: dict[bytes, bytes] = {}
        self._missing: dict[int, list[Deliver]] = {}  # body row -> deliveries that wait for it
        self._tokens: dict[int, bytes] = {}  # lock tokens of this link's unsettled deliveries
        # What to answer when it is not `accepted`. In transactions a client may settle one delivery twice
        # before the first answer: the second time is refused, in its turn.
        self._echoes: dict[int, deque[DeliveryState]] = {}
        # Deliveries that are settled in transactions: their ids, and whether the client has done its half.
        self._within: dict[int, tuple[bytes, bool]] = {}

    # Credit

    def opened(self, effect: ReceiverOpened) -> None:
        """Pass on the credit that came before the link was open."""
        self.queue_id = effect.queue_id
        self._is_open = True
        self.context.receivers += 1
        self._partitioned = effect.partitioned
        self._holds_session = self.unsettled.of_message_session = effect.session_id is not None
        self.unsettled.detached_with = None
        if self._wanted or self._drain_asked:
            self._set_credit(drain=self._drain_asked)

    def flow(self, event: LinkFlow, now_ms: int) -> None:
        """Take the client's credit: what it may be sent now, so in all that much more than it was given.

        The event's own figure may be old: further flows, and deliveries of ours, may have come since. Yet it
        is the most that may be used here: what came in between, a settlement above all, is to count first.
        """
        credit = self.context.connection.credit(self.channel, self.handle)
        self._wanted = self._given + min(event.credit, credit)
        self._drain_asked = event.drain
        if self.queue_id is not None:
            self._set_credit(drain=event.drain)
            self.retry()  # deliveries that waited for credit

    def allow_bytes(self) -> bool:
        """Allow further bytes once half of what was allowed is used, as far as the connection's output is
        free.

        False: that would be due, but there is no room; to be called again when output has drained.
        """
        if self._wanted <= self._given:
            return True
        if self._bytes_max - self._given_bytes > self._share() // 2:
            return True
        if self._free_bytes_max() <= max(self._bytes_max, self._given_bytes):
            return False
        self._set_credit(drain=False)
        return True

    def _free_bytes_max(self) -> int:
        free = self.context.limits.output_bytes_max - self.context.output_bytes
        return self._given_bytes + max(0, min(free, self._share()))

    def _share(self) -> int:
        """Give the part of the connection's output that this link may fill: the others may do so as well
        before anything of it is seen to wait."""
        output_bytes_max = self.context.limits.output_bytes_max
        return max(output_bytes_max // self.context.receivers, min(SHARE_BYTES_MIN, output_bytes_max))

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

    def retry(self) -> None:
        """Send what waits, as far as it goes."""
        outbox = self._outbox
        while outbox:
            effect = outbox[0]
            if isinstance(effect, Deliver):
                if not self._send(effect):
                    return
            elif isinstance(effect, Drained):
                self._give_back_credit()
            else:
                first, last, state, settled = effect
                self.context.connection.disposition(self.channel, SENDER, first, last, state, settled=settled)
            outbox.popleft()

    def session_lapsed(self) -> None:
        """Send nothing that was locked with the session: the broker has it back. What was deleted as it was
        delivered can be sent by nobody else, and goes out as long as the link is there."""
        if self._settled:
            return
        self._outbox = deque(effect for effect in self._outbox if type(effect) is not Deliver)
        self._kept.clear()
        self._missing.clear()
        self.context.waiting_links.pop(self.number, None)
        self.retry()

    def bodies_arrived(self) -> None:
        """Look again for the bodies that were missing, then send what can go."""
        missing, self._missing = self._missing, {}
        del self.context.waiting_links[self.number]
        for effects in missing.values():
            for effect in effects:
                self._keep_payload(effect)
        self.retry()

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
        if payload is LOST_BODY:
            self._pass_over(effect)
            return True
        if self._given >= self._wanted:
            # The client took its credit back while this was under way.
            if self._settled or self._holds_session:
                # It is gone from the queue, or would come behind what else of its session is under way: it
                # waits for new credit.
                return False
            self._given += 1
            self._given_bytes += message.size_bytes + DELIVERY_BYTES
            self._kept.pop(tag, None)
            self.release_undelivered(effect)
            return True
        encoded = encode_for_receiver(
            effect, payload, over_link=True, tag_only=self._settled, partitioned=self._partitioned
        )
        delivery_id = connection.send(self.channel, self.handle, tag, encoded, settled=self._settled)
        if delivery_id < 0:  # the client has ended the link, its event is on the way
            self.release_undelivered(effect)
            return True
        self._given += 1
        self._given_bytes += message.size_bytes + DELIVERY_BYTES
        if self._kept:
            self._kept.pop(tag, None)
        if not self._settled:
            self.unsettled[delivery_id] = self
            self._tokens[delivery_id] = tag
        return True

    def _pass_over(self, effect: Deliver) -> None:
        """Send nothing of a message whose body is damaged: its lock is gone, and the client has this credit
        still. One that is deleted as it is delivered had its body in memory then (`awaited_bodies`)."""
        assert effect.lock_token is not None
        self._kept.pop(effect.lock_token, None)
        if self._given < self._wanted:
            self._wanted += 1
        self._given += 1
        self._given_bytes += effect.message.size_bytes + DELIVERY_BYTES
        self._set_credit(drain=self._drain_asked)

    @property
    def locks_in(self) -> int | None:
        """The queue whose messages this link locks; None while it is not open, or if it locks none."""
        return None if self._settled else self.queue_id

    def release_undelivered(self, effect: Deliver) -> None:
        """Make a locked message available again that the client never got (L-16)."""
        if self.locks_in is not None and effect.lock_token is not None:
            self.context.commands.append(Release(self.locks_in, effect.lock_token, None))

    def take_undelivered(self) -> list[tuple[int, bytes]]:
        """Return queue id and lock token of what waits here locked, which is to be sent no more."""
        waiting, self._outbox = self._outbox, deque()
        queue_id = self.locks_in
        if queue_id is None:
            return []
        return [
            (queue_id, effect.lock_token)
            for effect in waiting
            if type(effect) is Deliver and effect.lock_token is not None
        ]

    def _give_back_credit(self) -> None:
        if not self._drain_asked:
            return  # the client has given credit anew while this was under way
        self._wanted = self._given
        self._drain_asked = False
        self.context.connection.drained(self.channel, self.handle)

    # Settlement

    def token(self, delivery_id: int) -> bytes:
        """Give the lock token of an unsettled delivery."""
        return self._tokens[delivery_id]

    def take_token(self, delivery_id: int) -> bytes:
        """Give the lock token of a delivery that is being settled; it is unsettled no longer."""
        if self._within:
            self._within.pop(delivery_id, None)
        return self._tokens.pop(delivery_id)

    def expect(self, delivery_id: int, echo: DeliveryState) -> ReplyTo:
        """Remember which outcome to echo when a settlement has succeeded; give where its answer goes."""
        if echo is not ACCEPTED:
            self._echoes.setdefault(delivery_id, deque()).append(echo)
        return ReplyTo(*self.link, delivery_id)

    def expect_within(self, delivery_id: int, echo: TransactionalState) -> ReplyTo:
        """Remember the same of a settlement within a transaction."""
        self._within[delivery_id] = echo.txn_id, False
        return self.expect(delivery_id, echo)

    def settled_by_client(self, delivery_id: int, transaction_id: bytes) -> bool:
        """Take note of the client's half of a settlement within a transaction; False when there is none."""
        if self._within.get(delivery_id, (None,))[0] != transaction_id:
            return False
        self._within[delivery_id] = transaction_id, True
        return True

    def settled(self, effect: Settled) -> None:
        """Answer settlements that were performed."""
        first = effect.reply_to.number
        last = first + effect.count - 1
        if self._echoes:
            for delivery_id in range(first, last + 1):
                self._answer(delivery_id, delivery_id, self._take_echo(delivery_id))
        else:
            self._answer(first, last, ACCEPTED)

    def enlisted(self, delivery_id: int) -> None:
        """Answer a settlement that will be performed when its transaction is committed: the outcome is
        provisional, and the delivery stays unsettled. Source: AMQP 4.4.2, wire contract C13."""
        state = self._take_echo(delivery_id)
        assert isinstance(state, TransactionalState)
        transaction = self.context.transactions.get(state.txn_id)
        if transaction is not None:
            transaction.settled.append((self, delivery_id, state))
        self._answer(delivery_id, delivery_id, state, settled=False)

    def settlement_failed(self, effect: SettlementFailed, now_ms: int) -> None:
        """Answer a settlement that was refused."""
        delivery_id = effect.reply_to.number
        self._take_echo(delivery_id)
        self._within.pop(delivery_id, None)
        refusal = self.context.reporter.report(effect.error, shown(self.node.address), now_ms)
        self._answer(delivery_id, delivery_id, Rejected(refusal))

    def committed(self, delivery_id: int, state: TransactionalState) -> None:
        """End a delivery whose settlement was part of a transaction, unless the client has done so.

        The Java client logs an error for another type of state than its own had.
        """
        _, settled_by_client = self._within.pop(delivery_id, (None, False))
        if self._tokens.pop(delivery_id, None) is not None:
            del self.unsettled[delivery_id]
            if not settled_by_client:
                self._answer(delivery_id, delivery_id, state)

    def _take_echo(self, delivery_id: int) -> DeliveryState:
        echoes = self._echoes.get(delivery_id)
        if echoes is None:
            return ACCEPTED
        echo = echoes.popleft()
        if not echoes:
            del self._echoes[delivery_id]
        return echo

    def _answer(self, first: int, last: int, state: DeliveryState, *, settled: bool = True) -> None:
        if self._outbox:
            self._outbox.append((first, last, state, settled))
        else:
            self.context.connection.disposition(self.channel, SENDER, first, last, state, settled=settled)

    def forget(self) -> None:
        """Drop what belongs to this link. Locks stay with the broker (L-13), those not delivered do not."""
        if self._is_open:
            self._is_open = False
            self.context.receivers -= 1
        for queue_id, token in self.take_undelivered():
            self.context.commands.append(Release(queue_id, token, None))
        self._outbox.clear()
        self._kept.clear()
        self._missing.clear()
        self.context.waiting_links.pop(self.number, None)
        for delivery_id in self._tokens:
            self.unsettled.pop(delivery_id, None)
        self._tokens.clear()
        self._within.clear()
