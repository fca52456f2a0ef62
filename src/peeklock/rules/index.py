"""Many rules over one topic, of which a message matches few.

Owns: finding the rules that a message matches. Must not know: what they are rules of.

A rule that needs an equality (`property = constant`) stands in a table of that property under the value, so
that a message finds it, and the like, by one look-up a property. Where a rule has several, it stands under
the one that fewest others share. Rules that match everything are a list, and what is left is asked one by
one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from peeklock.rules.compiled import CompiledFilter, Equality
from peeklock.rules.errors import EvaluationError
from peeklock.rules.subject import Subject
from peeklock.rules.values import index_key

K = TypeVar("K", bound=Hashable)

Entry: TypeAlias = tuple[int, K, Callable[[Subject], bool] | None]
"""(number, key, what is asked when it is found; None = it matches by being found). Numbers are given in the
order of adding, each once, so that sorted entries are in that order and nothing but numbers is compared."""
Bucket: TypeAlias = dict[int, Entry[K]]
"""Entries by number."""
Table: TypeAlias = dict[Hashable, Bucket[K]]
"""Buckets by value (`values.index_key`)."""


class RuleIndex(Generic[K]):
    """Rules by key."""

    def __init__(self) -> None:
        """Make an empty index."""
        self._bucket_of: dict[K, tuple[int, Bucket[K], Equality | None]] = {}
        self._added = 0
        self._always: Bucket[K] = {}
        self._never: Bucket[K] = {}
        self._asked: Bucket[K] = {}
        self._tables: dict[str, dict[str, Table[K]]] = {"system": {}, "user": {}}

    def __len__(self) -> int:
        return len(self._bucket_of)

    def add(self, key: K, compiled: CompiledFilter) -> None:
        """Add a rule; ValueError if the key is there already."""
        if key in self._bucket_of:
            raise ValueError(f"the index has {key!r} already")
        self._added += 1
        equality = None
        matches: Callable[[Subject], bool] | None = compiled.matches
        if compiled.never:
            bucket = self._never
        elif compiled.always:
            bucket, matches = self._always, None
        elif compiled.equalities:
            equality = min(compiled.equalities, key=self._shared_by)
            table = self._tables[equality.scope].setdefault(equality.name, {})
            bucket = table.setdefault(equality.key, {})
            if compiled.exact and len(compiled.equalities) == 1:
                matches = None
        else:
            bucket = self._asked
        bucket[self._added] = (self._added, key, matches)
        self._bucket_of[key] = (self._added, bucket, equality)

    def remove(self, key: K) -> None:
        """Remove a rule; KeyError if it is not there."""
        number, bucket, equality = self._bucket_of.pop(key)
        del bucket[number]
        if equality is not None and not bucket:
            tables = self._tables[equality.scope]
            del tables[equality.name][equality.key]
            if not tables[equality.name]:
                del tables[equality.name]

    def match(self, subject: Subject) -> tuple[list[K], list[tuple[K, EvaluationError]]]:
        """Give the rules that match, and those of which it cannot be said, each in the order of adding."""
        found: list[Entry[K]] = list(self._always.values())
        failed: list[tuple[int, K, EvaluationError]] = []
        for scope, tables in self._tables.items():
            if tables:
                values: Mapping[str, Any] = getattr(subject, scope)
                for name, table in tables.items():
                    value = values.get(name)
                    if value is not None:
                        bucket = table.get(index_key(value))
                        if bucket:
                            _ask(bucket.values(), subject, found, failed)
        _ask(self._asked.values(), subject, found, failed)
        found.sort()
        failed.sort(key=lambda entry: entry[0])
        return [key for _, key, _ in found], [(key, error) for _, key, error in failed]

    def _shared_by(self, equality: Equality) -> int:
        bucket = self._tables[equality.scope].get(equality.name, {}).get(equality.key)
        return len(bucket) if bucket else 0


def _ask(
    entries: Iterable[Entry[K]],
    subject: Subject,
    found: list[Entry[K]],
    failed: list[tuple[int, K, EvaluationError]],
) -> None:
    for entry in entries:
        number, key, matches = entry
        if matches is None:
            found.append(entry)
        else:
            try:
                if matches(subject):
                    found.append(entry)
            except EvaluationError as error:
                failed.append((number, key, error))
