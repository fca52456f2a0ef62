"""The folder of the event logs of a cluster: one folder, which all nodes reach.

A log goes on where the last owner of its namespace has ended, so an owner that does not see the folder of the
others, or writes no log, would leave gaps. What the folder is called differs from machine to machine: a file
in it has an id, and the database the same one.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from peeklock.server.settings import StartFailed

if TYPE_CHECKING:
    from peeklock.store.postgres.nodes import Nodes

ID_FILE = "_cluster"
"""In the folder. Readers of a log skip what begins with an underscore."""

KEY = "event-log-folder"
"""In the database; empty = the nodes write no log."""

_ID = re.compile(r"[0-9a-f]{32}")


def require_common_log(nodes: Nodes, folder: Path | None) -> None:
    """Check that the live nodes write their logs to this folder, None = that they write none.

    Raises: StartFailed, StoreError.
    """
    from peeklock.store.postgres.kept_text import KeptText

    mine = "" if folder is None else _id_of(folder)
    kept = KeptText(nodes.connections, KEY)
    found = kept.read()
    if (found or "") == mine:
        return
    others = ", ".join(nodes.live_others())
    if not others:
        kept.replace(found, mine)
    elif folder is None:
        raise StartFailed(
            f"the other nodes ({others}) write an event log, and this one would leave gaps in it: give it "
            "--capture with their folder, or stop all nodes and start them without"
        )
    elif not found:
        raise StartFailed(
            f"the other nodes ({others}) write no event log: stop all nodes, and start them with --capture "
            "and one folder"
        )
    else:
        raise StartFailed(
            f"--capture {folder} is not the folder to which the other nodes ({others}) write: give all nodes "
            "the same one, such as a shared file system; to change it, stop all nodes first"
        )


def _id_of(folder: Path) -> str:
    """Return the id of the folder, which is made if it has none. Raises: StartFailed."""
    file = folder / ID_FILE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as opened:
                opened.write(uuid.uuid4().hex)
                opened.flush()
                os.fsync(descriptor)
        found = file.read_text(errors="replace").strip()
    except OSError as failure:
        raise StartFailed(
            f"cannot use {file}: {failure.strerror or failure}; name another folder with --capture, or "
            "repair this one"
        ) from failure
    if not _ID.fullmatch(found):
        raise StartFailed(f"{file} does not say which folder this is: delete it, and start again")
    return found
