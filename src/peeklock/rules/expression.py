"""Compilation of expressions to closures that return a value for a message.

A closure returns None for unknown: a missing property, a null, or anything computed from one. What needs no
message is computed once, as a `Fixed`: an error in it is an error of the definition.
Source: wire contract 9.3; Learn "Subscription Rule SQL Filter Syntax".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from peeklock.rules.ast import (
    Arithmetic,
    Constant,
    Expression,
    NamedProperty,
    Negative,
    NewId,
    Parameter,
    Positive,
    Property,
)
from peeklock.rules.errors import EvaluationError, RuleError
from peeklock.rules.filters import Pairs, Value
from peeklock.rules.subject import SYSTEM_NAMES, Subject
from peeklock.rules.values import (
    COMBINERS,
    INT64_MAX,
    INT64_MIN,
    UINT64_MAX,
    Combiner,
    affirm,
    in_utc,
    kind,
    negate,
)

Parameters: TypeAlias = Mapping[str, Value | None]
"""By lower-case name with its `@`."""

Evaluate: TypeAlias = Callable[[Subject], Value | None]

SPELLED = {name.lower(): name for name in SYSTEM_NAMES}
"""Spelling of system properties in messages, by their names in `Subject.system`."""

_ALIKE = 0.7
"""From this similarity on a name counts as misspelled, by difflib's measure (1 is equal)."""

Made = TypeVar("Made")


class Fixed(NamedTuple):
    """A value that is the same for every message; None is unknown."""

    value: Value | None


def bind(parameters: Pairs) -> Parameters:
    """Return parameters by lower-case name.

    Raises:
        RuleError: a name without `@`, a repeated name, or a value that no expression can use.
    """
    bound: dict[str, Value | None] = {}
    for name, value in parameters:
        folded = name.lower()
        if not name.startswith("@") or len(name) < 2:
            raise RuleError(f"The parameter {name!r} cannot be used; the name of a parameter begins with @.")
        if folded in bound:
            raise RuleError(f"The parameter {name!r} is given twice; names are case-insensitive.")
        if value is not None:
            check_value(f"the parameter {name!r}", value)
        bound[folded] = in_utc(value)
    return bound


def check_value(owner: str, value: Value) -> None:
    """Raise RuleError, naming the owner, for a value that no expression can use."""
    if kind(value) is None:
        raise RuleError(f"The value of {owner} is of a type that rules cannot use: {type(value).__name__}.")
    if isinstance(value, int) and not INT64_MIN <= value <= UINT64_MAX:
        raise RuleError(f"The value of {owner} has more than 64 bits: {value}.")


def system_name(named: Property) -> str:
    """Return the name of a property in `Subject.system`. Raises: RuleError if there is none."""
    found = named.name.lower()
    if found == "subject":
        return "label"
    if found not in SPELLED:
        meant = get_close_matches(found.replace("_", ""), [*SPELLED, "subject"], 1, cutoff=_ALIKE)
        hint = f"did you mean {SPELLED.get(meant[0], 'Subject')}? There" if meant else "there"
        raise RuleError(
            f"there is no system property {named.name!r}; {hint} are {', '.join(SYSTEM_NAMES)}",
            named.position,
        )
    return found


def compile_expression(node: Expression, parameters: Parameters) -> Evaluate | Fixed:
    """Return the closure of an expression, or its constant value.

    Raises:
        RuleError: an unknown system property or parameter, or constants that cannot be combined.
    """
    match node:
        case Constant(value):
            if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
                raise RuleError(f"the number {value} has more than 64 bits", node.position)
            if isinstance(value, float) and value - value != 0:
                raise RuleError("the number is too large", node.position)
            return Fixed(value)
        case Parameter(name):
            if name.lower() not in parameters:
                raise RuleError(f"the parameter {name!r} has no value", node.position)
            return Fixed(parameters[name.lower()])
        case Property():
            return _property(node)
        case NamedProperty(name):
            return _named_property(compile_expression(name, parameters), name.position)
        case NewId():
            return _new_id
        case Negative(operand):
            return _unary(compile_expression(operand, parameters), negate, node.position)
        case Positive(operand):
            return _unary(compile_expression(operand, parameters), affirm, node.position)
        case Arithmetic(first, rest):
            return _arithmetic(
                compile_expression(first, parameters),
                [(COMBINERS[sign], compile_expression(operand, parameters)) for sign, operand in rest],
                node.position,
            )


def _property(node: Property) -> Evaluate:
    if node.scope == "sys":
        system = system_name(node)
        return lambda subject: subject.system.get(system)
    folded = node.name.lower()
    return lambda subject: subject.user.get(folded)


def user_name_of(value: Value) -> str:
    """Return the lower-case name in property(value). Raises: EvaluationError if it is not a text."""
    if not isinstance(value, str):
        raise EvaluationError(f"property() takes the name of a property, found {kind(value)}")
    return value.lower()


def _named_property(name: Evaluate | Fixed, position: int) -> Evaluate | Fixed:
    if isinstance(name, Fixed):
        if name.value is None:
            return name
        fixed = name.value
        folded = at_definition(lambda: user_name_of(fixed), position)
        return lambda subject: subject.user.get(folded)

    def named(subject: Subject) -> Value | None:
        value = name(subject)
        return None if value is None else subject.user.get(user_name_of(value))

    return named


def _new_id(subject: Subject) -> UUID:
    return subject.new_id()


def _unary(operand: Evaluate | Fixed, apply: Callable[[Value], Value], position: int) -> Evaluate | Fixed:
    if isinstance(operand, Fixed):
        fixed = operand.value
        return operand if fixed is None else Fixed(at_definition(lambda: apply(fixed), position))

    def applied(subject: Subject) -> Value | None:
        value = operand(subject)
        return None if value is None else apply(value)

    return applied


def _arithmetic(
    first: Evaluate | Fixed, rest: list[tuple[Combiner, Evaluate | Fixed]], position: int
) -> Evaluate | Fixed:
    # The constant beginning is computed now; the rest keeps its order.
    while isinstance(first, Fixed) and rest:
        combine, operand = rest[0]
        if not isinstance(operand, Fixed):
            break
        first = _combine_fixed(first, combine, operand, position)
        rest = rest[1:]
    if not rest:
        return first
    start = as_closure(first)
    steps = [(combine, as_closure(operand)) for combine, operand in rest]

    def computed(subject: Subject) -> Value | None:
        result = start(subject)
        for combine, operand in steps:
            if result is None:
                return None
            value = operand(subject)
            if value is None:
                return None
            result = combine(result, value)
        return result

    return computed


def _combine_fixed(first: Fixed, combine: Combiner, operand: Fixed, position: int) -> Fixed:
    left, right = first.value, operand.value
    if left is None or right is None:
        return Fixed(None)
    return Fixed(at_definition(lambda: combine(left, right), position))


def as_closure(compiled: Evaluate | Fixed) -> Evaluate:
    """Return a closure, also for a constant."""
    if isinstance(compiled, Fixed):
        value = compiled.value
        return lambda subject: value
    return compiled


def at_definition(compute: Callable[[], Made], position: int) -> Made:
    """Compute what needs no message; a failure is an error of the definition."""
    try:
        return compute()
    except EvaluationError as error:
        raise RuleError(str(error), position) from None
