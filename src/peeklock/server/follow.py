"""Files that may change while the broker runs: a change is noticed once the file is left alone.

It knows no content: what reads a file says whether it was taken.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path


class Outcome(StrEnum):
    """What came of a look at the files of one part."""

    UNCHANGED = "unchanged"
    FOLLOWED = "followed"
    REFUSED = "refused"
    """Also later, until the files change: what was before is in force."""
    RESTART = "changed: restart the broker"


Look = Callable[[bool], Awaitable[Outcome]]
"""Looks at the files of one part; with True it reads changed ones at once, else when they are left alone."""


class FileWatch:
    """Notices changes of files by their status; a change counts when the next look finds it again."""

    def __init__(self, *files: Path) -> None:
        """Take the files as they are now."""
        self._files = files
        self._known = self._found = self._status()

    def changed(self, *, at_once: bool) -> bool:
        """Return whether the files differ from what was taken last, and take them if so.

        A file may be half written: without `at_once` it has to be as at the look before.
        """
        before, self._found = self._found, self._status()
        if self._found == self._known or not (at_once or self._found == before):
            return False
        self._known = self._found
        return True

    def _status(self) -> list[tuple[int, int, int] | None]:
        found: list[tuple[int, int, int] | None] = []
        for file in self._files:
            try:
                status = file.stat()
            except OSError:  # reading it says why
                found.append(None)
            else:
                found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return found


class FollowedFiles:
    """One part whose files are read again when they change."""

    def __init__(self, watch: FileWatch, read: Callable[[], Awaitable[str]]) -> None:
        """Look at nothing yet; `read` follows the files, and returns why it did not, or an empty text."""
        self._watch = watch
        self._read = read
        self._refused = False

    async def look(self, at_once: bool) -> Outcome:
        """Follow the files if they have changed."""
        if not self._watch.changed(at_once=at_once):
            return Outcome.REFUSED if self._refused else Outcome.UNCHANGED
        self._refused = bool(await self._read())
        return Outcome.REFUSED if self._refused else Outcome.FOLLOWED
