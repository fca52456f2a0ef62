"""Deferred messages of an entity: they stay for a reader without a lock, on any Service Bus.

Defers, peeks, removes and releases messages by their sequence numbers, and holds the sessions of an entity
that has them. A deferred message can only be received by its number, and then completed or dead-lettered; no
operation makes it active again. Deferring is a delivery attempt: at MaxDeliveryCount it dead-letters the
message, and the answer does not show it.
Source: wire contract 3.6, 4.2, 5.2 (peek-message, receive-by-sequence-number, update-disposition).
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from peeklock.amqp.messaging import scan
from peeklock.amqp.performatives import DeliveryState
from peeklock.amqp.types import Array, Int, Long
from peeklock.client.browsing import PEEK, sequence_number
from peeklock.client.connection import BlockingConnection, connection
from peeklock.client.connection_string import ConnectionString
from peeklock.client.deferred import DEFERRED, RECEIVE, SETTLE, by_number, disposition
from peeklock.client.errors import MESSAGE_NOT_FOUND, NOT_ALLOWED, TIMEOUT, OptionError, ServiceBusError
from peeklock.client.links import NEXT, Delivery, ReceiveMode, Receiver, dead_letter
from peeklock.client.management import Management, Ticket
from peeklock.spark.options import SubQueue
from peeklock.spark.source.offsets import Ranges, numbers_of, to_ranges

_log: Final = logging.getLogger("peeklock.spark")

RENEW_SESSION: Final = "com.microsoft:renew-session-lock"

STEP: Final = 250
"""Messages received at a time. Our choice: a quarter of a MiB with messages of 1 KiB."""

FIRST_STEP: Final = 16
"""Messages received before their size is known; the largest have 100 MiB."""

NUMBERS: Final = 200
"""Maximum of sequence numbers in one request; the answer holds the messages."""

ANSWER_BYTES: Final = 1 << 20
"""Approximate bytes of messages in one such answer."""

RELEASED: Final = 20
"""Messages dead-lettered at a time: the answer holds them, of any size."""

PEEKED: Final = 1000
"""Messages that one peek requests; brokers answer with 256 KiB."""

EXCEEDED: Final = "MaxDeliveryCountExceeded"
"""The dead-letter reason of a message whose last delivery attempt failed. Source: wire contract 3.8."""

REASON: Final = "ReleasedByPipeline"
DESCRIPTION: Final = "A stream in mode peekLock deferred the message and never settled it."

UNDER_WAY: Final = 4
"""Concurrent requests."""

GAP: Final = 16
"""Maximum of numbers between two runs that one peek covers. Our choice: the peek reads them for nothing."""

SESSIONS_MAX: Final = 32
"""Sessions held at a time, one link each. Our choice."""

SESSION_WAIT_MS: Final = 200
"""Time that the broker waits for another session."""


@dataclass(slots=True)
class Taken:
    """A message that is received and not settled."""

    number: int
    size_bytes: int
    delivery_count: int
    delivery: Delivery
    receiver: Receiver


class Entity:
    """A queue, subscription or sub-queue, read by peek-lock."""

    def __init__(self, connected: BlockingConnection, path: str) -> None:
        self.path = path
        self._connection = connected
        self._management: Management = connected.management(path)
        self._receiver: Receiver | None = None
        self._sessions: dict[Receiver, str] = {}
        self._has_sessions: bool | None = None
        self._mean_bytes = 0
        self._renewing: threading.Thread | None = None

    def has_sessions(self) -> bool:
        """Return whether messages come in sessions: the service refuses a link without one.

        Raises: ServiceBusError.
        """
        if self._has_sessions is None:
            receiver = self._connection.receiver(self.path, ReceiveMode.PEEK_LOCK)
            try:
                with self._connection.lock:
                    self._connection.retrying(receiver.open)
                self._receiver = receiver
                self._has_sessions = False
            except ServiceBusError as error:
                if error.condition != NOT_ALLOWED or "session" not in error.text.lower():
                    raise
                self._has_sessions = True
        return self._has_sessions

    # Receiving

    def receive(self, count_max: int, bytes_max: int) -> list[Taken]:
        """Receive the available messages within limits, at least one if there is one.

        Raises: ServiceBusError.
        """
        taken: list[Taken] = []
        if not self.has_sessions():
            assert self._receiver is not None, "has_sessions opened it"
            self._receive_from(self._receiver, count_max, bytes_max, taken)
            return taken
        for receiver in [*self._sessions]:
            try:
                self._receive_from(receiver, count_max, bytes_max, taken)
            except ServiceBusError as error:
                self._drop(receiver, error)
        while len(self._sessions) < SESSIONS_MAX and _has_room(taken, count_max, bytes_max):
            receiver = self._connection.receiver(self.path, ReceiveMode.PEEK_LOCK, NEXT)
            receiver.session_wait_ms = SESSION_WAIT_MS
            before = len(taken)
            try:
                self._receive_from(receiver, count_max, bytes_max, taken)
            except ServiceBusError as error:
                if error.condition == TIMEOUT:
                    break  # no session is available
                raise
            self._hold(receiver)
            if len(taken) == before:
                self._close(receiver)
                break
        return taken

    def _receive_from(self, receiver: Receiver, count_max: int, bytes_max: int, taken: list[Taken]) -> None:
        while _has_room(taken, count_max, bytes_max):
            left = bytes_max - sum(each.size_bytes for each in taken)
            step = min(STEP, count_max - len(taken), max(1, left // (self._mean_bytes or left)))
            if not self._mean_bytes:
                step = min(FIRST_STEP, count_max)
            found = receiver.receive(step, 0)
            for delivery in found:
                size_bytes = len(delivery.payload)
                number, delivery_count = sequence_number(delivery.payload), _delivery_count(delivery.payload)
                taken.append(Taken(number, size_bytes, delivery_count, delivery, receiver))
                delivery.payload = b""  # frees memory: tasks read it again
            if not found:
                return  # a short answer is not the end: a broker shares its output among links
            newest = taken[-len(found) :]
            self._mean_bytes = max(1, sum(each.size_bytes for each in newest) // len(found))

    # Settling what was received

    def settle(self, taken: Iterable[Taken], outcome: DeliveryState) -> bool:
        """Settle messages; return whether all locks were still held."""
        errors: list[ServiceBusError] = []
        receivers: dict[Receiver, None] = {}
        for each in taken:
            receivers[each.receiver] = None
            try:
                each.receiver.settle(each.delivery, outcome)
            except ServiceBusError as error:
                errors.append(error)
        for receiver in receivers:
            try:
                receiver.flush()
            except ServiceBusError as error:
                errors.append(error)
        for each_error in errors:
            _log.info("entity '%s': a message was not settled: %s", self.path, each_error)
        return not errors

    # Sessions

    def _hold(self, receiver: Receiver) -> None:
        assert receiver.session_id is not None, "the answer to an attach names its session"
        self._sessions[receiver] = receiver.session_id
        if self._renewing is None or not self._renewing.is_alive():
            left_ms = receiver.locked_until_ms - time.time_ns() // 1_000_000
            pause_s = min(max(left_ms / 3000, 1.0), 60.0)
            self._renewing = threading.Thread(target=self._renew, args=(pause_s,), daemon=True)
            self._renewing.start()

    def _renew(self, pause_s: float) -> None:
        """Renew the locks of the held sessions: a batch may take longer than they last."""
        while self._sessions:
            time.sleep(pause_s)
            for session_id in [*self._sessions.values()]:
                try:
                    self._management.request(RENEW_SESSION, {"session-id": session_id}, timeout_s=pause_s)
                except ServiceBusError as error:
                    _log.info("session '%s' of '%s' was not renewed: %s", session_id, self.path, error)

    def close_sessions(self, kept: Collection[Receiver]) -> None:
        """Close the sessions that are no longer needed."""
        for receiver in [*self._sessions]:
            if receiver not in kept:
                self._close(receiver)

    def _close(self, receiver: Receiver) -> None:
        self._sessions.pop(receiver, None)
        receiver.close()

    def _drop(self, receiver: Receiver, error: ServiceBusError) -> None:
        _log.warning(
            "session '%s' of '%s' is lost, its unsettled messages will come again: %s",
            self._sessions.get(receiver),
            self.path,
            error,
        )
        self._close(receiver)

    # By number

    def peek(self, ranges: Ranges, fetch_size: int = PEEKED) -> Iterator[list[tuple[int, bytes]]]:
        """Yield the messages with these numbers, in any state, answer by answer.

        `fetch_size`: messages per request.

        Raises: ServiceBusError.
        """
        wanted = set(numbers_of(ranges))
        for start, end in _spans(ranges):
            for found in self._peek(start, end, fetch_size):
                ours = [(number, payload) for number, payload in found if number in wanted]
                if ours:
                    yield ours

    def _peek(self, start: int, end: int, fetch_size: int) -> Iterator[list[tuple[int, bytes]]]:
        while start < end:
            count = Int(min(end - start, fetch_size))
            body = {"from-sequence-number": Long(start), "message-count": count}
            found = self._management.request(PEEK, body).messages
            if not found:
                return
            payloads = [(sequence_number(message), message) for message in found]
            start = payloads[-1][0] + 1
            yield payloads

    def still_deferred(self, ranges: Ranges) -> Ranges:
        """Return the numbers whose messages are deferred."""
        return to_ranges(
            number for part in self.peek(ranges) for number, payload in part if _state(payload) == DEFERRED
        )

    def none_exceeded(self, taken: Iterable[Taken]) -> bool:
        """Return whether no message was dead-lettered by the deferral just now.

        One peek is enough: the message with the highest delivery count reaches the maximum first.

        Raises: ServiceBusError.
        """
        last = max(taken, key=lambda each: each.delivery_count)
        return bool(self.still_deferred([(last.number, 1)]))

    def exceeded(self, ranges: Ranges) -> tuple[int, int]:
        """Return how many messages their last delivery attempt dead-lettered, and MaxDeliveryCount.

        A dead-letter queue does not count deliveries, so the count there is the maximum.

        Raises: ServiceBusError.
        """
        if _is_dead_letter_queue(self.path):
            return 0, 0
        dead_letters = Entity(self._connection, self.path + SubQueue.DEAD_LETTER.value)
        counts = [
            _delivery_count(payload)
            for part in dead_letters.peek(ranges)
            for _, payload in part
            if _reason(payload) == EXCEEDED
        ]
        return len(counts), max(counts, default=0)

    def still_there(self, ranges: Ranges) -> Ranges:
        """Return the numbers whose messages are there."""
        return to_ranges(number for part in self.peek(ranges) for number, _ in part)

    def remove(self, ranges: Ranges, mean_bytes: int) -> None:
        """Remove deferred messages; skip those that are gone or not deferred. Raises: ServiceBusError."""
        size = max(1, min(NUMBERS, ANSWER_BYTES // max(1, mean_bytes)))
        while ranges:
            refused = self._remove(ranges, size)
            # A request with one missing number does nothing.
            ranges = self.still_deferred(to_ranges(refused)) if refused else []
            if size == 1 and ranges:
                _log.info("entity '%s': %d deferred messages are locked by others", self.path, len(ranges))
                return
            size = max(1, size // 8)

    def _remove(self, ranges: Ranges, size: int) -> list[int]:
        """Receive and delete by number, with concurrent requests; return the numbers refused."""
        under_way: deque[tuple[list[int], Ticket]] = deque()
        refused: list[int] = []
        for chunk in [*_chunks(numbers_of(ranges), size), *[[]] * UNDER_WAY]:
            if chunk:
                body = by_number(chunk, ReceiveMode.RECEIVE_AND_DELETE)
                under_way.append((chunk, self._management.start(RECEIVE, body)))
            if under_way and (not chunk or len(under_way) >= UNDER_WAY):
                numbers, ticket = under_way.popleft()
                try:
                    self._management.wait(ticket)
                except ServiceBusError as error:
                    if error.condition != MESSAGE_NOT_FOUND:
                        raise
                    refused += numbers
        return refused

    def dead_letter(self, numbers: list[int], reason: str, description: str) -> bool:
        """Move deferred messages to the dead-letter queue; return whether all were there.

        Raises: ServiceBusError.
        """
        try:
            found = self._management.request(RECEIVE, by_number(numbers, ReceiveMode.PEEK_LOCK))
        except ServiceBusError as error:
            if error.condition != MESSAGE_NOT_FOUND:
                raise
            return False
        tokens = Array(uuid.UUID, [one["lock-token"] for one in found.body["messages"]])
        outcome = dead_letter(reason, description)
        self._management.request(SETTLE, {"lock-tokens": tokens, **disposition(outcome)})
        return True

    def all_deferred(self) -> Iterator[list[int]]:
        """Yield the numbers of all deferred messages of the entity, answer by answer."""
        for found in self._peek(0, 1 << 63, PEEKED):
            yield [number for number, payload in found if _state(payload) == DEFERRED]


@dataclass(frozen=True, slots=True)
class Released:
    """What became of deferred messages."""

    moved: int
    locked: int
    """Still deferred, since another receiver has locked them."""


def release_deferred(
    settings: ConnectionString,
    path: str,
    *,
    spared: Collection[int] = (),
    dry_run: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Released:
    """Move the deferred messages of an entity to its dead-letter queue, where they can be resubmitted.

    For messages that a stream in mode peekLock left behind when its checkpoint was lost or its query was
    dropped; stop the query first. No operation makes a deferred message active again, and a copy could be
    dropped as a duplicate. Messages deferred by others are moved too.

    Args:
        path: a queue or subscription without sessions, as on links.
        spared: sequence numbers to leave as they are.
        dry_run: only count.
        progress: called with the number of messages moved so far, or counted.

    Returns:
        How many messages were moved, or counted with `dry_run`, and how many are left since they are locked.

    Raises:
        OptionError: the entity is a dead-letter queue, or has sessions.
        ServiceBusError: refused.
    """
    if _is_dead_letter_queue(path):
        raise OptionError(
            f"entity '{path}' is a dead-letter queue: its messages cannot be dead-lettered again. Read them "
            f"with mode=browse and resubmit them."
        )
    entity = Entity(connection(settings), path)
    if entity.has_sessions():
        raise OptionError(
            f"entity '{path}' has sessions, where streams in mode peekLock defer nothing: there is nothing "
            f"to release."
        )
    left = set(spared)
    moved = 0
    others: list[int] = []
    for numbers in entity.all_deferred():
        for chunk in _chunks([number for number in numbers if number not in left], RELEASED):
            if dry_run:
                moved += len(chunk)
                continue
            if entity.dead_letter(chunk, REASON, DESCRIPTION):
                moved += len(chunk)
                continue
            # Another receiver took one of them, maybe this job in a run that was killed.
            refused = [one for one in chunk if not entity.dead_letter([one], REASON, DESCRIPTION)]
            moved += len(chunk) - len(refused)
            others += refused
        if progress is not None:
            progress(moved)
    return Released(moved, len(numbers_of(entity.still_deferred(to_ranges(others)))))


def _has_room(taken: list[Taken], count_max: int, bytes_max: int) -> bool:
    size_bytes = sum(each.size_bytes for each in taken)
    return not taken or (len(taken) < count_max and size_bytes < bytes_max)


def _spans(ranges: Ranges) -> Iterator[tuple[int, int]]:
    """Yield the start and end of runs, near ones joined."""
    start = end = -1
    for first, count in ranges:
        if start >= 0 and first - end <= GAP:
            end = first + count
            continue
        if start >= 0:
            yield start, end
        start, end = first, first + count
    if start >= 0:
        yield start, end


def _is_dead_letter_queue(path: str) -> bool:
    return path.lower().endswith(SubQueue.DEAD_LETTER.value.lower())


def _delivery_count(payload: bytes) -> int:
    return scan(payload).decode_header().delivery_count


def _reason(payload: bytes) -> object:
    return scan(payload).decode_application_properties().get("DeadLetterReason")


def _state(payload: bytes) -> int:
    state = scan(payload).decode_message_annotations().get("x-opt-message-state", 0)
    return state if isinstance(state, int) else 0


def _chunks(numbers: list[int], size: int) -> Iterator[list[int]]:
    for at in range(0, len(numbers), size):
        yield numbers[at : at + size]
