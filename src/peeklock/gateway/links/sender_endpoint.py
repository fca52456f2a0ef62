"""A link on which a client sends to an entity, or via one to another.

Transfers become commands, outcomes become dispositions. Source: wire contract 3.3, 3.7, 4.1, 6.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from peeklock.amqp.events import DeliveryOversized, DeliveryReceived, LinkAttached
from peeklock.amqp.messaging import BATCH_FORMAT, iter_batch
from peeklock.amqp.performatives import ACCEPTED, TransactionalState
from peeklock.amqp.types import RECEIVER, Symbol, ULong
from peeklock.broker.vocabulary.commands import (
    RUN_MAX,
    Address,
    CountDroppedSend,
    LinkId,
    ReplyTo,
    Send,
    SendBatch,
)
from peeklock.broker.vocabulary.effects import SenderOpened
from peeklock.broker.vocabulary.errors import ServiceBusError
from peeklock.gateway.address import Node
from peeklock.gateway.context import Backlog, Context
from peeklock.gateway.errors import GatewayError
from peeklock.gateway.inspection import BatchReader, take_in
from peeklock.gateway.links.attach import LinkKind
from peeklock.gateway.links.incoming_link import MESSAGE_OVERHEAD_BYTES, IncomingLink
from peeklock.gateway.transactions import Transactions

_BATCH_SIZE_MAX: Final = Symbol("com.microsoft:max-message-batch-size")

BATCH_BYTES_MAX: Final = 1024 * 1024
"""The largest batch on any tier. Source: Learn "Service Bus quotas"."""

BATCH_ENVELOPE_BYTES: Final = 1024
"""For what clients do not count when they fill a batch: the Python client adds up its members, and sends
header, annotations and properties of the first one around them, with ids of up to 128 characters."""

_ELSEWHERE: Final = (
    "The commit stores the message in its destination. Azure transfers it afterwards from the transaction's "
    "entity, and dead-letters it there if the destination refuses it."
)
"""See F-03 in docs/choices.toml."""


def batch_size_bytes_max(message_size_bytes_max: int) -> int:
    """Return the size up to which a client may fill a batch, so that its envelope still fits the link."""
    return min(message_size_bytes_max, BATCH_BYTES_MAX) - BATCH_ENVELOPE_BYTES


class SenderEndpoint(IncomingLink):
    """One attached sender."""

    kind = LinkKind.SEND
    __slots__ = (
        "_destination",
        "_emit",
        "_enlisting",
        "_gone",
        "_queue_id",
        "_reads_routing",
        "_takes_runs",
        "_unanswered",
        "destination",
        "link",
        "number",
    )

    def __init__(
        self,
        context: Context,
        backlog: Backlog,
        transactions: Transactions,
        event: LinkAttached,
        number: int,
        node: Node,
        destination: Node | None = None,
    ) -> None:
        super().__init__(context, backlog, transactions, event.channel, event.handle, node)
        self.number = number
        self.link = LinkId(context.connection_id, number)
        self.destination = destination
        self._destination: Address | None = None if destination is None else destination.address
        self._queue_id: int | None = None
        self._reads_routing = False
        self._takes_runs = False
        self._gone = False
        self._unanswered: dict[int, int] = {}  # bytes by delivery id, until the outcome is known
        self._enlisting: dict[int, bytes] = {}  # of these, the ids of the transactions that some are part of
        self._emit = context.commands.append

    @property
    def unsettled_count(self) -> int:
        """Deliveries whose outcome the client does not know."""
        return len(self._unanswered)

    def opened(self, effect: SenderOpened, now_ms: int) -> None:
        """Accept the link, and begin to take transfers."""
        size_bytes_max = effect.message_size_bytes_max
        properties = {_BATCH_SIZE_MAX: ULong(batch_size_bytes_max(size_bytes_max))}
        self.context.connection.accept_link(
            self.channel, self.handle, max_message_size=size_bytes_max, properties=properties
        )
        self._queue_id = effect.queue_id
        self._reads_routing = effect.reads_routing
        self._takes_runs = effect.takes_runs
        self._open(self.context.limits.link_credit)
        if self._early:
            self._backlog.read(self._read_early(now_ms))

    def _read_early(self, now_ms: int) -> Iterator[None]:
        """Take what came before the link was open, in order; yields where others may have a turn."""
        assert self._queue_id is not None
        early = self._early[:]
        self._forget_early()
        for event in early:
            if self._gone:
                return
            if event.message_format == BATCH_FORMAT:
                self._use_credit()
                yield from self._read_batch(event, self._queue_id, now_ms)
                yield
            else:
                self.received(event, now_ms)

    def received(self, event: DeliveryReceived, now_ms: int) -> None:
        """Turn a transfer into a command, or refuse it."""
        queue_id = self._queue_id
        if queue_id is None:
            self._keep_early(event)
            return
        self._credit -= 1  # as `_use_credit` does, without its call
        if self._credit <= self._credit_max >> 1 and self._credit_max:
            self._grant_credit()
        if event.message_format == BATCH_FORMAT:
            self._backlog.read(self._read_batch(event, queue_id, now_ms))
            return
        try:
            message, sections = take_in(event.payload, self._reads_routing)
        except (ServiceBusError, GatewayError) as error:
            self._refuse(event, error, now_ms)
            return
        size = message.size_bytes + MESSAGE_OVERHEAD_BYTES
        if not self._takes_runs or event.settled or event.state is not None:
            reply_to = None if event.settled else ReplyTo(*self.link, event.delivery_id)
            self._offer(event, Send(queue_id, message, sections, reply_to, self._destination), size, now_ms)
            return
        # As `_offer` does; what comes behind a message over the same link is part of the same command.
        delivery_id, number, commands = event.delivery_id, self.number, self.context.commands
        last = commands[-1] if commands else None
        if (
            type(last) is Send
            and last.reply_to is not None
            and last.reply_to.link_number == number
            and last.reply_to.number + len(last.further) + 1 == delivery_id
            and len(last.further) < RUN_MAX - 1
        ):
            if last.further:
                last.further.append((message, sections))
            else:
                last.further = [(message, sections)]
        else:
            reply_to = ReplyTo(self.context.connection_id, number, delivery_id)
            commands.append(Send(queue_id, message, sections, reply_to))
        if not self._gone:
            self._unanswered[delivery_id] = size
            self._backlog.uncommitted_bytes += size

    def _read_batch(self, event: DeliveryReceived, queue_id: int, now_ms: int) -> Iterator[None]:
        """Turn a batch into a command, or refuse it; yields where others may have a turn."""
        reader = BatchReader(iter_batch(event.payload), self._reads_routing)
        try:
            while reader.read(self.context.limits.slice_messages):
                yield
        except (ServiceBusError, GatewayError) as error:
            self._refuse(event, error, now_ms)
            return
        reply_to = None if event.settled else ReplyTo(*self.link, event.delivery_id)
        size = len(event.payload) + MESSAGE_OVERHEAD_BYTES * len(reader.messages)
        command = SendBatch(queue_id, reader.messages, reply_to, self._destination)
        self._offer(event, command, size, now_ms)

    def _offer(self, event: DeliveryReceived, command: Send | SendBatch, size: int, now_ms: int) -> None:
        """Hand a command out; `size` is what it holds in memory until its outcome is known."""
        state = event.state
        reply_to = command.reply_to
        if isinstance(state, TransactionalState):
            self._transactions.enlist(state.txn_id, self.channel, command)
            if self._transactions.is_elsewhere(self.channel, self.node.address):
                what = "sending to another entity in a transaction"
                self.context.reporter.note_first_use(what, _ELSEWHERE, now_ms)
            if reply_to is not None and not self._gone:
                self._enlisting[event.delivery_id] = state.txn_id
        else:
            self._emit(command)
        if reply_to is not None and not self._gone:
            self._unanswered[event.delivery_id] = size
            self._backlog.uncommitted_bytes += size

    def accepted(self, first: int, count: int, now_ms: int) -> None:
        """Accept `count` deliveries from this id on: their messages are stored."""
        backlog, take = self._backlog, self._unanswered.pop
        for delivery_id in range(first, first + count):
            backlog.uncommitted_bytes -= take(delivery_id, 0)
        self.context.connection.disposition(self.channel, RECEIVER, first, first + count - 1, ACCEPTED)

    def enlisted(self, delivery_id: int) -> None:
        """Accept a delivery provisionally: its message is stored when its transaction is committed."""
        self._backlog.uncommitted_bytes -= self._unanswered.pop(delivery_id, 0)
        transaction_id = self._enlisting.pop(delivery_id, None)
        if transaction_id is not None:  # None where a client uses one delivery id twice
            self._settle(delivery_id, TransactionalState(transaction_id, ACCEPTED))

    def rejected(self, delivery_id: int, error: ServiceBusError, now_ms: int) -> None:
        """Reject a delivery: the broker refused its message."""
        self._backlog.uncommitted_bytes -= self._unanswered.pop(delivery_id, 0)
        self._enlisting.pop(delivery_id, None)
        self._reject(delivery_id, error, now_ms)

    def _refuse(self, event: DeliveryReceived | DeliveryOversized, error: Exception, now_ms: int) -> None:
        if event.settled:
            self._emit(CountDroppedSend())
        super()._refuse(event, error, now_ms)

    def forget(self) -> None:
        """Drop what this link held: it is gone, and so are the outcomes still to come."""
        self._gone = True  # what it sent before and is still being read is stored
        self._backlog.uncommitted_bytes -= sum(self._unanswered.values())
        self._unanswered.clear()
        self._enlisting.clear()
        self._forget_early()
