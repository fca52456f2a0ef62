"""The file `peeklock.witness`: the number of the last acknowledged batch, beside the database.

A journal whose end was cut off looks as if the process had died a little earlier. So the number and the
checksum of each batch are written here after its commit, before it is acknowledged. They are not synced: a
kill leaves them to the operating system, and the next start compares. After a power cut the file may be
behind the journal, which proves nothing; it is ahead only if a batch was lost. With `--durability os` a power
cut may lose acknowledged batches by design: that witness counts only until the machine restarts.

Batches alternate between two places, each with a checksum, so that the last number stays readable while the
next one is written. The file is mapped: a system call would release the interpreter's lock, and the writer
would wait for it.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from peeklock.store.base import StoreFailed

WITNESS_NAME = "peeklock.witness"

FILE_BYTES = 128
_PLACES = (0, FILE_BYTES // 2)
_FACTS = struct.Struct("<QI")  # number and checksum of a batch
_START = struct.Struct("<?16s")  # whether commits are synced; an id of the machine's start
_SUM = struct.Struct("<I")
_SUMMED_BYTES = _FACTS.size + _START.size
_PLACE_BYTES = _SUMMED_BYTES + _SUM.size
_UNKNOWN_START = bytes(16)


@dataclass(frozen=True, slots=True)
class Seen:
    """The content of a witness."""

    no: int
    """The last batch that was acknowledged."""
    checksum: int
    """Of its frame."""
    counts: bool
    """Whether that batch must exist: it was synced, or the machine has not restarted."""


class Witness:
    """Writes the number of each committed batch."""

    def __init__(self, folder: Path, *, synced: bool) -> None:
        """Name the folder; nothing is touched before `open`. `synced`: whether commits are."""
        self._path = folder / WITNESS_NAME
        self._start = _START.pack(synced, _machine_start())
        self._map: mmap.mmap | None = None

    def open(self, no: int, checksum: int) -> None:
        """Open the file, create it if it is missing, and write the last batch. Raises: StoreFailed."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if os.fstat(fd).st_size != FILE_BYTES:
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, bytes(FILE_BYTES), 0)  # a full disk fails here, not in the mapping
                self._map = mmap.mmap(fd, FILE_BYTES)
            finally:
                os.close(fd)
        except OSError as error:
            raise StoreFailed(f"cannot write {self._path}: {error.strerror}") from error
        self.note(no, checksum)
        self._map.move(_PLACES[~no & 1], _PLACES[no & 1], _PLACE_BYTES)  # no older batch stays

    def note(self, no: int, checksum: int) -> None:
        """Write the number of a batch that is durable."""
        assert self._map is not None
        place = _PLACES[no & 1]
        facts = _FACTS.pack(no, checksum) + self._start
        self._map[place : place + _PLACE_BYTES] = facts + _SUM.pack(zlib.crc32(facts))

    def close(self) -> None:
        """Sync the file and close it."""
        noted, self._map = self._map, None
        if noted is not None:
            noted.flush()
            noted.close()


def read(folder: Path) -> Seen | None:
    """Return the witness of a folder; None if it is missing or unreadable, as it may be after a power cut."""
    try:
        data = (folder / WITNESS_NAME).read_bytes()
    except OSError:
        return None
    here = _machine_start()
    found: Seen | None = None
    for place in _PLACES:
        part = data[place : place + _PLACE_BYTES]
        facts = part[:_SUMMED_BYTES]
        if len(part) < _PLACE_BYTES or part[_SUMMED_BYTES:] != _SUM.pack(zlib.crc32(facts)):
            continue
        no, checksum = _FACTS.unpack_from(facts)
        synced, start = _START.unpack_from(facts, _FACTS.size)
        if found is None or no > found.no:
            found = Seen(no, checksum, synced or (start == here != _UNKNOWN_START))
    return found


def _machine_start() -> bytes:
    """Return 16 bytes that differ at each start of the machine, zeros if it has no such id."""
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return _UNKNOWN_START
