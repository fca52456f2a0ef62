"""Serial number arithmetic for delivery-ids and transfer-ids, which wrap at 2^32.

Source: RFC 1982; OASIS AMQP 1.0 sections 2.5.6 and 2.8.10 (sequence-no).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sized
from typing import Final, Protocol

MASK: Final = 0xFFFFFFFF
HALF: Final = 0x80000000


class KnownIds(Sized, Container[int], Protocol):
    """A set, or the keys of a dict, of delivery-ids."""

    def __iter__(self) -> Iterator[int]: ...


def distance(first: int, second: int) -> int:
    """Return how far `second` is ahead of `first`; negative if it is behind (-2^31 .. 2^31-1)."""
    gap = (second - first) & MASK
    return gap - 0x100000000 if gap >= HALF else gap


def ids_in_range(first: int, last: int, known: KnownIds) -> list[int]:
    """Return the members of `known` in the range `first..last`, in order of the range.

    A peer may name four billion deliveries: the smaller of the range and `known` bounds the work.
    """
    span = (last - first) & MASK
    if span < len(known):
        return [number for step in range(span + 1) if (number := (first + step) & MASK) in known]
    found = [number for number in known if (number - first) & MASK <= span]
    found.sort(key=lambda number: (number - first) & MASK)
    return found
