"""Why a filter matches a message or does not: which condition decides, and what the message has there.

Whether it matches is asked of the compiled filter, as the broker does. The conditions of an AND are then
evaluated one by one, and the first that is not true is the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from peeklock.rules.ast import And, Comparison, NamedProperty, Node, Predicate, Property, children, unparse
from peeklock.rules.compiled import FIELDS, CompiledFilter, compile_filter
from peeklock.rules.errors import EvaluationError, RuleError
from peeklock.rules.expression import (
    SPELLED,
    Fixed,
    Parameters,
    as_closure,
    bind,
    compile_expression,
    system_name,
    user_name_of,
)
from peeklock.rules.filters import CorrelationFilter, Filter, SqlFilter, Value
from peeklock.rules.parser import parse_filter
from peeklock.rules.predicate import compile_condition
from peeklock.rules.subject import Subject
from peeklock.rules.terms import compile_terms
from peeklock.rules.values import Truth, equal, in_utc, kind

SHOWN_MAX = 80
"""Characters of a value in a reason. Our choice."""

CONDITION_MAX = 200
"""Characters of a condition in a reason. Our choice."""

NAMED_MAX = 10
"""Properties in a reason. Our choice."""


class Explanation(NamedTuple):
    """Whether a filter matches a message, and why."""

    is_matched: bool
    reason: str
    is_error: bool = False
    """The filter cannot be evaluated for the message."""


def explain(filter: Filter, subject: Subject) -> Explanation:
    """Explain what a filter makes of a message."""
    tree: Predicate | None = None
    try:
        if isinstance(filter, SqlFilter):  # the tree is used again, and parsing is most of the work
            tree = parse_filter(filter.expression)
            compiled = CompiledFilter(compile_terms(tree, bind(filter.parameters)))
        else:
            compiled = compile_filter(filter, stored=True)
    except RuleError as failure:
        return Explanation(False, f"The filter is not valid: {failure.what}", is_error=True)
    try:
        is_matched = compiled.matches(subject)
    except EvaluationError as failure:
        return Explanation(False, f"The filter cannot be evaluated: {failure}.", is_error=True)
    if compiled.always:
        return Explanation(True, "The filter matches all messages.")
    if compiled.never:
        return Explanation(False, "The filter matches no message.")
    if isinstance(filter, CorrelationFilter):
        return Explanation(is_matched, _of_correlation(filter, subject))
    assert isinstance(filter, SqlFilter)
    assert tree is not None
    return Explanation(is_matched, _of_sql(tree, bind(filter.parameters), subject, is_matched=is_matched))


# Correlation filters


def _of_correlation(filter: CorrelationFilter, subject: Subject) -> str:
    held = []
    for name, wanted, found in _equalities(filter, subject):
        if equal(found, wanted) is not True:
            return _difference(name, wanted, found, subject)
        held.append(f"{name} is {shown(wanted)}")
    return f"All conditions are true: {_listed(held)}."


def _equalities(filter: CorrelationFilter, subject: Subject) -> Iterator[tuple[str, Value, Value | None]]:
    """Yield each condition: the name of a property, the value that it must have, and what it has."""
    for field, name in FIELDS.items():
        wanted = getattr(filter, field)
        if wanted is not None:
            yield f"sys.{SPELLED[name]}", wanted, subject.system.get(name)
    for name, value in filter.properties:
        if value is not None:
            found = in_utc(value)
            assert found is not None
            yield name, found, subject.user.get(name.lower())


def _difference(name: str, wanted: Value, found: Value | None, subject: Subject) -> str:
    if found is None:
        return f"{_absence(name, subject)}; it must be {shown(wanted)}."
    if kind(found) != kind(wanted):
        return f"{name} is {shown(found)}, {kind(found)}; it must be {shown(wanted)}, {kind(wanted)}."
    return f"{name} is {shown(found)}, not {shown(wanted)}."


# SQL filters


def _of_sql(tree: Predicate, parameters: Parameters, subject: Subject, *, is_matched: bool) -> str:
    if is_matched:
        return f"{_condition(tree)} is true{_because(tree, parameters, subject)}."
    for term in tree.terms if isinstance(tree, And) else (tree,):
        truth = _truth(term, parameters, subject)
        if truth is not True:
            word = "unknown" if truth is None else "false"
            return f"{_condition(term)} is {word}{_because(term, parameters, subject)}."
    return f"{_condition(tree)} is not true{_because(tree, parameters, subject)}."  # newid() is new each time


def _truth(term: Predicate, parameters: Parameters, subject: Subject) -> Truth:
    """Return what a condition is; true for one that cannot be evaluated, which another one has excused."""
    judge = compile_condition(term, parameters)
    if isinstance(judge, Fixed):
        return judge.value if isinstance(judge.value, bool) else None
    try:
        return judge(subject)
    except EvaluationError:
        return True


def _condition(node: Node) -> str:
    text = unparse(node)
    return text if len(text) <= CONDITION_MAX else f"{text[:CONDITION_MAX]}..."


def _because(node: Node, parameters: Parameters, subject: Subject) -> str:
    """Return what the message has of the properties in a condition."""
    named = dict(_properties(node, parameters, subject))
    facts = [
        f"{name} is {shown(value)}, {kind(value)}" if value is not None else _absence(name, subject)
        for name, value in named.items()
    ]
    return (f": {_listed(facts)}" if facts else "") + _mismatch(node, parameters, subject)


def _mismatch(node: Node, parameters: Parameters, subject: Subject) -> str:
    """Return that two values of different kinds are compared, if they are."""
    if not isinstance(node, Comparison):
        return ""
    try:
        left, right = (
            as_closure(compile_expression(side, parameters))(subject) for side in (node.left, node.right)
        )
    except EvaluationError:
        return ""
    if left is None or right is None or kind(left) == kind(right):
        return ""
    return f"; {kind(left)} is not compared with {kind(right)}"


def _properties(node: Node, parameters: Parameters, subject: Subject) -> Iterator[tuple[str, Value | None]]:
    """Yield the properties in a condition, with their values."""
    if isinstance(node, Property):
        yield unparse(node), _value(node, subject)
        return
    if isinstance(node, NamedProperty):
        try:
            name = as_closure(compile_expression(node.name, parameters))(subject)
            if name is not None:
                yield str(name), subject.user.get(user_name_of(name))
        except EvaluationError:
            pass
    for child in children(node):
        yield from _properties(child, parameters, subject)


def _value(node: Property, subject: Subject) -> Value | None:
    if node.scope == "sys":
        return subject.system.get(system_name(node))
    return subject.user.get(node.name.lower())


def _absence(name: str, subject: Subject) -> str:
    folded = name.removeprefix("[").removesuffix("]").lower()
    if subject.has_user(folded):
        return f"{name} is null, or of a type that no filter compares"
    return f"the message has no {name}"


def _listed(facts: list[str]) -> str:
    more = len(facts) - NAMED_MAX
    return ", ".join(facts[:NAMED_MAX]) + (f", and {more} more" if more > 0 else "")


def shown(value: Value) -> str:
    """Return a value as a reason shows it."""
    match value:
        case bool():
            return str(value).upper()
        case str():
            text = value if len(value) <= SHOWN_MAX else f"{value[:SHOWN_MAX]}..."
            return "'" + text.replace("'", "''") + "'"
        case bytes():
            return f"{len(value)} bytes"
        case datetime():
            return value.isoformat()
    return str(value)
