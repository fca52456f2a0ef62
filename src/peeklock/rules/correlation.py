"""Correlation filters: equalities, all of which have to hold.

Owns: which fields there are and what each is compared with. Must not know: SQL.
Source: wire contract 9.2; Learn "Topic filters and actions".
"""

from __future__ import annotations

from peeklock.rules.errors import RuleError
from peeklock.rules.expression import SPELLED, check_value
from peeklock.rules.filters import CorrelationFilter, Value
from peeklock.rules.subject import ID_LENGTH_MAX
from peeklock.rules.terms import Equality, Term, equality_term
from peeklock.rules.values import equal, equals_itself, index_key

_FIELDS = {
    "correlation_id": "correlationid",
    "message_id": "messageid",
    "to": "to",
    "reply_to": "replyto",
    "label": "label",
    "session_id": "sessionid",
    "reply_to_session_id": "replytosessionid",
    "content_type": "contenttype",
}
"""Field of the filter -> system property."""
_BOUNDED = ("message_id", "session_id")
"""Fields that are checked when a message is sent."""


def compile_correlation(given: CorrelationFilter, *, stored: bool = False) -> tuple[Term, ...]:
    """Make the terms of a correlation filter, each of them an equality.

    Args:
        given: the filter.
        stored: it is an older one, in which names that differ in case only are conditions of their own.

    Raises:
        RuleError: nothing to compare with, twice the same property, or a value that no message can have.
    Source: wire contract 9.2, C36.
    """
    system: list[tuple[str, Value]] = []
    for field, name in _FIELDS.items():
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
            raise RuleError(f"The property {name!r} is given twice; case makes no difference.")
        names.add(once)
        if value is not None:
            check_value(f"the property {name!r}", value)
        if value is None or not equals_itself(value):
            raise RuleError(f"The value of the property {name!r} equals nothing; no message could match.")
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
