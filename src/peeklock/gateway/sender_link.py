"""A link on which a client sends to an entity.

Owns: its credit, the reading of transfers into commands, and their outcomes. Must not know: rights,
receivers.
Source: wire contract 2.7, 3.3, 3.7, 4.1.
"""

from __future__ import annotations

from peeklock.amqp.events import DeliveryOversized, DeliveryReceived, LinkAttached
from peeklock.amqp.messaging import BATCH_FORMAT
from peeklock.amqp.performatives import ACCEPTED, Rejected, TransactionalState
from peeklock.amqp.types import Role
from peeklock.broker.commands import Send, SendBatch
from peeklock.broker.effects import SenderOpened
from peeklock.broker.errors import MessageSizeExceeded, NotSupported, ServiceBusError
from peeklock.gateway.address import Node, shown
from peeklock.gateway.context import Context
from peeklock.gateway.errors import GatewayError
from peeklock.gateway.inspection import inspect_batch, take_in

_OUR_ROLE = Role.RECEIVER

MESSAGE_OVERHEAD_BYTES = 512
"""What a message under way costs beyond its payload: its record, command, effect and places in tables. Else
a flood of empty messages would not count (T-08). Our choice, about as measured."""


BATCH_BYTES_MAX = 1024 * 1024
"""The largest batch on any tier. Source: Learn "Service Bus quotas"."""

BATCH_ENVELOPE_BYTES = 1024
"""Room for what clients do not count when they fill a batch: the Python client adds up its members and sends
header, annotations and properties of the first one around them, ids of up to 128 characters among them."""


def batch_size_bytes_max(message_size_bytes_max: int) -> int:
    """Give the size up to which a client shall fill a batch, so that its envelope still fits the link."""
    return min(message_size_bytes_max, BATCH_BYTES_MAX) - BATCH_ENVELOPE_BYTES


class SenderLink:
    """One attached sender. `number` names it towards the broker and is never used again on this connection.

    A transfer may come before the attach was answered (Python does not wait for credit); it is kept until
    then.
    """

    __slots__ = (
        "_credit",
        "_early",
        "_emit",
        "_queue_id",
        "_reads_routing",
        "_unanswered",
        "channel",
        "context",
        "handle",
        "link",
        "node",
        "number",
    )

    def __init__(self, context: Context, event: LinkAttached, number: int, node: Node) -> None:
        self.context = context
        self.channel = event.channel
        self.handle = event.handle
        self.number = number
        self.link = (context.connection_id, event.channel, number)
        self.node = node
        self._queue_id: int | None = None
        self._reads_routing = False
        self._credit = 0
        self._early: list[DeliveryReceived] = []
        self._unanswered: dict[int, int] = {}  # bytes by delivery id, until the outcome is known
        self._emit = context.commands.append

    def opened(self, effect: SenderOpened, now_ms: int) -> None:
        """Give the first credit, and take what came too early."""
        self._queue_id = effect.queue_id
        self._reads_routing = effect.reads_routing
        self._credit = self.context.limits.link_credit
        self.context.connection.flow(self.channel, self.handle, self._credit)
        early, self._early = self._early, []
        for event in early:
            self.context.uncommitted_bytes -= len(event.payload) + MESSAGE_OVERHEAD_BYTES
            self.received(event, now_ms)

    def received(self, event: DeliveryReceived, now_ms: int) -> None:
        """Turn a transfer into a command, or refuse it."""
        queue_id = self._queue_id
        payload = event.payload
        if queue_id is None:
            self._early.append(event)
            self.context.uncommitted_bytes += len(payload) + MESSAGE_OVERHEAD_BYTES
            return
        self._use_credit()
        reply_to = None
        if not event.settled:
            reply_to = (*self.link, event.delivery_id)
        messages = 1
        try:
            if event.state is not None and isinstance(event.state, TransactionalState):
                raise NotSupported("Transactions are not supported.")
            if event.message_format == BATCH_FORMAT:
                members = inspect_batch(payload, self._reads_routing)
                messages = len(members)
                self._emit(SendBatch(queue_id, members, reply_to))
            else:
                self._emit(Send(queue_id, *take_in(payload, self._reads_routing), reply_to))
        except (ServiceBusError, GatewayError) as error:
            self._refuse(event, error, now_ms)
            return
        if reply_to is not None:
            size = len(payload) + MESSAGE_OVERHEAD_BYTES * messages
            self._unanswered[event.delivery_id] = size
            self.context.uncommitted_bytes += size

    def oversized(self, event: DeliveryOversized, now_ms: int) -> None:
        """Refuse a transfer that the engine discarded for its size; the link lives on."""
        self._use_credit()
        error = MessageSizeExceeded(
            f"The received message on the link '{shown(self.node.address)}' exceeds the limit of "
            f"{event.size_bytes_max} bytes."
        )
        self._refuse(event, error, now_ms)

    def accepted(self, delivery_id: int) -> None:
        """Tell the sender that its message is stored."""
        self.context.uncommitted_bytes -= self._unanswered.pop(delivery_id, 0)
        self.context.connection.disposition(self.channel, _OUR_ROLE, delivery_id, delivery_id, ACCEPTED)

    def rejected(self, delivery_id: int, error: ServiceBusError, now_ms: int) -> None:
        """Tell the sender that the broker refused its message."""
        self.context.uncommitted_bytes -= self._unanswered.pop(delivery_id, 0)
        refusal = self.context.reporter.report(error, shown(self.node.address), now_ms)
        self.context.connection.disposition(
            self.channel, _OUR_ROLE, delivery_id, delivery_id, Rejected(refusal)
        )

    def forget(self) -> None:
        """Give back the bytes that this link held: it is gone, and so are the outcomes still to come."""
        held = sum(self._unanswered.values()) + sum(
            len(event.payload) + MESSAGE_OVERHEAD_BYTES for event in self._early
        )
        self.context.uncommitted_bytes -= held
        self._unanswered.clear()
        self._early.clear()

    def _use_credit(self) -> None:
        self._credit -= 1
        if self._credit <= self.context.limits.link_credit >> 1 and self._queue_id is not None:
            self._credit = self.context.limits.link_credit
            self.context.connection.flow(self.channel, self.handle, self._credit)

    def _refuse(self, event: DeliveryReceived | DeliveryOversized, error: Exception, now_ms: int) -> None:
        refusal = self.context.reporter.report(error, shown(self.node.address), now_ms)
        if not event.settled:  # else the log line is all there is (T-06)
            self.context.connection.disposition(
                self.channel, _OUR_ROLE, event.delivery_id, event.delivery_id, Rejected(refusal)
            )
