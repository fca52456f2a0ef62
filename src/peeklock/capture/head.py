"""Which segment of a log was published last, and which exporter may publish the next one.

The folder of a log that moves between machines cannot say it alone: the exporter of an owner that was frozen
goes on where it stood, perhaps when the lock of the folder is another's already. So a database keeps it for
its stores. An exporter that takes the log puts its name there. A segment is published by one change of that
text, which fails if another exporter has taken the log; the rename of the file follows, and whoever takes the
log next does it if it was not done. So each batch is in one published segment, whoever is frozen where.

Owners of the store are numbered, and the text has the number of the one whose exporter has the log. So the
log goes from owner to owner in their order: the exporter of an earlier one cannot take it back.

The manifest is a file, which nothing fences. An exporter that was frozen between a change of the text and the
line about it appends what the next one has listed already: that does not count (`manifest`). One case is
left: if it was frozen while it wrote the manifest anew, it puts the old lines back, which damages it.
"""

from __future__ import annotations

import json
from typing import Protocol

from peeklock.store.base import StoreFailed


class LogTaken(StoreFailed):
    """The exporter of a later owner of the store has the log: it writes what is left."""


class Kept(Protocol):
    """A text in a database. Calls raise StoreError."""

    def read(self) -> str | None:
        """Return it, None = there is none yet."""

    def replace(self, old: str | None, new: str) -> bool:
        """Make it durable in the place of `old`; return False if it is another one now."""


class Heads(Protocol):
    """The heads of the logs of one store, by the folder of the log."""

    def head(self, folder_id: str, writer: str, shown: str) -> Head:
        """Return one for an exporter, see `Head`. Raises: StoreError."""


class Head:
    """The head of one log, for one exporter."""

    def __init__(self, kept: Kept, epoch: int, writer: str, shown: str) -> None:
        """Touch nothing yet.

        Args:
            kept: the text.
            epoch: of the owner whose exporter this is; a later owner has a higher one.
            writer: this exporter; no other one is called so.
            shown: the log, for people.
        """
        self._kept = kept
        self._epoch = epoch
        self._writer = writer
        self._shown = shown
        self._text: str | None = None
        self.segment = ""
        """The name of the last segment, within the folder; empty = none was published yet."""
        self.draft = ""
        """The name of its file before it was renamed."""
        self.removed_to = 0
        """The last batch that retention removes."""

    def take(self) -> None:
        """Take over publishing, and read what was published last. Raises: LogTaken, StoreError."""
        text = self._read()
        if text is not None:
            told = json.loads(text)
            self.segment, self.draft, self.removed_to = told["segment"], told["draft"], told["removed_to"]
        self._replace(text)

    def publish(self, segment: str, draft: str) -> None:
        """Publish a segment, whose draft is durable.

        Raises: LogTaken; another StoreError, then it may be published or not.
        """
        self.segment, self.draft = segment, draft
        self._replace(self._text)

    def remove(self, last_no: int) -> None:
        """Publish that the segments up to a batch are about to be removed; raises as `publish`."""
        self.removed_to = last_no
        self._replace(self._text)

    def require_no_later(self) -> None:
        """Raise LogTaken if the exporter of a later owner has taken the log. Raises: StoreError."""
        self._read()

    def _read(self) -> str | None:
        text = self._kept.read()
        if text is not None and json.loads(text)["epoch"] > self._epoch:
            raise self._taken()
        return text

    def _replace(self, old: str | None) -> None:
        told = {
            "epoch": self._epoch,
            "writer": self._writer,
            "segment": self.segment,
            "draft": self.draft,
            "removed_to": self.removed_to,
        }
        new = json.dumps(told)
        if not self._kept.replace(old, new):
            raise self._taken()
        self._text = new

    def _taken(self) -> LogTaken:
        return LogTaken(f"another exporter has taken the event log {self._shown}, and goes on with it")
