"""Compilation of conditions to closures with three-valued logic: true, false or unknown (None).

A filter only needs to know whether its condition is true: `compile_test`. Below a NOT all three values are
needed: `compile_condition`. Terms are evaluated from left to right.
Source: wire contract 9.3; Learn "Subscription Rule SQL Filter Syntax".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from peeklock.rules.ast import (
    And,
    Comparison,
    Constant,
    Exists,
    In,
    IsNull,
    Like,
    NamedProperty,
    Not,
    Or,
    Parameter,
    Predicate,
    Property,
)
from peeklock.rules.errors import EvaluationError, RuleError
from peeklock.rules.expression import (
    Evaluate,
    Fixed,
    Parameters,
    as_closure,
    compile_expression,
    system_name,
    user_name_of,
)
from peeklock.rules.filters import Value
from peeklock.rules.like import PatternError, compile_like
from peeklock.rules.subject import Subject
from peeklock.rules.values import (
    COMPARERS,
    MIRRORED,
    OPERATORS,
    Truth,
    equal,
    equals_itself,
    index_key,
    kind,
)

Judge: TypeAlias = Callable[[Subject], Truth]


def compile_test(node: Predicate, parameters: Parameters) -> Judge | bool:
    """Return a closure that is true exactly where a condition is true, or the constant answer.

    It does not distinguish unknown from false, so that AND ends at the first term that is not true.

    Raises:
        RuleError: as `compile_expression`; also constants that cannot be compared.
    """
    match node:
        case And(terms):
            found = [compile_test(term, parameters) for term in terms]
            if False in found:
                return False
            tests = [test for test in found if not isinstance(test, bool)]
            return all_true(tests) if tests else True
        case Or(terms):
            found = [compile_test(term, parameters) for term in terms]
            if True in found:
                return True
            tests = [test for test in found if not isinstance(test, bool)]
            return _any_true(tests) if tests else False
        case _:
            judge = compile_condition(node, parameters)
            if isinstance(judge, Fixed):
                return judge.value is True
            return judge


def all_true(tests: Sequence[Judge]) -> Judge:
    """Return a closure that is true if all tests are, evaluated in this order up to one that is not."""
    if len(tests) == 1:
        return tests[0]

    def all_of_them(subject: Subject) -> bool:
        for test in tests:
            if not test(subject):
                return False
        return True

    return all_of_them


def _any_true(tests: Sequence[Judge]) -> Judge:
    if len(tests) == 1:
        return tests[0]

    def any_true(subject: Subject) -> bool:
        for test in tests:
            if test(subject):
                return True
        return False

    return any_true


def compile_condition(node: Predicate, parameters: Parameters) -> Judge | Fixed:
    """Return the closure of a condition, or its constant value. Raises: as `compile_test`."""
    match node:
        case And(terms):
            return _chain([compile_condition(term, parameters) for term in terms], ends_at=False)
        case Or(terms):
            return _chain([compile_condition(term, parameters) for term in terms], ends_at=True)
        case Not(operand):
            return _negation(compile_condition(operand, parameters))
        case Comparison():
            return _comparison(node, parameters)
        case In():
            return _in(node, parameters)
        case Like():
            return _like(node, parameters)
        case IsNull(operand):
            return _is_null(compile_expression(operand, parameters))
        case Exists(operand):
            return _exists(operand, parameters)
        case Constant() | Parameter() | Property() | NamedProperty():
            return _flag(node, parameters)


def _chain(judges: list[Judge | Fixed], *, ends_at: bool) -> Judge | Fixed:
    """Return AND, which ends at the first false term, or OR, which ends at the first true one."""
    fixed = [judge.value for judge in judges if isinstance(judge, Fixed)]
    if ends_at in fixed:
        return Fixed(ends_at)
    terms = [judge for judge in judges if not isinstance(judge, Fixed)]
    start: Truth = None if None in fixed else not ends_at
    if not terms:
        return Fixed(start)

    def chain(subject: Subject) -> Truth:
        result = start
        for term in terms:
            truth = term(subject)
            if truth is ends_at:
                return ends_at
            if truth is None:
                result = None
        return result

    return chain


def _negation(operand: Judge | Fixed) -> Judge | Fixed:
    if isinstance(operand, Fixed):
        return operand if operand.value is None else Fixed(not operand.value)

    def negation(subject: Subject) -> Truth:
        truth = operand(subject)
        return None if truth is None else not truth

    return negation


def _comparison(node: Comparison, parameters: Parameters) -> Judge | Fixed:
    left = compile_expression(node.left, parameters)
    right = compile_expression(node.right, parameters)
    compare = COMPARERS[node.operator]
    if isinstance(left, Fixed):
        if isinstance(right, Fixed):
            return Fixed(compare(left.value, right.value))
        return _with_constant(right, MIRRORED[node.operator], left.value)
    if isinstance(right, Fixed):
        return _with_constant(left, node.operator, right.value)

    def comparison(subject: Subject) -> Truth:
        return compare(left(subject), right(subject))

    return comparison


def _with_constant(value_of: Evaluate, sign: str, constant: Value | None) -> Judge | Fixed:
    """Compare with a constant, with fast paths for the usual types."""
    if constant is None:
        return Fixed(None)
    compare, operate = COMPARERS[sign], OPERATORS[sign]
    if type(constant) is str:

        def text_comparison(subject: Subject) -> Truth:
            value = value_of(subject)
            if value.__class__ is str:
                truth: bool = operate(value, constant)
                return truth
            return compare(value, constant)

        return text_comparison
    if type(constant) in (int, float):

        def number_comparison(subject: Subject) -> Truth:
            value = value_of(subject)
            if value.__class__ is int or value.__class__ is float:
                truth: bool = operate(value, constant)
                return truth
            return compare(value, constant)

        return number_comparison
    return lambda subject: compare(value_of(subject), constant)


def _in(node: In, parameters: Parameters) -> Judge | Fixed:
    """Test whether a value is one of several. Elements that are unknown or of another kind do not match."""
    operand = compile_expression(node.operand, parameters)
    elements = [compile_expression(element, parameters) for element in node.elements]
    constants = {
        index_key(element.value)
        for element in elements
        if isinstance(element, Fixed) and element.value is not None and equals_itself(element.value)
    }
    computed = [element for element in elements if not isinstance(element, Fixed)]
    if isinstance(operand, Fixed):
        if operand.value is None:
            return Fixed(None)
        if not computed:
            return Fixed(equals_itself(operand.value) and index_key(operand.value) in constants)
    value_of = as_closure(operand)

    def is_in(subject: Subject) -> Truth:
        value = value_of(subject)
        if value is None:
            return None
        if equals_itself(value) and index_key(value) in constants:
            return True
        return any(equal(value, element(subject)) for element in computed)

    return is_in


def _like(node: Like, parameters: Parameters) -> Judge | Fixed:
    operand = compile_expression(node.operand, parameters)
    pattern = compile_expression(node.pattern, parameters)
    escape = None if node.escape is None else compile_expression(node.escape, parameters)
    if isinstance(pattern, Fixed) and (escape is None or isinstance(escape, Fixed)):
        if pattern.value is None or (escape is not None and escape.value is None):
            return Fixed(None)
        try:
            is_like = _pattern(pattern.value, None if escape is None else escape.value)
        except EvaluationError as error:
            raise RuleError(str(error), node.pattern.position) from None
        return _like_constant(operand, is_like)
    value_of, pattern_of = as_closure(operand), as_closure(pattern)
    escape_of = None if escape is None else as_closure(escape)

    def like(subject: Subject) -> Truth:
        value, wanted = value_of(subject), pattern_of(subject)
        escaped = None if escape_of is None else escape_of(subject)
        if value is None or wanted is None or (escape_of is not None and escaped is None):
            return None
        is_like = _pattern(wanted, escaped)
        return is_like(value) if isinstance(value, str) else None

    return like


def _like_constant(operand: Evaluate | Fixed, is_like: Callable[[str], bool]) -> Judge | Fixed:
    if isinstance(operand, Fixed):
        return Fixed(is_like(operand.value) if isinstance(operand.value, str) else None)

    def like(subject: Subject) -> Truth:
        value = operand(subject)
        return is_like(value) if isinstance(value, str) else None

    return like


def _pattern(pattern: Value, escape: Value | None) -> Callable[[str], bool]:
    roles = ((pattern, "LIKE takes a text as its pattern"), (escape, "ESCAPE takes one character"))
    for value, role in roles:
        if value is not None and not isinstance(value, str):
            raise EvaluationError(f"{role}, found {kind(value)}")
    assert isinstance(pattern, str)
    assert escape is None or isinstance(escape, str)
    try:
        return compile_like(pattern, escape)
    except PatternError as error:
        raise EvaluationError(str(error)) from None


def _is_null(value_of: Evaluate | Fixed) -> Judge | Fixed:
    if isinstance(value_of, Fixed):
        return Fixed(value_of.value is None)
    return lambda subject: value_of(subject) is None


def _exists(operand: Property | NamedProperty, parameters: Parameters) -> Judge | Fixed:
    """Test whether a property is there; an application property may be null."""
    if isinstance(operand, Property):
        if operand.scope == "sys":
            system = system_name(operand)
            return lambda subject: subject.system.get(system) is not None
        folded = operand.name.lower()
        return lambda subject: subject.has_user(folded)
    name = compile_expression(operand.name, parameters)
    name_of = as_closure(name)
    if isinstance(name, Fixed):
        compile_expression(operand, parameters)  # refuses an invalid name now

    def exists(subject: Subject) -> Truth:
        value = name_of(subject)
        return None if value is None else subject.has_user(user_name_of(value))

    return exists


def _flag(node: Constant | Parameter | Property | NamedProperty, parameters: Parameters) -> Judge | Fixed:
    """Return a value as a condition: a boolean as it is, anything else as unknown."""
    value_of = compile_expression(node, parameters)
    if isinstance(value_of, Fixed):
        if value_of.value is not None and not isinstance(value_of.value, bool):
            raise RuleError(f"expected a condition, found {kind(value_of.value)}", node.position)
        return value_of

    def flag(subject: Subject) -> Truth:
        value = value_of(subject)
        return value if isinstance(value, bool) else None

    return flag
