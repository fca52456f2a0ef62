"""`peeklock backup` and `peeklock restore`: the stores of a data folder, in one file, and back.

Each store is backed up as of one instant, one after the other; the facts of the process come first. So a
namespace that is created meanwhile is not in the file. A restore makes a whole folder, which no broker takes
before all of it is durable and has been read again.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peeklock import __version__
from peeklock.broker.content.overlay import is_bodiless
from peeklock.server import files
from peeklock.server.namespaces.lifecycle import NAMESPACES_FOLDER
from peeklock.server.system import default_name, keys, namespaces
from peeklock.server.system.store import folder_of
from peeklock.store.backup.format import BackupUnusable, Header, Kind, Role, StoreEnd, StoreHead, Writer
from peeklock.store.backup.restoring import Restored, restore_store
from peeklock.store.backup.taking import take_store, why_full
from peeklock.store.backup.verifying import Backup, Source, chained, key_of, verify
from peeklock.store.base import Entry, StoreDamaged, StoreError, StoreFailed, StoreReader
from peeklock.store.check import check
from peeklock.store.encoding import definitions, entities
from peeklock.store.sqlite.errors import store_errors
from peeklock.store.sqlite.filler import SqliteFiller
from peeklock.store.sqlite.folder import DATABASE_NAME, UNFINISHED_NAME, require_finished
from peeklock.store.sqlite.format import FORMAT, check_header, read_format
from peeklock.store.sqlite.read_only import open_read_only
from peeklock.store.sqlite.reader import SqliteReader

EVENT_LOG_MARK = "event-log.json"
"""Ties a store to its event log. Source: `capture.folder.STORE_MARK_NAME`; a test compares them."""

SYSTEM = "system"
"""The name of the store with the facts of the process."""

_NOT_THE_USERS = frozenset(("lost+found",))
"""What a new volume has."""

Progress = Callable[[str, int], object]
"""Is called with the name of a store, and bytes that were read or written of it."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A store in a new back-up."""

    head: StoreHead
    end: StoreEnd


def read_backup(path: Path) -> Backup:
    """Return what a back-up has, once all of it was read. Raises: BackupUnusable."""
    return verify(path, FORMAT)


# Backing up


def back_up(
    data: Path,
    write: Callable[[bytes], object],
    *,
    namespace: str | None,
    since: Backup | None,
    now_ms: int,
    progress: Progress = lambda name, size_bytes: None,
) -> list[Taken]:
    """Back up a data folder, on which a broker may run.

    Args:
        data: the folder.
        write: takes the bytes of the back-up, in order.
        namespace: the only one to back up, in any case; None = all.
        since: leave out what this back-up has; None = nothing.
        now_ms: the time, UTC.
        progress: see `Progress`.

    Raises: StoreError; what `write` raises.
    """
    writer = Writer(write)
    follows = None if since is None else since.header.id
    writer.add_record(Kind.HEADER, Header(uuid.uuid4().hex, follows, now_ms, __version__, FORMAT))
    taken = []
    with ExitStack() as readers:
        for folder, head, reader in _stores(data, namespace, readers):
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
            head = replace(head, event_log=_event_log(folder))
            end = take_store(reader, writer, head, covered, lambda size: progress(head.name, size))  # noqa: B023  # called before the next round
            taken.append(Taken(head, end))
    writer.end()
    return taken


def _stores(
    data: Path, namespace: str | None, readers: ExitStack
) -> Iterator[tuple[Path, StoreHead, StoreReader]]:
    """Yield folder, head and reader of each store; a reader is open until the next one."""
    require_finished(data)
    system_folder = folder_of(data)
    if not (system_folder / DATABASE_NAME).is_file():
        raise _nothing_to_back_up(data)
    system = readers.enter_context(closing(SqliteReader(system_folder)))
    facts = definitions.read_all(system.entries()).facts
    default = _fact(facts, default_name.FACT) or "default"
    found = [(data, StoreHead(default, "default", 0)), *_others(data, facts)]
    if namespace is None:
        yield system_folder, StoreHead(SYSTEM, "system", 0), system
    else:
        found = [each for each in found if each[1].name.lower() == namespace.lower()]
        if not found:
            raise StoreFailed(f"{data} has no namespace '{namespace}': `peeklock namespaces` lists them")
        found = [(folder, replace(head, role="default")) for folder, head in found]
        yield system_folder, StoreHead(SYSTEM, "system", 0), _OfOne(system, found[0][1].name)
    for folder, head in found:
        with closing(SqliteReader(folder)) as reader:
            yield folder, head, reader


def _nothing_to_back_up(data: Path) -> StoreError:
    """Return why a folder without facts of the process cannot be backed up."""
    path = data / DATABASE_NAME
    if not path.is_file():
        return StoreFailed(
            f"there is no store in {data}: name the folder that a broker was started on with --data; with "
            "--durability memory there is none"
        )
    check_header(path)
    with store_errors(f"read {path}"), open_read_only(path) as db:
        number = read_format(db, path)
    return StoreFailed(
        f"{path} has format {number}, of an earlier release, and this one backs up format {FORMAT}: copy the "
        "folder while no broker runs on it, or start the broker of this release on it once"
    )


def _others(data: Path, facts: dict[str, str]) -> Iterator[tuple[Path, StoreHead]]:
    """Yield the namespaces beside the default one, without those that are made or deleted just now."""
    for folder in sorted((data / NAMESPACES_FOLDER).glob("*")):
        record: Any = _fact(facts, namespaces.PREFIX + folder.name) or {}
        if record.get("whole", True) and (folder / DATABASE_NAME).is_file():
            yield folder, StoreHead(str(record.get("name", folder.name)), "namespace", 0)


