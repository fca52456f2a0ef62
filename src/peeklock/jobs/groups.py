"""Messages grouped by a value of theirs: their dead-letter reason, a property, a place in a JSON body."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from peeklock.search import Peeked, SearchError
from peeklock.search.json_path import parse, read_json
from peeklock.search.plain import plain

REASON: Final = "reason"
NOTHING: Final = "(none)"
"""The group of messages without a value."""

OTHERS: Final = "(others)"
GROUPS_MAX: Final = 10_000
"""Groups that are counted; further ones are one group. Our choice: memory stays flat where each message has a
value of its own."""

NAME_LENGTH_MAX: Final = 1024
"""Characters of the name of a group; longer values that begin alike are one group. Our choice: a value may be
a whole body, and there are `GROUPS_MAX` of them."""


def grouping(by: str) -> Callable[[Peeked], str]:
    """Return what names the group of a message: `reason`, `property:NAME` or `json:PATH`.

    Raises: SearchError.
    """
    kind, _, rest = by.partition(":")
    if by == REASON:
        return lambda peeked: _text(peeked.application_properties.get("DeadLetterReason"))
    if kind == "property" and rest:
        return lambda peeked: _text(peeked.application_properties.get(rest))
    if kind == "json" and rest:
        return _by_json(rest)
    raise SearchError("by", f"{by!r} is not reason, property:NAME or json:PATH, such as json:'$.a.b'")


def _by_json(text: str) -> Callable[[Peeked], str]:
    try:
        path = parse(text)
    except SearchError as error:
        raise SearchError("by", error.what, text, error.position) from None

    def name(peeked: Peeked) -> str:
        is_json, document = read_json(peeked.body)
        return _text(next(iter(path.find(document)), None)) if is_json else NOTHING

    return name


def _text(value: Any) -> str:
    if value is None:
        return NOTHING
    shown = value if isinstance(value, str) else plain(value)
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
    return text[:NAME_LENGTH_MAX]


@dataclass(slots=True)
class Group:
    """Figures of one group."""

    name: str
    count: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    """Enqueued times, UTC ms."""
    example: int | None = None
    """The sequence number of its first message."""


class Groups:
    """Counts messages by group."""

    def __init__(self, name: Callable[[Peeked], str]) -> None:
        self._name = name
        self._groups: dict[str, Group] = {}
        self.others = Group(OTHERS)
        """Messages of further groups than are counted."""

    def add(self, messages: Iterable[Peeked]) -> None:
        """Count some messages."""
        for peeked in messages:
            self.put(peeked)

    def put(self, peeked: Peeked) -> Group:
        """Count a message; return its group."""
        name = self._name(peeked)
        group = self._groups.get(name)
        if group is None and len(self._groups) >= GROUPS_MAX:
            group = self.others
        elif group is None:
            group = self._groups[name] = Group(name)
        group.count += 1
        if group.example is None:
            group.example = peeked.sequence_number
        at_ms = peeked.enqueued_at_ms
        if at_ms is not None:
            group.oldest_ms = at_ms if group.oldest_ms is None else min(group.oldest_ms, at_ms)
            group.newest_ms = at_ms if group.newest_ms is None else max(group.newest_ms, at_ms)
        return group

    def found(self) -> list[Group]:
        """Return the groups without `others`, the largest first."""
        return sorted(self._groups.values(), key=lambda group: (-group.count, group.name))
