"""Sequence numbers, and the unwrapped order behind them.

Theory of operation. The broker counts the arrivals of an entity without end: the *order*, which is the
position in the queue. The sequence number is the order modulo 2^63, as the signed wire type requires. Fewer
than 2^63 numbers are alive at a time, so a number names one order, given how many were issued.

A partition counts its own arrivals: its number is the order modulo 2^48 below the partition's id. The *key*
of a number sorts by partition, then by order; without partitions it is the order.
Source: semantics S-01, S-02, S-03.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from peeklock.broker.vocabulary.addresses import SequenceNumber

SEQUENCE_NUMBER_MAX: Final = (1 << 63) - 1
_EPOCH: Final = 1 << 63

PARTITION_COUNT: Final = 16
"""Source: Learn "Partitioned queues and topics"."""

_PARTITION_SHIFT: Final = 48
_PARTITION_EPOCH: Final = 1 << _PARTITION_SHIFT
_ORDER_BITS: Final = 80
"""Of an order in a key: 2^32 roll-overs of a partition."""


def number_of(order: int) -> SequenceNumber:
    """Return the sequence number of an order: the same int object before the first roll-over."""
    return SequenceNumber(order if order <= SEQUENCE_NUMBER_MAX else order & SEQUENCE_NUMBER_MAX)


def order_of(number: int, issued: int, epoch: int = _EPOCH) -> int:
    """Return the latest order with this number.

    Args:
        number: at least 0.
        issued: the next order.
        epoch: how many numbers there are.
    """
    order = issued & -epoch | number
    return order if order < issued or order < epoch else order - epoch


def order_to_browse_from(number: int, issued: int, epoch: int = _EPOCH) -> int:
    """Return the lowest order with this number or a higher one.

    A number up to half the range ahead is yet to come, so a browse after the last number finds nothing, not
    the messages from before a roll-over. Zero and less mean the start.
    """
    if number <= 0:
        return 0
    order = issued & -epoch | number
    return order - epoch if order >= epoch and order - issued > epoch // 2 else order


class Partitions:
    """The numbers of a partitioned queue (S-02)."""

    __slots__ = ("_turn", "nexts")

    def __init__(self, first: int) -> None:
        """Begin at `first`, the queue's first sequence number: a partition takes its low 48 bits."""
        self.nexts = [first & (_PARTITION_EPOCH - 1)] * PARTITION_COUNT
        self._turn = PARTITION_COUNT - 1

    def of_key(self, key: bytes) -> int:
        """Return the partition of a session id, partition key or message id; it never changes."""
        return crc32(key) % PARTITION_COUNT

    def of_number(self, number: SequenceNumber) -> int:
        """Return the partition that issued a number."""
        return number >> _PARTITION_SHIFT

    def next_in_turn(self) -> int:
        """Return the partition of the next message or batch without a key: all in turn."""
        self._turn = (self._turn + 1) % PARTITION_COUNT
        return self._turn

    def take(self, partition: int) -> SequenceNumber:
        """Issue the next number of a partition."""
        order = self.nexts[partition]
        self.nexts[partition] = order + 1
        low = order & (_PARTITION_EPOCH - 1)
        return partition << _PARTITION_SHIFT | low  # type: ignore[return-value]  # no call for each send

    def key_of(self, number: SequenceNumber) -> int:
        """Return the key of the latest message with a number."""
        partition, low = number >> _PARTITION_SHIFT, number & (_PARTITION_EPOCH - 1)
        if partition >= PARTITION_COUNT:
            return partition << _ORDER_BITS
        return partition << _ORDER_BITS | order_of(low, self.nexts[partition], _PARTITION_EPOCH)

    def first_key(self, partition: int) -> int:
        """Return the lowest key of a partition."""
        return partition << _ORDER_BITS

    def key_to_browse_from(self, number: SequenceNumber) -> int:
        """Return the lowest key of this number and higher ones."""
        if number <= 0:
            return 0
        partition, low = number >> _PARTITION_SHIFT, number & (_PARTITION_EPOCH - 1)
        if partition >= PARTITION_COUNT:
            return partition << _ORDER_BITS
        order = order_to_browse_from(low, self.nexts[partition], _PARTITION_EPOCH)
        return partition << _ORDER_BITS | order
