"""The manifest of an event log as a file: lines are added, and it is written anew whole or not at all.

Owns: the file in the folder of a log. Must not know: what is in a segment, when one is written or removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from peeklock.capture.manifest import (
    MANIFEST_NAME,
    Manifest,
    digest_of,
    entry_of,
    following,
    line_of,
    parse,
)
from peeklock.store.sqlite.folder import sync

DEAD_LINES_MAX = 1_000
"""Lines of removed segments, more than those of present ones, before the manifest is written anew: a fifth of
a megabyte. Our choice."""


class _Listed(Protocol):
    """A segment in the folder."""

    @property
    def last_no(self) -> int: ...
    @property
    def path(self) -> Path: ...


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

    @property
    def silent_to(self) -> int:
        """The last batch of which no line tells: it was removed, or is before the first line."""
        return 0 if self._manifest is None else max(self._manifest.removed_to, self._manifest.begins - 1)

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
        entry = entry_of(name, path.stat().st_size, digest_of(path))
        manifest.entries[name] = entry
        manifest.chain = following(manifest.chain, name, entry.sha256)
        self._write(line_of(entry, manifest.chain))

    def remove(self, last_no: int) -> None:
        """List that the segments up to batch `last_no` are about to be removed. Raises: OSError."""
        manifest = self._manifest
        assert manifest is not None
        manifest.removed_to = last_no
        manifest.chain = following(manifest.chain, "removed_to", str(last_no))
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
            manifest.chain = following(manifest.chain, entry.name, entry.sha256)
            lines.append(line_of(entry, manifest.chain))
        draft = self._path.with_name(f".{MANIFEST_NAME}.tmp")
        with draft.open("w") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._path)
        sync(self._folder)
