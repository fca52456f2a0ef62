"""The jobs of the demo: pieces of real text, the work on them, and the troubles.

The input is the source code of Python's standard library, which every machine has: some 200 files, cut at
line ends. A worker checks the digest of a piece, counts its words and compresses it. The verdict compares the
results with those of the same work without a queue.
"""

from __future__ import annotations

import hashlib
import sysconfig
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from random import Random

PIECE_BYTES = 2_000
"""About forty lines."""


class Trouble(Enum):
    """What goes wrong with a job; an application property tells the worker."""

    NONE = "none"
    STUMBLES = "the worker fails once"
    HANGS = "the worker hangs once"
    POSTPONED = "the worker defers it"
    SCHEDULED = "it is scheduled for later"
    WITHDRAWN = "it is cancelled"
    DAMAGED = "the text is damaged"
    FAILS = "the worker always fails"


SHARES = {
    Trouble.STUMBLES: 0.05,
    Trouble.HANGS: 0.01,
    Trouble.POSTPONED: 0.03,
    Trouble.SCHEDULED: 0.05,
    Trouble.WITHDRAWN: 0.01,
    Trouble.DAMAGED: 0.02,
    Trouble.FAILS: 0.01,
}
"""Of all jobs; each trouble has at least one job. The other jobs have none."""


class Damaged(Exception):
    """The text does not match the digest."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job; `digest`: SHA-256 of the undamaged text, in hex."""

    id: str
    trouble: Trouble
    text: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a job."""

    words: int
    compressed_bytes: int


def make_jobs(count: int, seed: int) -> list[Job]:
    """Return jobs in a random order by the seed (and the version of Python). Raises: ValueError."""
    if count < 2 * len(SHARES):
        raise ValueError(f"{count} jobs are too few to show all troubles; at least {2 * len(SHARES)}")
    random = Random(seed)
    troubles = [trouble for trouble, share in SHARES.items() for _ in range(max(1, round(count * share)))]
    troubles += [Trouble.NONE] * (count - len(troubles))
    random.shuffle(troubles)
    pieces = _pieces(random)
    return [
        _make_job(f"job-{number:05}", trouble, next(pieces)) for number, trouble in enumerate(troubles, 1)
    ]


def _make_job(job_id: str, trouble: Trouble, text: bytes) -> Job:
    digest = hashlib.sha256(text).hexdigest()
    if trouble is Trouble.DAMAGED:
        text = text.swapcase()
    return Job(job_id, trouble, text, digest)


def _pieces(random: Random) -> Iterator[bytes]:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    while True:
        random.shuffle(files)
        for file in files:
            piece = bytearray()
            for line in file.read_bytes().splitlines(keepends=True):
                piece += line
                if len(piece) >= PIECE_BYTES:
                    yield bytes(piece)
                    piece.clear()


def work(text: bytes, digest: str) -> Result:
    """Do a job. Raises: Damaged."""
    if hashlib.sha256(text).hexdigest() != digest:
        raise Damaged("the text does not match its digest")
    return Result(len(text.split()), len(zlib.compress(text)))
