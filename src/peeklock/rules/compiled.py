"""Compiled filters: what the broker calls.

A correlation filter is a number of equalities, all of which must be true.
Source: wire contract 9.2; Learn "Topic filters and actions".
"""

from __future__ import annotations

from typing import assert_never

from peeklock.rules.action import ActionResult, CompiledAction, compile_action
from peeklock.rules.errors import RuleError
from peeklock.rules.expression import SPELLED, bind, check_value
from peeklock.rules.filters import CorrelationFilter, FalseFilter, Filter, SqlFilter, TrueFilter, Value
from peeklock.rules.parser import located, parse_filter
from peeklock.rules.predicate import Judge
from peeklock.rules.subject import ID_LENGTH_MAX, Subject
from peeklock.rules.terms import Equality, Term, compile_terms, equality_term, matcher
from peeklock.rules.values import equal, equals_itself, in_utc, index_key

__all__ = ["ActionResult", "CompiledAction", "CompiledFilter", "compile_action", "compile_filter"]


FIELDS = {
    "correlation_id": "correlationid",
    "message_id": "messageid",
    "to": "to",
    "reply_to": "replyto",
    "label": "label",
    "session_id": "sessionid",
    "reply_to_session_id": "replytosessionid",
    "content_type": "contenttype",
}
"""System property of each field."""
_BOUNDED = ("message_id", "session_id")
"""Fields whose length is checked when a message is sent."""


class CompiledFilter:
    """A filter as a function, and its terms for an index."""

    __slots__ = ("always", "never", "terms", "test")

    def __init__(self, terms: tuple[Term, ...] | bool) -> None:
        """`terms` as `compile_terms` makes them, or the constant answer."""
        self.always = terms is True
        """Matches every message."""
        self.never = terms is False
        """Matches no message."""
        self.terms: tuple[Term, ...] = () if isinstance(terms, bool) else terms
        """Evaluated in this order, up to one that is not true, they are the filter."""
        self.test: Judge = (lambda subject: terms) if isinstance(terms, bool) else matcher(terms)
        """As `matches`, but None may mean False."""

    def matches(self, subject: Subject) -> bool:
        """Whether the filter is true of a message, not false or unknown. Raises: EvaluationError."""
        return self.test(subject) is True


def compile_filter(filter: Filter, *, stored: bool = False) -> CompiledFilter:
    """Compile a filter. Raises: RuleError.

    `stored`: an older correlation filter, in which names that differ only in case are separate conditions.
    """
    match filter:
        case TrueFilter():
            return CompiledFilter(True)
        case FalseFilter():
            return CompiledFilter(False)
        case CorrelationFilter():
            return CompiledFilter(_correlation(filter, stored))
        case SqlFilter(expression, parameters):
            tree = parse_filter(expression)
            try:
                return CompiledFilter(compile_terms(tree, bind(parameters)))
            except RuleError as error:
                raise located(error, expression) from None
        case _:
            assert_never(filter)


def _correlation(given: CorrelationFilter, stored: bool) -> tuple[Term, ...]:
    """Return the equalities of a correlation filter.

    Raises:
        RuleError: no condition, a property given twice, or a value that no message can have.
    """
    system: list[tuple[str, Value]] = []
    for field, name in FIELDS.items():
        value = getattr(given, field)
        if value is None:
            continue
        if field in _BOUNDED and len(value) > ID_LENGTH_MAX:
            raise RuleError(
                f"The value of {SPELLED[name]} has {len(value)} characters; the limit is {ID_LENGTH_MAX}, so "
                "that no message could match."
            )
        system.append((name, value))
    user: list[tuple[str, Value]] = []
    names: set[str] = set()
    for name, value in given.properties:
        folded = name.lower()
        once = name if stored else folded
        if once in names:
            raise RuleError(f"The property {name!r} is given twice; names are case-insensitive.")
        names.add(once)
        if value is not None:
            check_value(f"the property {name!r}", value)
            value = in_utc(value)
        if value is None or not equals_itself(value):
            raise RuleError(
                f"The value of the property {name!r} is null or not a number; no message could match."
            )
        user.append((folded, value))
    if not system and not user:
        raise RuleError("The correlation filter is empty; give at least one field or property.")
    return *(_system(name, value) for name, value in system), *(_user(name, value) for name, value in user)


def _system(name: str, value: Value) -> Term:
    return equality_term(
        Equality("system", name, index_key(value)),
        lambda subject: equal(subject.system.get(name), value),
    )


def _user(name: str, value: Value) -> Term:
    return equality_term(
        Equality("user", name, index_key(value)),
        lambda subject: equal(subject.user.get(name), value),
    )
