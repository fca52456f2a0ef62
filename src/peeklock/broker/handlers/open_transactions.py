"""Records of open transactions: per transaction, per coordinator link, per connection.

Source: wire contract 6, C34.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from peeklock.broker.handlers.enlisted import Enlisted, UsedPartitions, count_of, size_of
from peeklock.broker.queue.peek_lock import Lock
from peeklock.broker.vocabulary.commands import LinkId, ReplyTo, SequenceNumber
from peeklock.broker.vocabulary.errors import ServiceBusError


class TransactionState(Enum):
    """Life of a transaction."""

    EMPTY = 1
    """Declared, without an operation."""
    RUNNING = 2
    """Its first operation, even if refused, has started its time."""
    TIMED_OUT = 3
    """Rolled back; its coordinator link remembers it."""


TRANSITIONS: Final[dict[TransactionState | None, frozenset[TransactionState | None]]] = {
    None: frozenset((TransactionState.EMPTY,)),
    TransactionState.EMPTY: frozenset((TransactionState.RUNNING, TransactionState.TIMED_OUT, None)),
    TransactionState.RUNNING: frozenset((TransactionState.TIMED_OUT, None)),
    TransactionState.TIMED_OUT: frozenset((None,)),
}
"""The life of a transaction; None: its id is unknown, before the declare and after the end.

A discharge, whatever its result, and the end of the coordinator link end an open one. The discharge of one
that timed out is refused with that reason, once."""


class Transaction:
    """One open transaction."""

    __slots__ = (
        "cancelled",
        "commands",
        "control",
        "deadline_ms",
        "entity_name",
        "is_empty",
        "locks",
        "message_count",
        "partitions",
        "refused",
        "size_bytes",
        "transaction_id",
    )

    def __init__(self, transaction_id: bytes, control: Control, deadline_ms: int) -> None:
        self.transaction_id = transaction_id
        self.control = control  # of its coordinator link
        self.deadline_ms = deadline_ms
        self.is_empty = True  # without an operation
        self.commands: list[Enlisted] = []  # in order
        self.cancelled: set[tuple[int, SequenceNumber]] = set()  # (queue id, number) of scheduled messages
        self.entity_name: str | None = None  # of its top-level entity, in lower case
        self.partitions = UsedPartitions()
        self.locks: list[Lock] = []  # that its commands settle
        self.message_count = 0  # sent and scheduled
        self.size_bytes = 0  # see `enlisted.size_of`
        self.refused: ServiceBusError | None = None  # of a command without an answer, which fails the commit

    def __str__(self) -> str:
        return f"transaction {self.transaction_id.hex()}"


class Control:
    """Transactions of one coordinator link."""

    __slots__ = ("connection", "link", "open", "timed_out", "waiting")

    def __init__(self, link: LinkId, connection: TransactionsOfConnection) -> None:
        self.link = link
        self.connection = connection
        self.open: dict[bytes, Transaction] = {}
        self.timed_out: dict[bytes, None] = {}  # in order
        self.waiting: dict[ReplyTo, None] = {}  # unanswered declares, in order


class TransactionsOfConnection:
    """Transactions of one connection, over all its coordinator links."""

    __slots__ = ("controls", "open", "size_bytes", "timed_out", "waiting")

    def __init__(self) -> None:
        self.controls: dict[LinkId, Control] = {}
        self.open: dict[bytes, Transaction] = {}
        self.timed_out: dict[bytes, None] = {}  # of all links
        self.waiting: dict[ReplyTo, Control] = {}  # unanswered declares, in order
        self.size_bytes = 0  # of open ones


def check_connection(connection: TransactionsOfConnection) -> None:
    """Assert that the indexes of a connection agree."""
    controls = connection.controls.values()
    assert connection.open == {key: one for control in controls for key, one in control.open.items()}
    assert connection.timed_out.keys() == {key for control in controls for key in control.timed_out}
    assert set(connection.waiting) == {reply_to for control in controls for reply_to in control.waiting}
    assert connection.size_bytes == sum(found.size_bytes for found in connection.open.values())
    for transaction in connection.open.values():
        _check_transaction(transaction)


def _check_transaction(transaction: Transaction) -> None:
    commands = transaction.commands
    assert not (transaction.is_empty and commands)
    assert transaction.message_count == sum(map(count_of, commands))
    assert transaction.size_bytes == sum(map(size_of, commands))
    for lock in transaction.locks:
        # A lock is marked as long as it holds.
        assert (lock.transaction_id == transaction.transaction_id) == (lock.message.lock is lock)
