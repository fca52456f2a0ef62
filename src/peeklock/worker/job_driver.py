"""Runs a job of `peeklock.jobs` over blocking connections: it carries out operations, and decides nothing.

Source: wire contract 4.2, 5.2 (renew-lock, renew-session-lock, receive-by-sequence-number,
cancel-scheduled-message).
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from peeklock.amqp.performatives import DeliveryState
from peeklock.amqp.types import Array, Long, UInt
from peeklock.client.browsing import Browser
from peeklock.client.connection import BlockingConnection, wall_ms
from peeklock.client.deferred import RECEIVE
from peeklock.client.errors import (
    MESSAGE_LOCK_LOST,
    MESSAGE_NOT_FOUND,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    SESSION_CANNOT_BE_LOCKED,
    ServiceBusError,
)
from peeklock.client.links import COMPLETE, RELEASE, Delivery, ReceiveMode, Receiver, dead_letter
from peeklock.client.scheduling import CANCEL
from peeklock.client.sender import Sender
from peeklock.client.transactions import Forwarder
from peeklock.jobs.checkpoint import Checkpoint
from peeklock.jobs.job import Job
from peeklock.jobs.operations import (
    Close,
    Complete,
    Done,
    Forward,
    Look,
    Message,
    Open,
    Operation,
    Outcome,
    Outgoing,
    Peek,
    Receive,
    Remove,
    Renew,
    Save,
    Settled,
    Wait,
)
from peeklock.jobs.plan import Plan
from peeklock.jobs.survey import Snapshot, Survey
from peeklock.jobs.sweep import Sweep
from peeklock.search import MessageState

WAIT_S: Final = 2.0
"""An entity without a delivery for this long is empty, or others hold its messages."""

PORTION: Final = 10
"""Messages that the broker gives, or moves in one transaction. Our choice: its loop works on them for 1 ms,
so its other clients wait no longer."""

FIRST_COUNT: Final = 16
"""Messages received before their size is known; the largest have 100 MiB."""

RECEIVE_BYTES: Final = 8 << 20
"""Messages received at a time, about. Our choice: memory is flat, whatever their size."""

NUMBERS_MAX: Final = 100
"""Messages removed by their numbers in one request; the answer holds the deferred ones."""

REFUSED_MAX: Final = 3
"""Groups in a row that lose all their locks, before the job ends."""

TOKENS_MAX: Final = 500
"""Locks renewed in one request."""

RENEW: Final = "com.microsoft:renew-lock"
RENEW_SESSION: Final = "com.microsoft:renew-session-lock"

RECEIVE_AND_DELETE: Final = 0
"""Value of receiver-settle-mode. Source: wire contract 5.2."""

ROLLED_BACK: Final = "amqp:transaction:rollback"


class JobDriver:
    """Runs one job, or the parts of one. Calls raise `ServiceBusError`: the job may then go on later."""

    def __init__(
        self,
        plan: Plan,
        source: BlockingConnection,
        target: BlockingConnection | None,
        *,
        save: Callable[[Checkpoint], None] = lambda _: None,
        tell: Callable[[int], None] = lambda _: None,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """Connect later.

        Args:
            target: None for a purge.
            save: keeps a checkpoint durably.
            tell: is called with the number of messages that are done so far.
            now_ms: returns UTC time in ms.
        """
        self.plan = plan
        self._source = source
        self._target = target
        self._save = save
        self._tell = tell
        self._now_ms = now_ms
        self._browser = Browser(source, plan.source)
        self._management = source.management(plan.source)
        self._stopped = threading.Event()
        self._job: Job | Sweep | None = None
        self._receiver: Receiver | None = None
        self._sender: Sender | None = None
        self._session_id: str | None = None
        self._deliveries: dict[bytes, Delivery] = {}
        """What is locked, by token, without its payload."""
        self._mean_bytes = 0
        self._forwarded = 0
        """Messages given to the forwarder."""
        self._refused = 0
        """Groups in a row of which nothing was moved."""

    # Before a job

    def has_sessions(self) -> bool:
        """Return whether the source requires sessions: a receiver without one is refused."""
        if "$" in self.plan.source:
            return False  # sessions do not apply to sub-queues
        return self._needs_session(self._source.receiver(self.plan.source, ReceiveMode.PEEK_LOCK))

    def has_transactions(self) -> bool:
        """Return whether the namespace of the source has them; Azure's tier Basic has none."""
        assert self.plan.target is not None, "a job that forwards has a target"
        try:
            self._needs_session(self._source.forwarder(self.plan.source, self.plan.target))
        except ServiceBusError as error:
            if error.condition not in (NOT_ALLOWED, NOT_IMPLEMENTED):
                raise
            return False
        return True

    def check_target(self) -> None:
        """Raise what the target refuses. Raises: ServiceBusError."""
        _ = self._open_sender().message_bytes_max  # opens the link

    def _needs_session(self, receiver: Receiver) -> bool:
        """Raises: ServiceBusError."""
        try:
            self._open(receiver)
        except ServiceBusError as error:
            if error.condition != NOT_ALLOWED or "session" not in error.text.lower():
                raise
            return True
        receiver.close()
        return False

    def highest(self) -> dict[int, int]:
        """Return the highest sequence number of each partition."""
        return self._browser.last_numbers()

    def survey(self, snapshot: Snapshot, limit: int | None, *, by_session: bool) -> Survey:
        """Return a count of the messages of the job; it ends when `stop` is called."""
        survey = Survey(snapshot, self.plan.chooser(), limit, by_session=by_session)
        for messages in self.pages():
            if not survey.add(messages) or self._stopped.is_set():
                break
        return survey

    def pages(self) -> Iterator[list[bytes]]:
        """Yield the messages of the source."""
        return self._browser.read()

    # A job

    def stop(self) -> None:
        """Have the job end in order. May be called by a signal handler."""
        self._stopped.set()
        if self._job is not None:
            self._job.stop()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def run(self, job: Job) -> None:
        """Run a job to its end. After an error, or an interruption, what is held is released if possible."""
        self._job = job
        if self.is_stopped:
            job.stop()
        try:
            operation = job.start(self._now_ms())
            while not isinstance(operation, Done):
                outcome = self._outcome(operation)
                self._tell(job.done)
                operation = job.step(outcome, self._now_ms())
        except Exception:  # of a broker, or of the job, whose expression may be too slow
            with suppress(ServiceBusError):
                self._close([*self._deliveries])
            raise
        finally:
            self._job = None
            if self._sender is not None:
                self._sender.close()

    def sweep(self, sweep: Sweep) -> None:
        """Remove deferred and scheduled messages."""
        self._job = sweep
        if self.is_stopped:
            sweep.stop()
        operation = sweep.start()
        while not isinstance(operation, Done):
            outcome = self._outcome(operation)
            self._tell(sweep.done)
            operation = sweep.step(outcome)
        self._job = None

    def _outcome(self, operation: Operation) -> Outcome:
        match operation:
            case Save(checkpoint):
                self._save(checkpoint)
            case Open(session_id):
                return self._begin(session_id)
            case Receive(count_max):
                return self._receive(count_max)
            case Forward(messages):
                return self._forward(messages)
            case Complete(tokens):
                is_held = self._settle(tokens, self._removal())
                return Settled() if is_held else Settled(unknown=frozenset(tokens))
            case Renew(tokens):
                self._renew(tokens)
            case Close(tokens):
                self._close(tokens)
            case Look(numbers):
                return self._among(numbers)
            case Peek(number):
                return tuple(Message(b"", payload) for payload in self._browser.peek(number, NUMBERS_MAX))
            case Remove():
                return self._remove(operation)
            case Wait(until_ms):
                self._stopped.wait(max(0, until_ms - self._now_ms()) / 1000)
        return None

    def _removal(self) -> DeliveryState:
        """Return the outcome of a message that leaves the source alone."""
        plan = self.plan
        return dead_letter(plan.reason, plan.description) if plan.work == "deadLetter" else COMPLETE

    def _open(self, receiver: Receiver) -> None:
        with receiver.connection.lock:
            receiver.connection.retrying(receiver.open)

    def _begin(self, session_id: str | None) -> bool:
        source, target = self.plan.source, self.plan.target
        if self.plan.by_transactions and target is not None:
            receiver: Receiver = self._source.forwarder(source, target, session_id)
        else:
            receiver = self._source.receiver(source, ReceiveMode.PEEK_LOCK, session_id)
        try:
            self._open(receiver)
        except ServiceBusError as error:
            if error.condition == SESSION_CANNOT_BE_LOCKED:
                return False
            raise
        self._receiver, self._session_id = receiver, session_id
        self._forwarded = 0
        return True

    @property
    def _opened(self) -> Receiver:
        assert self._receiver is not None, "a job opens before it receives"
        return self._receiver

    def _receive(self, count_max: int) -> tuple[Message, ...]:
        count = FIRST_COUNT if not self._mean_bytes else max(1, RECEIVE_BYTES // self._mean_bytes)
        count = min(count, count_max)
        found = self._opened.receive(min(count, PORTION), WAIT_S)
        while found and not len(found) % PORTION and len(found) < count:
            portion: list[Delivery] = []
            with suppress(ServiceBusError):  # the next call meets it: these are locked, and not lost
                portion = self._opened.receive(min(count - len(found), PORTION), 0)
            if not portion:
                break
            found += portion
        if found:
            self._mean_bytes = max(1, sum(len(each.payload) for each in found) // len(found))
        for each in found:
            self._deliveries[each.lock_token] = replace(each, payload=b"")
        return tuple(Message(each.lock_token, each.payload) for each in found)

    def _forward(self, messages: Sequence[Outgoing]) -> Settled:
        if isinstance(self._receiver, Forwarder):
            return self._transacted(self._receiver, messages)
        sender = self._open_sender()
        tokens = [each.token for each in messages]
        try:
            for each in messages:
                sender.send(each.payload, f"sequence number {each.number}")
            sender.flush()
        except ServiceBusError:
            self._settle(tokens[: _accepted(sender, messages)], COMPLETE)
            raise
        return Settled() if self._settle(tokens, COMPLETE) else Settled(sent=frozenset(tokens))

    def _transacted(self, forwarder: Forwarder, messages: Sequence[Outgoing]) -> Settled:
        """Move messages in transactions. Those of a transaction that lost a lock come again."""
        first = self._forwarded
        failure: ServiceBusError | None = None
        for start in range(0, len(messages), PORTION):
            group = messages[start : start + PORTION]
            try:
                forwarder.forward([(self._deliveries[each.token], each.payload) for each in group])
            except ServiceBusError as error:
                failure = error
                break
            self._forwarded += len(group)
        if failure is None:
            try:
                forwarder.flush()
            except ServiceBusError as error:
                failure = error
        if failure is None:
            self._refused = 0
            for each in messages:
                del self._deliveries[each.token]
            return Settled()
        undone = self._undone(forwarder, messages, messages[self._forwarded - first :])
        self._refused = self._refused + 1 if len(undone) == len(messages) else 0
        is_passing = failure.retryable or failure.condition in (MESSAGE_LOCK_LOST, ROLLED_BACK)
        if is_passing and self._refused < REFUSED_MAX:
            return Settled(unknown=undone)
        raise _naming(failure, messages, first)

    def _undone(
        self, forwarder: Forwarder, messages: Sequence[Outgoing], rest: Sequence[Outgoing]
    ) -> frozenset[bytes]:
        """Return the tokens of messages that are not known to be moved; release those that are locked."""
        if forwarder.is_open:
            undone = {delivery.lock_token for delivery in forwarder.rolled_back}
            undone.update(each.token for each in rest)
        else:
            undone = {each.token for each in messages}
        forwarder.rolled_back.clear()
        for each in messages:
            if each.token not in undone:
                del self._deliveries[each.token]
        self._settle(undone, RELEASE)
        return frozenset(undone)

    def _open_sender(self) -> Sender:
        if self._sender is None:
            assert self._target is not None, "a job that forwards has a target"
            assert self.plan.target is not None, "a job that forwards has a target"
            self._sender = self._target.sender(self.plan.target)
        return self._sender

    def _settle(self, tokens: Iterable[bytes], outcome: DeliveryState) -> bool:
        """Settle messages; return whether all locks were still held."""
        receiver = self._opened
        is_held = True
        for token in tokens:
            delivery = self._deliveries.pop(token)
            try:
                receiver.settle(delivery, outcome)
            except ServiceBusError as error:
                if error.condition != MESSAGE_LOCK_LOST:
                    raise
                is_held = False
        try:
            receiver.flush()
        except ServiceBusError as error:
            if error.condition != MESSAGE_LOCK_LOST and not error.retryable:
                raise
            is_held = False
        return is_held

    def _renew(self, tokens: Sequence[bytes]) -> None:
        """Renew locks. One that is lost is found out when its message comes again."""
        requests: list[tuple[str, dict[str, Any]]] = []
        if self._session_id is not None:
            requests.append((RENEW_SESSION, {"session-id": self._session_id}))
        else:
            for start in range(0, len(tokens), TOKENS_MAX):
                ids = [uuid.UUID(bytes_le=token) for token in tokens[start : start + TOKENS_MAX]]
                requests.append((RENEW, {"lock-tokens": Array(uuid.UUID, ids)}))
        tickets = [self._management.start(operation, body) for operation, body in requests]
        for ticket in tickets:
            with suppress(ServiceBusError):
                self._management.wait(ticket)

    def _close(self, tokens: Sequence[bytes]) -> None:
        """Release messages, some at a time, and end the link."""
        if self._receiver is None:
            return
        for start in range(0, len(tokens), TOKENS_MAX):
            self._settle(tokens[start : start + TOKENS_MAX], RELEASE)
        self._deliveries.clear()
        self._receiver.close()
        self._receiver = None

    # By number

    def _among(self, numbers: Iterable[int]) -> frozenset[int]:
        """Return the numbers whose messages are there."""
        found = set()
        for number in numbers:
            messages = self._browser.peek(number, 1)
            if messages and Message(b"", messages[0]).number == number:
                found.add(number)
        return frozenset(found)

    def _remove(self, remove: Remove) -> frozenset[int]:
        if remove.session_id is None:
            return self._removed(remove.state, remove.numbers, {})
        if not self._begin(remove.session_id):
            return frozenset(remove.numbers)
        try:
            return self._removed(remove.state, remove.numbers, {"session-id": remove.session_id})
        finally:
            self._close([])

    def _removed(
        self, state: MessageState, numbers: Sequence[int], session: dict[str, Any]
    ) -> frozenset[int]:
        """Remove messages; return those that are still there.

        A request with one number that is not found does nothing: then each is asked for alone.
        """
        body: dict[str, Any] = {"sequence-numbers": Array(Long, numbers), **session}
        if state is MessageState.DEFERRED:
            body["receiver-settle-mode"] = UInt(RECEIVE_AND_DELETE)
        operation = CANCEL if state is MessageState.SCHEDULED else RECEIVE
        try:
            self._management.request(operation, body)
        except ServiceBusError as error:
            if error.condition != MESSAGE_NOT_FOUND:
                raise
            if len(numbers) == 1:
                return self._among(numbers)
            kept = [self._removed(state, [number], session) for number in numbers]
            return frozenset[int]().union(*kept)
        return frozenset()


def _accepted(sender: Sender, messages: Sequence[Outgoing]) -> int:
    """Return how many of the last messages are known to be accepted, before one that is not."""
    first = sender.first_open()
    tags = [f"sequence number {each.number}" for each in messages]
    return tags.index(first[1]) if first is not None and first[1] in tags else 0


def _naming(failure: ServiceBusError, messages: Sequence[Outgoing], first: int) -> ServiceBusError:
    """Return a failure that names its message, if it is about one; `first`: the place of the first one."""
    place = -1 if failure.index is None else failure.index - first
    if not 0 <= place < len(messages):
        return failure
    text = f"{failure.text} It has the sequence number {messages[place].number}."
    return ServiceBusError(failure.condition, text, failure.entity, failure.retryable, index=failure.index)
