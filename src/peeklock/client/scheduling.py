"""Scheduled messages of a queue or topic: cancelled, and scheduled for another time. At any Service Bus.

Theory of operation. The service has no change of a schedule, so a copy is scheduled first, and the original
is cancelled then: no failure in between loses a message. The copy has an annotation with the number of its
original. By it a copy is found whose answer was lost with the connection, and one whose original an
interrupted run did not cancel: both are completed, not repeated.

The original may become active before it is cancelled: then the copy is cancelled. A broker that detects
duplicates may drop the copy, whose message id is that of the original: an original is cancelled only once its
copy is known to be there. Source: wire contract 5.2, S-05 to S-09.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from peeklock.amqp.annotations import STATE, broker_annotations
from peeklock.amqp.encoding import encode
from peeklock.amqp.messaging import scan
from peeklock.amqp.types import Array, Encoded, Long, Symbol, Timestamp
from peeklock.client.browsing import Browser, sequence_number
from peeklock.client.connection import BlockingConnection, wall_ms
from peeklock.client.errors import MESSAGE_NOT_FOUND, ServiceBusError
from peeklock.client.management import Ticket
from peeklock.client.overrides import NULL, Overrides, override

SCHEDULE: Final = "com.microsoft:schedule-message"
CANCEL: Final = "com.microsoft:cancel-scheduled-message"

AT: Final = "x-opt-scheduled-enqueue-time"
ORIGIN: Final = "x-opt-peeklock-rescheduled-from"
"""The sequence number of the message that this one is a copy of."""

_SCHEDULED: Final = 2
"""State of a message. Source: wire contract 3.2."""

_MESSAGE_ID: Final = 0
_GROUP_ID: Final = 10
"""Places in the properties section. Source: AMQP 3.2.4."""


TOGETHER: Final = 64
"""Messages to move or cancel in one call. Our choice: four times the requests under way, so that few answers
are waited for alone."""

SOON_MS: Final = 5000
"""How far ahead a copy is due that must be seen before. Our choice: hundreds of requests."""


class Moved(enum.Enum):
    """What became of a message that was to be enqueued at another time."""

    DONE = "done"
    GONE = "gone"
    """It became active, or others cancelled it; the copy is cancelled."""
    TWICE = "twice"
    """It became active, or others cancelled it, and the copy could not be cancelled."""
    UNKNOWN = "unknown"
    """The connection broke while it was cancelled; the copy stays. If it became active, it comes twice."""
    DROPPED = "dropped"
    """The broker dropped the copy as a duplicate; the message is scheduled as it was."""


class Schedules:
    """The scheduled messages of one queue or topic. Its calls raise `ServiceBusError`."""

    def __init__(self, connection: BlockingConnection, path: str, *, may_drop: bool) -> None:
        """`may_drop`: the broker detects duplicates there, or it is not known that it does not."""
        self._management = connection.management(path)
        self._browser = Browser(connection, path)
        self._may_drop = may_drop

    def read(self, number: int = 0) -> Iterator[list[bytes]]:
        """Yield the messages from a sequence number on, answer by answer: those that are scheduled."""
        for messages in self._browser.read(number):
            yield [payload for payload in messages if is_scheduled(payload)]

    def find(self, number: int) -> bytes | None:
        """Return the scheduled message with a sequence number."""
        for payload in self._browser.peek(number, 1):
            if sequence_number(payload) == number and is_scheduled(payload):
                return payload
        return None

    def cancel(self, numbers: Sequence[int]) -> list[bool | None]:
        """Cancel messages; return for each whether it was cancelled.

        False = it is not there. None = nor is it, but the answer to a first request was lost.
        """
        tickets = [self._management.start(CANCEL, _by_number(number), repeat=False) for number in numbers]
        return [self._cancelled(number, ticket) for number, ticket in zip(numbers, tickets, strict=True)]

    def move(self, payloads: Sequence[bytes], at_ms: Callable[[bytes], int]) -> list[Moved]:
        """Enqueue scheduled messages at another time, UTC ms; past = now. Nothing is lost by an error."""
        soonest_ms = wall_ms() + (SOON_MS if self._may_drop else 0)
        copies = [copy_at(payload, max(at_ms(payload), soonest_ms)) for payload in payloads]
        origins = [*map(sequence_number, payloads)]
        tickets = [
            self._management.start(SCHEDULE, {"messages": [_request_of(copy)]}, repeat=False)
            for copy in copies
        ]
        copied = [*map(self._scheduled, copies, origins, tickets)]
        done = self.complete(
            [(origin, number) for origin, number in zip(origins, copied, strict=True) if number is not None]
        )
        outcomes = iter(done)
        return [Moved.DROPPED if number is None else next(outcomes) for number in copied]

    def complete(self, pairs: Sequence[tuple[int, int]]) -> list[Moved]:
        """Cancel messages that have copies: pairs of a number, and that of the copy."""
        outcomes = []
        are_cancelled = self.cancel([origin for origin, _ in pairs])
        for (_, copied), is_cancelled in zip(pairs, are_cancelled, strict=True):
            if is_cancelled is None:
                outcomes.append(Moved.UNKNOWN)
            elif is_cancelled:
                outcomes.append(Moved.DONE)
            else:
                outcomes.append(Moved.GONE if self.cancel([copied])[0] else Moved.TWICE)
        return outcomes

    def _cancelled(self, number: int, ticket: Ticket) -> bool | None:
        try:
            self._management.wait(ticket)
            return True
        except ServiceBusError as error:
            if error.condition == MESSAGE_NOT_FOUND:
                return False
            if not error.retryable:
                raise
        try:
            self._management.request(CANCEL, _by_number(number))
            return True
        except ServiceBusError as error:
            if error.condition == MESSAGE_NOT_FOUND:
                return None
            raise

    def _scheduled(self, copy: bytes, origin: int, ticket: Ticket) -> int | None:
        """Return the number of a copy; None = it was dropped as a duplicate."""
        try:
            answer = self._management.wait(ticket)
        except ServiceBusError as error:
            if not error.retryable:
                raise
            found = self._copy_of(origin)  # it may be scheduled, though the answer is lost
            if found is None and (due_ms(copy) or 0) <= wall_ms():
                raise  # it may have been enqueued, and received
            if found is not None:
                return found
            answer = self._management.request(SCHEDULE, {"messages": [_request_of(copy)]}, repeat=False)
        number = int(answer.body["sequence-numbers"][0])
        if number == origin or (self._may_drop and not self._is_copy(number, origin)):
            return None
        return number

    def _is_copy(self, number: int, origin: int) -> bool:
        found = self.find(number)
        return found is not None and origin_of(found) == origin

    def _copy_of(self, origin: int) -> int | None:
        """Return the number of the copy of a message, in any state."""
        for messages in self._browser.read():
            for payload in messages:
                if origin_of(payload) == origin:
                    return sequence_number(payload)
        return None


def is_scheduled(payload: bytes) -> bool:
    """Return whether a peeked message waits for its time."""
    return bool(broker_annotations(payload)[STATE] == _SCHEDULED)


def due_ms(payload: bytes) -> int | None:
    """Return when a message is to be enqueued, UTC ms."""
    return _number(payload, AT)


def origin_of(payload: bytes) -> int | None:
    """Return the number of the message that this one is a copy of."""
    return _number(payload, ORIGIN) if ORIGIN.encode() in payload else None


def copy_at(payload: bytes, at_ms: int) -> bytes:
    """Return a copy of a peeked message, to be enqueued at a time, UTC ms."""
    annotations = (
        encode(Symbol(AT)) + encode(Timestamp(at_ms)),
        encode(Symbol(ORIGIN)) + encode(Long(sequence_number(payload))),
    )
    return override(payload, Overrides(annotations=annotations, makes_id=False))[0]


def _number(payload: bytes, name: str) -> int | None:
    found = scan(payload).decode_message_annotations().get(name)
    return int(found) if isinstance(found, int) else None


def _by_number(number: int) -> dict[str, Any]:
    """Return the body of a request to cancel."""
    return {"sequence-numbers": Array.of(Long, [number])}


def _request_of(copy: bytes) -> dict[str, Any]:
    """Return the entry of a request for a message. Source: wire contract 5.2."""
    sections = scan(copy)
    entry: dict[str, Any] = {"message": copy}
    annotations = sections.decode_message_annotations()
    given = {
        "message-id": sections.property_raw(_MESSAGE_ID),
        "session-id": sections.property_raw(_GROUP_ID),
        **{
            key: None if (value := annotations.get(f"x-opt-{key}")) is None else encode(value)
            for key in ("partition-key", "via-partition-key")
        },
    }
    entry.update((key, Encoded(raw)) for key, raw in given.items() if raw not in (None, NULL))
    return entry
