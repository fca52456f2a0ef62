"""Rules ready for use: a filter is compiled once and asked of each message.

Owns: what the broker calls. Must not know: how many rules there are, and of what.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from peeklock.rules.action import ActionResult, CompiledAction, compile_action
from peeklock.rules.correlation import compile_correlation
from peeklock.rules.errors import RuleError
from peeklock.rules.expression import bind
from peeklock.rules.filters import CorrelationFilter, FalseFilter, Filter, SqlFilter, TrueFilter
from peeklock.rules.parser import located, parse_filter
from peeklock.rules.predicate import Judge
from peeklock.rules.subject import Subject
from peeklock.rules.terms import Term, compile_terms, matcher
from peeklock.rules.values import in_utc

__all__ = ["ActionResult", "CompiledAction", "CompiledFilter", "compile_action", "compile_filter"]


class CompiledFilter:
    """A filter as a function, and the terms that an index can use."""

    __slots__ = ("always", "never", "terms", "test")

    def __init__(self, terms: tuple[Term, ...] | bool) -> None:
        """`terms` as `terms.compile_terms` makes them, or the answer itself."""
        self.always = terms is True
        """Matches every message."""
        self.never = terms is False
        """Matches no message."""
        self.terms: tuple[Term, ...] = () if isinstance(terms, bool) else terms
        """Asked in this order, up to one that is not true, they are the filter."""
        self.test: Judge = (lambda subject: terms) if isinstance(terms, bool) else matcher(terms)
        """`matches`, but that None may stand for False."""

    def matches(self, subject: Subject) -> bool:
        """Say whether the filter is true of a message, not false or unknown.

        Raises:
            EvaluationError: it cannot be said of this message.
        """
        return self.test(subject) is True


def compile_filter(filter: Filter, *, stored: bool = False) -> CompiledFilter:
    """Make a filter ready for use; `stored`: as `compile_correlation`.

    Raises:
        RuleError: what is wrong, where, and what was expected.
    """
    match filter:
        case TrueFilter():
            return CompiledFilter(True)
        case FalseFilter():
            return CompiledFilter(False)
        case CorrelationFilter():
            properties = tuple((name, in_utc(value)) for name, value in filter.properties)
            return CompiledFilter(compile_correlation(replace(filter, properties=properties), stored=stored))
        case SqlFilter(expression, parameters):
            tree = parse_filter(expression)
            try:
                return CompiledFilter(compile_terms(tree, bind(parameters)))
            except RuleError as error:
                raise located(error, expression) from None
        case _:
            assert_never(filter)
