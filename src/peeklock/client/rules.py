"""Rules of a subscription in XML: filters and actions. Pure. Source: wire contract 7.6."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from peeklock.client.entities import NAMESPACE, SCHEMA_INSTANCE, local

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

DEFAULT_RULE: Final = "$Default"

SYSTEM_PROPERTIES: Final = (
    "CorrelationId", "MessageId", "To", "ReplyTo", "Label", "SessionId", "ReplyToSessionId", "ContentType",
)  # fmt: skip
"""What a correlation filter can compare besides application properties, in the service's order."""


class Typed(NamedTuple):
    """A value of a property or parameter, as the service writes it."""

    text: str
    type: str = "string"
    """Of XML Schema: string, int, long, double, boolean, dateTime, ..."""


@dataclass(frozen=True, slots=True)
class Sql:
    """An expression of a filter or of an action."""

    expression: str
    parameters: tuple[tuple[str, Typed], ...] = ()
    """Names with their `@`."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """Matches messages that have exactly these values."""

    system: tuple[tuple[str, str], ...] = ()
    """By `SYSTEM_PROPERTIES`."""
    properties: tuple[tuple[str, Typed], ...] = ()


Filter: TypeAlias = Sql | Correlation | bool
"""True matches all messages, False none."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a subscription."""

    name: str
    filter: Filter = True
    action: Sql | None = None
    created_at: str = ""
    """In ISO 8601; the service's."""


def read_rule(name: str, given: Element) -> Rule:
    """Return a rule of its description. Raises: ValueError."""
    found = {local(child): child for child in given}
    if local(given) != "RuleDescription" or "Filter" not in found:
        raise ValueError(f"{local(given)!r} is not a rule")
    action = found.get("Action")
    return Rule(
        name,
        _filter(found["Filter"]),
        None if action is None or _type(action) == "EmptyRuleAction" else _sql(action),
        found["CreatedAt"].text or "" if "CreatedAt" in found else "",
    )


def write_rule(rule: Rule, element: str = "RuleDescription") -> str:
    """Return the description of a rule; `element` is its name."""
    match rule.filter:
        case bool():
            kind = "TrueFilter" if rule.filter else "FalseFilter"
            content = _written(Sql("1=1" if rule.filter else "1=0"))
        case Sql():
            kind, content = "SqlFilter", _written(rule.filter)
        case Correlation():
            named = dict(rule.filter.system)
            content = "".join(
                f"<{name}>{escape(named[name], quote=False)}</{name}>"
                for name in SYSTEM_PROPERTIES
                if name in named
            ) + _pairs("Properties", rule.filter.properties)
            kind = "CorrelationFilter"
    action = '<Action i:type="EmptyRuleAction"/>'
    if rule.action is not None:
        action = f'<Action i:type="SqlRuleAction">{_written(rule.action)}</Action>'
    name = escape(rule.name, quote=False)
    return (
        f'<{element} xmlns="{NAMESPACE}" xmlns:i="{SCHEMA_INSTANCE}">'
        f'<Filter i:type="{kind}">{content}</Filter>'
        f"{action}<Name>{name}</Name></{element}>"
    )


def _filter(given: Element) -> Filter:
    match _type(given):
        case "TrueFilter":
            return True
        case "FalseFilter":
            return False
        case "SqlFilter":
            return _sql(given)
        case "CorrelationFilter":
            texts = {local(child): child.text or "" for child in given}
            system = tuple((name, texts[name]) for name in SYSTEM_PROPERTIES if name in texts)
            return Correlation(system, tuple(_read_pairs(given, "Properties")))
    raise ValueError(f"the filter {_type(given)!r} is not known")


def _sql(given: Element) -> Sql:
    expression = next((child.text or "" for child in given if local(child) == "SqlExpression"), "")
    return Sql(expression, tuple(_read_pairs(given, "Parameters")))


def _read_pairs(given: Element, name: str) -> Iterable[tuple[str, Typed]]:
    for pairs in given:
        if local(pairs) == name:
            for pair in pairs:
                found = {local(child): child for child in pair}
                value = found["Value"]
                yield found["Key"].text or "", Typed(value.text or "", _type(value) or "string")


def _type(element: Element) -> str:
    return element.get(f"{{{SCHEMA_INSTANCE}}}type", "").rpartition(":")[2]


def _written(sql: Sql) -> str:
    expression = escape(sql.expression, quote=False)
    return (
        f"<SqlExpression>{expression}</SqlExpression><CompatibilityLevel>20</CompatibilityLevel>"
        f"{_pairs('Parameters', sql.parameters)}"
    )


def _pairs(name: str, pairs: Iterable[tuple[str, Typed]]) -> str:
    written = "".join(
        f"<KeyValueOfstringanyType><Key>{escape(key, quote=False)}</Key>"
        f'<Value xmlns:d6p1="{_SERIALIZATION if value.type in _DOTNET else _SCHEMA}" '
        f'i:type="d6p1:{value.type}">{escape(value.text, quote=False)}</Value></KeyValueOfstringanyType>'
        for key, value in pairs
    )
    return f"<{name}>{written}</{name}>"


_SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
_SERIALIZATION: Final = "http://schemas.microsoft.com/2003/10/Serialization/"
_DOTNET: Final = ("guid", "char", "duration")
"""Types that XML Schema lacks, or that .NET writes in its own namespace."""
