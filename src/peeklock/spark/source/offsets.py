"""Offsets of the streams in a checkpoint: their JSON, and the options that they fit. The budget of a batch.

Spark compares offsets as text: a reader returns the same dict when nothing is new. Paths are in lower case,
since names of entities are case-insensitive.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from peeklock.client.errors import OptionError

_log: Final = logging.getLogger("peeklock.spark")

IDLE_S: Final = 1.0
"""Idle time before a batch without rows settles the last one. Our choice: steady traffic makes none."""

PAUSE_S: Final = 0.05
"""Pause between two requests when nothing is there. Our choice: Spark waits 10 ms."""

VERSION: Final = 2
"""Of the form of offsets. 2: those of mode cursor name the owner."""

Json = dict[str, Any]
Ranges = list[tuple[int, int]]
"""Runs of sequence numbers: (first, how many), ascending."""


class CheckpointMismatch(OptionError):
    """The checkpoint was written with other options; the text names them."""


class DataLoss(Exception):
    """Messages between two offsets are gone, and option failOnDataLoss is true."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The stream that wrote an offset: a checkpoint of another one is refused."""

    mode: str
    namespace: str
    """Host of the namespace; the port may change."""
    consumer: str | None = None
    """Name of the cursor that the options ask for; None = any."""

    def to_json(self) -> Json:
        """Return the part of an offset that names its stream."""
        return {"mode": self.mode, "namespace": self.namespace}

    def check(self, offset: Json, paths: Iterable[str], found: Iterable[str], *, strict: bool) -> None:
        """Refuse an offset of another origin.

        Args:
            offset: as in the checkpoint.
            paths: entities that the query reads.
            found: entities of the offset.
            strict: option failOnDataLoss; without it another namespace and missing entities only log.

        Raises:
            CheckpointMismatch
        """
        mode = offset.get("mode")
        if mode != self.mode:
            raise CheckpointMismatch(
                f"The checkpoint is of a stream with option mode={mode or 'browse'}; this one has "
                f"mode={self.mode} (entities {', '.join(sorted(paths))}, at offset {offset}). Set the old "
                f"mode, or option checkpointLocation to a new folder."
            )
        consumer = offset.get("consumerName", "")
        if self.consumer is not None and consumer != self.consumer:
            raise CheckpointMismatch(
                f"The checkpoint is of a stream with option consumerName={consumer}; this one has "
                f"consumerName={self.consumer}, another cursor with other claims (entities "
                f"{', '.join(sorted(found))}, at offset {offset}). Use the old name, or set option "
                f"checkpointLocation to a new folder."
            )
        wanted = {path.lower() for path in paths}
        dropped = sorted({path.lower() for path in found} - wanted)
        problems = []
        if dropped:
            problems.append(
                f"The checkpoint is of the entities {', '.join(sorted(found))}; option entity has "
                f"{', '.join(sorted(wanted))}, which leaves {', '.join(dropped)} unread (at offset "
                f"{offset}). Add it to option entity, set option checkpointLocation to a new folder, or "
                f"continue without it by option failOnDataLoss=false."
            )
        namespace = offset.get("namespace", "")
        if namespace.lower() != self.namespace.lower():
            problems.append(
                f"The checkpoint is of the namespace {namespace}; option connectionString names "
                f"{self.namespace} (entities {', '.join(sorted(wanted))}, at offset {offset}). If it is the "
                f"same broker under another name, start once with option failOnDataLoss=false; if not, set "
                f"option checkpointLocation to a new folder."
            )
        for text in problems:
            if strict:
                raise CheckpointMismatch(text)
            _log.warning("%s", text)


@dataclass(frozen=True, slots=True)
class ReaderName:
    """How a stream in mode cursor names itself to the broker."""

    cursor: str
    owner: str | None
    """None = the offset is of a release without owners."""


@dataclass(frozen=True, slots=True)
class Position:
    """Progress of a stream in one entity."""

    claim: int
    """The last claim of the cursor that was read; 0 = none."""
    life: int = 0
    """Number of times that the cursor was lost and created again, with numbers from 1."""


@dataclass(frozen=True, slots=True)
class CursorOffset:
    """Offset of a stream in cursor mode."""

    reader: ReaderName
    positions: Mapping[str, Position]
    idle: int = 0
    """Counts the batches without rows, which make Spark commit the one before."""

    def to_json(self, origin: Origin) -> Json:
        """Return the offset for the checkpoint."""
        named = {"consumerName": self.reader.cursor, "owner": self.reader.owner, "version": VERSION}
        claims = {path: [position.claim, position.life] for path, position in sorted(self.positions.items())}
        return {**origin.to_json(), **named, "idle": self.idle, "claims": claims}

    @classmethod
    def parse(cls, value: Json, origin: Origin, paths: Iterable[str], *, strict: bool) -> CursorOffset:
        """Read an offset; see `Origin.check`."""
        check_version(value, paths)
        claims = value.get("claims", {})
        origin.check(value, paths, claims, strict=strict)
        try:
            positions = {path: Position(int(no), int(life)) for path, (no, life) in claims.items()}
            return cls(_reader_of(value), positions, int(value.get("idle", 0)))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _unreadable(value, paths) from None


