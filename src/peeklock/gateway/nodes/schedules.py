"""The messages in the body of a schedule: up to thousands, so found one by one. Source: wire contract 5.2."""

from __future__ import annotations

from collections.abc import Iterator

from peeklock.amqp.codec import DecodeError, decode, iter_map_raw, read_list_header, skip
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.gateway.nodes.requests import VALUES_MAX

_KEYS_MAX = 16
"""Keys that are read of the body, and of each element of its list. Clients send one and up to five."""

_LISTS = (0x45, 0xC0, 0xD0)
_MAPS = (0xC1, 0xD1)
_ARRAYS = (0xE0, 0xF0)


def iter_scheduled(payload: bytes, offset: int) -> Iterator[bytes]:
    """Yield the messages of the body at `offset`; each is read when it is asked for.

    Raises:
        ArgumentInvalid: it is no map, or has no messages where they belong.
        DecodeError: it is no AMQP value.
    """
    if payload[offset] not in _MAPS:
        raise ArgumentInvalid("The body of the request is not a map.")
    at = _find(payload, offset, "messages")
    if at is not None and payload[at] in _ARRAYS:
        yield from _elements(payload, at)
        return
    position = end = count = 0
    if at is not None and payload[at] in _LISTS:
        position, end, count = read_list_header(payload, at)
    if not count:
        raise ArgumentInvalid("'messages' is not an array, or is empty.")
    for _ in range(count):
        if position >= end:
            raise DecodeError("a list is shorter than it says")
        found = None
        if payload[position] in _MAPS:
            found = _find(payload, position, "message")
        yield _binary(None if found is None else decode(payload, found, elements_max=0)[0])
        position = skip(payload, position)


def _elements(payload: bytes, offset: int) -> Iterator[bytes]:
    """Yield the messages of an array, which is decoded at once: no client is known to send one."""
    for element in decode(payload, offset, elements_max=VALUES_MAX)[0]:
        yield _binary(element.get("message") if isinstance(element, dict) else None)


def _find(payload: bytes, offset: int, name: str) -> int | None:
    """Return where the value of a key begins in the map at `offset`."""
    for count, (key, _, start, _) in enumerate(iter_map_raw(payload, offset)):
        if key == name:
            return start
        if count == _KEYS_MAX:
            raise ArgumentInvalid(f"A map of the request has more than {_KEYS_MAX} keys before '{name}'.")
    return None


def _binary(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise ArgumentInvalid("An element of 'messages' holds no binary 'message'.")
    return value
