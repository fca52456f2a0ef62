"""Transactions: what was enlisted happens as a whole, or not at all.

Nothing that a transaction does is durable before its commit, which is one frame; so a crash rolls back what
is open.

Theory of operation. An enlisted command is checked at once, as without a transaction, and kept (`enlisting`).
The locks that it settles are marked, so they cannot be settled again; they can still be renewed, and still
lapse. A transaction ends in one of these ways:

    committed      all commands are checked again, together, and done in order; scheduled messages that are
                   duplicates by then are dropped
    refused        one of them can no longer be done: none is, as in a roll-back
    rolled back    by request, or with its coordinator link
    timed out      rolled back after its time, or too long without an operation; its id is remembered for the
                   refusal of later requests

At any end the locks that still hold can be settled again. A connection has thousands open, so the cost of one
does not depend on their number.

A schedule is answered with its numbers when it is enlisted, and they are never reused: the counters are
durable before that answer, the one durable trace of a transaction before its commit.

A transaction is about one top-level entity, a queue or a topic with its subscriptions. Sends over links of
its coordinator's AMQP session count for the entity of that (`Enlist.via`), wherever they go. In a partitioned
entity a transaction uses one partition: its sends and settlements there have one key.
Source: wire contract 6, 10.1, C12, C30, C34, C48; semantics F-03.
"""

from __future__ import annotations

from itertools import islice

from peeklock.amqp.messaging import Sections
from peeklock.broker.entities.entity import Entity
from peeklock.broker.handlers.enlisted import (
    Cancelled,
    Enlisted,
    Numbered,
    StateSet,
    WithMessages,
    count_of,
    messages_of,
    size_of,
)
from peeklock.broker.handlers.enlisting import Enlisting
from peeklock.broker.handlers.open_transactions import (
    Control,
    Transaction,
    TransactionsOfConnection,
    TransactionState,
    check_connection,
)
from peeklock.broker.queue import enqueue
from peeklock.broker.queue.links import Coordinator
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.peek_lock import Lock
from peeklock.broker.queue.session_ids import folded
from peeklock.broker.queue.shared import Shared
from peeklock.broker.queue.timers import FAR_MS, TimerKey
from peeklock.broker.vocabulary import commands as ask
from peeklock.broker.vocabulary import effects as do
from peeklock.broker.vocabulary.commands import LinkId, ReplyTo, SequenceNumber
from peeklock.broker.vocabulary.errors import (
    InvalidOperation,
    MessageNotFound,
    NotSupported,
    QuotaExceeded,
    ServerBusy,
    ServiceBusError,
    TransactionRolledBack,
    TransactionTimedOut,
    TransactionUnknown,
)
from peeklock.broker.vocabulary.message import Message
from peeklock.broker.vocabulary.quotas import (
    DECLARE_WAIT_MS_MAX,
    EMPTY_TRANSACTION_MS_MAX,
    OPEN_TRANSACTIONS_BYTES_MAX,
    OPEN_TRANSACTIONS_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_MESSAGES_MAX,
    TRANSACTION_MS_MAX,
    WAITING_DECLARES_MAX,
    TierLimits,
)

TIMED_OUT_MAX = OPEN_TRANSACTIONS_MAX
"""Ids of timed out transactions that one coordinator link remembers. Our choice: as many as can be open."""

_SPANS = "Local transactions cannot span multiple top-level entities such as queue or topic."
"""The service's own wording. Source: wire contract C48."""


