"""The terms of a filter, and what an index knows of each without a message.

A filter is one term or an AND of several; unknown counts as false there. Its equalities with a constant come
first, whatever their place in the text, because the index looks them up first: a message that lacks one does
not match, and no other term is evaluated. The others follow from left to right, since a term that is not true
keeps a later one from failing. Only terms that cannot fail are reordered, up to the first one that can: the
cheapest come first.
Source: wire contract 9.3; Learn "Subscription Rule SQL Filter Syntax". What is evaluated first: our choice.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from itertools import takewhile
from typing import Any, Literal, NamedTuple, TypeAlias

from peeklock.rules.ast import (
    And,
    Arithmetic,
    Comparison,
    Constant,
    Expression,
    In,
    Like,
    NamedProperty,
    Negative,
    NewId,
    Node,
    Parameter,
    Positive,
    Predicate,
    Property,
    children,
    unparse,
)
from peeklock.rules.expression import (
    Evaluate,
    Fixed,
    Parameters,
    compile_expression,
    system_name,
)
from peeklock.rules.filters import Value
from peeklock.rules.like import prefix_of
from peeklock.rules.predicate import Judge, all_true, compile_test
from peeklock.rules.values import MIRRORED, ORDERED, TEXT, equals_itself, index_key, kind

Scope: TypeAlias = Literal["system", "user"]
Bound: TypeAlias = tuple[Any, int]
"""(constant, 0 or 1): a value is in range if `low <= (value, 0) < high`."""

_MAY_FAIL = {Arithmetic, Negative, Positive, Like, NamedProperty, NewId}
"""Nodes that may fail, or differ when evaluated again."""
_BOUNDS: dict[str, tuple[int | None, int | None]] = {
    "=": (0, 1),
    ">": (1, None),
    ">=": (0, None),
    "<": (None, 0),
    "<=": (None, 1),
}
"""Second part of the lower and the upper bound; None = no bound."""
_ELEMENTS_MAX = 16
"""Most elements of an IN that is indexed like equalities: each takes half a KB."""
_LIKE_COST = 4
"""Cost of LIKE; any other node that is not constant costs 1."""


class Equality(NamedTuple):
    """A property that has a value."""

    scope: Scope
    """The mapping of `Subject` in which `name` is looked up."""
    name: str
    key: Hashable
    """`values.index_key` of the value."""


class Range(NamedTuple):
    """An expression with a value of one kind within bounds; one of them may be open."""

    source: tuple[Hashable, ...]
    """The kind, and the identity of the expression."""
    value_of: Evaluate
    low: Bound | None
    high: Bound | None


class Term(NamedTuple):
    """A condition that must be true for a filter to be true."""

    is_true: Judge
    """False may mean unknown. Raises: EvaluationError, unless it is `certain`."""
    certain: bool = False
    """It never fails, and gives the same answer when evaluated again."""
    one_of: tuple[Equality, ...] = ()
    """It is true exactly of messages with one of these; empty = not of this form."""
    range: Range | None = None
    """It is true exactly of messages in this range."""
    text: tuple[Hashable, ...] = ()
    """Text and parameters of a certain term of neither form: its identity."""

    @property
    def identity(self) -> Hashable:
        """Equal only for certain terms that agree on each message."""
        if self.range is not None:
            return self.range.source, self.range.low, self.range.high
        return self.one_of or self.text


def compile_terms(node: Predicate, parameters: Parameters) -> tuple[Term, ...] | bool:
    """Return the terms of a condition in the order of evaluation, or the constant answer.

    Raises:
        RuleError: as `compile_expression`; also constants that cannot be compared.
    """
    equalities: list[Term] = []
    others: list[tuple[Predicate, Term]] = []
    never = False
    for part in node.terms if isinstance(node, And) else (node,):
        is_true = compile_test(part, parameters)
        if isinstance(is_true, bool):
            never = never or not is_true
            continue
        term = _term(part, is_true, parameters)
        if term.one_of and isinstance(part, Comparison):
            equalities.append(term)
        else:
            others.append((part, term))
    if never:
        return False
    if not equalities and not others:
        return True
    movable = list(takewhile(lambda other: other[1].certain, others))
    last = others[len(movable) :]
    if len(movable) > 1:
        movable.sort(key=lambda other: _cost(other[0]))
    return (*equalities, *(term for _, term in movable + last))


def equality_term(equality: Equality, is_true: Judge) -> Term:
    """Return the term that is one equality."""
    return Term(is_true, True, (equality,))


def matcher(terms: tuple[Term, ...]) -> Judge:
    """Return a function that is true exactly where all terms are; it raises what they raise."""
    return all_true([term.is_true for term in terms])


def _term(node: Predicate, is_true: Judge, parameters: Parameters) -> Term:
    if one_of := _one_of(node, parameters):
        return Term(is_true, True, one_of)
    certain = _certain(node)
    within = _range(node, parameters)
    return Term(is_true, certain, (), within, _text(node, parameters) if certain and not within else ())


def _one_of(node: Predicate, parameters: Parameters) -> tuple[Equality, ...]:
    match node:
        case Comparison("=", Property() as operand, wanted) | Comparison("=", wanted, Property() as operand):
            elements: tuple[Expression, ...] = (wanted,)
        case In(Property() as operand, elements):
            pass
        case _:
            return ()
    keys: dict[Hashable, None] = {}
    for each in elements:
        fixed = compile_expression(each, parameters)
        if not isinstance(fixed, Fixed):
            return ()
        if fixed.value is not None and equals_itself(fixed.value):
            keys[index_key(fixed.value)] = None
    if len(keys) > _ELEMENTS_MAX:
        return ()
    scope, name = _place(operand)
    return tuple(Equality(scope, name, key) for key in keys)


def _place(operand: Property) -> tuple[Scope, str]:
    if operand.scope == "sys":
        return "system", system_name(operand)
    return "user", operand.name.lower()


def _range(node: Predicate, parameters: Parameters) -> Range | None:
    match node:
        case Comparison(sign, left, right):
            of, fixed = compile_expression(left, parameters), compile_expression(right, parameters)
            if isinstance(of, Fixed):
                left, of, fixed, sign = right, fixed, of, MIRRORED[sign]
            if isinstance(of, Fixed) or not isinstance(fixed, Fixed) or sign not in _BOUNDS:
                return None
            value = fixed.value
            about = kind(value)
            if value is None or about not in ORDERED or not equals_itself(value):
                return None
            low, high = _BOUNDS[sign]
            bounds = (None if low is None else (value, low)), (None if high is None else (value, high))
        case Like(left, pattern, escape):
            prefix = _prefix(pattern, escape, parameters)
            of, about = compile_expression(left, parameters), TEXT
            if not prefix or prefix[-1] == chr(sys.maxunicode) or isinstance(of, Fixed):
                return None
            # The first text after all with this prefix.
            bounds = (prefix, 0), (prefix[:-1] + chr(ord(prefix[-1]) + 1), 0)
        case _:
            return None
    if isinstance(left, Property):
        return Range((about, *_place(left)), of, *bounds)
    if any(isinstance(part, NewId) for part in _walk(left)):
        return None
    return Range((about, *_text(left, parameters)), of, *bounds)


def _prefix(pattern: Expression, escape: Expression | None, parameters: Parameters) -> str | None:
    """Return the constant prefix that the pattern asks for, if it asks for nothing else."""
    texts: list[Value | None] = []
    for part in (pattern, escape):
        fixed = Fixed(None) if part is None else compile_expression(part, parameters)
        if not isinstance(fixed, Fixed):
            return None
        texts.append(fixed.value)
    text, escaped = texts
    assert isinstance(text, str)  # other patterns are refused, or always unknown
    assert escaped is None or isinstance(escaped, str)
    return prefix_of(text, escaped)


def _text(node: Node, parameters: Parameters) -> tuple[Hashable, ...]:
    used = {part.name.lower() for part in _walk(node) if isinstance(part, Parameter)}
    # Values that are equal may differ (1, TRUE, 1.0), and a signalling NaN cannot be hashed.
    return unparse(node), *((name, repr(parameters[name])) for name in sorted(used))


def _certain(node: Node) -> bool:
    if _MAY_FAIL.isdisjoint(map(type, _walk(node))):
        return True
    match node:
        case NewId():
            return False
        case Arithmetic() | Negative() | Positive():
            return _constant(node)
        case NamedProperty(name):
            return _constant(name)
        case Like(operand, pattern, escape):
            return _certain(operand) and _constant(pattern) and (escape is None or _constant(escape))
        case _:
            return all(map(_certain, children(node)))


def _constant(node: Node) -> bool:
    return not any(isinstance(part, Property | NamedProperty | NewId) for part in _walk(node))


def _cost(node: Node) -> int:
    asked = [part for part in _walk(node) if not isinstance(part, Constant | Parameter)]
    return sum(_LIKE_COST if isinstance(part, Like) else 1 for part in asked)


def _walk(node: Node) -> list[Node]:
    found = [node]
    for each in found:
        found += children(each)  # the loop visits them too
    return found
