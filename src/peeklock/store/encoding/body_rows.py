"""The bytes of a body row: how payloads become one BLOB, and how it becomes payloads again.

A row is `version u8, crc32 u32, row u64, count u32`, then a u32 length for each payload, then a u32 CRC-32
for each payload, then the payloads. The first checksum covers all before the payloads, and each payload has
its own. So every byte is summed once, and damage is known by payload. A row of version 1 has no checksums of
payloads; its first one covers them too. `frames` says why the checksum is CRC-32.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from peeklock.broker.vocabulary.message import LOST_BODY
from peeklock.store.base import StoreDamaged

ROW_VERSION = 2
"""Version that this release writes. It reads 1 up to this: version 2 came with format 6."""

_HEAD = struct.Struct("<BIQI")  # version, checksum, row, number of payloads
_CHECKED_FROM = 5  # the checksum covers what follows it; the version is its starting value
_STATED = struct.Struct("<BI")  # version, checksum


def pack(row: int, payloads: Sequence[bytes]) -> bytes:
    """Return the BLOB of a body row, from its payloads by slot."""
    count = len(payloads)
    checked = struct.pack(f"<QI{2 * count}I", row, count, *map(len, payloads), *map(zlib.crc32, payloads))
    stated = _STATED.pack(ROW_VERSION, zlib.crc32(checked, ROW_VERSION))
    return b"".join((stated, checked, *payloads))


def checksum_of(data: bytes) -> int:
    """Return the checksum that a row states, 0 if it is too short for one. It names the row's content."""
    return int.from_bytes(data[1:_CHECKED_FROM], "little")


def unpack(row: int, data: bytes) -> list[bytes]:
    """Return the payloads of body row `row`, by slot. Raises: StoreDamaged."""
    payloads, damaged = read(row, data)
    if damaged:
        raise StoreDamaged(f"body row {row} fails the checksum of {describe(damaged)}")
    return payloads


def read(row: int, data: bytes) -> tuple[list[bytes], list[int]]:
    """Return the payloads of body row `row`, by slot, and the slots of those that fail their checksum.

    Raises: StoreDamaged, if the row itself cannot be read.
    """
    where = f"body row {row}"
    if type(data) is not bytes:  # SQLite keeps the type beside each value, under no checksum
        raise StoreDamaged(f"{where} is damaged: it is not a BLOB")
    if len(data) < _HEAD.size:
        raise StoreDamaged(f"{where} is cut off: {len(data)} bytes, its header alone has {_HEAD.size}")
    version, checksum, own_row, count = _HEAD.unpack_from(data)
    if version not in (1, ROW_VERSION):
        raise StoreDamaged(f"{where} has version {version}; this release knows 1 to {ROW_VERSION}")
    at = _HEAD.size + 4 * version * count  # a table of lengths, and of checksums since version 2
    checked = memoryview(data)[_CHECKED_FROM : len(data) if version == 1 else at]
    found = zlib.crc32(checked, version)
    if found != checksum:
        raise StoreDamaged(f"{where} fails its checksum: stored {checksum:08x}, computed {found:08x}")
    if own_row != row:
        raise StoreDamaged(f"{where} was replaced by another row: it has the number {own_row}")
    if at > len(data):
        raise StoreDamaged(f"{where} is too short for its {count} payloads")
    payloads = []
    for size in struct.unpack_from(f"<{count}I", data, _HEAD.size):
        payloads.append(data[at : at + size])
        at += size
    if at != len(data):
        raise StoreDamaged(f"{where} has {len(data)} bytes; its {count} payloads take {at}")
    if version == 1:
        return payloads, []
    stated = struct.unpack_from(f"<{count}I", data, _HEAD.size + 4 * count)
    summed = tuple(map(zlib.crc32, payloads))
    if summed == stated:
        return payloads, []
    return payloads, [slot for slot in range(count) if summed[slot] != stated[slot]]


class LostRow(Sequence[bytes]):
    """A row that cannot be read: the number of its payloads is unknown, and all are lost.

    No list: compiled code would read its places, which it does not have.
    """

    def __getitem__(self, slot: Any) -> Any:
        """Return `LOST_BODY` for any slot."""
        return LOST_BODY

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[bytes]:
        return iter(())


def read_what_is_left(row: int, data: bytes | None) -> tuple[Sequence[bytes], bool]:
    """Return the payloads of a row, `LOST_BODY` for damaged ones, and whether all are sound."""
    if data is None:
        return LostRow(), False
    try:
        payloads, damaged = read(row, data)
    except StoreDamaged:
        return LostRow(), False
    for slot in damaged:
        payloads[slot] = LOST_BODY
    return payloads, not damaged


def describe(slots: Sequence[int]) -> str:
    """Name payloads by their slots, for people."""
    if len(slots) == 1:
        return f"the payload in slot {slots[0]}"
    return f"{len(slots):,} payloads, the first in slot {slots[0]}"
