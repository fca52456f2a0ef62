"""The bytes of a back-up: what its parts are, and how a reader knows that it is whole. Pure.

A file is `magic, version u16` and then blocks. A block is `kind u8, size u32, crc32 u32` and its bytes, which
zlib has compressed. The checksum begins with that of the block before and covers kind, size and bytes: so a
block that is changed, missing, or in the place of another is found, without unpacking it. The last block says
how many there are. All integers are little-endian.

    Header                          which release, when, after which other back-up
    for each store: StoreHead       its name and its place
                    ROWS, FRAMES    body rows and frames as they are stored, some in a block
                    ENTRIES, LIVE   facts kept apart from the journal; the rows that there are
                    StoreEnd        where it ends
    END                             the number of blocks

Frames and rows have checksums of their own, from the store (see `encoding.frames` for the choice of CRC-32).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from typing import Any, BinaryIO, Literal, TypeVar

from peeklock.store.base import Blob, Entry, StoreError

MAGIC = b"peeklock back-up\n"
VERSION = 1
"""Version that this release writes."""

START = MAGIC + VERSION.to_bytes(2, "little")

_VERSION = struct.Struct("<H")
_HEAD = struct.Struct("<BII")  # kind, size, checksum
_BLOB = struct.Struct("<QI")  # number, size
_LIVE = struct.Struct("<QII")  # row, checksum, size

LEVEL = 1
"""Of zlib, some 80 MB/s a core. Our choice: level 6 takes four times as long for a tenth less."""

BLOCK_BYTES = 4 * 1024 * 1024
"""A block is written once it has so many bytes. Our choice: it bounds the memory."""

Role = Literal["system", "default", "namespace"]
"""The place of a store in a data folder: that of the process' own facts, of the default namespace, of another
namespace."""

SYSTEM = "system"
"""The name of the store with the facts of the process."""


class BackupUnusable(StoreError):
    """A file is no back-up, or cannot be used; the message says why and what to do."""


class Kind(IntEnum):
    """What is in a block."""

    HEADER = 1
    STORE_HEAD = 2
    ROWS = 3
    FRAMES = 4
    ENTRIES = 5
    LIVE = 6
    STORE_END = 7
    END = 8


@dataclass(frozen=True, slots=True)
class Header:
    """What a back-up is."""

    id: str
    """Of its own."""
    follows: str | None
    """The id of the back-up that it adds to; None = it needs none."""
    taken_at_ms: int
    release: str
    """That wrote it."""
    store_format: int
    """Of the facts in it."""


@dataclass(frozen=True, slots=True)
class StoreHead:
    """Which store follows."""

    name: str
    role: Role
    after_no: int
    """Frames and rows that `Header.follows` has are left out; up to this frame. 0 = none are left out."""
    event_log: str | None = None
    """The id that ties the store to its event log."""
    full_because: str | None = None
    """Why nothing is left out although the back-up follows another one."""


@dataclass(frozen=True, slots=True)
class StoreEnd:
    """Where a store ends, at the instant of which it was backed up."""

    first_no: int
    """Of the frames; those before it, in this back-up or an earlier one, count no more."""
    last_no: int
    """Of the frames; 0 = there is none."""
    checksum: int
    """Of the last frame."""
    last_row: int
    """The highest body row that was read."""


Row = tuple[int, int]
"""Of a live body row: the checksum that it states, and its size."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block as it is stored."""

    kind: Kind
    data: bytes
    """Compressed."""
    at: int
    """Where the block begins in the file."""
    checksum: int

    def unpacked(self) -> bytes:
        """Return the bytes of the block. Raises: BackupUnusable."""
        try:
            return zlib.decompress(self.data)
        except zlib.error as error:
            raise BackupUnusable(f"its block at byte {self.at:,} cannot be unpacked: {error}") from error


def read_blocks(file: BinaryIO) -> Iterator[Block]:
    """Yield the blocks of a back-up from its start to its end, checked. Raises: BackupUnusable, OSError."""
    start = file.read(len(MAGIC) + _VERSION.size)
    if not start.startswith(MAGIC):
        raise BackupUnusable("it is not a back-up of peeklock: its first bytes are others")
    if len(start) < len(MAGIC) + _VERSION.size:
        raise BackupUnusable("it is cut off: it ends within its first bytes")
    (version,) = _VERSION.unpack_from(start, len(MAGIC))
    if version != VERSION:
        raise BackupUnusable(
            f"it has version {version}, of a newer release; this one reads {VERSION}: restore it with "
            "a newer release"
        )
    for count, block in enumerate(_blocks_from(file, len(start), 0)):
        if block.kind is Kind.END:
            _check_end(file, block, count)
            return
        yield block


