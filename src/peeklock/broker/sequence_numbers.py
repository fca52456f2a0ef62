"""Sequence numbers and the unwrapped order behind them.

Owns: the roll-over. Must not know: queues, messages.

Theory of operation: the broker counts arrivals of an entity without end: the *order*, which is the position
in its queue. The sequence number is the order modulo 2^63, as the signed wire type has it. Fewer than 2^63
numbers are alive at a time, so that a number names one order, given how many were issued.
Source: semantics S-01, S-03.
"""

from __future__ import annotations

SEQUENCE_NUMBER_MAX = (1 << 63) - 1
_EPOCH = 1 << 63


def number_of(order: int) -> int:
    """Give the sequence number of an order: the same int object before the first roll-over."""
    return order if order <= SEQUENCE_NUMBER_MAX else order & SEQUENCE_NUMBER_MAX


def order_of(number: int, issued: int) -> int:
    """Give the latest order with this number.

    Args:
        number: at least 0.
        issued: the order that will be given out next.
    """
    order = issued & ~SEQUENCE_NUMBER_MAX | number
    return order if order < issued or order < _EPOCH else order - _EPOCH


def order_to_browse_from(number: int, issued: int) -> int:
    """Give the order from which on to look for this number and higher ones.

    A number up to half the range ahead is one yet to come, so that a reader who asks for the one after the
    last finds nothing, not what bore that number before the roll-over. Zero and less mean the very start.
    """
    if number <= 0:
        return 0
    order = issued & ~SEQUENCE_NUMBER_MAX | number
    return order - _EPOCH if order >= _EPOCH and order - issued > _EPOCH // 2 else order
