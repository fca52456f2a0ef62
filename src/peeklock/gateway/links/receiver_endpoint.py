"""A link on which a client receives from an entity.

It has the outbox of deliveries whose body is not in memory, the unsettled deliveries, and the answers to
settlements. What a disposition means is in `settlement`.

The broker gets credit as totals since the link was opened, so that deliveries under way need no correction:
the client allows deliveries, the connection's free output allows bytes. Source: wire contract 2.4, 2.7, 4.2,
4.3; requirements L-05, L-11, L-16.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from peeklock.amqp.events import LinkAttached, LinkFlow
from peeklock.amqp.performatives import ACCEPTED, DeliveryState, Rejected, TransactionalState
from peeklock.amqp.types import SENDER
from peeklock.broker.vocabulary.commands import (
    DELIVERY_BYTES,
    LinkId,
    LockToken,
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
from peeklock.gateway.context import Context, Output
from peeklock.gateway.links.attach import LinkKind, accepted_properties, accepted_source
from peeklock.gateway.transactions import Transactions

SHARE_BYTES_MIN: Final = 16_384
"""Output that each receiver of a connection may fill, however many there are. Our choice: less, and a link
with small messages would ask the broker for more after every few of them."""

Answer = tuple[int, int, DeliveryState, bool]
"""First and last delivery id, the outcome, and whether it settles the deliveries."""


class Unsettled(dict[int, "ReceiverEndpoint"]):
    """The unsettled deliveries of one AMQP session, by delivery id: which link each was sent over."""

    __slots__ = ("detached_with", "of_message_session")

    def __init__(self) -> None:
        self.of_message_session = False
        """Whether the latest receiver opened on it holds a message session: a delivery that is not here was
        then lost with that. A disposition does not name its link."""
        self.detached_with: ServiceBusError | None = None
        """Why the broker has detached a receiver since: the reason why later settlements fail."""


class ReceiverEndpoint:
    """One attached receiver."""

    kind = LinkKind.RECEIVE
    __slots__ = (
        "_attach",
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
        "_output",
        "_partitioned",
        "_settled",
        "_tokens",
        "_transactions",
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
        "session_id",
        "session_name",
        "unsettled",
    )

    def __init__(
        self,
        context: Context,
        output: Output,
        transactions: Transactions,
        event: LinkAttached,
        number: int,
        node: Node,
        mode: ReceiveMode,
        unsettled: Unsettled,
    ) -> None:
        """`unsettled` is the AMQP session's: delivery ids count per session, not per link."""
        self.context = context
        self._output = output
        self._transactions = transactions
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
        self.session_id = ""
        """Of that session."""
        self._attach: LinkAttached | None = event  # until it is open
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
        self._kept: dict[LockToken, bytes] = {}
        self._missing: dict[int, list[Deliver]] = {}  # body row -> deliveries that wait for it
        self._tokens: dict[int, LockToken] = {}  # lock tokens of this link's unsettled deliveries
        # What to answer when it is not `accepted`. In transactions a client may settle one delivery twice
        # before the first answer: the second time is refused, in its turn.
        self._echoes: dict[int, deque[DeliveryState]] = {}
        # Transaction of each delivery that is settled in one, and whether the client has settled its end.
        self._within: dict[int, tuple[bytes, bool]] = {}

    @property
    def unsettled_count(self) -> int:
        """Deliveries that the client has not settled."""
        return len(self._tokens)

    # Credit

    def opened(self, effect: ReceiverOpened, now_ms: int) -> None:
        """Accept the link, and pass on the credit from before it was open."""
        event, self._attach = self._attach, None
        assert event is not None
        properties = None
        if effect.session_id is not None:
            properties = accepted_properties(effect.locked_until_ms)
            self.session_name, self.session_id = event.name, effect.session_id
        source = accepted_source(event, effect.session_id)
        self.context.connection.accept_link(self.channel, self.handle, source=source, properties=properties)
        self.queue_id = effect.queue_id
        self._is_open = True
        self._output.receivers += 1
        self._partitioned = effect.partitioned
        self._holds_session = self.unsettled.of_message_session = effect.session_id is not None
        self.unsettled.detached_with = None
        if self._wanted or self._drain_asked:
            self._set_credit(drain=self._drain_asked)

    def flow(self, event: LinkFlow, now_ms: int) -> None:
        """Take the client's credit: so many deliveries more than it was given.

        The event's own figure may be old: further flows, and deliveries of ours, may have come since. It is
        still the most that may be used here: what came in between, a settlement above all, must count first.
        """
        credit = self.context.connection.credit(self.channel, self.handle)
        self._wanted = self._given + min(event.credit, credit)
        self._drain_asked = event.drain
        if self.queue_id is not None:
            self._set_credit(drain=event.drain)
            self.retry()  # deliveries that waited for credit

    def allow_bytes(self) -> bool:
        """Allow further bytes once half of the last allowance is used, as far as the connection's
        output is free.

        Returns False where bytes are due and the output is full: call again when it has drained.
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
        free = self.context.limits.output_bytes_max - self._output.pending_bytes
        return self._given_bytes + max(0, min(free, self._share()))

    def _share(self) -> int:
        """Return the part of the connection's output that this link may fill: the others may fill theirs
        before any of it is seen to wait."""
        output_bytes_max = self.context.limits.output_bytes_max
        return max(output_bytes_max // self._output.receivers, min(SHARE_BYTES_MIN, output_bytes_max))

    def _set_credit(self, *, drain: bool) -> None:
        self._bytes_max = max(self._bytes_max, self._free_bytes_max())
        self.context.commands.append(SetCredit(self.link, self._wanted, self._bytes_max, drain))

    # Deliveries

    def deliver(self, effect: Deliver) -> None:
        """Send a message, or keep it until its body and credit for it are there."""
        if self._outbox or not self._send(effect):
            self._outbox.append(effect)
            self._keep_payload(effect)

    def drained(self, effect: Drained) -> None:
        """Report that nothing more is available, after the deliveries before it."""
        if self._outbox and self._given < self._wanted:
            self._outbox.append(effect)
        else:  # deliveries that lack credit go out with the next flow
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
        """Drop the deliveries of a session whose lock has lapsed: the broker has them back.

        In receive-and-delete mode they are gone from the queue, and are still sent.
        """
        if self._settled:
            return
        self._outbox = deque(effect for effect in self._outbox if type(effect) is not Deliver)
        self._kept.clear()
        self._missing.clear()
        self._output.waiting_links.discard(self.number)
        self.retry()

    def bodies_arrived(self) -> None:
        """Look again for the bodies that were missing, then send what can go."""
        missing, self._missing = self._missing, {}
        self._output.waiting_links.remove(self.number)
        for effects in missing.values():
            for effect in effects:
                self._keep_payload(effect)
        self.retry()

    def body_rows_wanted(self) -> Iterable[int]:
        """Return the body rows that the outbox waits for."""
        return self._missing.keys()

    def _keep_payload(self, effect: Deliver) -> None:
        payloads = self._output.payloads
        payload = None if payloads is None else payloads(effect.message)
        if payload is None:
            self._output.waiting_links.add(self.number)
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
            payloads = self._output.payloads
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
                # It is gone from the queue, or would overtake what else of its session is under way: it waits
                # for new credit.
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
        if delivery_id < 0:  # the client has ended the link; its event comes
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
        """Skip a message whose body is damaged: its lock is gone, and the client keeps this credit.

        A message that is deleted on delivery had its body in memory then (`awaited_bodies`).
        """
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
        """Release a locked message that was never sent (L-16)."""
        if self.locks_in is not None and effect.lock_token is not None:
            self.context.commands.append(Release(self.locks_in, effect.lock_token, None))

    def take_undelivered(self) -> list[tuple[int, LockToken]]:
        """Return queue id and lock token of locked messages that wait here, and drop them."""
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
            return  # the client has granted credit while this was under way
        self._wanted = self._given
        self._drain_asked = False
        self.context.connection.drained(self.channel, self.handle)

    # Settlement

    def token(self, delivery_id: int) -> LockToken:
        """Return the lock token of an unsettled delivery."""
        return self._tokens[delivery_id]

    def take_token(self, delivery_id: int) -> LockToken:
        """Return the lock token of a delivery, and forget the delivery: it is being settled."""
        if self._within:
            self._within.pop(delivery_id, None)
        return self._tokens.pop(delivery_id)

    def expect(self, delivery_id: int, echo: DeliveryState) -> ReplyTo:
        """Remember the outcome to echo when a settlement has succeeded; return the reply-to for it."""
        if echo is not ACCEPTED:
            self._echoes.setdefault(delivery_id, deque()).append(echo)
        return ReplyTo(*self.link, delivery_id)

    def expect_within(self, delivery_id: int, echo: TransactionalState) -> ReplyTo:
        """Do as `expect` does for a settlement in a transaction."""
        self._within[delivery_id] = echo.txn_id, False
        return self.expect(delivery_id, echo)

    def settled_by_client(self, delivery_id: int, transaction_id: bytes) -> bool:
        """Note that the client has settled its end of a delivery; False unless this
        transaction settles it."""
        if self._within.get(delivery_id, (None,))[0] != transaction_id:
            return False
        self._within[delivery_id] = transaction_id, True
        return True

    def settled(self, effect: Settled) -> None:
        """Answer settlements that are done."""
        first = effect.reply_to.number
        last = first + effect.count - 1
        if self._echoes:
            for delivery_id in range(first, last + 1):
                self._answer(delivery_id, delivery_id, self._take_echo(delivery_id))
        else:
            self._answer(first, last, ACCEPTED)

    def enlisted(self, delivery_id: int) -> None:
        """Answer a settlement that its transaction's commit will do: the outcome is provisional, and the
        delivery stays unsettled. Source: AMQP 4.4.2, wire contract C13."""
        state = self._take_echo(delivery_id)
        assert isinstance(state, TransactionalState)
        transaction = self._transactions.open.get(state.txn_id)
        if transaction is not None:
            transaction.settled.append((self.committed, delivery_id, state))
        self._answer(delivery_id, delivery_id, state, settled=False)

    def settlement_failed(self, effect: SettlementFailed, now_ms: int) -> None:
        """Answer a settlement that was refused."""
        delivery_id = effect.reply_to.number
        self._take_echo(delivery_id)
        self._within.pop(delivery_id, None)
        refusal = self.context.reporter.report(effect.error, shown(self.node.address), now_ms)
        self._answer(delivery_id, delivery_id, Rejected(refusal))

    def committed(self, delivery_id: int, state: TransactionalState) -> None:
        """Settle a delivery whose settlement was part of a transaction, unless the client has done so.

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
        """Drop what belongs to this link. The broker keeps its locks (L-13) but those
        of undelivered messages."""
        if self._is_open:
            self._is_open = False
            self._output.receivers -= 1
        for queue_id, token in self.take_undelivered():
            self.context.commands.append(Release(queue_id, token, None))
        self._outbox.clear()
        self._kept.clear()
        self._missing.clear()
        self._output.waiting_links.discard(self.number)
        for delivery_id in self._tokens:
            self.unsettled.pop(delivery_id, None)
        self._tokens.clear()
        self._within.clear()
