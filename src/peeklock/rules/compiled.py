"""Rules ready for use: a filter is compiled once and asked of each message.

Owns: what the broker calls. Must not know: how many rules there are, and of what.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from peeklock.rules.action import ActionResult, CompiledAction, compile_action
from peeklock.rules.correlation import compile_correlation
from peeklock.rules.errors import RuleError
from peeklock.rules.expression import bind
from peeklock.rules.filters import CorrelationFilter, FalseFilter, Filter, SqlFilter, TrueFilter
from peeklock.rules.parser import located, parse_filter
from peeklock.rules.predicate import Equality, compile_top
from peeklock.rules.subject import Subject
from peeklock.rules.values import in_utc

__all__ = ["ActionResult", "CompiledAction", "CompiledFilter", "Equality", "compile_action", "compile_filter"]


class CompiledFilter:
    """A filter as a function, and what an index can know of it without a message."""

    __slots__ = ("always", "equalities", "exact", "matches", "never")

    def __init__(
        self,
        matches: Callable[[Subject], bool] | bool,
        equalities: tuple[Equality, ...] = (),
        exact: bool = False,
    ) -> None:
        """`matches` may be the answer itself; `equalities` as they are found by `compile_filter`."""
        self.always = matches is True
        """Matches every message."""
        self.never = matches is False
        """Matches no message."""
        self.matches: Callable[[Subject], bool] = (
            (lambda subject: matches) if isinstance(matches, bool) else matches
        )
        """True only when the filter is true of the message, not when it is unknown.

        Raises:
            EvaluationError: it cannot be said of this message.
        """
        self.equalities = equalities
        """Each is necessary: a message that lacks one does not match, and `matches` does not raise for it."""
        self.exact = exact
        """The equalities together are the whole filter."""


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
            matches, equalities = compile_correlation(replace(filter, properties=properties), stored=stored)
            return CompiledFilter(matches, equalities, exact=True)
        case SqlFilter(expression, parameters):
            tree = parse_filter(expression)
            try:
                return CompiledFilter(*compile_top(tree, bind(parameters)))
            except RuleError as error:
                raise located(error, expression) from None
        case _:
            assert_never(filter)
