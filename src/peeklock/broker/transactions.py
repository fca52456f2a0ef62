"""Transactions: what was enlisted happens as a whole, or not at all.

Owns: which transactions are open, what each holds back, their limits and their end. Must not know: how a
message is stored or settled; `operations` checks and does that. Nothing of a transaction is durable before
its commit, and that is one frame; so a crash at any instant rolls back what was open.

Theory of operation. A command that is enlisted is checked at once, as it would be without a transaction, and
kept. The locks that it settles are marked, so that nobody settles them a second time; they can still be
renewed, and still lapse. A transaction ends in one of these ways:

    committed      all commands are checked again, together, and then done in the order of enlisting
    refused        one of them cannot be done any more: none is, as if it had been rolled back
    rolled back    asked for, or its coordinator link is gone
    timed out      rolled back by us; the id is remembered, to say so to whoever names it

However it ends, the locks are free to be settled again, as far as they still hold.
Source: wire contract 6, 10.1; semantics F-03.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from peeklock.broker import commands as ask
from peeklock.broker import effects as do
from peeklock.broker import properties as overlays
from peeklock.broker.changes import Change
from peeklock.broker.commands import Link
from peeklock.broker.effects import Effect
from peeklock.broker.errors import (
    NotSupported,
    QuotaExceeded,
    ServiceBusError,
    TransactionRolledBack,
    TransactionTimedOut,
    TransactionUnknown,
)
from peeklock.broker.operations import Operations
from peeklock.broker.peek_lock import Lock
from peeklock.broker.quotas import (
    OPEN_TRANSACTIONS_BYTES_MAX,
    OPEN_TRANSACTIONS_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_MESSAGES_MAX,
    TRANSACTION_MS_MAX,
    TierLimits,
)
from peeklock.broker.receivers import Coordinator
from peeklock.broker.shared import Shared
from peeklock.broker.timers import FAR_MS

TIMED_OUT_MAX = 64
"""Ids of timed out transactions that one coordinator link remembers; an older one becomes unknown. Our
choice: four times what can be open at a time."""

Enlistable = (
    ask.Send | ask.SendBatch | ask.Complete | ask.Abandon | ask.Defer | ask.DeadLetter | ask.UpdateDisposition
)


class Transaction:
    """One open transaction."""

    __slots__ = (
        "commands",
        "deadline_ms",
        "link",
        "locks",
        "message_count",
        "refused",
        "size_bytes",
        "transaction_id",
    )

    def __init__(self, transaction_id: bytes, link: Link) -> None:
        self.transaction_id = transaction_id
        self.link = link  # over which it was declared
        self.deadline_ms = FAR_MS  # its time runs from its first operation
        self.commands: list[Enlistable] = []  # in the order of enlisting
        self.locks: list[Lock] = []  # that they settle
        self.message_count = 0
        self.size_bytes = 0  # of the messages to be sent, and of changed properties
        self.refused: ServiceBusError | None = None  # why a command whose asker is not told was not enlisted

    def __str__(self) -> str:
        return f"transaction {self.transaction_id.hex()}"


class _Control:
    """What was declared over one coordinator link."""

    __slots__ = ("open", "timed_out")

    def __init__(self) -> None:
        self.open: dict[bytes, Transaction] = {}
        self.timed_out: dict[bytes, None] = {}  # in the order of timing out


class Transactions:
    """All transactions of a namespace, by the coordinator link that declared them."""

    timer_key = -1

    def __init__(self, limits: TierLimits, operations: Operations, shared: Shared) -> None:
        self.timer_ms = FAR_MS
        self._limits = limits
        self._operations = operations
        self._shared = shared
        self._controls: dict[int, dict[Link, _Control]] = {}  # by connection
        self._by_age: dict[bytes, Transaction] = {}  # whose time runs; each may last equally long

    def __len__(self) -> int:
        return sum(len(control.open) for controls in self._controls.values() for control in controls.values())

    # Links

    def open_coordinator(
        self, command: ask.OpenCoordinator, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        if not self._limits.transactions:
            raise NotSupported(f"transactions are not in tier {self._limits.name}")
        link = command.link
        self._shared.links.add(Coordinator(link))
        self._controls.setdefault(link[0], {})[link] = _Control()
        effects.append(do.CoordinatorOpened(link))

    def close_coordinator(self, link: Link) -> None:
        """Roll back what was declared over a link that is gone; other links are none of its concern."""
        controls = self._controls.get(link[0])
        if controls is None or link not in controls:
            return
        for transaction in list(controls[link].open.values()):
            self._end(transaction)
        del controls[link]
        if not controls:
            del self._controls[link[0]]

    def drop_connection(self, connection_id: int) -> None:
        """Roll back all transactions of a connection that is over."""
        for link in list(self._controls.get(connection_id, ())):
            self.close_coordinator(link)

    # Life

    def declare(
        self, command: ask.Declare, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        link = command.link
        controls = self._controls[link[0]]
        open_count = sum(len(control.open) for control in controls.values())
        if open_count >= OPEN_TRANSACTIONS_MAX:
            raise QuotaExceeded(
                f"{open_count} transactions are open on this connection, the most there can be"
            )
        transaction_id = self._shared.tokens()
        controls[link].open[transaction_id] = Transaction(transaction_id, link)
        effects.append(do.Declared(command.reply_to, transaction_id))

    def enlist(self, command: ask.Enlist, now_ms: int, changes: list[Change], effects: list[Effect]) -> None:
        controls = self._controls.get(command.connection_id, {})
        transaction = self._open(controls.values(), command.transaction_id, now_ms)
        if transaction.deadline_ms == FAR_MS:
            # "The transaction timer starts when the first operation in the transaction starts" (Learn).
            transaction.deadline_ms = now_ms + TRANSACTION_MS_MAX
            self._by_age[transaction.transaction_id] = transaction
            if transaction.deadline_ms < self.timer_ms:
                self._shared.timers.set(self, transaction.deadline_ms)
        asked = command.command
        try:
            self._check_size(transaction, asked)
            self._operations.check(asked, now_ms)
            locks = self._operations.locks_of(asked, now_ms)
        except ServiceBusError as error:
            if asked.reply_to is None:
                transaction.refused = error
            raise
        for lock in locks:
            lock.transaction = transaction
        transaction.commands.append(asked)
        transaction.locks += locks
        transaction.message_count += _count_of(asked)
        transaction.size_bytes += _size_of(asked)
        if asked.reply_to is not None:
            effects.append(do.Enlisted(asked.reply_to))

    def discharge(
        self, command: ask.Discharge, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        control = self._controls[command.link[0]][command.link]
        try:
            transaction = self._open([control], command.transaction_id, now_ms)
        except TransactionTimedOut:
            del control.timed_out[command.transaction_id]  # told once, then unknown
            raise
        self._end(transaction)
        if not command.fail:
            self._commit(transaction, now_ms, changes, effects)
        effects.append(do.Accepted(command.reply_to))

    def _commit(
        self, transaction: Transaction, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        try:
            if transaction.refused is not None:
                raise transaction.refused
            self._operations.check_all(transaction.commands, now_ms)
        except ServiceBusError as error:
            raise TransactionRolledBack(f"{transaction} was rolled back: {error}") from error
        events = self._shared.events
        for enlisted in transaction.commands:
            if events is not None:
                events.begin(enlisted, now_ms)
                events.begin_transaction(transaction.transaction_id)
            self._operations.perform(enlisted, now_ms, changes, effects)

    def advance(self, now_ms: int, count_max: int, changes: list[Change], effects: list[Effect]) -> int:
        """Roll back what has been open for too long."""
        work = 0
        for transaction in list(islice(self._by_age.values(), count_max)):
            if transaction.deadline_ms > now_ms:
                break
            self._time_out(transaction)
            work += 1
        for oldest in self._by_age.values():
            self._shared.timers.set(self, oldest.deadline_ms)
            break
        return work

    def _open(self, controls: Iterable[_Control], transaction_id: bytes, now_ms: int) -> Transaction:
        """Give an open transaction. Raises: TransactionTimedOut, TransactionUnknown."""
        for control in controls:
            transaction = control.open.get(transaction_id)
            if transaction is not None:
                if transaction.deadline_ms > now_ms:
                    return transaction
                self._time_out(transaction)
            if transaction_id in control.timed_out:
                raise TransactionTimedOut(
                    f"transaction {transaction_id.hex()} was open for {TRANSACTION_MS_MAX} ms and has been "
                    f"rolled back"
                )
        raise TransactionUnknown(f"no transaction {transaction_id.hex()} is open here")

    def _time_out(self, transaction: Transaction) -> None:
        link = transaction.link
        self._end(transaction)
        timed_out = self._controls[link[0]][link].timed_out
        timed_out[transaction.transaction_id] = None
        if len(timed_out) > TIMED_OUT_MAX:
            del timed_out[next(iter(timed_out))]

    def _end(self, transaction: Transaction) -> None:
        """Forget a transaction and let its locks go; only the caller still knows what it held back."""
        for lock in transaction.locks:
            if lock.transaction is transaction:
                lock.transaction = None
        link = transaction.link
        del self._controls[link[0]][link].open[transaction.transaction_id]
        self._by_age.pop(transaction.transaction_id, None)

    def _check_size(self, transaction: Transaction, asked: Enlistable) -> None:
        """Raises: QuotaExceeded; the transaction stays as it is."""
        count = transaction.message_count + _count_of(asked)
        if count > TRANSACTION_MESSAGES_MAX:
            raise QuotaExceeded(
                f"{transaction} would have {count} messages, at most {TRANSACTION_MESSAGES_MAX} are allowed"
            )
        size_bytes = transaction.size_bytes + _size_of(asked)
        if size_bytes > TRANSACTION_BYTES_MAX:
            raise QuotaExceeded(
                f"the messages and changes of {transaction} would have {size_bytes} bytes, at most "
                f"{TRANSACTION_BYTES_MAX} are allowed"
            )
        held_bytes = _size_of(asked) + sum(
            other.size_bytes
            for control in self._controls[transaction.link[0]].values()
            for other in control.open.values()
        )
        if held_bytes > OPEN_TRANSACTIONS_BYTES_MAX:
            raise QuotaExceeded(
                f"the messages and changes of this connection's open transactions would have {held_bytes} "
                f"bytes, at most {OPEN_TRANSACTIONS_BYTES_MAX} are allowed"
            )

    def check(self) -> None:
        """Compare the indexes with each other; an assertion fails when they do not agree."""
        known = {
            transaction_id: transaction
            for controls in self._controls.values()
            for control in controls.values()
            for transaction_id, transaction in control.open.items()
        }
        for transaction_id, transaction in known.items():
            assert self.timer_ms <= transaction.deadline_ms
            assert (transaction.deadline_ms < FAR_MS) == (transaction_id in self._by_age)
            assert transaction.message_count == sum(map(_count_of, transaction.commands))
            assert transaction.size_bytes == sum(map(_size_of, transaction.commands))
            for lock in transaction.locks:
                # Marked as long as it holds.
                assert (lock.transaction is transaction) == (lock.message.lock is lock)


def _count_of(asked: Enlistable) -> int:
    if isinstance(asked, ask.SendBatch):
        return len(asked.messages)
    if isinstance(asked, ask.UpdateDisposition):
        return len(asked.lock_tokens)
    return 1


def _size_of(asked: Enlistable) -> int:
    if isinstance(asked, ask.Send):
        return asked.message.size_bytes
    if isinstance(asked, ask.SendBatch):
        return sum(message.size_bytes for message, _ in asked.messages)
    if isinstance(asked, ask.Complete):
        return 0
    size_bytes = 0 if asked.properties is None else len(overlays.merged(None, asked.properties))
    if isinstance(asked, ask.DeadLetter | ask.UpdateDisposition):
        size_bytes += len(asked.reason or "") + len(asked.description or "")
    return size_bytes
