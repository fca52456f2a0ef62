"""The manifest of an event log: which segments were written, and the digest of each.

    DIR/_manifest.jsonl   one JSON object a line, appended:
        {"begins": NO, "chain": HEX}            first line: segments from batch NO on are listed
        {"segment": NAME, "bytes": N, "sha256": HEX, "chain": HEX}
        {"removed_to": NO, "chain": HEX}        retention removes the segments up to batch NO

Owns: the format. A segment is durable before it is listed, and a removal is listed before a file goes. So a
file that is listed and absent, or has other bytes, was changed by somebody else. `chain` is the digest of the
chain before and of the line's own fact: no line can go, come or change alone. The digests are no signature:
who can write here can write the whole manifest anew.
Needs no pyarrow; must not know: what is in a segment, how the file is written (`manifest_file`).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

MANIFEST_NAME = "_manifest.jsonl"

_READ_BYTES = 1024 * 1024
_START = "0" * 64
_NAME = re.compile(r"event_date=[\d-]{10}/event_hour=\d\d/events-(\d{20})-(\d{20})\.parquet")


class ManifestDamaged(ValueError):
    """The manifest cannot be believed; the text says which line and why."""


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
        entry = entry_of(str(told["segment"]), int(str(told["bytes"])), str(told["sha256"]))
        chain = following(manifest.chain, entry.name, entry.sha256)
        is_known = entry.last_no < manifest.begins or manifest.entries.get(entry.name) == entry
    else:
        entry, removed_to = None, int(str(told["removed_to"]))
        chain = following(manifest.chain, "removed_to", str(removed_to))
        is_known = removed_to <= max(manifest.removed_to, manifest.begins - 1)
    if told["chain"] != chain:
        if is_known:
            return  # again, by an exporter that was frozen while another one listed it
        raise ValueError("its chain does not follow from the line before")
    manifest.chain = chain
    if entry is None:
        manifest.removed_to = removed_to
    else:
        manifest.entries[entry.name] = entry


def entry_of(name: str, size_bytes: int, sha256: str) -> Entry:
    """Return the entry of a segment. Raises: ValueError, if the name is no segment's."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no segment")
    return Entry(name, int(found[1]), int(found[2]), size_bytes, sha256)


def following(chain: str, name: str, digest: str) -> str:
    """Return the chain after a fact."""
    return hashlib.sha256(f"{chain}{name}{digest}".encode()).hexdigest()


def digest_of(path: Path) -> str:
    """Return the digest of a file's bytes. Raises: OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def line_of(entry: Entry, chain: str) -> str:
    """Return the line of a segment, with its end."""
    told = {"segment": entry.name, "bytes": entry.size_bytes, "sha256": entry.sha256, "chain": chain}
    return json.dumps(told) + "\n"
