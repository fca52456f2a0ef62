"""What a worker writes: server-sent events, or one JSON object a line. Source: the HTML standard, 9.2."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, Final, Literal

from peeklock.client.errors import (
    NOT_FOUND,
    SERVER_BUSY,
    UNAUTHORIZED,
    ServiceBusError,
)
from peeklock.search import SearchError

Format = Literal["events", "lines", "json"]
"""`json`: one line, an answer or a problem."""

STATUSES: Final = {
    UNAUTHORIZED: (401, "unauthorized"),
    NOT_FOUND: (404, "not found"),
    SERVER_BUSY: (503, "busy"),
}
"""Condition -> status and title of its problem, as HTTP would have them."""


class WorkFailed(Exception):
    """The work cannot go on; the text says why."""

    def __init__(self, title: str, text: str, status: int = 409) -> None:
        """`title`: the kind of failure, in a few words."""
        super().__init__(text)
        self.title = title
        self.status = status


class Output:
    """The answer to one work."""

    def __init__(self, file: BinaryIO, form: Format) -> None:
        self._file = file
        self._form = form

    def messages(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Write messages that were found."""
        if self._form == "lines":
            self._file.write(b"".join(_json(message) + b"\n" for message in messages))
        else:
            self._file.write(b"".join(_event("found", message) for message in messages))

    def event(self, name: str, value: Mapping[str, Any]) -> None:
        """Write an event; lines of messages have none."""
        if self._form == "events":
            self._file.write(_event(name, value))
        self._file.flush()

    def problem(self, failure: Exception) -> None:
        """Write why the work has failed; `peeklock send` refuses such a line."""
        problem = problem_json(failure)
        if self._form != "events":
            self._file.write(_json({"problem": problem}) + b"\n")
        self.event("problem", problem)

    def line(self, value: Mapping[str, Any]) -> None:
        """Write a line for the broker itself."""
        self._file.write(_json(value) + b"\n")
        self._file.flush()


def problem_json(failure: Exception) -> dict[str, Any]:
    """Return a failure as a problem, as of the HTTP API."""
    title, status = "internal error", 500
    detail = str(failure) or type(failure).__name__
    if isinstance(failure, ServiceBusError):
        status, title = STATUSES.get(failure.condition, (409, failure.condition.rpartition(":")[2]))
    elif isinstance(failure, SearchError):
        title, status, detail = "argument invalid", 400, f"The member '{failure.criterion}': {failure}"
    elif isinstance(failure, WorkFailed):
        title, status = failure.title, failure.status
    words = title.replace("-", " ")
    return {
        "type": f"urn:peeklock:problem:{words.replace(' ', '-')}",
        "title": words.capitalize(),
        "status": status,
        "detail": detail,
    }


def _event(name: str, value: Mapping[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), _json(value))


def _json(value: Mapping[str, Any]) -> bytes:
    # ASCII alone: a property may contain half a surrogate pair, which UTF-8 cannot encode.
    return json.dumps(value, separators=(",", ":")).encode()
