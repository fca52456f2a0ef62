"""How the payloads of a body row become one BLOB, and how a BLOB becomes payloads again.

Owns: the bytes of a body row. Must not know: where it is kept, who shares its payloads.

A row is `version u8, crc32 u32, row u64, count u32`, then a u32 length for each payload, then the payloads.
The checksum is that of a frame: see `frames`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from peeklock.store.base import StoreDamaged

ROW_VERSION = 1

_HEAD = struct.Struct("<BIQI")  # version, checksum, row, number of payloads
_CHECKED_FROM = (
    5  # the checksum covers the row number and all that follows; the version is its starting value
)


def pack(row: int, payloads: Sequence[bytes]) -> bytes:
    """Encode the payloads of a body row, by slot."""
    sizes = struct.pack(f"<{len(payloads)}I", *map(len, payloads))
    checked = b"".join((_HEAD.pack(ROW_VERSION, 0, row, len(payloads))[_CHECKED_FROM:], sizes, *payloads))
    return _HEAD.pack(ROW_VERSION, zlib.crc32(checked, ROW_VERSION), row, 0)[:_CHECKED_FROM] + checked


def unpack(row: int, data: bytes) -> list[bytes]:
    """Give back the payloads of body row `row`, by slot. Raises: StoreDamaged."""
    where = f"body row {row}"
    if len(data) < _HEAD.size:
        raise StoreDamaged(f"{where} is cut off: {len(data)} bytes, its head alone takes {_HEAD.size}")
    version, checksum, own_row, count = _HEAD.unpack_from(data)
    found = zlib.crc32(memoryview(data)[_CHECKED_FROM:], version)
    if found != checksum:
        raise StoreDamaged(f"{where} fails its checksum: it says {checksum:08x}, its bytes give {found:08x}")
    if version != ROW_VERSION:
        raise StoreDamaged(f"{where} has version {version}; this release knows version {ROW_VERSION}")
    if own_row != row:
        raise StoreDamaged(f"{where} is another row in its place: it says that it is row {own_row}")
    at = _HEAD.size + 4 * count
    if at > len(data):
        raise StoreDamaged(f"{where} is too short for its {count} payloads")
    payloads = []
    for size in struct.unpack_from(f"<{count}I", data, _HEAD.size):
        payloads.append(data[at : at + size])
        at += size
    if at != len(data):
        raise StoreDamaged(f"{where} has {len(data)} bytes; its {count} payloads take {at}")
    return payloads
