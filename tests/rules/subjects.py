"""A message as rules see it, for tests."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from peeklock.rules.filters import Value


@dataclass
class FakeMessage:
    """Application properties, nulls among them, by exact names; system properties by lower-case ones."""

    properties: Mapping[str, Value | None] = field(default_factory=dict)
    system: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names: dict[str, str] = {}
        for name in self.properties:
            self._names.setdefault(name.lower(), name)
        first = {folded: self.properties[name] for folded, name in self._names.items()}
        self.user = {folded: value for folded, value in first.items() if value is not None}
        self._ids = itertools.count(1)

    def has_user(self, folded_name: str) -> bool:
        return folded_name in self._names

    def user_name(self, folded_name: str) -> str | None:
        return self._names.get(folded_name)

    def new_id(self) -> UUID:
        return UUID(int=next(self._ids))
