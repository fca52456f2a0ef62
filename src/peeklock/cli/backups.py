"""`peeklock backup` and `peeklock restore`."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from peeklock.cli.options import EXISTING_FILE, SOCKET, reported
from peeklock.cli.running import BrokerError, find
from peeklock.worker.priority import be_nice

if TYPE_CHECKING:
    from peeklock.server.backup import Stores, Taken
    from peeklock.store.backup.restoring import Restored

STDOUT = Path("-")

_SHOWN_S = 0.2
"""How often the line of progress is written again."""

_NAMESPACE = click.option("--namespace", metavar="NAME", help="Only this one.", show_default="all")


class OutputFailed(Exception):
    """The back-up cannot be written; the text says why and what to do."""


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The data folder of the broker, which may run.",
)
@click.option(
    "--control",
    type=SOCKET,
    metavar="PATH",
    help="The running broker with --durability memory that was started with this --control.",
)
@click.option("--store", metavar="URL", help="The PostgreSQL database of a broker, which may run.")
@click.option(
    "--to",
    "target",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="A new file, or - for standard output.",
)
@click.option(
    "--since",
    metavar="FILE",
    type=EXISTING_FILE,
    help="Leave out what this back-up has: an increment, which needs it at a restore.",
)
@_NAMESPACE
def backup(
    data: Path | None,
    control: Path | None,
    store: str | None,
    target: Path,
    since: Path | None,
    namespace: str | None,
) -> None:
    """Back up a data folder into a file, while the broker runs.

    \b
    All of it:            peeklock backup --data ./data --to monday.backup
    What is new since:    peeklock backup --data ./data --to tuesday.backup --since monday.backup
    To another machine:   peeklock backup --data ./data --to - | ssh host 'cat > monday.backup'
    One namespace:        peeklock backup --data ./data --to bank.backup --namespace bank
    A broker in memory:   peeklock backup --control ./control.sock --to monday.backup
    A database:           peeklock backup --store postgresql://peeklock@db/peeklock --to monday.backup

    The file has the messages, entities, cursors and keys of all namespaces, each as of one instant, and the
    certificate authority: keep it as you keep the data folder. It does not have the event log. Commits go on
    meanwhile. FILE gets its name when it is whole.

    Exit status: 0 backed up; 1 failed, and there is no FILE; 2 wrong options.
    """
    from peeklock.server.backup import back_up, read_backup
    from peeklock.store.base import StoreError

    if [data, control, store].count(None) != 2:
        raise click.UsageError(
            "give --data DIR, --control PATH for a broker with --durability memory, or --store URL."
        )
    be_nice()
    with reported(StoreError, OutputFailed, BrokerError):
        _require_apart(data, target)
        base = None if since is None else read_backup(since)
        progress = Progress("backed up")
        with _terminated_in_order(), _output(target) as file:
            taken = back_up(
                _stores(data, control, store, namespace),
                file.write,
                since=base,
                now_ms=time.time_ns() // 1_000_000,
                progress=progress.add,
            )
        progress.end()
        if target != STDOUT:
            read_backup(target)
    for one in taken:
        if one.head.role != "system":
            click.echo(f"{_name(one.head.role, one.head.name)}: {_extent(one)}", err=True)
    if target != STDOUT:
        click.echo(f"{target}: {target.stat().st_size:,} bytes, read again and whole", err=True)


def _stores(data: Path | None, control: Path | None, store: str | None, namespace: str | None) -> Stores:
    """Return the stores of a folder, of a database, or of the broker at a socket, which is asked."""
    if store is not None:
        try:
            from peeklock.server.backup_database import stores_at
        except ImportError as failure:
            raise OutputFailed(
                f"--store needs psycopg, which is not installed ({failure}): pip install 'peeklock[postgres]'"
            ) from failure
        return stores_at(store, namespace)
    if data is not None:
        from peeklock.server.backup import stores_in

        return stores_in(data, namespace)
    from peeklock.server.backup_asked import stores_of

    broker = find(control=control)
    return stores_of(broker.data, namespace, broker.where)


def _extent(taken: Taken) -> str:
    head, end = taken.head, taken.end
    if head.after_no:
        return f"an increment, from batch {head.after_no + 1:,} to {end.last_no:,}"
    why = "" if head.full_because is None else f", and not an increment: {head.full_because}"
    return f"all, up to batch {end.last_no:,}{why}"


def _name(role: str, name: str) -> str:
    return f"the default namespace '{name}'" if role == "default" else f"the namespace '{name}'"


def _require_apart(data: Path | None, target: Path) -> None:
    """Raise OutputFailed where the back-up would be part of the folder, or replace something."""
    if target == STDOUT:
        return
    folder = target.absolute().parent
    if not folder.is_dir():
        raise OutputFailed(f"there is no folder {folder}: make it, or name another file")
    if data is not None and target.resolve().is_relative_to(data.resolve()):
        raise OutputFailed(f"{target} is in the data folder {data}: name a file outside of it")
    if target.exists():
        raise OutputFailed(f"{target} exists: name a new file, or move that one away")


@contextmanager
def _terminated_in_order() -> Iterator[None]:
    """Exit on SIGTERM as on an error, so that no part of a back-up stays."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _output(target: Path) -> Iterator[BinaryIO]:
    """Yield the file to write to, which gets its name at the end. Raises: OutputFailed."""
    if target == STDOUT:
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except BrokenPipeError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the exit fails again
            raise OutputFailed("who reads the back-up has ended, so it is cut off: look there") from error
        return
    draft = target.with_name(f"{target.name}.part")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # it has keys
        with open(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(fd)
        draft.rename(target)
        folder = os.open(target.absolute().parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except OSError as error:
        full = "free some space, or name another place" if error.errno == errno.ENOSPC else "check its folder"
        raise OutputFailed(
            f"cannot write {draft}: {error.strerror}; it was removed: {full}, and back up again"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


@click.command()
@click.argument("files", metavar="FILE [INCREMENT]...", nargs=-1, required=True, type=EXISTING_FILE)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="The new data folder: empty, or not there yet. Not needed with --dry-run.",
)
@_NAMESPACE
@click.option("--dry-run", is_flag=True, help="Read the files through, say what they have, write nothing.")
def restore(files: tuple[Path, ...], data: Path | None, namespace: str | None, dry_run: bool) -> None:
    """Make a data folder of a back-up and its increments, in their order.

    \b
    All of it:            peeklock restore monday.backup --data ./data
    With increments:      peeklock restore monday.backup tuesday.backup --data ./data
    One namespace:        peeklock restore monday.backup --namespace bank --data ./bank
    Is a back-up whole?   peeklock restore monday.backup --dry-run

    The files are read through before anything is written, and the new folder is read again at the end. Until
    then no broker starts on it. What happened after the back-up is undone: later messages are missing, and
    those that were settled since then are delivered again. No number that a client may have seen is used
    again: batches skip 10,000,000,000 numbers, sequence numbers and claims 1,000,000,000,000.

    Give the broker the same --capture folder as before, if it is still there: the event log goes on and says
    where the life before was undone.

    Exit status: 0 restored, or the files are whole; 1 failed; 2 wrong options.
    """
    from peeklock.server.restore import plan
    from peeklock.server.restore import restore as restore_into
    from peeklock.store.base import StoreError

    if data is None and not dry_run:
        raise click.UsageError("give --data DIR, or --dry-run.")
    with reported(StoreError, OSError):
        sources = plan(files, namespace)
        if data is None or dry_run:
            for source in sources.values():
                if source.last.head.role != "system":
                    name = _name(source.last.head.role, source.last.head.name)
                    click.echo(f"{name}: up to batch {source.last.end.last_no:,}, of {source.taken_at}")
            click.echo("all of it was read: whole")
            return
        progress = Progress("restored")
        done = restore_into(sources, data, time.time_ns() // 1_000_000, progress.add)
        progress.end()
    for name, restored in done.items():
        click.echo(f"the namespace '{name}': {_restored(restored)}")
    click.echo(f"start the broker: peeklock serve --data {data}")


def _restored(restored: Restored) -> str:
    damaged = len(restored.damaged_rows)
    was = f"; {damaged:,} body rows were damaged already when they were backed up" if damaged else ""
    return (
        f"{restored.messages:,} messages, as after batch {restored.last_no:,}; it goes on at batch "
        f"{restored.first_no:,}{was}"
    )


class Progress:
    """A line on a terminal that says how far it is."""

    def __init__(self, done: str) -> None:
        self._done = done
        self._is_shown = sys.stderr.isatty()
        self._size_bytes = 0
        self._shown_s = 0.0

    def add(self, name: str, size_bytes: int) -> None:
        """Count bytes of a store."""
        self._size_bytes += size_bytes
        now_s = time.monotonic()
        if self._is_shown and now_s - self._shown_s >= _SHOWN_S:
            self._shown_s = now_s
            click.echo(f"\r{self._done}: {self._size_bytes / 1e6:,.0f} MB, {name}\x1b[K", err=True, nl=False)

    def end(self) -> None:
        """Remove the line."""
        if self._is_shown:
            click.echo("\r\x1b[K", err=True, nl=False)