@dataclass(frozen=True, slots=True)
class PeekLockOffset:
    """Offset of a stream in mode peekLock: the messages of its batch."""

    batch: int = 0
    read: Mapping[str, Ranges] = field(default_factory=dict)
    """By path: sequence numbers of the batch that ends here."""
    settle: Mapping[str, Ranges] = field(default_factory=dict)
    """By path: numbers of the batch before. It was done when this offset was written, so they may be settled
    at any time; they are here because Spark commits only once."""
    size_bytes: int = 0
    """Of the messages in `read`."""

    def to_json(self, origin: Origin) -> Json:
        """Return the offset for the checkpoint."""
        shown = {**origin.to_json(), "batch": self.batch, "bytes": self.size_bytes}
        for name, ranges in (("read", self.read), ("settle", self.settle)):
            shown[name] = {path: [list(run) for run in runs] for path, runs in sorted(ranges.items())}
        return shown

    @classmethod
    def parse(cls, value: Json, origin: Origin, paths: Iterable[str], *, strict: bool) -> PeekLockOffset:
        """Read an offset; see `Origin.check`."""
        check_version(value, paths)
        try:
            read, settle = (
                {path: [(int(first), int(count)) for first, count in runs] for path, runs in named.items()}
                for named in (value.get("read", {}), value.get("settle", {}))
            )
            parsed = cls(int(value.get("batch", 0)), read, settle, int(value.get("bytes", 0)))
        except (TypeError, ValueError, AttributeError):
            raise _unreadable(value, paths) from None
        origin.check(value, paths, {*read, *settle}, strict=strict)
        return parsed


def check_version(value: Json, paths: Iterable[str]) -> None:
    """Refuse an offset that a newer release wrote. Raises: CheckpointMismatch."""
    version = value.get("version", 1)
    if not isinstance(version, int) or version > VERSION:
        raise CheckpointMismatch(
            f"The checkpoint of the entities {', '.join(sorted(paths))} is of a newer release of peeklock: "
            f"its offset {value} has version {version}, and this release reads up to {VERSION}. Install that "
            f"release, or set option checkpointLocation to a new folder."
        )


def _reader_of(value: Json) -> ReaderName:
    owner = value.get("owner")
    if not isinstance(value["consumerName"], str) or not isinstance(owner, str | None):
        raise TypeError
    return ReaderName(value["consumerName"], owner)


def _unreadable(value: Json, paths: Iterable[str]) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"The checkpoint of the entities {', '.join(sorted(paths))} holds an offset that cannot be read: "
        f"{value}. It was changed or damaged: restore it, or set option checkpointLocation to a new folder."
    )


def to_ranges(numbers: Iterable[int]) -> Ranges:
    """Return numbers as runs."""
    ranges: Ranges = []
    for number in sorted(set(numbers)):
        if ranges and number == sum(ranges[-1]):
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((number, 1))
    return ranges


def numbers_of(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Return the numbers of runs."""
    return [number for first, count in ranges for number in range(first, first + count)]


def without(ranges: Mapping[str, Ranges], others: Mapping[str, Ranges]) -> dict[str, Ranges]:
    """Return by path the numbers in `ranges` that are not in `others`, without paths that have none."""
    left: dict[str, Ranges] = {}
    for path, runs in ranges.items():
        kept = set(numbers_of(runs)).difference(numbers_of(others.get(path, [])))
        if kept:
            left[path] = to_ranges(kept)
    return left


class Rate:
    """What a number of messages a second allows at a time: what was not used for a second is lost."""

    def __init__(self, per_second: int | None) -> None:
        """`per_second`: None = no limit."""
        self._per_second = per_second
        self._at_s: float | None = None
        self._left = 0.0

    def allows(self, now_s: float) -> int | None:
        """Return how many messages may be taken now; None = any number."""
        if self._per_second is None:
            return None
        passed_s = 1.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        self._left = min(self._left + passed_s * self._per_second, max(1.0, passed_s) * self._per_second)
        return max(0, int(self._left))

    def take(self, count: int) -> None:
        """Subtract what was taken."""
        self._left -= count


@dataclass(slots=True)
class Budget:
    """What a batch may still take. The first message always fits, whatever its size."""

    count: int
    size_bytes: int
    taken: int = 0

    @property
    def is_spent(self) -> bool:
        """Whether the batch is full."""
        return self.taken > 0 and (self.count <= 0 or self.size_bytes <= 0)

    def fits(self, count: int, size_bytes: int) -> bool:
        """Return whether this much more may be taken."""
        return not self.taken or (count <= self.count and size_bytes <= self.size_bytes)

    def take(self, count: int, size_bytes: int) -> None:
        """Subtract what was taken."""
        self.count -= count
        self.size_bytes -= size_bytes
        self.taken += count
