"""The manifest of an event log: which segments were written, and the digest of each.

    DIR/_manifest.jsonl   one JSON object a line, appended:
        {"begins": NO, "chain": HEX}            first line: segments from batch NO on are listed
        {"segment": NAME, "bytes": N, "sha256": HEX, "chain": HEX}
        {"removed_to": NO, "chain": HEX}        retention removes the segments up to batch NO

Owns: the format, and the order of writes. A segment is durable before it is listed, and a removal is listed
before a file goes. So a file that is listed and absent, or has other bytes, was changed by somebody else.
`chain` is the digest of the chain before and of the line's own fact: no line can go, come or change alone.
The digests are no signature: who can write here can write the whole manifest anew.
Needs no pyarrow; must not know: what is in a segment.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

MANIFEST_NAME = "_manifest.jsonl"

DEAD_LINES_MAX = 1_000
"""Lines of removed segments, more than those of present ones, before the manifest is written anew: a fifth of
a megabyte. Our choice."""

_READ_BYTES = 1024 * 1024
_START = "0" * 64
_NAME = re.compile(r"event_date=[\d-]{10}/event_hour=\d\d/events-(\d{20})-(\d{20})\.parquet")


class ManifestDamaged(ValueError):
    """The manifest cannot be believed; the text says which line and why."""


class _Listed(Protocol):
    """A segment in the folder."""

    @property
    def last_no(self) -> int: ...
    @property
    def path(self) -> Path: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One listed segment."""

    name: str
    """Relative to the folder of the log."""
    first_no: int
    last_no: int
    size_bytes: int
    sha256: str


@dataclass(slots=True)
class Manifest:
    """What a manifest says."""

    begins: int
    """The first batch of the first segment that it lists or would list."""
    chain: str = _START
    entries: dict[str, Entry] = field(default_factory=dict)
    """By name, in order."""
    removed_to: int = 0
    """The last batch of the segments that retention removed."""

    @property
    def listed_to(self) -> int:
        """The last batch of the last listed segment."""
        last = next(reversed(self.entries.values()), None)
        return max(self.begins - 1, self.removed_to, 0 if last is None else last.last_no)


def parse(text: str) -> Manifest:
    """Return what a manifest says; a last line without its end, from a crash, does not count.

    Raises: ManifestDamaged.
    """
    lines = text.split("\n")[:-1]
    if not lines:
        raise ManifestDamaged("it has no line")
    manifest = Manifest(0)
    for number, line in enumerate(lines, start=1):
        try:
            _add(manifest, json.loads(line), is_first=number == 1)
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestDamaged(f"line {number}: {error}") from None
    return manifest


def _add(manifest: Manifest, told: dict[str, object], *, is_first: bool) -> None:
    """Add the fact of a line. Raises: ValueError, KeyError, TypeError."""
    if is_first:
        manifest.begins, manifest.chain = int(str(told["begins"])), str(told["chain"])
        return
    if "segment" in told:
        entry = _entry(str(told["segment"]), int(str(told["bytes"])), str(told["sha256"]))
        chain = _next(manifest.chain, entry.name, entry.sha256)
        manifest.entries[entry.name] = entry
    else:
        manifest.removed_to = int(str(told["removed_to"]))
        chain = _next(manifest.chain, "removed_to", str(manifest.removed_to))
    if told["chain"] != chain:
        raise ValueError("its chain does not follow from the line before")
    manifest.chain = chain


def _entry(name: str, size_bytes: int, sha256: str) -> Entry:
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no segment")
    return Entry(name, int(found[1]), int(found[2]), size_bytes, sha256)


def _next(chain: str, name: str, digest: str) -> str:
    return hashlib.sha256(f"{chain}{name}{digest}".encode()).hexdigest()


def digest_of(path: Path) -> str:
    """Return the digest of a file's bytes. Raises: OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


class ManifestFile:
    """The manifest in a folder whose lock is held."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; nothing is touched before `open`."""
        self._folder = folder
        self._path = folder / MANIFEST_NAME
        self._manifest: Manifest | None = None

    @property
    def removed_to(self) -> int:
        """The last batch that retention removed or was about to remove."""
        return 0 if self._manifest is None else self._manifest.removed_to

    def open(self, segments: Iterable[_Listed], next_no: int) -> None:
        """Read the manifest and list what a killed exporter could not; without one, begin it at `next_no`.

        Raises: ManifestDamaged, OSError.
        """
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            text = ""
        whole = text[: text.rfind("\n") + 1]
        if not whole:
            self._manifest = Manifest(next_no)
            self._rewrite()
            return
        self._manifest = parse(whole)
        if whole != text:
            os.truncate(self._path, len(whole.encode()))
        listed_to = self._manifest.listed_to
        for segment in segments:
            if segment.last_no > listed_to:
                self.append(segment.path)

    def append(self, path: Path) -> None:
        """List a segment that is durable under its name. Raises: OSError."""
        manifest = self._manifest
        assert manifest is not None
        name = path.relative_to(self._folder).as_posix()
        entry = _entry(name, path.stat().st_size, digest_of(path))
        manifest.entries[name] = entry
        manifest.chain = _next(manifest.chain, name, entry.sha256)
        self._write(_line(entry, manifest.chain))

    def remove(self, last_no: int) -> None:
        """List that the segments up to batch `last_no` are about to be removed. Raises: OSError."""
        manifest = self._manifest
        assert manifest is not None
        manifest.removed_to = last_no
        manifest.chain = _next(manifest.chain, "removed_to", str(last_no))
        self._write(json.dumps({"removed_to": last_no, "chain": manifest.chain}) + "\n")
        dead = [name for name, entry in manifest.entries.items() if entry.last_no <= last_no]
        if len(dead) > DEAD_LINES_MAX + len(manifest.entries) - len(dead):
            for name in dead:
                del manifest.entries[name]
            manifest.begins = last_no + 1
            self._rewrite()

    def _write(self, line: str) -> None:
        with self._path.open("a") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def _rewrite(self) -> None:
        """Write the manifest anew, whole or not at all: its chain begins again at the last one."""
        manifest = self._manifest
        assert manifest is not None
        lines = [json.dumps({"begins": manifest.begins, "chain": manifest.chain}) + "\n"]
        for entry in manifest.entries.values():
            manifest.chain = _next(manifest.chain, entry.name, entry.sha256)
            lines.append(_line(entry, manifest.chain))
        draft = self._path.with_name(f".{MANIFEST_NAME}.tmp")
        with draft.open("w") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._path)
        _sync(self._folder)


def _line(entry: Entry, chain: str) -> str:
    told = {"segment": entry.name, "bytes": entry.size_bytes, "sha256": entry.sha256, "chain": chain}
    return json.dumps(told) + "\n"


def _sync(folder: Path) -> None:
    """Make the names in a folder durable; not the store's, since readers of logs import this module."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
