"""The files of an event log, before their events are read: are they those that the exporter wrote?

Theory of operation. The manifest lists each segment with its digest, and removals before they happen
(`capture/manifest.py`). A file that is gone, changed, added or misnamed is named here and nowhere else: its
events are left out, and its batches count as a gap, so that nothing of it is blamed on the broker.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from peeklock.capture.manifest import MANIFEST_NAME, Manifest, ManifestDamaged, parse
from peeklock.pipeline.audit.checks import AuditInput, Check
from peeklock.pipeline.audit.seen import CHANGED, DAMAGED, FILE, see
from peeklock.pipeline.events import LogError, Segment, damaged, find_segments, read_segments, refuse_short
from peeklock.pipeline.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file, or the manifest, that is not as the exporter left it."""

    check: Check
    what: str
    segment: Segment | None = None
    has_batches: bool = True
    """Whether the log lacks the batches of its name now."""


@dataclass(slots=True)
class LogFiles:
    """The files of one log."""

    folder: str
    segments: list[Segment]
    """Those whose events are read."""
    bad: list[BadFile] = field(default_factory=list)
    has_manifest: bool = False
    unlisted: int = 0
    """Newest files that the manifest does not list."""
    namespace: str = ""

    @property
    def lacking(self) -> list[Segment]:
        """Segments whose batches are not read."""
        return [entry.segment for entry in self.bad if entry.segment is not None and entry.has_batches]

    @property
    def named(self) -> list[Segment]:
        """All segments in order, read or not."""
        return sorted([*self.segments, *self.lacking], key=lambda segment: segment.first_batch)

    def breaks(self) -> list[tuple[int, int]]:
        """Return `(last of one, first of the next)` where batches between two files are missing or double."""
        return [
            (before.last_batch, after.first_batch)
            for before, after in pairwise(self.named)
            if after.first_batch != before.last_batch + 1
        ]


def look(spark: SparkSession, folders: Iterable[str]) -> tuple[list[LogFiles], list[Row]]:
    """Find the files of logs, and leave out those that differ from their manifest or their name.

    Returns:
        The files, and what the others show of themselves (see `seen`).

    Raises:
        LogError: a folder is missing or empty, or a file damaged that no manifest lists.
        AuditInput: logs are mixed.
    """
    found: dict[str, list[Segment]] = {}
    manifests: dict[str, Manifest] = {}
    bad: dict[str, list[BadFile]] = {}
    for folder in folders:
        found[folder] = find_segments(spark, folder, whole=False)
        text = Files(spark, folder).read(MANIFEST_NAME)
        try:
            if text is not None:
                manifests[folder] = parse(text)
        except ManifestDamaged as damage:
            bad[folder] = [BadFile(Check.MANIFEST_DAMAGED, f"{MANIFEST_NAME} of {folder}: {damage}")]
        if folder not in manifests:
            refuse_short(found[folder])
    wanted = {
        segment.path: entry.sha256
        for folder, manifest in manifests.items()
        for segment in found[folder]
        if (entry := manifest.entries.get(segment.name)) is not None
    }
    read = [
        segment
        for folder, segments in found.items()
        for segment in segments
        if folder not in manifests or not _is_unknown(segment, manifests[folder])
    ]
    seen = see(spark, read, wanted) if read else []
    # Spark skips empty files.
    empty = {segment.path for segments in found.values() for segment in segments if not segment.size_bytes}
    changed = {row.path for row in seen if row.what == CHANGED} | (empty & wanted.keys())
    logs = [
        compare(folder, segments, manifests[folder], changed)
        if folder in manifests
        else LogFiles(folder, segments, bad.get(folder, []))
        for folder, segments in found.items()
    ]
    _read_batches(logs, seen)
    return logs, seen


def compare(folder: str, segments: list[Segment], manifest: Manifest, changed: Container[str]) -> LogFiles:
    """Compare segments with a manifest.

    Args:
        changed: paths of segments that have other bytes than it lists.
    """
    files = LogFiles(folder, [], has_manifest=True)
    there = {segment.name: segment for segment in segments}
    for segment in segments:
        entry = manifest.entries.get(segment.name)
        if entry is not None and segment.path in changed:
            size = f"it has {segment.size_bytes} bytes, the exporter wrote {entry.size_bytes}"
            how = "its bytes are others" if segment.size_bytes == entry.size_bytes else size
            files.bad.append(BadFile(Check.FILE_CHANGED, f"{segment.path}: {how}", segment))
        elif _is_unknown(segment, manifest):
            if segment.last_batch > manifest.removed_to:  # else retention is about to remove it
                what = f"{segment.path}: the exporter did not write it"
                files.bad.append(BadFile(Check.FILE_ADDED, what, segment, has_batches=False))
        else:
            files.segments.append(segment)
            files.unlisted += entry is None and segment.first_batch > manifest.listed_to
    for entry in manifest.entries.values():
        if entry.name not in there and entry.last_no > manifest.removed_to:
            gone = Segment(f"{folder}/{entry.name}", entry.first_no, entry.last_no)
            files.bad.append(BadFile(Check.FILE_REMOVED, f"{gone.path} is not there", gone))
    return files


def _is_unknown(segment: Segment, manifest: Manifest) -> bool:
    """Return whether the manifest should list a segment, and does not."""
    is_listed = segment.name in manifest.entries
    return not is_listed and manifest.begins <= segment.last_batch <= manifest.listed_to


def _read_batches(logs: list[LogFiles], seen: list[Row]) -> None:
    """Find the namespace of each log; leave out files with other batches than in their names."""
    for files in logs:
        if not files.segments:
            what = "; ".join(entry.what for entry in files.bad)
            raise LogError(f"the event log in {files.folder!r} has no whole file ({what}): restore it")
    by_path = {segment.path: (files, segment) for files in logs for segment in files.segments}
    namespaces: dict[str, set[str]] = {}
    for row in seen:
        if row.what not in (FILE, DAMAGED) or row.path not in by_path:
            continue
        if row.what == DAMAGED:
            raise LogError(damaged(row.path, "it cannot be read"))
        files, segment = by_path[row.path]
        namespaces.setdefault(row.namespace, set()).add(files.folder)
        if files.namespace and files.namespace != row.namespace:
            raise _mixed([files.folder])
        files.namespace = row.namespace
        if not segment.first_batch <= row.first_batch <= row.last_batch <= segment.last_batch:
            what = f"{segment.path} has batches {row.first_batch} to {row.last_batch}"
            files.bad.append(BadFile(Check.FILE_MISNAMED, what, segment))
            files.segments.remove(segment)
    for those in namespaces.values():
        if len(those) > 1:
            raise _mixed(those)


def _mixed(folders: Iterable[str]) -> AuditInput:
    return AuditInput(
        f"the logs in {' and '.join(sorted(folders))} are mixed: a folder has one namespace, and a namespace "
        "one folder. Audit them one by one, or copy them to separate folders"
    )


def events_of(spark: SparkSession, logs: list[LogFiles]) -> DataFrame:
    """Return the events of all logs."""
    return read_segments(spark, [segment for files in logs for segment in files.segments])