class Transactions:
    """All transactions of a namespace, by coordinator link."""

    timer_key = TimerKey.TRANSACTIONS

    def __init__(self, limits: TierLimits, enlisting: Enlisting, shared: Shared) -> None:
        self.timer_ms = FAR_MS
        self._limits = limits
        self._enlisting = enlisting
        self._shared = shared
        self._connections: dict[int, TransactionsOfConnection] = {}
        # By deadline: the time is the same for all in one of these.
        self._running: dict[bytes, Transaction] = {}
        self._empty: dict[bytes, Transaction] = {}
        self._waiting: dict[ReplyTo, tuple[int, Control]] = {}  # declares: until when

    def __len__(self) -> int:
        return len(self._running) + len(self._empty)

    def states(self) -> dict[bytes, TransactionState]:
        """Return the state of each transaction, by id."""
        found = dict.fromkeys(self._empty, TransactionState.EMPTY)
        found |= dict.fromkeys(self._running, TransactionState.RUNNING)
        for connection in self._connections.values():
            found |= dict.fromkeys(connection.timed_out, TransactionState.TIMED_OUT)
        return found

    # Links

    def open_coordinator(self, command: ask.OpenCoordinator, out: Outcome) -> None:
        if not self._limits.transactions:
            raise NotSupported(f"tier {self._limits.name} has no transactions")
        link = command.link
        self._shared.links.add(Coordinator(link))
        connection = self._connections.setdefault(link.connection_id, TransactionsOfConnection())
        connection.controls[link] = Control(link, connection)
        out.effects.append(do.CoordinatorOpened(link))

    def close_coordinator(self, link: LinkId, out: Outcome) -> None:
        """Roll back the transactions of a closed coordinator link."""
        connection = self._connections.get(link.connection_id)
        control = None if connection is None else connection.controls.pop(link, None)
        if connection is None or control is None:
            return
        for reply_to in control.waiting:
            del connection.waiting[reply_to], self._waiting[reply_to]
        for transaction in list(control.open.values()):
            self._end(transaction)
        for transaction_id in control.timed_out:
            del connection.timed_out[transaction_id]
        self._admit(connection, out)
        if not connection.controls:
            del self._connections[link.connection_id]

    def drop_connection(self, connection_id: int, out: Outcome) -> None:
        """Roll back all transactions of a closed connection."""
        connection = self._connections.get(connection_id)
        if connection is None:
            return
        for reply_to in connection.waiting:
            del self._waiting[reply_to]
        connection.waiting.clear()  # without an answer
        for control in list(connection.controls.values()):
            control.waiting.clear()
            self.close_coordinator(control.link, out)

    # Life

    def declare(self, command: ask.Declare, out: Outcome) -> None:
        connection = self._connections[command.link.connection_id]
        control = connection.controls[command.link]
        if not connection.waiting and len(connection.open) < OPEN_TRANSACTIONS_MAX:
            self._begin(control, command.reply_to, out)
            return
        if len(control.waiting) >= WAITING_DECLARES_MAX or command.reply_to in control.waiting:
            raise ServerBusy(_too_many(len(connection.open)))
        until_ms = out.now_ms + DECLARE_WAIT_MS_MAX
        control.waiting[command.reply_to] = None
        connection.waiting[command.reply_to] = control
        self._waiting[command.reply_to] = until_ms, control
        self._wake(until_ms)

    def _begin(self, control: Control, reply_to: ReplyTo, out: Outcome) -> None:
        transaction_id = self._shared.tokens()
        transaction = Transaction(transaction_id, control, out.now_ms + EMPTY_TRANSACTION_MS_MAX)
        control.open[transaction_id] = control.connection.open[transaction_id] = transaction
        self._empty[transaction_id] = transaction
        self._wake(transaction.deadline_ms)
        out.effects.append(do.Declared(reply_to, transaction_id))

    def _admit(self, connection: TransactionsOfConnection, out: Outcome) -> None:
        """Answer waiting declares, in order, within the limit."""
        while connection.waiting and len(connection.open) < OPEN_TRANSACTIONS_MAX:
            reply_to, control = next(iter(connection.waiting.items()))
            self._forget_declare(reply_to)
            self._begin(control, reply_to, out)

    def _forget_declare(self, reply_to: ReplyTo) -> None:
        _, control = self._waiting.pop(reply_to)
        del control.waiting[reply_to], control.connection.waiting[reply_to]

    def _wake(self, at_ms: int) -> None:
        if at_ms < self.timer_ms:
            self._shared.timers.set(self, at_ms)

    def enlist(self, command: ask.Enlist, out: Outcome) -> None:
        now_ms = out.now_ms
        transaction = self._open(command, now_ms)
        if transaction.is_empty:
            # "The transaction timer starts when the first operation in the transaction starts" (Learn).
            transaction.is_empty = False
            transaction.deadline_ms = now_ms + TRANSACTION_MS_MAX
            del self._empty[transaction.transaction_id]
            self._running[transaction.transaction_id] = transaction
            self._wake(transaction.deadline_ms)
        wanted = command.command
        try:
            asked = self._enlisting.kept(wanted, now_ms)
            self._check_size(transaction, asked)
            self._enlisting.check(asked, now_ms)
            if isinstance(asked, Cancelled):
                _check_cancelled(transaction, asked)
            locks = self._enlisting.locks_of(asked, now_ms)
            entity, queue = self._enlisting.entity_of(self._enlisting.queue_of(asked).queue_id)
            name = (command.via or (entity.topic or entity).name).lower()
            if transaction.entity_name not in (None, name):
                raise InvalidOperation(_SPANS)
            self._use_partition(transaction, asked, locks, entity, queue, command.via)
        except ServiceBusError as error:
            if wanted.reply_to is None:
                transaction.refused = error
            raise
        transaction.entity_name = name
        if isinstance(asked, Numbered):
            self._number(transaction, asked, out)
        elif isinstance(asked, Cancelled):
            transaction.cancelled.update((asked.queue_id, number) for number in asked.numbers)
        for lock in locks:
            lock.transaction_id = transaction.transaction_id
        transaction.commands.append(asked)
        transaction.locks += locks
        transaction.message_count += count_of(asked)
        size_bytes = size_of(asked)  # without the duplicates found by `_number`
        transaction.size_bytes += size_bytes
        transaction.control.connection.size_bytes += size_bytes
        if asked.reply_to is not None and not isinstance(asked, Numbered):
            out.effects.append(do.Enlisted(asked.reply_to))

    def _use_partition(
        self,
        transaction: Transaction,
        asked: Enlisted,
        locks: list[Lock],
        entity: Entity,
        queue: MessageQueue,
        via: str | None,
    ) -> None:
        """Check a command against the partition of the transaction. Raises: InvalidOperation."""
        keys: list[str | None] = []
        numbers: list[SequenceNumber] = []
        if isinstance(asked, WithMessages):
            routings = [message.routing for message, _ in messages_of(asked)]
            over = None if via is None else self._enlisting.other_entity(entity, via)
            if over is not None:
                entity, queue = over, over.main
            if over is not None or _destination(asked):
                # The service partitions messages sent via an entity by this key alone (wire contract 6).
                keys = [None if r is None else r.via_partition_key for r in routings]
            else:
                of_sessions = queue.sessions is not None
                keys = [None if r is None else r.key(requires_sessions=of_sessions) for r in routings]
                if of_sessions:
                    keys = [None if key is None else folded(key) for key in keys]
        elif isinstance(asked, Cancelled):
            numbers = asked.numbers
        elif isinstance(asked, StateSet):
            keys = [folded(asked.session_id)]
        else:
            numbers = [lock.message.sequence_number for lock in locks]
        transaction.partitions.use(entity, queue, keys, numbers)

    def _number(self, transaction: Transaction, schedule: Numbered, out: Outcome) -> None:
        """Answer the numbers of a schedule once they are durable; keep all but duplicates."""
        now_ms = out.now_ms
        out.attribute(schedule)
        entity, queue = self._enlisting.entity_of(schedule.queue_id)
        queue.accessed_at_ms = now_ms
        partition = transaction.partitions.of(entity, queue)
        numbers: list[SequenceNumber] = []
        kept: list[tuple[Message, Sections]] = []
        for message, given in schedule.messages:
            number, sections = enqueue.number_ahead(
                queue, message, given, partition, transaction.transaction_id, out
            )
            numbers.append(number)
            if sections is not None:
                kept.append((message, sections))
        schedule.messages = kept
        if kept:
            out.changes.append(enqueue.numbers_issued(queue))
        out.effects.append(do.MessagesScheduled(schedule.reply_to, numbers))

    def discharge(self, command: ask.Discharge, out: Outcome) -> None:
        connection = self._connections[command.link.connection_id]
        control = connection.controls[command.link]
        transaction_id = command.transaction_id
        if transaction_id in control.timed_out:
            del control.timed_out[transaction_id], connection.timed_out[transaction_id]
            raise _timed_out(transaction_id)  # once, then it is unknown
        transaction = control.open.get(transaction_id)
        if transaction is None:
            raise _unknown(transaction_id)
        self._end(transaction)
        self._admit(connection, out)
        if transaction.deadline_ms <= out.now_ms:
            raise _timed_out(transaction_id)
        if not command.fail:
            self._commit(transaction, out)
        out.effects.append(do.Accepted(command.reply_to))

    def _commit(self, transaction: Transaction, out: Outcome) -> None:
        try:
            if transaction.refused is not None:
                raise transaction.refused
            commands = self._enlisting.check_all(transaction.commands, out.now_ms)
        except ServiceBusError as error:
            raise TransactionRolledBack(f"{transaction} was rolled back: {error}") from error
        for enlisted in commands:
            out.attribute_to_transaction(enlisted, transaction.transaction_id)
            partition = None
            if isinstance(enlisted, ask.Send | ask.SendBatch):
                partition = transaction.partitions.of(*self._enlisting.entity_of(enlisted.queue_id))
            self._enlisting.perform(enlisted, partition, out)

    def advance(self, count_max: int, out: Outcome) -> int:
        """Roll back what is open for too long, and refuse declares that wait for too long."""
        work = 0
        for reply_to, (until_ms, control) in list(islice(self._waiting.items(), count_max)):
            if until_ms > out.now_ms:
                break
            self._forget_declare(reply_to)
            out.effects.append(do.Rejected(reply_to, ServerBusy(_too_many(len(control.connection.open)))))
            work += 1
        for ordered in (self._running, self._empty):
            for transaction in list(islice(ordered.values(), max(0, count_max - work))):
                if transaction.deadline_ms > out.now_ms:
                    break
                self._time_out(transaction, out)
                work += 1
        if (next_ms := self._next_ms()) < FAR_MS:
            self._shared.timers.set(self, next_ms)
        return work

    def roll_back_all(self, out: Outcome) -> None:
        """Roll back what is open, as if its time had run out."""
        for transaction in [*self._running.values(), *self._empty.values()]:
            self._time_out(transaction, out)

    def _next_ms(self) -> int:
        return min(
            (
                *(until_ms for until_ms, _ in islice(self._waiting.values(), 1)),
                *(transaction.deadline_ms for transaction in islice(self._running.values(), 1)),
                *(transaction.deadline_ms for transaction in islice(self._empty.values(), 1)),
            ),
            default=FAR_MS,
        )

    def _open(self, command: ask.Enlist, now_ms: int) -> Transaction:
        """Return an open transaction. Raises: TransactionTimedOut, TransactionUnknown."""
        transaction_id = command.transaction_id
        connection = self._connections.get(command.connection_id)
        if connection is None:
            raise _unknown(transaction_id)
        transaction = connection.open.get(transaction_id)
        if transaction_id in connection.timed_out or (
            transaction is not None and transaction.deadline_ms <= now_ms
        ):
            raise _timed_out(transaction_id)
        if transaction is None:
            raise _unknown(transaction_id)
        return transaction

    def _time_out(self, transaction: Transaction, out: Outcome) -> None:
        control = transaction.control
        connection = control.connection
        transaction_id = transaction.transaction_id
        self._end(transaction)
        out.effects.append(do.TransactionEnded(control.link, transaction_id))
        control.timed_out[transaction_id] = connection.timed_out[transaction_id] = None
        if len(control.timed_out) > TIMED_OUT_MAX:
            oldest = next(iter(control.timed_out))
            del control.timed_out[oldest], connection.timed_out[oldest]
        self._admit(connection, out)

    def _end(self, transaction: Transaction) -> None:
        """Forget a transaction and unmark its locks."""
        for lock in transaction.locks:
            if lock.transaction_id == transaction.transaction_id:
                lock.transaction_id = None
        control = transaction.control
        transaction_id = transaction.transaction_id
        del control.open[transaction_id], control.connection.open[transaction_id]
        control.connection.size_bytes -= transaction.size_bytes
        del (self._empty if transaction.is_empty else self._running)[transaction_id]

    def _check_size(self, transaction: Transaction, asked: Enlisted) -> None:
        """Check the limits of a transaction. Raises: QuotaExceeded, ServerBusy."""
        size_bytes = size_of(asked)
        count = transaction.message_count + count_of(asked)
        if count > TRANSACTION_MESSAGES_MAX:
            raise QuotaExceeded(
                f"{transaction} would send {count} messages, at most {TRANSACTION_MESSAGES_MAX} are allowed"
            )
        own_bytes = transaction.size_bytes + size_bytes
        if own_bytes > TRANSACTION_BYTES_MAX:
            raise QuotaExceeded(
                f"the messages and changes of {transaction} would have {own_bytes} bytes, at most "
                f"{TRANSACTION_BYTES_MAX} are allowed"
            )
        held_bytes = transaction.control.connection.size_bytes + size_bytes
        if held_bytes > OPEN_TRANSACTIONS_BYTES_MAX:
            raise ServerBusy(
                f"the messages and changes of this connection's open transactions would have {held_bytes} "
                f"bytes, at most {OPEN_TRANSACTIONS_BYTES_MAX} are allowed: end others first"
            )

    def check(self) -> None:
        """Assert that the indexes agree."""
        waiting: set[ReplyTo] = set()
        known: dict[bytes, Transaction] = {}
        for connection in self._connections.values():
            check_connection(connection)
            assert len(connection.open) == OPEN_TRANSACTIONS_MAX or not connection.waiting
            waiting |= set(connection.waiting)
            known |= connection.open
        assert waiting == set(self._waiting)
        assert known == self._running | self._empty
        assert self.timer_ms <= self._next_ms()


def _check_cancelled(transaction: Transaction, asked: Cancelled) -> None:
    """Check that no message is cancelled twice. Raises: MessageNotFound."""
    for number in asked.numbers:
        if (asked.queue_id, number) in transaction.cancelled:
            raise MessageNotFound(f"sequence number {number} is cancelled in this transaction already")


def _destination(asked: Enlisted) -> ask.Address | None:
    return asked.destination if isinstance(asked, ask.Send | ask.SendBatch) else None


def _too_many(count: int) -> str:
    return f"{count} transactions are open on this connection, the maximum: end others first"


def _timed_out(transaction_id: bytes) -> TransactionTimedOut:
    return TransactionTimedOut(
        f"transaction {transaction_id.hex()} was open for more than {TRANSACTION_MS_MAX} ms since its first "
        f"operation, or for {EMPTY_TRANSACTION_MS_MAX} ms without one, and has been rolled back"
    )


def _unknown(transaction_id: bytes) -> TransactionUnknown:
    return TransactionUnknown(f"transaction {transaction_id.hex()} is not open here")
