"""Checkpoints of jobs as files: where they are, and how they are replaced."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from peeklock.jobs.checkpoint import Checkpoint


def new_file(work: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file of a job that begins now."""
    state = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or Path.home(), ".local", "state")
    at = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return Path(state) / "peeklock" / "jobs" / f"{work}-{at}-{os.getpid()}.json"


def write(file: Path, checkpoint: Checkpoint) -> None:
    """Replace a file as a whole; when this returns, it is on the disk. Raises: OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}.{os.getpid()}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
        json.dump(checkpoint.to_json(), opened)
        opened.flush()
        os.fsync(opened.fileno())
    new.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read(file: Path) -> Checkpoint:
    """Return what a file has. Raises: click.UsageError."""
    from peeklock.jobs.checkpoint import Checkpoint, CheckpointError

    try:
        return Checkpoint.from_json(json.loads(file.read_bytes()))
    except (OSError, ValueError) as failure:  # a CheckpointError is a ValueError
        text = str(failure) if isinstance(failure, (OSError, CheckpointError)) else "it is not JSON"
        raise click.UsageError(f"{file} cannot be resumed: {text}.") from failure
