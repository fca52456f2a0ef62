"""The syntax tree of filters and actions, and the way back to text.

Owns: the nodes and what may stand where. Must not know: how they are parsed or evaluated.

A tree is in one form only: a chain of equal operators is one node (`a AND b AND c`, `1 + a - b`), a minus
before a number is part of the number, and parentheses leave no trace beside the shape. So
`parse(unparse(tree))` is the tree again, and the depth of a tree counts what nests in earnest.
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
    """`position` is where the node begins in its text, from 1; it does not tell nodes apart."""

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
"""What can be a value, and a condition by itself where it is true or false."""

Expression: TypeAlias = Flexible | NewId | Negative | Positive | Arithmetic
Condition: TypeAlias = Comparison | IsNull | Exists | In | Like | Not | And | Or
Predicate: TypeAlias = Condition | Flexible
Node: TypeAlias = Expression | Condition
Statement: TypeAlias = Set | Remove

CONDITIONS = (Comparison, IsNull, Exists, In, Like, Not, And, Or)
FLEXIBLE = (Constant, Parameter, Property, NamedProperty)
_LEAVES = (Property, Constant, Parameter, NewId)


def children(node: Node) -> tuple[Node, ...]:
    """Give the nodes right below one."""
    if isinstance(node, _LEAVES):  # most of them, and a match would try all else before
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
        case IsNull(looked_at) | Exists(looked_at):
            return (looked_at,)
        case NamedProperty(name):
            return (name,)


# From the loosest to the tightest.
_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _UNARY, _ATOM = range(8)


def unparse(node: Node) -> str:
    """Write a tree as the shortest text that is parsed to it."""
    return _write(node)[0]


def unparse_statements(statements: tuple[Statement, ...]) -> str:
    """Write an action as text that is parsed to it."""
    written = []
    for statement in statements:
        name = _name(statement.property, RESERVED_IN_ACTIONS)
        match statement:
            case Set(value=value):
                written.append(f"SET {name} = {_write(value, RESERVED_IN_ACTIONS)[0]}")
            case Remove():
                written.append(f"REMOVE {name}")
    return "; ".join(written)


def _write(node: Node, reserved: frozenset[str] = RESERVED) -> tuple[str, int]:
    """Give the text of a node and how tightly it binds."""

    def bound(child: Node, rank: int) -> str:
        text, own = _write(child, reserved)
        return text if own >= rank else f"({text})"

    match node:
        case Or(terms):
            return " OR ".join(bound(term, _AND) for term in terms), _OR
        case And(terms):
            return " AND ".join(bound(term, _NOT) for term in terms), _AND
        case Not(operand):
            return f"NOT {bound(operand, _NOT)}", _NOT
        case Comparison(operator, left, right):
            return f"{bound(left, _SUM)} {operator} {bound(right, _SUM)}", _COMPARISON
        case IsNull(looked_at):
            return f"{bound(looked_at, _SUM)} IS NULL", _COMPARISON
        case In(operand, elements):
            return (
                f"{bound(operand, _SUM)} IN ({', '.join(bound(element, _SUM) for element in elements)})",
                _COMPARISON,
            )
        case Like(operand, pattern, escape):
            tail = "" if escape is None else f" ESCAPE {bound(escape, _SUM)}"
            return f"{bound(operand, _SUM)} LIKE {bound(pattern, _SUM)}{tail}", _COMPARISON
        case Arithmetic(first, rest):
            rank = _SUM if rest[0][0] in "+-" else _PRODUCT
            parts = [bound(first, rank), *(f"{sign} {bound(operand, rank + 1)}" for sign, operand in rest)]
            return " ".join(parts), rank
        case Negative(operand):
            # Two in a row would be read as a comment by people, and are refused.
            space = " " if isinstance(operand, Negative) else ""
            return f"-{space}{bound(operand, _UNARY)}", _UNARY
        case Positive(operand):
            return f"+{bound(operand, _UNARY)}", _UNARY
        case Constant(value):
            # A number with a minus is a unary expression again, which binds less than an atom.
            return _constant(value), _ATOM
        case Parameter(name):
            return name, _ATOM
        case Property():
            return _name(node, reserved), _ATOM
        case NamedProperty(name):
            return f"property({_write(name, reserved)[0]})", _ATOM
        case Exists(looked_at):
            return f"EXISTS({_write(looked_at, reserved)[0]})", _COMPARISON
        case NewId():
            return "newid()", _ATOM


def _constant(value: bool | int | float | str | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value).upper()


def _name(named: Property, reserved: frozenset[str]) -> str:
    plain = _REGULAR.fullmatch(named.name) and named.name.upper() not in reserved
    name = named.name if plain else "[" + named.name.replace("]", "]]") + "]"
    return name if named.scope == "user" else f"sys.{name}"
