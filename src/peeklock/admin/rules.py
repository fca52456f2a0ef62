"""RuleDescription in XML: filters and actions. Expressions are checked by the broker. Source:
wire contract 7.6."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from peeklock.admin.atom import Markup, Text, timestamp, write_children, write_element
from peeklock.admin.reading import Description
from peeklock.admin.typed_texts import cut
from peeklock.admin.values import read_pairs, write_pairs
from peeklock.broker.vocabulary.descriptions import RuleDescription
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.rules.filters import (
    CORRELATION_FIELDS,
    CorrelationFilter,
    FalseFilter,
    Filter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)

_COMPATIBILITY_LEVEL = 20
"""The only version of the language."""


def read_rule(given: Description, name: str) -> RuleDescription:
    """Read a rule; without a filter it matches all messages. Its own Name element is ignored.

    Raises: ArgumentInvalid.
    """
    return RuleDescription(
        name,
        _read_filter(given.child("Filter")) if given.has("Filter") else TrueFilter(),
        _read_action(given.child("Action")) if given.has("Action") else None,
    )


def write_rule(rule: RuleDescription, element: str = "RuleDescription") -> Markup:
    """Write a rule; `element` is its name."""
    written = write_element(
        element,
        (
            ("Filter", _write_filter(rule.filter)),
            ("Action", _write_action(rule.action)),
            ("CreatedAt", timestamp(rule.created_at_ms)),
            ("Name", rule.name),
        ),
    )
    return Markup(written)


def _read_filter(given: Description) -> Filter:
    match given.type:
        case "SqlFilter":
            return SqlFilter(_expression(given), *read_pairs(given, "Parameters"))
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "CorrelationFilter":
            fields = {
                field: given.exact_text(element)
                for field, element in CORRELATION_FIELDS.items()
                if given.has(element)
            }
            properties, as_given = read_pairs(given, "Properties")
            return CorrelationFilter(**fields, properties=properties, as_given=as_given)
    raise ArgumentInvalid(
        f"The type {cut(given.type)!r} of a Filter is not one of SqlFilter, TrueFilter, FalseFilter, "
        "CorrelationFilter."
    )


def _read_action(given: Description) -> SqlAction | None:
    match given.type:
        case "SqlRuleAction":
            return SqlAction(_expression(given), *read_pairs(given, "Parameters"))
        case "EmptyRuleAction":
            return None
    raise ArgumentInvalid(
        f"The type {cut(given.type)!r} of an Action is neither SqlRuleAction nor EmptyRuleAction."
    )


def _expression(given: Description) -> str:
    if not given.has("SqlExpression"):
        raise ArgumentInvalid(f"A {given.type} has no SqlExpression.")
    return given.exact_text("SqlExpression")


def _write_filter(asked: Filter) -> Markup:
    match asked:
        case SqlFilter():
            return _typed("Filter", "SqlFilter", _sql(asked))
        case TrueFilter():
            return _typed("Filter", "TrueFilter", _sql(SqlFilter("1=1")))
        case FalseFilter():
            return _typed("Filter", "FalseFilter", _sql(SqlFilter("1=0")))
        case CorrelationFilter():
            fields: list[tuple[str, Text]] = [
                (element, getattr(asked, field)) for field, element in CORRELATION_FIELDS.items()
            ]
            fields.append(("Properties", write_pairs("Properties", asked.properties, asked.as_given)))
            return _typed("Filter", "CorrelationFilter", fields)
    assert_never(asked)


def _write_action(action: SqlAction | None) -> Markup:
    if action is None:
        return Markup('<Action i:type="EmptyRuleAction"/>')
    return _typed("Action", "SqlRuleAction", _sql(action))


def _sql(written: SqlFilter | SqlAction) -> list[tuple[str, Text]]:
    return [
        ("SqlExpression", written.expression),
        ("CompatibilityLevel", _COMPATIBILITY_LEVEL),
        ("Parameters", write_pairs("Parameters", written.parameters, written.as_given)),
    ]


def _typed(name: str, kind: str, children: Iterable[tuple[str, Text]]) -> Markup:
    # The JavaScript client looks for an attribute of exactly this name.
    return Markup(f'<{name} i:type="{kind}">{write_children(children)}</{name}>')
