"""Back-ups of one store, and stores made of them, as a test wants them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from peeklock.store.backup.format import Header, Kind, StoreHead
from peeklock.store.backup.restoring import Restored, restore_store
from peeklock.store.backup.taking import take_store, why_full
from peeklock.store.backup.verifying import Backup, chained, key_of, verify
from peeklock.store.backup.writing import Writer
from peeklock.store.base import StoreFiller, StoreReader
from peeklock.store.sqlite.format import FORMAT

NOW_MS = 1_700_000_000_000
HEAD = StoreHead("default", "default", 0)

_ids = itertools.count(1)


def back_up(reader: StoreReader, path: Path, since: Backup | None = None) -> Backup:
    """Write a back-up of a store, and read it through."""
    covered = None if since is None else since.stores[key_of(HEAD)]
    because = None if covered is None else why_full(reader, covered)
    if because is not None:
        covered = None
    with path.open("wb") as file, Writer(file.write) as writer:
        follows = None if since is None else since.header.id
        writer.add_record(Kind.HEADER, Header(f"id {next(_ids)}", follows, NOW_MS, "0", FORMAT))
        after_no = 0 if covered is None else covered.end.last_no
        take_store(reader, writer, StoreHead("default", "default", after_no, None, because), covered)
        writer.end()
    return verify(path, FORMAT)


def restore(backups: Sequence[Backup], filler: StoreFiller) -> Restored:
    """Make a store of a chain of back-ups."""
    restored = restore_store(chained(backups)[key_of(HEAD)], filler, NOW_MS)
    filler.finish()
    return restored
