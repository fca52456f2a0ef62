"""What is remembered of open transactions: of each, of each coordinator link, of each connection.

Owns: the records, and how they name each other. Must not know: when one begins and ends (`transactions`).
Source: wire contract 6, C34.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from peeklock.broker.handlers.enlisted import Enlisted, UsedPartitions, count_of, size_of
from peeklock.broker.queue.peek_lock import Lock
from peeklock.broker.vocabulary.commands import LinkId, ReplyTo
from peeklock.broker.vocabulary.errors import ServiceBusError


class TransactionState(Enum):
    """Where a transaction is in its life."""

    EMPTY = 1
    """It is declared and has no operation yet."""
    RUNNING = 2
    """Its first operation has started its time, also if that was refused."""
    TIMED_OUT = 3
    """It was rolled back; its coordinator link remembers that."""


TRANSITIONS: Final[dict[TransactionState | None, frozenset[TransactionState | None]]] = {
    None: frozenset((TransactionState.EMPTY,)),
    TransactionState.EMPTY: frozenset((TransactionState.RUNNING, TransactionState.TIMED_OUT, None)),
    TransactionState.RUNNING: frozenset((TransactionState.TIMED_OUT, None)),
    TransactionState.TIMED_OUT: frozenset((None,)),
}
"""The life of a transaction; None: its id is unknown, before the declare and behind the end.

A discharge ends an open one, whatever its outcome, and so does the end of its coordinator link. The discharge
of a timed out one is refused with that reason, once."""


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
        self.control = control  # of the link over which it was declared
        self.deadline_ms = deadline_ms
        self.is_empty = True  # its own time runs from its first operation
        self.commands: list[Enlisted] = []  # in the order of enlisting
        self.cancelled: set[tuple[int, int]] = set()  # (queue id, number) of scheduled messages
        self.entity_name: str | None = None  # in lower case, of the top-level entity that it is about
        self.partitions = UsedPartitions()
        self.locks: list[Lock] = []  # that they settle
        self.message_count = 0  # of those that are sent and scheduled
        self.size_bytes = 0  # see `enlisted.size_of`
        self.refused: ServiceBusError | None = None  # why a command whose asker is not told was not enlisted

    def __str__(self) -> str:
        return f"transaction {self.transaction_id.hex()}"


class Control:
    """What was declared over one coordinator link."""

    __slots__ = ("connection", "link", "open", "timed_out", "waiting")

    def __init__(self, link: LinkId, connection: TransactionsOfConnection) -> None:
        self.link = link
        self.connection = connection
        self.open: dict[bytes, Transaction] = {}
        self.timed_out: dict[bytes, None] = {}  # in the order of timing out
        self.waiting: dict[ReplyTo, None] = {}  # declares that are not answered, in order


class TransactionsOfConnection:
    """What a connection has of transactions, over all its coordinator links."""

    __slots__ = ("controls", "open", "size_bytes", "timed_out", "waiting")

    def __init__(self) -> None:
        self.controls: dict[LinkId, Control] = {}
        self.open: dict[bytes, Transaction] = {}
        self.timed_out: dict[bytes, None] = {}  # those that its links remember
        self.waiting: dict[ReplyTo, Control] = {}  # declares that are not answered, in order
        self.size_bytes = 0  # of all that are open


def check_connection(connection: TransactionsOfConnection) -> None:
    """Compare the indexes of a connection with each other; an assertion fails when they do not agree."""
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
        # Marked as long as it holds.
        assert (lock.transaction_id == transaction.transaction_id) == (lock.message.lock is lock)
