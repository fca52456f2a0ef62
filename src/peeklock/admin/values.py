"""Typed values in XML: parameters of expressions, properties of correlation filters.

They are `KeyValueOfstringanyType` elements with XML Schema types. Source: wire contract 7.6; XML
Schema Part 2.
"""

from __future__ import annotations

from peeklock.admin.atom import Markup, escape
from peeklock.admin.reading import Description
from peeklock.admin.typed_texts import BEYOND_TICKS, LONG_MAX, READERS, cut, written
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.rules.filters import AllAsGiven, AsGiven, Pairs, Value, join_given, split_given

_SCHEMA = "http://www.w3.org/2001/XMLSchema"
_SERIALIZATION = "http://schemas.microsoft.com/2003/10/Serialization/"
"""Of .NET's types that XML Schema lacks."""

_PAIR = "KeyValueOfstringanyType"

NOTATION = "d"
"""Of the types here, in `AsGiven`."""


def read_pairs(given: Description, name: str) -> tuple[Pairs, AllAsGiven]:
    """Read names with their values, in order; a value that is nil is None.

    Raises: ArgumentInvalid.
    """
    if not given.has(name):
        return (), ()
    return split_given(_read_pair(pair, name) for pair in given.child(name).items(_PAIR))


def write_pairs(name: str, pairs: Pairs, as_given: AllAsGiven) -> Markup:
    """Write names with their values; without any, the empty element."""
    if not pairs:
        return Markup(f"<{name}/>")
    elements = (
        f"<{_PAIR}><Key>{escape(key)}</Key>{_write_value(value, given)}</{_PAIR}>"
        for key, value, given in join_given(pairs, as_given)
    )
    return Markup(f"<{name}>{''.join(elements)}</{name}>")


def _read_pair(pair: Description, where: str) -> tuple[str, Value | None, AsGiven | None]:
    if not pair.has("Key"):
        raise ArgumentInvalid(f"One of the {where} has no Key.")
    key = pair.exact_text("Key")
    if not pair.has("Value"):
        return key, None, None
    element = pair.child("Value")
    kind = element.type or "string"
    read = READERS.get(kind)
    if read is None:
        raise ArgumentInvalid(
            f"The value of {cut(key)!r} in {where} has the type {cut(kind)!r}; "
            f"known are {', '.join(READERS)}."
        )
    try:
        value = read(element.content)
    except (ValueError, ArithmeticError) as failure:
        raise ArgumentInvalid(
            f"The value {element.content[:80]!r} of {cut(key)!r} in {where} is not a valid {kind}: {failure}."
        ) from failure
    return key, value, _as_given(kind, element.content, value)


def _as_given(kind: str, content: str, value: Value) -> AsGiven | None:
    """Return how a value was given, unless that follows from the value. Source: wire contract C35."""
    if kind == "string":
        return None
    text = content.strip()
    if kind in ("dateTime", "duration"):
        text = BEYOND_TICKS.sub(r"\1", text)
    return None if (kind, text) == written(value) else AsGiven(f"{NOTATION}:{kind}", text)


_OF_AMQP = {
    **dict.fromkeys(("byte", "short", "int", "ubyte", "ushort"), "int"),
    **dict.fromkeys(("uint", "long", "ulong"), "long"),
    **dict.fromkeys(("float", "double"), "double"),
    **dict.fromkeys(("decimal", "char", "symbol", "uuid", "uri"), "string"),
    **dict.fromkeys(("timestamp", "datetime-offset"), "dateTime"),
    "timespan": "duration",
}
"""AMQP type of a value -> the nearest one that clients of the administration API read: .NET's fails on a
whole list for one unknown type. Source: wire contract C35."""


def _write_value(value: Value | None, given: AsGiven | None) -> str:
    if value is None:
        return '<Value i:nil="true"/>'
    kind, text = written(value)
    if given is not None:
        if given.name_in(NOTATION) in READERS:
            kind, text = given.name_in(NOTATION) or kind, given.text
        else:
            kind = _OF_AMQP.get(given.name_in("amqp") or "", kind)
            if kind == "long" and int(text) > LONG_MAX:
                kind = "string"
    namespace = _SERIALIZATION if kind == "guid" else _SCHEMA
    # A prefix of four characters: the JavaScript client cuts off five, with the colon.
    return f'<Value xmlns:d6p1="{namespace}" i:type="d6p1:{kind}">{escape(text)}</Value>'