def _fact(facts: dict[str, str], key: str) -> Any:
    return json.loads(facts[key]) if key in facts else None


def _event_log(folder: Path) -> str | None:
    """Return the id of the event log of a store, None if it has none."""
    try:
        return str(json.loads((folder / EVENT_LOG_MARK).read_text())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class _OfOne:
    """Reads of the facts of the process what one namespace needs elsewhere: its keys, as the default one."""

    def __init__(self, inner: StoreReader, name: str) -> None:
        self._inner = inner
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def entries(self) -> list[Entry]:
        return _entries_of_one(self._inner.entries(), self._name)


def _entries_of_one(entries: Sequence[Entry], name: str) -> list[Entry]:
    wanted = entities.fact_key(keys.fact_key(name))
    kept = [entry for entry in entries if entry[0] in (wanted, definitions.CREATED_AT_KEY)]
    return [*kept, definitions.entry(entities.fact_key(default_name.FACT), json.dumps(name))]


# Restoring


def plan(paths: Sequence[Path], namespace: str | None) -> dict[str, Source]:
    """Return the stores of a full back-up and its increments, once all of them were read.

    `namespace`: the only one to restore, None = all; it becomes the default one. Raises: BackupUnusable.
    """
    sources = chained([read_backup(path) for path in paths])
    if namespace is None:
        return sources
    roles: tuple[Role, ...] = ("default", "namespace")
    found = [sources.get(key_of(StoreHead(namespace, role, 0))) for role in roles]
    source = next((each for each in found if each is not None), None)
    system = sources[key_of(StoreHead(SYSTEM, "system", 0))]
    if source is None:
        names = sorted(each.last.head.name for each in sources.values() if each is not system)
        raise BackupUnusable(f"{paths[-1]} has no namespace '{namespace}'; it has {', '.join(names)}")
    name = source.last.head.name
    source.last.head = replace(source.last.head, role="default")
    system.last.entries = _entries_of_one(system.last.entries, name)
    return {key_of(each.last.head): each for each in (system, source)}


def restore(
    sources: dict[str, Source],
    data: Path,
    now_ms: int,
    progress: Progress = lambda name, size_bytes: None,
) -> dict[str, Restored]:
    """Make a data folder of a back-up; return what was restored, by the name of the namespace.

    The folder must be empty, or not be there. Raises: StoreError, OSError; the folder then says that it is
    not whole, if anything was written.
    """
    _require_empty(data)
    _require_space(data, sources)
    # The default one first: its mark is the one of the whole folder, and goes last.
    roles: list[Role] = ["default", "system", "namespace"]
    ordered = sorted(sources.values(), key=lambda source: roles.index(source.last.head.role))
    done: dict[str, Restored] = {}
    with ExitStack() as unfinished:
        fillers = []
        for source in ordered:
            head = source.last.head
            folder = _folder(data, head)
            filler = SqliteFiller(folder)
            unfinished.callback(filler.abandon)
            restored = restore_store(
                source,
                filler,
                now_ms,
                lambda size: progress(head.name, size),  # noqa: B023  # called before the next round
            )
            _require_sound(folder, restored)
            _write_event_log_mark(folder, head)
            if head.role != "system":
                done[head.name] = restored
            fillers.append(filler)
        unfinished.pop_all()
    for filler in reversed(fillers):
        filler.finish()
    return done


def _folder(data: Path, head: StoreHead) -> Path:
    if head.role == "system":
        return folder_of(data)
    return data if head.role == "default" else data / NAMESPACES_FOLDER / head.name.lower()


def _require_empty(data: Path) -> None:
    try:
        found = sorted(path.name for path in data.iterdir() if path.name not in _NOT_THE_USERS)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreFailed(f"cannot read {data}: {error.strerror}; name an empty folder") from error
    if UNFINISHED_NAME in found:
        raise StoreFailed(
            f"a restore into {data} runs, or was interrupted: delete what is in the folder, and restore again"
        )
    if found:
        raise StoreFailed(
            f"{data} is not empty, it has {found[0]}: restore into an empty folder; nothing was changed"
        )


def _require_space(data: Path, sources: dict[str, Source]) -> None:
    """Raise StoreFailed if the body rows alone do not fit."""
    needed = sum(size for source in sources.values() for _, size in source.last.rows.values())
    there = next(folder for folder in (data.absolute(), *data.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise StoreFailed(
            f"the bodies alone need {needed:,} bytes, and {there} has {free:,}: free some space, or name "
            "another folder; nothing was changed"
        )


def _require_sound(folder: Path, restored: Restored) -> None:
    """Read a restored store as `peeklock check` does. Raises: StoreDamaged."""
    report = check(folder, is_bodiless)
    if report.stops or (report.damages and not restored.damaged_rows):
        raise StoreDamaged(
            f"{folder} is not what was written: {report.damages[0]}; check the disk and restore again"
        )


def _write_event_log_mark(folder: Path, head: StoreHead) -> None:
    if head.event_log is not None:
        try:
            files.replace(
                folder / EVENT_LOG_MARK, (json.dumps({"id": head.event_log}) + "\n").encode(), 0o600
            )
        except OSError as error:
            raise StoreFailed(f"cannot write {folder / EVENT_LOG_MARK}: {error.strerror}") from error
