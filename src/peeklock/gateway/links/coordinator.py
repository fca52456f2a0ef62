"""A link over which a client declares and discharges transactions.

Owns: what is said to the coordinator, and the answers. Must not know: what is enlisted where; `sender_link`,
`settlement` and `management` read the transaction of what they are asked, and the broker keeps the rest.

A transaction lives no longer than the link that declared it: `CloseLink` and `DropConnection` roll it back.
What is remembered here of those that are open goes when the broker says that they are over.

A request keeps its credit until it is answered, since the broker may let a declare wait: so no more of them
wait than the link has credit. Source: wire contract 6, C34; AMQP 1.0 sections 4.2, 4.3; requirement F-03.
"""

from __future__ import annotations

from peeklock.amqp.codec import DecodeError
from peeklock.amqp.coordination import Declare, Discharge, decode_coordination
from peeklock.amqp.events import DeliveryOversized, DeliveryReceived, LinkAttached
from peeklock.amqp.performatives import ACCEPTED, Declared
from peeklock.broker.vocabulary import commands
from peeklock.broker.vocabulary.commands import LinkId, ReplyTo
from peeklock.broker.vocabulary.errors import NotSupported, ServiceBusError, TransactionRolledBack
from peeklock.gateway.address import Node
from peeklock.gateway.context import Context, OpenTransaction
from peeklock.gateway.errors import MessageMalformed
from peeklock.gateway.links.incoming_link import IncomingLink

REQUEST_BYTES_MAX = 65_536
"""Our choice: a declare or discharge has less than 100 bytes, and may come with properties nobody reads."""


class CoordinatorLink(IncomingLink):
    """One attached controller. `number` names its link towards the broker, once and for all of the
    connection."""

    __slots__ = ("_discharging", "_open_ids", "_unanswered", "link", "number")

    def __init__(self, context: Context, event: LinkAttached, number: int, node: Node) -> None:
        super().__init__(context, event.channel, event.handle, node)
        self.number = number
        self.link = LinkId(context.connection_id, number)
        self._discharging: dict[int, tuple[Discharge, bool]] = {}  # with `settled`, by delivery id
        self._open_ids: set[bytes] = set()  # of the transactions that it has declared
        self._unanswered = 0  # requests
        context.via.coordinated(event.channel)

    def opened(self, now_ms: int) -> None:
        """Begin to take transfers."""
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
            self._refuse(event, MessageMalformed(f"Not for a coordinator: {error}."), now_ms)
        except NotSupported as error:
            self._refuse(event, error, now_ms)
        else:
            if isinstance(request, Discharge):
                self._discharging[delivery_id] = (request, event.settled)
                transaction = self.context.transactions.get(request.txn_id)
                fail = request.fail or (transaction is not None and transaction.refusal is not None)
                self.context.commands.append(commands.Discharge(self.link, request.txn_id, fail, reply_to))
            elif event.settled:
                self._answered()  # nobody would learn of the transaction
            else:
                self.context.commands.append(commands.Declare(self.link, reply_to))

    def _use_credit(self) -> None:
        self._credit -= 1
        self._unanswered += 1

    def _answered(self) -> None:
        """Give credit anew when half of it is used, but for requests that wait."""
        self._unanswered -= 1
        credit = self._credit_max - self._unanswered
        if self._credit <= self._credit_max >> 1 and credit > self._credit:
            self._credit = credit
            self.context.connection.flow(self.channel, self.handle, credit)

    def _refuse(self, event: DeliveryReceived | DeliveryOversized, error: Exception, now_ms: int) -> None:
        super()._refuse(event, error, now_ms)
        self._answered()

    def declared(self, delivery_id: int, transaction_id: bytes) -> None:
        """Tell the controller its new transaction."""
        self.context.transactions[transaction_id] = OpenTransaction(self.channel)
        self._open_ids.add(transaction_id)
        self._settle(delivery_id, Declared(transaction_id))
        self._answered()

    def ended(self, transaction_id: bytes) -> OpenTransaction | None:
        """Forget a transaction that is over; return what was remembered."""
        if transaction_id not in self._open_ids:
            return None
        self._open_ids.remove(transaction_id)
        return self.context.transactions.pop(transaction_id)

    def accepted(self, first: int, count: int, now_ms: int) -> None:
        """Tell the controller that its transactions are over: so many, from this delivery id on."""
        for delivery_id in range(first, first + count):
            self._discharged(delivery_id, now_ms)

    def _discharged(self, delivery_id: int, now_ms: int) -> None:
        """Tell the controller that its transaction is committed, or rolled back as it wanted."""
        request, settled = self._discharging.pop(delivery_id, (None, False))
        transaction = None if request is None else self.ended(request.txn_id)
        self._answered()
        if request is not None and transaction is not None and not request.fail:
            if transaction.refusal is not None:
                error = TransactionRolledBack(f"The transaction was rolled back: {transaction.refusal}")
                self._reject(delivery_id, error, now_ms, settled=settled)
                return
            for link, settled_id, state in transaction.settled:
                link.committed(settled_id, state)
        if not settled:
            self._settle(delivery_id, ACCEPTED)

    def rejected(self, delivery_id: int, error: ServiceBusError, now_ms: int) -> None:
        """Tell the controller that there is no transaction, or not any more."""
        request, settled = self._discharging.pop(delivery_id, (None, False))
        if request is not None:
            self.ended(request.txn_id)
        self._answered()
        self._reject(delivery_id, error, now_ms, settled=settled)

    def forget(self) -> None:
        """Give back what this link held: it is gone."""
        self._discharging.clear()
        for transaction_id in self._open_ids:
            self.context.transactions.pop(transaction_id, None)
        self._open_ids.clear()
        self.context.via.coordinator_gone(self.channel)
        self._forget_early()
