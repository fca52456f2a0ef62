"""Messages read without being taken: by peeks from a sequence number on, at any Service Bus.

Owns the walk over an entity, also one with partitions, which numbers each of them separately: the partition
is in the top 16 bits. Memory is that of two answers, whatever the entity has. Source: wire contract 3.2
(PartitionId), 5.2 (peek-message).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from peeklock.amqp.annotations import NUMBER, broker_annotations
from peeklock.amqp.codec import DecodeError
from peeklock.amqp.types import Int, Long
from peeklock.client.connection import BlockingConnection
from peeklock.client.management import Ticket

PEEK: Final = "com.microsoft:peek-message"

PEEK_COUNT: Final = 250
"""Most messages of a request. Our choice: an answer has at most 256 KiB."""

PAGE_COUNT: Final = 50
"""Messages of a request while messages are read to the end. Our choice: a broker answers it in 2 ms of its
loop, so its other clients wait no longer."""

SLOW_S: Final = 0.015
"""An answer that is waited for so long travels far: the next request asks for twice as many. Our choice:
longer than a broker on this machine takes, shorter than an answer from another region."""

PARTITION_SHIFT: Final = 48
"""Bits of a sequence number below its partition."""

NUMBER_MAX: Final = (1 << PARTITION_SHIFT) - 1
"""Largest sequence number of a queue without partitions."""

_END: Final = 1 << 63


class Browser:
    """Peeks at one queue, subscription or sub-queue."""

    def __init__(
        self,
        connection: BlockingConnection,
        path: str,
        session_id: str | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`session_id`: only messages of this session, of an entity with sessions."""
        self._clock_s = clock_s
        self._management = connection.management(path)
        self._further: dict[str, Any] = {} if session_id is None else {"session-id": session_id}

    def peek(self, number: int, count: int) -> list[bytes]:
        """Return up to `count` messages from a sequence number on; none = none follow.

        Raises: ServiceBusError.
        """
        return self._answer(self._ask(number, count))

    def read(self, number: int = 0, count: int = PAGE_COUNT) -> Iterator[list[bytes]]:
        """Yield the messages from a sequence number on, answer by answer.

        The next answer is under way while the caller has one. The first has up to `count` messages, the
        others up to `PAGE_COUNT`, or `PEEK_COUNT` where answers travel far. Raises: ServiceBusError.
        """
        page = PAGE_COUNT
        ticket = self._ask(number, count)
        while True:
            waits_since = self._clock_s()
            if not (messages := self._answer(ticket)):
                break
            is_slow = self._clock_s() - waits_since > SLOW_S
            page = min(2 * page, PEEK_COUNT) if is_slow else max(page // 2, PAGE_COUNT)
            ticket = self._ask(sequence_number(messages[-1]) + 1, page)
            yield messages

    def last_numbers(self) -> dict[int, int]:
        """Return the last sequence number of each partition that has messages. Raises: ServiceBusError."""
        found: dict[int, int] = {}
        number = 0
        while number < _END and (messages := self.peek(number, 1)):
            partition = sequence_number(messages[0]) >> PARTITION_SHIFT
            base = partition << PARTITION_SHIFT

            def is_there(offset: int, base: int = base) -> bool:
                after = self.peek(base + offset, 1)
                return bool(after) and sequence_number(after[0]) <= base + NUMBER_MAX

            found[partition] = base + last_number(is_there)
            number = base + NUMBER_MAX + 1
        return found

    def read_new(self, last_numbers: dict[int, int]) -> Iterator[list[bytes]]:
        """Yield the messages after the last numbers of the partitions, and advance these.

        It ends when there are no more; call it again for those that come later. Raises: ServiceBusError.
        """
        number = last_numbers.get(0, -1) + 1
        while number < _END and (messages := self.peek(number, PEEK_COUNT)):
            new: list[bytes] = []
            for payload in messages:
                found = sequence_number(payload)
                partition = found >> PARTITION_SHIFT
                last = last_numbers.get(partition, -1)
                if found <= last:  # of a later partition, and known: go on after what is known of it
                    number = last + 1
                    break
                last_numbers[partition] = found
                new.append(payload)
                number = found + 1
            if new:
                yield new

    def _ask(self, number: int, count: int) -> Ticket:
        wanted = {"from-sequence-number": Long(number), "message-count": Int(count), **self._further}
        return self._management.start(PEEK, wanted)

    def _answer(self, ticket: Ticket) -> list[bytes]:
        return self._management.wait(ticket).messages


def sequence_number(payload: bytes) -> int:
    """Return the sequence number of an encoded message from a broker. Raises: DecodeError."""
    found: int | None = broker_annotations(payload)[NUMBER]
    if found is None:
        raise DecodeError("the broker sent a message without a sequence number")
    return found


def last_number(is_there: Callable[[int], bool], largest: int = NUMBER_MAX) -> int:
    """Return the largest sequence number in a queue; 0 = it is empty.

    `is_there(n)`: whether there is a message with this number or a larger one.
    """
    if not is_there(1):
        return 0
    low, high = 1, 2
    while high <= largest and is_there(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_there(middle) else (low, middle)
    return low
