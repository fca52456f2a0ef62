"""A link over which a client declares and discharges transactions.

A transaction ends with the link that declared it: `CloseLink` and `DropConnection` roll it back. Its entry in
`Transactions` goes when the broker reports its end.

A request keeps its credit until it is answered, since the broker may let a declare wait: no more of them wait
than the link has credit. Source: wire contract 6, C34; AMQP 1.0 sections 4.2, 4.3; requirement F-03.
"""

from __future__ import annotations

from peeklock.amqp.codec import DecodeError
from peeklock.amqp.coordination import Declare, Discharge, decode_coordination
from peeklock.amqp.events import DeliveryOversized, DeliveryReceived, LinkAttached
from peeklock.amqp.performatives import ACCEPTED, Declared
from peeklock.broker.vocabulary import commands
from peeklock.broker.vocabulary.commands import LinkId, ReplyTo
from peeklock.broker.vocabulary.effects import CoordinatorOpened
from peeklock.broker.vocabulary.errors import NotSupported, ServiceBusError, TransactionRolledBack
from peeklock.gateway.address import Node
from peeklock.gateway.context import Backlog, Context
from peeklock.gateway.errors import MessageMalformed
from peeklock.gateway.links.attach import LinkKind
from peeklock.gateway.links.incoming_link import IncomingLink
from peeklock.gateway.transactions import OpenTransaction, Transactions

REQUEST_BYTES_MAX = 65_536
"""Our choice: a declare or discharge has less than 100 bytes, and may come with properties
that are ignored."""


class CoordinatorLink(IncomingLink):
    """One attached controller."""

    kind = LinkKind.COORDINATE
    __slots__ = ("_discharging", "_open_ids", "_unanswered", "link", "number")

    def __init__(
        self,
        context: Context,
        backlog: Backlog,
        transactions: Transactions,
        event: LinkAttached,
        number: int,
        node: Node,
    ) -> None:
        super().__init__(context, backlog, transactions, event.channel, event.handle, node)
        self.number = number
        self.link = LinkId(context.connection_id, number)
        self._discharging: dict[int, tuple[Discharge, bool]] = {}  # with `settled`, by delivery id
        self._open_ids: set[bytes] = set()  # of the transactions that it has declared
        self._unanswered = 0  # requests
        transactions.coordinator_attached(event.channel)

    def opened(self, effect: CoordinatorOpened, now_ms: int) -> None:
        """Accept the link, and begin to take transfers."""
        self.context.connection.accept_link(self.channel, self.handle, max_message_size=REQUEST_BYTES_MAX)
        self._open(self.context.limits.request_credit)
        self._take_early(now_ms)

    def received(self, event: DeliveryReceived, now_ms: int) -> None:
        """Turn a declare or discharge into a command, or refuse what is neither."""
        if not self._credit_max:
            self._keep_early(event)
            return
        self._use_credit()
        delivery_id = event.delivery_id
        reply_to = ReplyTo(*self.link, delivery_id)
        try:
            request = decode_coordination(event.payload)
            if isinstance(request, Declare) and request.global_id is not None:
                raise NotSupported("Transactions over several brokers are not supported.")
        except DecodeError as error:
            self._refuse(
                event, MessageMalformed(f"The message is not a request to a coordinator: {error}."), now_ms
            )
        except NotSupported as refusal:
            self._refuse(event, refusal, now_ms)
        else:
            if isinstance(request, Discharge):
                self._discharging[delivery_id] = (request, event.settled)
                transaction = self._transactions.open.get(request.txn_id)
                fail = request.fail or (transaction is not None and transaction.refusal is not None)
                self.context.commands.append(commands.Discharge(self.link, request.txn_id, fail, reply_to))
            elif event.settled:
                self._answered()  # the client could not learn the transaction's id
            else:
                self.context.commands.append(commands.Declare(self.link, reply_to))

    def _use_credit(self) -> None:
        self._credit -= 1
        self._unanswered += 1

    def _answered(self) -> None:
        """Grant credit again when half of it is used, except for requests that wait."""
        self._unanswered -= 1
        credit = self._credit_max - self._unanswered
        if self._credit <= self._credit_max >> 1 and credit > self._credit:
            self._credit = credit
            self.context.connection.flow(self.channel, self.handle, credit)

    def _refuse(self, event: DeliveryReceived | DeliveryOversized, error: Exception, now_ms: int) -> None:
        super()._refuse(event, error, now_ms)
        self._answered()

    def declared(self, delivery_id: int, transaction_id: bytes) -> None:
        """Answer a declare with its new transaction."""
        self._transactions.open[transaction_id] = OpenTransaction(self.channel)
        self._open_ids.add(transaction_id)
        self._settle(delivery_id, Declared(transaction_id))
        self._answered()

    def ended(self, transaction_id: bytes) -> OpenTransaction | None:
        """Forget a transaction that is over, and return its entry."""
        if transaction_id not in self._open_ids:
            return None
        self._open_ids.remove(transaction_id)
        return self._transactions.open.pop(transaction_id)

    def accepted(self, first: int, count: int, now_ms: int) -> None:
        """Answer `count` discharges from this delivery id on: their transactions are over."""
        for delivery_id in range(first, first + count):
            self._discharged(delivery_id, now_ms)

    def _discharged(self, delivery_id: int, now_ms: int) -> None:
        """Answer a discharge: its transaction is committed, or rolled back as the client wanted."""
        request, settled = self._discharging.pop(delivery_id, (None, False))
        transaction = None if request is None else self.ended(request.txn_id)
        self._answered()
        if request is not None and transaction is not None and not request.fail:
            if transaction.refusal is not None:
                error = TransactionRolledBack(f"The transaction was rolled back: {transaction.refusal}")
                self._reject(delivery_id, error, now_ms, settled=settled)
                return
            for committed, settled_id, state in transaction.settled:
                committed(settled_id, state)
        if not settled:
            self._settle(delivery_id, ACCEPTED)

    def rejected(self, delivery_id: int, error: ServiceBusError, now_ms: int) -> None:
        """Reject a declare or a discharge: there is no transaction, or not any more."""
        request, settled = self._discharging.pop(delivery_id, (None, False))
        if request is not None:
            self.ended(request.txn_id)
        self._answered()
        self._reject(delivery_id, error, now_ms, settled=settled)

    def forget(self) -> None:
        """Drop what this link held: it is gone."""
        self._discharging.clear()
        for transaction_id in self._open_ids:
            self._transactions.open.pop(transaction_id, None)
        self._open_ids.clear()
        self._transactions.coordinator_gone(self.channel)
        self._forget_early()
