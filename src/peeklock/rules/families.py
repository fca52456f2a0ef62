"""A bucket of candidate rules, of which a message matches few: common terms are evaluated once.

Up to `FEW` rules are evaluated one by one. More are put into families. The rules of a family have the same
guards, which are terms that many rules have, and differ in one range and in the rest:

    amount > 17 AND coupon IS NULL             guard: coupon IS NULL    range: amount above 17
    quantity >= 10 AND quantity < 20           no guard                 range: quantity from 10 to below 20
    a LIKE '%x' AND b > 3 AND 10 / c = d       guard: a LIKE '%x'       range: b above 3    rest: 10 / c = d

A term that never fails is a guard if at least `MANY` rules have it when the rule is added; else it belongs
to the rest. For a message, the guards of a family are evaluated once, up to one that is not true, then each
expression of its ranges once; a binary search finds the rules whose range has the value (`ranges`). Only the
rest of these is evaluated. So the work grows with the number of families, expressions and nearly matching
rules, not with all rules. Adding or removing a rule does not touch the others.

The meaning of a filter does not change. Terms before the first that can fail may be evaluated in any order.
If none of these is a range and all are guards, the first that can fail may be the range (`price * quantity >
100`): it is evaluated after them, as in the rule alone, and where it fails, it fails for each of its rules.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import takewhile
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from peeklock.rules.errors import EvaluationError
from peeklock.rules.predicate import Judge
from peeklock.rules.ranges import Ranges
from peeklock.rules.subject import Subject
from peeklock.rules.terms import Range, Term, matcher
from peeklock.rules.values import equals_itself, kind

K = TypeVar("K", bound=Hashable)

MANY = 4
"""Rules that must have a term for it to be a guard."""
FEW = 8
"""Rules. Evaluating so many takes about as long as the searches of a family."""

Entry: TypeAlias = tuple[int, K, Judge | None]
"""(number, key, remaining test; None = found is matched). Numbers are unique and in the order of adding, so
that sorting entries restores that order and compares numbers alone."""
Failed: TypeAlias = tuple[int, K, EvaluationError]
Guards: TypeAlias = frozenset[Hashable]
"""Identities of terms."""
_Place: TypeAlias = tuple[tuple[Term, ...], Guards, Range | None, Entry[K]]
"""(terms, family, range and entry in it)"""


class _Plan(NamedTuple):
    """The terms of a rule, divided."""

    guards: tuple[Term, ...]
    range: Range | None
    """The intersection of all ranges of its source."""
    rest: tuple[Term, ...]


class Bucket(Generic[K]):
    """Rules that are candidates together."""

    __slots__ = ("_few", "_many")

    def __init__(self) -> None:
        """Make an empty bucket."""
        self._few: dict[Entry[K], tuple[Term, ...]] = {}
        self._many: _Families[K] | None = None

    def __len__(self) -> int:
        return len(self._few) if self._many is None else len(self._many)

    def add(self, entry: Entry[K], terms: tuple[Term, ...]) -> None:
        """Add a rule with the terms that remain to be evaluated."""
        self._few[entry] = terms
        if self._many is not None or len(self._few) > FEW:
            if self._many is None:
                self._many = _Families()
            self._many.add(self._few)
            self._few = {}

    def remove(self, entry: Entry[K]) -> None:
        """Remove a rule. Raises: KeyError if it is not there."""
        if self._many is None:
            del self._few[entry]
            return
        self._many.remove(entry[0])
        if not len(self._many):
            self._many = None

    def find(self, subject: Subject, found: list[Entry[K]], failed: list[Failed[K]]) -> None:
        """Add the rules that match, and those that fail, in any order."""
        if self._many is None:
            _evaluate(self._few, subject, found, failed)
        else:
            self._many.find(subject, found, failed)


class _Families(Generic[K]):
    """Rules in families."""

    __slots__ = ("_families", "_places", "_uses")

    def __init__(self) -> None:
        self._families: dict[Guards, _Family[K]] = {}
        self._places: dict[int, _Place[K]] = {}
        self._uses: dict[Hashable, int] = {}  # of terms that never fail: how many rules have one

    def __len__(self) -> int:
        return len(self._places)

    def add(self, rules: Mapping[Entry[K], tuple[Term, ...]]) -> None:
        for terms in rules.values():
            for term in _free(terms):
                self._uses[term.identity] = self._uses.get(term.identity, 0) + 1
        for (number, key, _), terms in rules.items():
            plan = _plan(terms, self._uses)
            guards = frozenset(term.identity for term in plan.guards)
            family = self._families.get(guards)
            if family is None:
                family = self._families[guards] = _Family(plan.guards)
            entry: Entry[K] = number, key, matcher(plan.rest) if plan.rest else None
            family.add(plan.range, entry)
            self._places[number] = terms, guards, plan.range, entry

    def remove(self, number: int) -> None:
        terms, guards, within, entry = self._places.pop(number)
        family = self._families[guards]
        family.remove(within, entry)
        if family.is_empty():
            del self._families[guards]
        for term in _free(terms):
            self._uses[term.identity] -= 1
            if not self._uses[term.identity]:
                del self._uses[term.identity]

    def find(self, subject: Subject, found: list[Entry[K]], failed: list[Failed[K]]) -> None:
        for family in self._families.values():
            family.find(subject, found, failed)


class _Family(Generic[K]):
    """Rules with the same guards."""

    __slots__ = ("_guards", "_plain", "_sources")

    def __init__(self, guards: tuple[Term, ...]) -> None:
        self._guards = [term.is_true for term in guards]
        self._plain: dict[int, Entry[K]] = {}
        self._sources: dict[Hashable, _Source[K]] = {}

    def is_empty(self) -> bool:
        return not self._plain and not self._sources

    def add(self, within: Range | None, entry: Entry[K]) -> None:
        if within is None:
            self._plain[entry[0]] = entry
            return
        source = self._sources.get(within.source)
        if source is None:
            source = self._sources[within.source] = _Source(within)
        source.ranges.add(within.low, within.high, entry)

    def remove(self, within: Range | None, entry: Entry[K]) -> None:
        if within is None:
            del self._plain[entry[0]]
            return
        ranges = self._sources[within.source].ranges
        ranges.remove(within.low, within.high, entry)
        if not len(ranges):
            del self._sources[within.source]

    def find(self, subject: Subject, found: list[Entry[K]], failed: list[Failed[K]]) -> None:
        for is_true in self._guards:
            if not is_true(subject):
                return
        if self._plain:
            _evaluate(self._plain.values(), subject, found, failed)
        for source in self._sources.values():
            try:
                value = source.value_of(subject)
            except EvaluationError as error:
                failed += [(number, key, error) for number, key, _ in source.ranges.all()]
                continue
            if value is not None and kind(value) == source.kind and equals_itself(value):
                _evaluate(source.ranges.around(value), subject, found, failed)


class _Source(Generic[K]):
    """An expression, and the rules by the range that they require of its value."""

    __slots__ = ("kind", "ranges", "value_of")

    def __init__(self, within: Range) -> None:
        self.kind = within.source[0]
        self.value_of = within.value_of
        self.ranges: Ranges[Entry[K]] = Ranges()


def _plan(terms: tuple[Term, ...], uses: Mapping[Hashable, int]) -> _Plan:
    free = _free(terms)
    rest = terms[len(free) :]
    within = [term for term in free if term.range is not None]
    if within:
        # Prefer a window to a single bound, and the range that fewer rules share.
        sources = [_source(term) for term in within]
        best = min(within, key=lambda term: (-sources.count(_source(term)), uses[term.identity]))
        within = [term for term in within if _source(term) == _source(best)]
    elif rest and rest[0].range is not None and all(uses[term.identity] >= MANY for term in free):
        within = list(takewhile(lambda term: _source(term) == _source(rest[0]), rest))
        rest = rest[len(within) :]
    others = [term for term in free if term not in within]
    guards = tuple(term for term in others if uses[term.identity] >= MANY)
    alone = tuple(term for term in others if uses[term.identity] < MANY)
    ranges = [term.range for term in within if term.range is not None]
    return _Plan(guards, _common(ranges) if ranges else None, alone + rest)


def _free(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Return the terms before the first that can fail: their order is free."""
    return tuple(takewhile(lambda term: term.certain, terms))


def _source(term: Term) -> Hashable:
    return None if term.range is None else term.range.source


def _common(ranges: list[Range]) -> Range:
    """Return the intersection of ranges of one source."""
    if len(ranges) == 1:
        return ranges[0]
    lows = [each.low for each in ranges if each.low is not None]
    highs = [each.high for each in ranges if each.high is not None]
    return ranges[0]._replace(low=max(lows, default=None), high=min(highs, default=None))


def _evaluate(
    entries: Iterable[Entry[K]], subject: Subject, found: list[Entry[K]], failed: list[Failed[K]]
) -> None:
    for entry in entries:
        number, key, test = entry
        if test is None:
            found.append(entry)
        else:
            try:
                if test(subject):
                    found.append(entry)
            except EvaluationError as error:
                failed.append((number, key, error))
