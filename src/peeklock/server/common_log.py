"""The folder of the event logs of a cluster: one folder, which all nodes reach.

A log goes on where the last owner of its namespace has ended, so an owner that does not see the folder of the
others, or writes no log, would leave gaps. What the folder is called differs from machine to machine: a file
in it has an id, and a node is admitted with the id that the others have (`store.postgres.nodes`).
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from pathlib import Path

from peeklock.server.settings import StartFailed
from peeklock.store.sqlite.folder import sync

ID_FILE = "_cluster"
"""In the folder. Readers of a log skip what begins with an underscore."""

_ID = re.compile(r"[0-9a-f]{32}")


def folder_id(folder: Path) -> str:
    """Return the id of the folder, which is made if it has none. Raises: StartFailed."""
    file = folder / ID_FILE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            _make_id(file)
        found = file.read_text(errors="replace").strip()
    except OSError as failure:
        raise StartFailed(
            f"cannot use {file}: {failure.strerror or failure}; name another folder with --capture, or "
            "repair this one"
        ) from failure
    if not _ID.fullmatch(found):
        raise StartFailed(f"{file} does not say which folder this is: delete it, and start again")
    return found


def _make_id(file: Path) -> None:
    """Make the file, whole or not at all, unless another node does. Raises: OSError."""
    made = uuid.uuid4().hex
    draft = file.with_name(f".{ID_FILE}-{made}.tmp")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as opened:
            opened.write(made)
            opened.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(draft, file)
        sync(file.parent)
    finally:
        draft.unlink(missing_ok=True)
