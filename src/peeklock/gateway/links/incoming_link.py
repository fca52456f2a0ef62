"""Base of the links on which the client sends: credit, early transfers, refusals of single transfers.

Source: wire contract 2.7, 4.1.
"""

from __future__ import annotations

from typing import Final

from peeklock.amqp.events import DeliveryOversized, DeliveryReceived
from peeklock.amqp.performatives import DeliveryState, Rejected, TransactionalState
from peeklock.amqp.types import RECEIVER
from peeklock.broker.vocabulary.errors import MessageSizeExceeded
from peeklock.gateway.address import Node, shown
from peeklock.gateway.context import Backlog, Context
from peeklock.gateway.transactions import Transactions

MESSAGE_OVERHEAD_BYTES: Final = 680
"""What a message under way costs beyond its payload: its record, command, effect and places in tables.
Without it a flood of empty messages would not count (T-08). As measured: 650 to 676 bytes, 590 for one of
many in a row, 490 for one of a batch."""


class IncomingLink:
    """Our end of a link on which the client sends.

    A transfer may come before the attach is answered (Python does not wait for credit); it is
    kept until then.
    """

    __slots__ = (
        "_backlog",
        "_credit",
        "_credit_max",
        "_early",
        "_transactions",
        "channel",
        "context",
        "handle",
        "node",
    )

    def __init__(
        self,
        context: Context,
        backlog: Backlog,
        transactions: Transactions,
        channel: int,
        handle: int,
        node: Node,
    ) -> None:
        self.context = context
        self._backlog = backlog
        self._transactions = transactions
        self.channel = channel
        self.handle = handle
        self.node = node
        self._credit = 0
        self._credit_max = 0  # until it is open
        self._early: list[DeliveryReceived] = []

    def received(self, event: DeliveryReceived, now_ms: int) -> None:
        """Take a transfer."""
        raise NotImplementedError

    def oversized(self, event: DeliveryOversized, now_ms: int) -> None:
        """Refuse a transfer that the engine discarded for its size; the link stays open."""
        self._refuse_size(event, event.size_bytes_max, now_ms)

    def _refuse_size(
        self, event: DeliveryReceived | DeliveryOversized, size_bytes_max: int, now_ms: int
    ) -> None:
        self._use_credit()
        self._refuse(event, self._too_large(size_bytes_max), now_ms)

    def _too_large(self, size_bytes_max: int) -> MessageSizeExceeded:
        return MessageSizeExceeded(
            f"The received message on the link '{shown(self.node.address)}' exceeds the limit of "
            f"{size_bytes_max} bytes."
        )

    def _open(self, credit: int) -> None:
        """Grant the first credit."""
        self._credit_max = credit
        self._grant_credit()

    def _keep_early(self, event: DeliveryReceived) -> None:
        self._early.append(event)
        self._backlog.uncommitted_bytes += len(event.payload) + MESSAGE_OVERHEAD_BYTES

    def _take_early(self, now_ms: int) -> None:
        early, self._early = self._early, []
        for event in early:
            self._backlog.uncommitted_bytes -= len(event.payload) + MESSAGE_OVERHEAD_BYTES
            self.received(event, now_ms)

    def _forget_early(self) -> None:
        held = sum(len(event.payload) + MESSAGE_OVERHEAD_BYTES for event in self._early)
        self._backlog.uncommitted_bytes -= held
        self._early.clear()

    def _use_credit(self) -> None:
        """Count a transfer, and grant full credit again when half of it is used."""
        self._credit -= 1
        if self._credit <= self._credit_max >> 1 and self._credit_max:
            self._grant_credit()

    def _grant_credit(self) -> None:
        self._credit = self._credit_max
        self.context.connection.flow(self.channel, self.handle, self._credit)

    def _settle(self, delivery_id: int, state: DeliveryState) -> None:
        self.context.connection.disposition(self.channel, RECEIVER, delivery_id, delivery_id, state)

    def _reject(self, delivery_id: int, error: Exception, now_ms: int, *, settled: bool = False) -> None:
        refusal = self.context.reporter.report(error, shown(self.node.address), now_ms)
        if not settled:  # without an outcome, the log line is all (T-06)
            self._settle(delivery_id, Rejected(refusal))

    def _refuse(self, event: DeliveryReceived | DeliveryOversized, error: Exception, now_ms: int) -> None:
        if event.settled and isinstance(event.state, TransactionalState):
            self._transactions.spoil(event.state.txn_id, error)
        self._reject(event.delivery_id, error, now_ms, settled=event.settled)
