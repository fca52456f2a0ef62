"""The number of the last acknowledged batch, beside the database.

Owns: the bytes of the file `peeklock.witness`. Must not know: the journal, what is done about a difference.

A journal whose end was cut off looks as if the process had died a little earlier. So the number and the
checksum of each batch are written here after its commit, before it is acknowledged. They are not synced: a
kill leaves them to the operating system, and the next start compares. After a power cut the file may be
behind the journal, which says nothing; it is ahead of it only where something was lost. With `--durability
os` a power cut may lose acknowledged batches by design: that witness counts only while the machine has not
been started anew.

Batches take turns between two places, each with a checksum, so that the number before is there while one is
written. The file is mapped: a system call would let go of the interpreter, for which the writer has to wait.
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
_START = struct.Struct("<?16s")  # whether each commit is synced; which start of the machine it was
_SUM = struct.Struct("<I")
_SUMMED_BYTES = _FACTS.size + _START.size
_PLACE_BYTES = _SUMMED_BYTES + _SUM.size
_UNKNOWN_START = bytes(16)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a witness says."""

    no: int
    """The last batch that was acknowledged."""
    checksum: int
    """That of its frame."""
    counts: bool
    """Whether that batch has to be there: it was synced, or the machine runs since."""


class Witness:
    """Notes batches as they are committed."""

    def __init__(self, folder: Path, *, synced: bool) -> None:
        """Name the folder; nothing is touched before `open`. `synced`: whether each commit is."""
        self._path = folder / WITNESS_NAME
        self._start = _START.pack(synced, _machine_start())
        self._map: mmap.mmap | None = None

    def open(self, no: int, checksum: int) -> None:
        """Make the file where it is not there, and note the last batch that is. Raises: StoreFailed."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if os.fstat(fd).st_size != FILE_BYTES:
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, bytes(FILE_BYTES), 0)  # a full disk is met here, not in the mapping
                self._map = mmap.mmap(fd, FILE_BYTES)
            finally:
                os.close(fd)
        except OSError as error:
            raise StoreFailed(f"cannot write {self._path}: {error.strerror}") from error
        self.note(no, checksum)
        self._map.move(_PLACES[~no & 1], _PLACES[no & 1], _PLACE_BYTES)  # nothing older is left

    def note(self, no: int, checksum: int) -> None:
        """A batch is durable."""
        assert self._map is not None
        place = _PLACES[no & 1]
        facts = _FACTS.pack(no, checksum) + self._start
        self._map[place : place + _PLACE_BYTES] = facts + _SUM.pack(zlib.crc32(facts))

    def close(self) -> None:
        """Make what was noted durable."""
        noted, self._map = self._map, None
        if noted is not None:
            noted.flush()
            noted.close()


def read(folder: Path) -> Seen | None:
    """Return what the witness of a folder says; None where there is none, or it cannot be read.

    After a power cut it may be empty.
    """
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
    """Return 16 bytes that are others at each start of the machine, zeros where it does not say."""
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return _UNKNOWN_START
