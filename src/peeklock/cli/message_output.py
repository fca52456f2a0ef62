"""Messages on standard output, for people and for programs, and progress on standard error."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from peeklock.search import Peeked

PROGRESS_S: Final = 0.2
"""Seconds between two figures of progress."""

WIDTH: Final = 120
"""Columns of a table where there is no terminal."""

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON Lines: a message on each line.")
FULL = click.option("--full", is_flag=True, help="Print each message whole, instead of a table.")


class Progress:
    """How far a command is, on standard error if that is a terminal."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._started = self._last = time.monotonic()

    def show(self, count: int, text: str) -> None:
        """Show a text, and the rate at which `count` grew."""
        now = time.monotonic()
        if self._is_shown and now - self._last >= PROGRESS_S:
            self._last = now
            click.echo(f"\r{text}, {count / (now - self._started):,.0f}/s\x1b[K", err=True, nl=False)

    def clear(self) -> None:
        """Remove the progress."""
        if self._is_shown:
            click.echo("\r\x1b[K", err=True, nl=False)


class Output:
    """Messages on standard output, and how far the search is."""

    def __init__(self, *, as_json: bool, full: bool, due: bool = False) -> None:
        """`due`: a table has the times when messages are due, instead of when they were enqueued."""
        self._due = due
        self._as_json = as_json
        self._full = full
        self._layout: dict[str, int] = {}
        self.shown = 0
        """Messages printed so far."""
        self._progress = Progress()

    def begin(self) -> None:
        """Print the head of the table, if there is one, once. An error before it leaves no table."""
        from peeklock.cli import message_text

        if not self._as_json and not self._full and not self._layout:
            time = message_text.DUE if self._due else message_text.ENQUEUED
            self._layout = message_text.columns(shutil.get_terminal_size((WIDTH, 24)).columns, time)
            click.echo(message_text.head(self._layout))

    def show(self, found: Iterable[Peeked]) -> None:
        """Print messages, all at once."""
        from peeklock.cli import message_text
        from peeklock.search import message_json

        self.begin()
        lines: list[str] = []
        for each in map(message_json, found):
            self.shown += 1
            if self._as_json:
                lines.append(json.dumps(each))
            elif self._full:
                lines += ([""] if self.shown > 1 else []) + [*message_text.whole(each)]
            else:
                lines.append(message_text.line(each, self._layout))
        if lines:
            self.clear()
            click.echo("\n".join(lines))

    def progress(self, count: int) -> None:
        """Show that so many messages have been looked at."""
        self._progress.show(count, f"{count:,} seen, {self.shown:,} found")

    def clear(self) -> None:
        """Remove the progress."""
        self._progress.clear()


def counted(count: int) -> str:
    """Return a count of messages as text."""
    return f"{count:,} message{'' if count == 1 else 's'}"
