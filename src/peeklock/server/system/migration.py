"""Takes over what earlier releases kept in files of the data folder: the keys and the certificate authority.

All of it is committed at once, and only then are the files set aside. A process killed before that starts
over; one killed after it finds its files again, equal to the facts, and sets them aside. Files that differ
from the facts were put there later: they are not read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peeklock.server import files, log
from peeklock.server.keys.keys import FILE, KeyFile
from peeklock.server.keys.rules import KeysRefused, rule_json
from peeklock.server.system import authority, keys
from peeklock.server.system.store import SystemStore
from peeklock.server.tls.contexts import CA_FILE, CA_KEY_FILE, FOLDER
from peeklock.server.tls.kept_authority import FolderAuthority, belong_together

MIGRATED = ".migrated"
"""At the end of the name of a file with keys that was taken over."""


class MigrationRefused(Exception):
    """A file cannot be taken over; the message names it and says what to do."""


async def migrate(
    system: SystemStore, data: Path, namespace: str, *, takes_keys: bool = True, takes_authority: bool = True
) -> None:
    """Take over the files of a data folder, if there are any; call it before keys and TLS files are used.

    Args:
        system: takes the facts.
        data: the data folder.
        namespace: whose keys are in the folder.
        takes_keys: False = they are not needed now: their file stays, and may have a fault.
        takes_authority: likewise.

    Raises: MigrationRefused, which leaves the files: what was put by then the next try finds; StoreError.
    """
    has_keys = takes_keys and (data / FILE).exists()
    has_authority = takes_authority and _has_authority(system, data / FOLDER)
    if not (has_keys or has_authority):  # nearly always
        return
    try:
        with contextlib.ExitStack() as stack:
            for folder in (data, data / FOLDER):
                if folder.exists():  # no `peeklock keys` and no `peeklock ca` changes the files meanwhile
                    stack.enter_context(files.locked(folder))
            values: dict[str, Any] = {}
            done = [
                step
                for step in (
                    _take_keys(system, data, namespace, values) if has_keys else None,
                    _take_authority(system, data / FOLDER, values) if has_authority else None,
                )
                if step is not None
            ]
            await system.put(values)
            for set_aside in done:
                set_aside()
    except OSError as failure:
        raise MigrationRefused(f"the files of {data} cannot be taken over: {failure}") from failure


def _has_authority(system: SystemStore, folder: Path) -> bool:
    """Return whether there are files of an authority to take over, or to warn of."""
    is_known = system.get(authority.FACT) is not None
    return (folder / CA_KEY_FILE).exists() or (not is_known and (folder / CA_FILE).exists())


def _take_keys(
    system: SystemStore, data: Path, namespace: str, values: dict[str, Any]
) -> Callable[[], None] | None:
    """Add what is to be put; return what sets the file aside, None if nothing is to be done."""
    path = data / FILE
    if not path.exists():
        return None
    kept = system.get(keys.fact_key(namespace))
    try:
        rules = KeyFile(path).load()
    except KeysRefused as failure:
        if kept is None:
            raise MigrationRefused(str(failure)) from failure
        rules = None
    if kept is None:
        assert rules is not None
        values.update(keys.values_of(namespace, rules))
    elif rules is None or kept != [rule_json(rule) for rule in rules]:
        _tell_unread(path, f"remove the file; `peeklock keys` shows and changes the keys of '{namespace}'")
        return None

    def set_aside() -> None:
        path.replace(path.with_name(FILE + MIGRATED))
        fields = {"file": str(path), "namespace": namespace, "kept_as": FILE + MIGRATED}
        log.info("keys taken over into the system store", fields)

    return set_aside


def _take_authority(system: SystemStore, folder: Path, values: dict[str, Any]) -> Callable[[], None] | None:
    """Add what is to be put; return what removes the key's file, None if nothing is to be done."""
    path = folder / CA_KEY_FILE
    kept, pair = authority.read(system), FolderAuthority(folder / CA_FILE, path).load()
    is_known = kept.certificate is not None or kept.key is not None
    if pair.key is None and (is_known or pair.certificate is None):
        return None
    if pair.key is not None and path.stat().st_mode & 0o077:
        raise MigrationRefused(
            f"{path} can be read by others than its owner: run `chmod 600 {path}`; if others may have read "
            f"it, delete {folder}, and make every client trust the new authority"
        )
    is_needed = not is_known or (
        pair != kept and not belong_together(kept, folder) and belong_together(pair, folder)
    )
    if is_needed:
        values.update(authority.values_of(pair))
    elif pair.key != kept.key:
        _tell_unread(path, "remove the file: who has it can sign certificates that your clients may trust")
        return None

    def remove() -> None:
        path.unlink(missing_ok=True)
        log.info("certificate authority taken over into the system store", {"file": str(path)})

    return remove


def _tell_unread(path: Path, do: str) -> None:
    fields = {
        "file": str(path),
        "reason": "it differs from the system store, which was filled from such a file before",
        "do": f"{do}; to go back to an older state, restore a copy of the whole data folder",
    }
    log.warning("a file of an earlier release is not read", fields)
