"""Reads SQLite's write-ahead log, also the part that SQLite ignores.

SQLite reads a WAL up to the first frame that fails its checksum and takes that for the end, where a process
died. It drops the commits behind it silently. But with `synchronous = FULL` each commit is synced before the
next one is written, so a crash leaves at most the last commit unreadable: frames behind an unread commit
prove that the file was damaged later. Frames of the log's earlier rounds do not count: they have other salts.
The next start cuts off what a crash left of the last commit, so that it proves nothing about commits written
over it.

Source: sqlite.org/fileformat2.html#walformat; /walformat.html, "WAL-Index Header".
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

HEAD = struct.Struct(">8I")
"""Magic, version, page size, round of checkpoints, two salts, two checksums."""
FRAME = struct.Struct(">6I")
"""Page number, pages of the database after a commit (0 = no commit), two salts, two checksums."""
MAGIC_LITTLE, MAGIC_BIG = 0x377F0682, 0x377F0683
"""The byte order of checksums."""
_USUAL_PAGE_BYTES = 4096  # of the stores that we make
_SHM_MAX_FRAME = struct.Struct("=16xI")  # in the first header of the index, in this machine's order
_WORD = 0xFFFFFFFF


@dataclass(slots=True)
class Wal:
    """The state of a log."""

    head_is_sound: bool
    frame_bytes: int
    read_frames: int
    """Frames that SQLite reads: those of whole commits."""
    has_left_over: bool
    """Whether unread frames of this round follow."""
    lost_commits: int
    """Unread commits, if they prove damage; else 0."""

    @property
    def read_bytes(self) -> int:
        """The end of the part that SQLite reads."""
        return HEAD.size + self.read_frames * self.frame_bytes


def path_of(database: Path) -> Path:
    """Return the path of the WAL of a database."""
    return Path(f"{database}-wal")


def inspect(database: Path) -> Wal | None:
    """Return the state of the WAL of a database that a connection has just read; None = there is none."""
    try:
        with path_of(database).open("rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            head = file.read(HEAD.size)
            if len(head) < HEAD.size:
                return None
            _, _, page_bytes, _, *salts, _, _ = HEAD.unpack(head)
            frame_bytes = FRAME.size + page_bytes
            if not head_is_sound(head):
                return Wal(False, frame_bytes, 0, size_bytes > HEAD.size, 0)
            read_frames = _frames_read(database)
            commits = behind = 0
            has_left_over = False
            for at in range(HEAD.size + read_frames * frame_bytes, size_bytes - frame_bytes + 1, frame_bytes):
                file.seek(at)
                _, pages, *own_salts, _, _ = FRAME.unpack(file.read(FRAME.size))
                if own_salts == salts:
                    has_left_over = True
                    behind += commits > 0
                    commits += pages > 0
            return Wal(True, frame_bytes, read_frames, has_left_over, commits if behind else 0)
    except FileNotFoundError:
        return None


def head_is_sound(head: bytes) -> bool:
    """Return whether the head of a log has a valid mark and checksum."""
    magic, *_, first, second = HEAD.unpack(head)
    if magic not in (MAGIC_LITTLE, MAGIC_BIG):
        return False
    return checksum(magic, (0, 0), head[:24]) == (first, second)


def checksum(magic: int, start: tuple[int, int], data: bytes) -> tuple[int, int]:
    """Return the checksum of a log over more data, a multiple of 8 bytes; some 60 us a page.

    Args:
        magic: of the log; it names the byte order.
        start: the checksum so far.
        data: the next bytes.
    """
    first, second = start
    order = ">" if magic == MAGIC_BIG else "<"
    for one, two in struct.iter_unpack(f"{order}2I", data):
        first = (first + one + second) & _WORD
        second = (second + two + first) & _WORD
    return first, second


def cut_left_over(database: Path, wal: Wal) -> None:
    """Cut off the unread frames of an unfinished commit. No connection may be open."""
    if wal.has_left_over:
        os.truncate(path_of(database), wal.read_bytes)


def _frames_read(database: Path) -> int:
    """Return the number of frames that connections read, by the index of the WAL."""
    with Path(f"{database}-shm").open("rb") as file:
        data = file.read(_SHM_MAX_FRAME.size)
    return int(_SHM_MAX_FRAME.unpack(data)[0]) if len(data) == _SHM_MAX_FRAME.size else 0


def mended(data: bytes) -> bytes:
    """Return a log that SQLite reads to its last commit: the same pages with matching checksums.

    A page of this round that fails its checksum is kept: most of its bytes are right, and each frame and row
    in it has its own checksum. Without it SQLite would read an older page in its place.
    """
    head = data[: HEAD.size]
    if head_is_sound(head):
        magic, version, page_bytes, round_, *salts, _, _ = HEAD.unpack(head)
    else:
        magic, version, page_bytes, round_ = MAGIC_LITTLE, 3_007_000, _USUAL_PAGE_BYTES, 0
        salts = []
    size = FRAME.size + page_bytes
    kept: list[tuple[int, int, bytes]] = []
    commits_to = 0
    for at in range(HEAD.size, len(data) - size + 1, size):
        page, pages, *own_salts, _, _ = FRAME.unpack_from(data, at)
        if not salts and any(own_salts):
            salts = own_salts  # the log starts with its latest round
        if own_salts == salts and page:
            kept.append((page, pages, data[at + FRAME.size : at + size]))
            commits_to = len(kept) if pages else commits_to
    if not commits_to:
        return b""
    start = struct.pack(">6I", magic, version, page_bytes, round_, *salts)
    sums = checksum(magic, (0, 0), start)
    parts = [start, struct.pack(">2I", *sums)]
    for page, pages, content in kept[:commits_to]:
        sums = checksum(magic, sums, struct.pack(">2I", page, pages) + content)
        parts += (FRAME.pack(page, pages, *salts, *sums), content)
    return b"".join(parts)
