"""Offsets of the streams, as they stand in a checkpoint, and the plan of what a batch may take.

Owns: their JSON forms, which checkpoint fits which options, ranges of numbers, what a batch may still take.
Must not know: connections, Spark's classes.

Spark compares offsets as text: a reader gives back the very dict that it was given when nothing is new.
Paths of entities are kept in lower case, since names of entities are compared so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from peeklock.client.errors import OptionError

_log: Final = logging.getLogger("peeklock.spark")

Json = dict[str, Any]
Ranges = list[tuple[int, int]]
"""Runs of sequence numbers: (first, how many), ascending."""


class CheckpointMismatch(OptionError):
    """The checkpoint was written with other options than the query has now; the text names them."""


class DataLoss(Exception):
    """Messages between two offsets are not to be had any more, and option failOnDataLoss is true."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose offsets they are: a checkpoint of another one is refused."""

    mode: str
    namespace: str
    """Host of the namespace; the port may change, as when a broker is started anew for a test."""
    consumer: str = ""
    """Name of the cursor; empty where there is none."""

    def to_json(self) -> Json:
        """Give the part of an offset that says whose it is."""
        shown = {"mode": self.mode, "namespace": self.namespace}
        return {**shown, "consumerName": self.consumer} if self.consumer else shown

    def check(self, offset: Json, paths: Iterable[str], found: Iterable[str], *, strict: bool) -> None:
        """Refuse an offset of another origin.

        Args:
            offset: as it was in the checkpoint.
            paths: entities that the query reads.
            found: entities of the offset.
            strict: option failOnDataLoss; without it another namespace and missing entities are accepted.

        Raises:
            CheckpointMismatch
        """
        mode = offset.get("mode")
        if mode != self.mode:
            raise CheckpointMismatch(
                f"The checkpoint is of a stream with option mode={mode}; this one has mode={self.mode}. Give "
                f"option checkpointLocation a folder of its own."
            )
        consumer = offset.get("consumerName", "")
        if consumer != self.consumer:
            raise CheckpointMismatch(
                f"The checkpoint is of a stream with option consumerName={consumer}; this one has "
                f"consumerName={self.consumer}, another cursor with claims of its own. Use the name of "
                f"before, or give option checkpointLocation a folder of its own."
            )
        wanted = {path.lower() for path in paths}
        dropped = sorted({path.lower() for path in found} - wanted)
        if dropped:
            text = (
                f"The checkpoint is of the entities {', '.join(sorted(found))}; option entity has "
                f"{', '.join(sorted(wanted))}, so nobody would read on in {', '.join(dropped)} (at "
                f"offset {offset}). Add it to option entity, give option checkpointLocation a folder of its "
                f"own, or go on without it by option failOnDataLoss=false."
            )
            if strict:
                raise CheckpointMismatch(text)
            _log.warning("%s", text)
        namespace = offset.get("namespace", "")
        if namespace.lower() != self.namespace.lower():
            text = (
                f"The checkpoint is of the namespace {namespace}; option connectionString names "
                f"{self.namespace} (entities {', '.join(sorted(wanted))}, at offset {offset}). If it is the "
                f"same broker under another name, start once with option failOnDataLoss=false; if not, give "
                f"option checkpointLocation a folder of its own."
            )
            if strict:
                raise CheckpointMismatch(text)
            _log.warning("%s", text)


@dataclass(frozen=True, slots=True)
class Position:
    """How far a stream has come in one entity."""

    claim: int
    """The last claim of the cursor that was read; 0 = none."""
    life: int = 0
    """How often the cursor was found gone and made anew, so that its numbers begin again."""