def read_section(file: BinaryIO, at: int, end: int, checksum: int) -> Iterator[Block]:
    """Yield the blocks of a part of a back-up; `checksum`: of the block before. Raises: as `read_blocks`."""
    file.seek(at)
    for block in _blocks_from(file, at, checksum):
        yield block
        if block.at + _HEAD.size + len(block.data) >= end:
            return


def _blocks_from(file: BinaryIO, at: int, checksum: int) -> Iterator[Block]:
    while True:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise BackupUnusable(
                f"it is cut off at byte {at + len(head):,}: the back-up was not written whole"
            )
        number, size, stated = _HEAD.unpack(head)
        data = file.read(size)
        if len(data) == size:
            checksum = _checksum(number, data, checksum)
        if checksum != stated or number not in Kind._value2member_map_:
            if len(data) < size and not file.read(1):
                raise _cut_off(at + _HEAD.size + len(data))
            raise BackupUnusable(f"its block at byte {at:,} fails its checksum: the file is damaged")
        yield Block(Kind(number), data, at, checksum)
        at += _HEAD.size + size


def _cut_off(at: int) -> BackupUnusable:
    return BackupUnusable(f"it is cut off at byte {at:,}: the back-up was not written whole")


def _check_end(file: BinaryIO, block: Block, count: int) -> None:
    stated = json.loads(block.unpacked())["blocks"]
    if stated != count:
        raise BackupUnusable(f"it has {count} blocks, and should have {stated}: the file is damaged")
    if file.read(1):
        raise BackupUnusable("there is more behind its end: the file is damaged")


def block_head(kind: Kind, data: bytes, before: int) -> tuple[bytes, int]:
    """Return the head of a block and its checksum; `data`: compressed, `before`: the checksum before."""
    checksum = _checksum(kind, data, before)
    return _HEAD.pack(kind, len(data), checksum), checksum


def _checksum(kind: int, data: bytes, before: int) -> int:
    return zlib.crc32(data, zlib.crc32(_HEAD.pack(kind, len(data), 0), before))


# What is in blocks


def pack_blobs(blobs: Iterable[Blob]) -> bytes:
    """Return frames or body rows as bytes."""
    parts: list[bytes] = []
    for no, data in blobs:
        parts += (_BLOB.pack(no, len(data)), data)
    return b"".join(parts)


def unpack_blobs(data: bytes) -> Iterator[Blob]:
    """Yield frames or body rows."""
    at = 0
    while at < len(data):
        no, size = _BLOB.unpack_from(data, at)
        at += _BLOB.size + size
        yield no, data[at - size : at]


def pack_entries(entries: Iterable[Entry]) -> bytes:
    """Return facts kept apart from the journal as bytes."""
    return _json([list(entry) for entry in entries])


def unpack_entries(data: bytes) -> list[Entry]:
    """Return facts kept apart from the journal."""
    return [(str(key), str(text), int(checksum)) for key, text, checksum in json.loads(data)]


def pack_live(rows: Iterable[tuple[int, Row]]) -> bytes:
    """Return the live rows as bytes."""
    return b"".join(_LIVE.pack(no, checksum, size) for no, (checksum, size) in rows)


def unpack_live(data: bytes) -> Iterator[tuple[int, Row]]:
    """Yield the live rows."""
    for no, checksum, size in _LIVE.iter_unpack(data):
        yield no, (checksum, size)


def pack_record(record: Header | StoreHead | StoreEnd) -> bytes:
    """Return a record as bytes."""
    return _json(asdict(record))


def pack_end(blocks: int) -> bytes:
    """Return the last block, which says how many there are before it."""
    return _json({"blocks": blocks})


_R = TypeVar("_R", Header, StoreHead, StoreEnd)


def read_record(block: Block, record: type[_R]) -> _R:
    """Return the one record of a block; members that this release does not know are left out."""
    found = json.loads(block.unpacked())
    known = {field.name for field in fields(record)}
    return record(**{name: value for name, value in found.items() if name in known})


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
