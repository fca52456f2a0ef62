"""`peeklock restore`: a data folder made of a back-up and its increments.

No broker takes the folder before all of it is durable and has been read again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from peeklock.broker.content.overlay import is_bodiless
from peeklock.server import files
from peeklock.server.backup import EVENT_LOG_MARK, Progress, entries_of_one, read_backup
from peeklock.server.system import namespaces
from peeklock.server.system.store import folder_of
from peeklock.store.backup.format import SYSTEM, BackupUnusable, Role, StoreHead
from peeklock.store.backup.restoring import Restored, restore_store
from peeklock.store.backup.verifying import Source, chained, key_of
from peeklock.store.base import StoreDamaged, StoreFailed
from peeklock.store.check import check
from peeklock.store.sqlite.filler import SqliteFiller
from peeklock.store.sqlite.folder import UNFINISHED_NAME

_NOT_THE_USERS = frozenset(("lost+found",))
"""What a new volume has."""


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
    system.last.entries = entries_of_one(system.last.entries, name)
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
    require_empty(data)
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
    return data if head.role == "default" else data / namespaces.FOLDER / head.name.lower()


def require_empty(data: Path) -> None:
    """Raise StoreFailed unless a folder is empty, or not there."""
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
