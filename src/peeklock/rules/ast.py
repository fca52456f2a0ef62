"""The syntax tree of filters and actions, and the way back to text.

A tree has one form only: a chain of equal operators is one node (`a AND b AND c`, `1 + a - b`), a minus
before a number is part of the number, and parentheses only shape the tree. So `parse(unparse(tree))` is the
tree again, and its depth counts real nesting.
Source: wire contract 9.3, 9.4.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Scope: TypeAlias = Literal["user", "sys"]

RESERVED = frozenset(["AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"])
RESERVED_IN_ACTIONS = RESERVED | {"SET", "REMOVE"}

_REGULAR = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class _Placed:
    """`position` is where the node begins in its text, from 1; comparison ignores it."""

    position: int = field(default=0, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Constant(_Placed):
    value: bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Parameter(_Placed):
    name: str
    """With its `@`."""


@dataclass(frozen=True, slots=True)
class Property(_Placed):
    scope: Scope
    name: str
    """As it is spelled, without delimiters."""


@dataclass(frozen=True, slots=True)
class NamedProperty(_Placed):
    """property(name), p(name)."""

    name: Expression


@dataclass(frozen=True, slots=True)
class NewId(_Placed):
    """newid()."""


@dataclass(frozen=True, slots=True)
class Negative(_Placed):
    operand: Expression


@dataclass(frozen=True, slots=True)
class Positive(_Placed):
    operand: Expression


@dataclass(frozen=True, slots=True)
class Arithmetic(_Placed):
    """Operators of one rank (`+ -` or `* / %`), from left to right."""

    first: Expression
    rest: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True)
class Comparison(_Placed):
    operator: str
    """One of `= <> < <= > >=`; `!=` is `<>`."""
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class IsNull(_Placed):
    property: Property | NamedProperty


@dataclass(frozen=True, slots=True)
class Exists(_Placed):
    property: Property | NamedProperty


@dataclass(frozen=True, slots=True)
class In(_Placed):
    operand: Expression
    elements: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Like(_Placed):
    operand: Expression
    pattern: Expression
    escape: Expression | None = None


@dataclass(frozen=True, slots=True)
class Not(_Placed):
    """`x NOT IN (...)`, `x NOT LIKE y` and `x IS NOT NULL` are Not of the plain form."""

    operand: Predicate


@dataclass(frozen=True, slots=True)
class And(_Placed):
    terms: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or(_Placed):
    terms: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Set(_Placed):
    property: Property
    value: Expression


@dataclass(frozen=True, slots=True)
class Remove(_Placed):
    property: Property


Flexible: TypeAlias = Constant | Parameter | Property | NamedProperty
"""A value, or by itself a condition where it is true or false."""

Expression: TypeAlias = Flexible | NewId | Negative | Positive | Arithmetic
Condition: TypeAlias = Comparison | IsNull | Exists | In | Like | Not | And | Or
Predicate: TypeAlias = Condition | Flexible
Node: TypeAlias = Expression | Condition
Statement: TypeAlias = Set | Remove

CONDITIONS = (Comparison, IsNull, Exists, In, Like, Not, And, Or)
FLEXIBLE = (Constant, Parameter, Property, NamedProperty)
_LEAVES = (Property, Constant, Parameter, NewId)


def children(node: Node) -> tuple[Node, ...]:
    """Return the children of a node."""
    if isinstance(node, _LEAVES):  # first: most nodes are leaves
        return ()
    match node:
        case And(terms) | Or(terms):
            return terms
        case Not(operand) | Negative(operand) | Positive(operand):
            return (operand,)
        case Comparison(_, left, right):
            return (left, right)
        case Arithmetic(first, rest):
            return (first, *(operand for _, operand in rest))
        case In(operand, elements):
            return (operand, *elements)
        case Like(operand, pattern, escape):
            return (operand, pattern) if escape is None else (operand, pattern, escape)
        case IsNull(operand) | Exists(operand):
            return (operand,)
        case NamedProperty(name):
            return (name,)


# From the loosest to the tightest.
_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _UNARY, _ATOM = range(8)


def unparse(node: Node) -> str:
    """Write a tree as the shortest text that is parsed to it, in a filter or an action."""
    return _write(node)[0]


def _bound(child: Node, rank: int) -> str:
    text, own = _write(child)
    return text if own >= rank else f"({text})"


def _write(node: Node) -> tuple[str, int]:
    """Return the text of a node and how tightly it binds."""
    match node:
        case Or(terms):
            return " OR ".join(_bound(term, _AND) for term in terms), _OR
        case And(terms):
            return " AND ".join(_bound(term, _NOT) for term in terms), _AND
        case Not(operand):
            return f"NOT {_bound(operand, _NOT)}", _NOT
        case Comparison(operator, left, right):
            return f"{_bound(left, _SUM)} {operator} {_bound(right, _SUM)}", _COMPARISON
        case IsNull(operand):
            return f"{_bound(operand, _SUM)} IS NULL", _COMPARISON
        case In(operand, elements):
            listed = ", ".join(_bound(element, _SUM) for element in elements)
            return f"{_bound(operand, _SUM)} IN ({listed})", _COMPARISON
        case Like(operand, pattern, escape):
            tail = "" if escape is None else f" ESCAPE {_bound(escape, _SUM)}"
            return f"{_bound(operand, _SUM)} LIKE {_bound(pattern, _SUM)}{tail}", _COMPARISON
        case Arithmetic(first, rest):
            rank = _SUM if rest[0][0] in "+-" else _PRODUCT
            parts = [_bound(first, rank), *(f"{sign} {_bound(operand, rank + 1)}" for sign, operand in rest)]
            return " ".join(parts), rank
        case Negative(operand):
            # Two in a row look like a comment, and are refused.
            space = " " if isinstance(operand, Negative) else ""
            return f"-{space}{_bound(operand, _UNARY)}", _UNARY
        case Positive(operand):
            return f"+{_bound(operand, _UNARY)}", _UNARY
        case Constant(value):
            return _constant(value), _ATOM
        case Parameter(name):
            return name, _ATOM
        case Property():
            return _name(node), _ATOM
        case NamedProperty(operand):
            return f"property({unparse(operand)})", _ATOM
        case Exists(operand):
            return f"EXISTS({unparse(operand)})", _COMPARISON
        case NewId():
            return "newid()", _ATOM


def _constant(value: bool | int | float | str | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value).upper()


def _name(named: Property) -> str:
    plain = _REGULAR.fullmatch(named.name) and named.name.upper() not in RESERVED_IN_ACTIONS
    name = named.name if plain else "[" + named.name.replace("]", "]]") + "]"
    return name if named.scope == "user" else f"sys.{name}"
