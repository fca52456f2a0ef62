"""An index of many rules, of which a message matches few.

A rule that requires an equality (`property = constant`, `property IN (...)`) is in a table of that property,
under the value: a message finds all such rules with one look-up per property. A rule with several equalities
is under the one that fewest others share; with an IN, under each value. Rules that match everything are a
list, and the others one bucket. The rules of a bucket share their evaluation (`families`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from peeklock.rules.compiled import CompiledFilter
from peeklock.rules.errors import EvaluationError
from peeklock.rules.families import Bucket, Entry, Failed
from peeklock.rules.subject import Subject
from peeklock.rules.terms import Equality, Term, matcher
from peeklock.rules.values import index_key

K = TypeVar("K", bound=Hashable)

Table: TypeAlias = dict[Hashable, Bucket[K]]
"""Buckets by value (`values.index_key`)."""


class RuleIndex(Generic[K]):
    """Rules by key."""

    def __init__(self) -> None:
        """Make an empty index."""
        self._places: dict[K, tuple[Entry[K], tuple[Equality, ...]]] = {}
        self._added = 0
        self._always: dict[int, Entry[K]] = {}
        self._never: set[int] = set()
        self._others: Bucket[K] = Bucket()
        self._tables: dict[str, dict[str, Table[K]]] = {"system": {}, "user": {}}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, key: K, compiled: CompiledFilter) -> None:
        """Add a rule. Raises: ValueError if the key is there already."""
        if key in self._places:
            raise ValueError(f"the index has {key!r} already")
        self._added += 1
        number = self._added
        under: Term | None = None
        for term in compiled.terms:
            if not term.certain:
                break  # later terms may not be evaluated first
            if term.one_of and (under is None or self._shared_by(term) < self._shared_by(under)):
                under = term
        left, test = compiled.terms, compiled.test if compiled.terms else None
        if under is not None:
            left = tuple(term for term in left if term is not under)
            test = matcher(left) if left else None
        entry: Entry[K] = number, key, test
        if compiled.always:
            self._always[number] = entry
        elif compiled.never:
            self._never.add(number)
        elif under is None:
            self._others.add(entry, left)
        else:
            for scope, name, value in under.one_of:
                table = self._tables[scope].setdefault(name, {})
                if value not in table:
                    table[value] = Bucket()
                table[value].add(entry, left)
        self._places[key] = entry, under.one_of if under is not None else ()

    def remove(self, key: K) -> None:
        """Remove a rule. Raises: KeyError if it is not there."""
        entry, one_of = self._places.pop(key)
        number = entry[0]
        if number in self._always:
            del self._always[number]
        elif number in self._never:
            self._never.remove(number)
        elif not one_of:
            self._others.remove(entry)
        for scope, name, value in one_of:
            table = self._tables[scope][name]
            table[value].remove(entry)
            if not len(table[value]):
                del table[value]
            if not table:
                del self._tables[scope][name]

    def match(self, subject: Subject) -> tuple[list[K], list[tuple[K, EvaluationError]]]:
        """Return the rules that match, and those that fail, each in the order of adding."""
        found: list[Entry[K]] = list(self._always.values())
        failed: list[Failed[K]] = []
        for scope, tables in self._tables.items():
            if tables:
                values: Mapping[str, Any] = getattr(subject, scope)
                for name, table in tables.items():
                    value = values.get(name)
                    if value is not None:
                        bucket = table.get(index_key(value))
                        if bucket is not None:
                            bucket.find(subject, found, failed)
        self._others.find(subject, found, failed)
        found.sort()
        failed.sort(key=lambda entry: entry[0])
        return [key for _, key, _ in found], [(key, error) for _, key, error in failed]

    def _shared_by(self, term: Term) -> int:
        buckets = (self._tables[scope].get(name, {}).get(value) for scope, name, value in term.one_of)
        return sum(len(bucket) for bucket in buckets if bucket is not None)
