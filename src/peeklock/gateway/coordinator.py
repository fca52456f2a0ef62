"""A link over which a client declares and discharges transactions.

Owns: what is said to the coordinator, and the answers. Must not know: what is enlisted where; `sender_link`,
`settlement` and `management` read the transaction of what they are asked, and the broker keeps the rest.

A transaction lives no longer than the link that declared it: `CloseLink` and `DropConnection` roll it back.
Source: wire contract 6; AMQP 1.0 sections 4.2, 4.3; requirement F-03.
"""

from __future__ import annotations

from peeklock.amqp.codec import DecodeError
from peeklock.amqp.coordination import Declare, Discharge, decode_coordination
from peeklock.amqp.events import DeliveryReceived, LinkAttached
from peeklock.amqp.performatives import ACCEPTED, Declared
from peeklock.broker import commands
from peeklock.broker.errors import NotSupported, ServiceBusError, TransactionRolledBack
from peeklock.gateway.address import Node
from peeklock.gateway.context import Context, OpenTransaction
from peeklock.gateway.errors import MessageMalformed
from peeklock.gateway.intake import Intake

REQUEST_BYTES_MAX = 65_536
"""Our choice: a declare or discharge has less than 100 bytes, and may come with properties nobody reads."""

TRANSACTIONS_MAX = 64
"""Transactions that a connection remembers. Our choice, well above the 16 that the broker lets it have open:
the others have timed out, and nobody discharged them."""


class CoordinatorLink(Intake):
    """One attached controller. `number` names its link towards the broker, once and for all of the
    connection."""

    __slots__ = ("_discharging", "link", "number")

    def __init__(self, context: Context, event: LinkAttached, number: int, node: Node) -> None:
        super().__init__(context, event.channel, event.handle, node)
        self.number = number
        self.link = (context.connection_id, event.channel, number)
        self._discharging: dict[int, tuple[Discharge, bool]] = {}  # with `settled`, by delivery id

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
        reply_to = (*self.link, delivery_id)
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
            elif not event.settled:  # else nobody would learn of the transaction
                self.context.commands.append(commands.Declare(self.link, reply_to))

    def declared(self, delivery_id: int, transaction_id: bytes) -> None:
        """Tell the controller its new transaction."""
        transactions = self.context.transactions
        if len(transactions) >= TRANSACTIONS_MAX:
            del transactions[next(iter(transactions))]
        transactions[transaction_id] = OpenTransaction()
        self._settle(delivery_id, Declared(transaction_id))

    def accepted(self, delivery_id: int, now_ms: int) -> None:
        """Tell the controller that its transaction is committed, or rolled back as it wanted."""
        request, settled = self._discharging.pop(delivery_id, (None, False))
        transaction = None if request is None else self.context.transactions.pop(request.txn_id, None)
        if request is not None and transaction is not None and not request.fail:
            if transaction.refusal is not None:
                error = TransactionRolledBack(f"The transaction was rolled back: {transaction.refusal}")
                self._reject(delivery_id, error, now_ms, settled=settled)
                return
            for link, settled_id in transaction.settled:
                link.committed(settled_id)
        if not settled:
            self._settle(delivery_id, ACCEPTED)

    def rejected(self, delivery_id: int, error: ServiceBusError, now_ms: int) -> None:
        """Tell the controller that there is no transaction, or not any more."""
        _, settled = self._discharging.pop(delivery_id, (None, False))
        self._reject(delivery_id, error, now_ms, settled=settled)

    def forget(self) -> None:
        """Give back what this link held: it is gone."""
        self._discharging.clear()
        self._forget_early()