@dataclass(frozen=True, slots=True)
class CursorOffset:
    """Offset of a stream in cursor mode."""

    positions: Mapping[str, Position]
    idle: int = 0
    """Counts the batches without rows that are there only so that Spark commits the one before."""

    def to_json(self, origin: Origin) -> Json:
        """Give what is written to the checkpoint."""
        claims = {path: [position.claim, position.life] for path, position in sorted(self.positions.items())}
        return {**origin.to_json(), "idle": self.idle, "claims": claims}

    @classmethod
    def parse(cls, value: Json, origin: Origin, paths: Iterable[str], *, strict: bool) -> CursorOffset:
        """Read an offset; see `Origin.check`."""
        claims = value.get("claims", {})
        origin.check(value, paths, claims, strict=strict)
        try:
            positions = {path: Position(int(no), int(life)) for path, (no, life) in claims.items()}
            return cls(positions, int(value.get("idle", 0)))
        except (TypeError, ValueError, AttributeError):
            raise CheckpointMismatch(
                f"The checkpoint holds an offset that cannot be read: {value}."
            ) from None


@dataclass(frozen=True, slots=True)
class PeekLockOffset:
    """Offset of a stream in peek-lock mode: what its batch holds."""

    batch: int = 0
    read: Mapping[str, Ranges] = field(default_factory=dict)
    """By path: sequence numbers of the batch that ends here."""
    settle: Mapping[str, Ranges] = field(default_factory=dict)
    """By path: numbers of the batch before. It was finished when this offset was written, so they may be
    settled at any time; they stand here because Spark asks only once."""
    size_bytes: int = 0
    """Of the messages in `read`."""

    def to_json(self, origin: Origin) -> Json:
        """Give what is written to the checkpoint."""
        shown = {**origin.to_json(), "batch": self.batch, "bytes": self.size_bytes}
        for name, ranges in (("read", self.read), ("settle", self.settle)):
            shown[name] = {path: [list(run) for run in runs] for path, runs in sorted(ranges.items())}
        return shown

    @classmethod
    def parse(cls, value: Json, origin: Origin, paths: Iterable[str], *, strict: bool) -> PeekLockOffset:
        """Read an offset; see `Origin.check`."""
        try:
            read, settle = (
                {path: [(int(first), int(count)) for first, count in runs] for path, runs in named.items()}
                for named in (value.get("read", {}), value.get("settle", {}))
            )
            parsed = cls(int(value.get("batch", 0)), read, settle, int(value.get("bytes", 0)))
        except (TypeError, ValueError, AttributeError):
            raise CheckpointMismatch(
                f"The checkpoint holds an offset that cannot be read: {value}."
            ) from None
        origin.check(value, paths, {*read, *settle}, strict=strict)
        return parsed


def to_ranges(numbers: Iterable[int]) -> Ranges:
    """Give numbers as runs."""
    ranges: Ranges = []
    for number in sorted(set(numbers)):
        if ranges and number == sum(ranges[-1]):
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((number, 1))
    return ranges


def numbers_of(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Give the numbers of some runs."""
    return [number for first, count in ranges for number in range(first, first + count)]


def without(ranges: Mapping[str, Ranges], others: Mapping[str, Ranges]) -> dict[str, Ranges]:
    """Give by path what is in `ranges` and not in `others`; paths with nothing left out."""
    left: dict[str, Ranges] = {}
    for path, runs in ranges.items():
        kept = set(numbers_of(runs)).difference(numbers_of(others.get(path, [])))
        if kept:
            left[path] = to_ranges(kept)
    return left


@dataclass(slots=True)
class Budget:
    """What a batch may still take. The first message is always taken, whatever its size."""

    count: int
    size_bytes: int
    taken: int = 0

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is to be taken."""
        return self.taken > 0 and (self.count <= 0 or self.size_bytes <= 0)

    def fits(self, count: int, size_bytes: int) -> bool:
        """Say whether so much more may be taken."""
        return not self.taken or (count <= self.count and size_bytes <= self.size_bytes)

    def take(self, count: int, size_bytes: int) -> None:
        """Note what was taken."""
        self.count -= count
        self.size_bytes -= size_bytes
        self.taken += count
