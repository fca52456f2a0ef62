"""`peeklock backup`: the stores of a data folder in one file.

Each store is backed up as of one instant, one after the other; the facts of the process come first. So a
namespace that is created meanwhile is not in the file.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from peeklock import __version__
from peeklock.server.system import default_name, keys, namespaces
from peeklock.server.system.store import folder_of
from peeklock.store.backup.format import SYSTEM, Header, Kind, StoreEnd, StoreHead
from peeklock.store.backup.taking import take_store, why_full
from peeklock.store.backup.verifying import Backup, key_of, verify
from peeklock.store.backup.writing import Writer
from peeklock.store.base import Entry, StoreError, StoreFailed, StoreReader
from peeklock.store.encoding import definitions, entities
from peeklock.store.sqlite.errors import store_errors
from peeklock.store.sqlite.folder import DATABASE_NAME, require_finished
from peeklock.store.sqlite.format import FORMAT, check_header, read_format
from peeklock.store.sqlite.read_only import open_read_only
from peeklock.store.sqlite.reader import SqliteReader

EVENT_LOG_MARK = "event-log.json"
"""Ties a store to its event log. Source: `capture.folder.STORE_MARK_NAME`; a test compares them."""

Stores = Generator[tuple[StoreHead, StoreReader], None, None]
"""Head and reader of each store, that of the process' facts first; a reader is open until the next one."""

Place = TypeVar("Place")

Progress = Callable[[str, int], object]
"""Is called with the name of a store, and bytes that were read of it."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A store in a new back-up."""

    head: StoreHead
    end: StoreEnd


def read_backup(path: Path) -> Backup:
    """Return what a back-up has, once all of it was read. Raises: BackupUnusable."""
    return verify(path, FORMAT)


def back_up(
    stores: Stores,
    write: Callable[[bytes], object],
    *,
    since: Backup | None,
    now_ms: int,
    progress: Progress = lambda name, size_bytes: None,
) -> list[Taken]:
    """Back up stores while a broker may run on them.

    Args:
        stores: those of a data folder, or of a broker in memory.
        write: takes the bytes of the back-up, in order.
        since: leave out what this back-up has; None = nothing.
        now_ms: the time, UTC.
        progress: see `Progress`.

    Raises: StoreError; what `write` and `stores` raise.
    """
    follows = None if since is None else since.header.id
    taken = []
    with closing(stores), Writer(write) as writer:
        writer.add_record(Kind.HEADER, Header(uuid.uuid4().hex, follows, now_ms, __version__, FORMAT))
        for head, reader in stores:
            covered = None if since is None else since.stores.get(key_of(head))
            because = None
            if since is not None:
                missing = f"{since.path} does not have it"
                because = missing if covered is None else why_full(reader, covered)
            if covered is not None and because is None:
                head = replace(head, after_no=covered.end.last_no)
            else:
                covered = None
                head = replace(head, full_because=because)
            end = take_store(reader, writer, head, covered, lambda size: progress(head.name, size))  # noqa: B023  # called before the next round
            taken.append(Taken(head, end))
        writer.end()
    return taken


def stores_in(data: Path, namespace: str | None) -> Stores:
    """Yield the stores of a data folder, on which a broker may run.

    `namespace`: the only one, in any case, which becomes the default one; None = all. Raises: StoreError.
    """
    require_finished(data)
    system_folder = folder_of(data)
    if not (system_folder / DATABASE_NAME).is_file():
        raise _nothing_to_back_up(data)
    with closing(SqliteReader(system_folder)) as system:
        facts = definitions.read_all(system.entries()).facts
        default = _fact(facts, default_name.FACT) or "default"
        found = only(namespace, [(StoreHead(default, "default", 0), data), *_others(data, facts)], str(data))
        yield StoreHead(SYSTEM, "system", 0), system if namespace is None else OfOne(system, found[0][0].name)
        for head, folder in found:
            with closing(SqliteReader(folder)) as reader:
                yield replace(head, event_log=_event_log(folder)), reader


def only(
    namespace: str | None, found: list[tuple[StoreHead, Place]], where: str
) -> list[tuple[StoreHead, Place]]:
    """Return the stores to back up: all, or that of a namespace as the default one. Raises: StoreFailed."""
    if namespace is None:
        return found
    for head, place in found:
        if head.name.lower() == namespace.lower():
            return [(replace(head, role="default"), place)]
    raise StoreFailed(f"{where} has no namespace '{namespace}': `peeklock namespaces` lists them")


def _nothing_to_back_up(data: Path) -> StoreError:
    """Return why a folder without facts of the process cannot be backed up."""
    path = data / DATABASE_NAME
    if not path.is_file():
        return StoreFailed(
            f"there is no store in {data}: name the folder that a broker was started on with --data; of a "
            "broker with --durability memory, name --control"
        )
    check_header(path)
    with store_errors(f"read {path}"), open_read_only(path) as db:
        number = read_format(db, path)
    return StoreFailed(
        f"{path} has format {number}, of an earlier release, and this one backs up format {FORMAT}: copy the "
        "folder while no broker runs on it, or start the broker of this release on it once"
    )


def _others(data: Path, facts: dict[str, str]) -> Iterator[tuple[StoreHead, Path]]:
    """Yield the namespaces beside the default one, without those that are made or deleted just now."""
    for folder in sorted((data / namespaces.FOLDER).glob("*")):
        record: Any = _fact(facts, namespaces.PREFIX + folder.name) or {}
        if record.get("whole", True) and (folder / DATABASE_NAME).is_file():
            yield StoreHead(str(record.get("name", folder.name)), "namespace", 0), folder


def _fact(facts: dict[str, str], key: str) -> Any:
    return json.loads(facts[key]) if key in facts else None


def _event_log(folder: Path) -> str | None:
    """Return the id of the event log of a store, None if it has none."""
    try:
        return str(json.loads((folder / EVENT_LOG_MARK).read_text())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class OfOne:
    """Reads of the facts of the process what one namespace needs elsewhere: its keys, as the default one."""

    def __init__(self, inner: StoreReader, name: str) -> None:
        self._inner = inner
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def entries(self) -> list[Entry]:
        return entries_of_one(self._inner.entries(), self._name)


def entries_of_one(entries: Sequence[Entry], name: str) -> list[Entry]:
    """Return the facts of the process that one namespace needs elsewhere, as the default one."""
    wanted = entities.fact_key(keys.fact_key(name))
    kept = [entry for entry in entries if entry[0] in (wanted, definitions.CREATED_AT_KEY)]
    return [*kept, definitions.entry(entities.fact_key(default_name.FACT), json.dumps(name))]
