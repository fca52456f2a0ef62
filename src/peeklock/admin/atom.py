"""ATOM and XML as text: the answers of the administration.

They are written as text, not through a tree: JavaScript and Python clients depend on prefixes and on the
order of elements. Source: wire contract 7.2; RFC 4287.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

SERVICE_BUS_NAMESPACE = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
SCHEMA_INSTANCE_NAMESPACE = "http://www.w3.org/2001/XMLSchema-instance"

ENTRY_TYPE = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE = "application/atom+xml;type=feed;charset=utf-8"
ERROR_TYPE = "application/xml; charset=utf-8"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER = "0001-01-01T00:00:00Z"
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot carry, not even escaped (section 2.2)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry, alone or in a feed."""

    title: str
    href: str
    """Absolute, percent-encoded."""
    published_ms: int
    updated_ms: int
    content: str
    """XML, escaped already."""


def escape(text: str) -> str:
    """Escape text for content and for attributes in double quotes; illegal characters become U+FFFD."""
    text = _ILLEGAL.sub("\ufffd", text).replace("&", "&amp;")
    text = text.replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    return text.replace("\r", "&#13;")  # a bare one is read as a line feed: XML 1.0, 2.11


class Markup(str):
    """XML, escaped already."""

    __slots__ = ()


Text: TypeAlias = Markup | str | int | bool | None
"""Content of an element; None = the element is left out."""


def write_element(kind: str, children: Iterable[tuple[str, Text]]) -> str:
    """Write an element of the service's namespace with its children."""
    return (
        f'<{kind} xmlns="{SERVICE_BUS_NAMESPACE}" xmlns:i="{SCHEMA_INSTANCE_NAMESPACE}">'
        + write_children(children)
        + f"</{kind}>"
    )


def write_children(children: Iterable[tuple[str, Text]]) -> str:
    """Write elements one after another."""
    return "".join(_element(name, value) for name, value in children if value is not None)


def _element(name: str, value: Text) -> str:
    if isinstance(value, Markup):
        return value
    if isinstance(value, bool):
        return f"<{name}>{'true' if value else 'false'}</{name}>"
    text = escape(str(value))
    return f"<{name}>{text}</{name}>" if text else f"<{name}/>"


def timestamp(ms: int) -> str:
    """Write UTC ms as `2024-01-01T00:00:00.000Z`; 0 = never, the service's year 1."""
    if ms == 0:
        return _NEVER
    # Through a timedelta: floats lose milliseconds.
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def entry(item: Entry, author: str, *, alone: bool = True) -> str:
    """Write an entry; `alone`: it is the whole document."""
    namespace = ' xmlns="http://www.w3.org/2005/Atom"' if alone else ""
    href = escape(item.href)
    return (
        f'<entry{namespace}><id>{href}</id><title type="text">{escape(item.title)}</title>'
        f"<published>{timestamp(item.published_ms)}</published><updated>{timestamp(item.updated_ms)}</updated>"
        f'<author><name>{escape(author)}</name></author><link rel="self" href="{href}"/>'
        f'<content type="application/xml">{item.content}</content></entry>'
    )


def feed(
    title: str, href: str, next_href: str | None, updated_ms: int, entries: Iterable[Entry], author: str
) -> str:
    """Write a page of a list.

    The link to the next page is the second of exactly two: the Python client finds it by that.
    """
    further = f'<link rel="next" href="{escape(next_href)}"/>' if next_href is not None else ""
    return (
        f'<feed xmlns="http://www.w3.org/2005/Atom"><title type="text">{escape(title)}</title>'
        f"<id>{escape(href)}</id><updated>{timestamp(updated_ms)}</updated>"
        f'<link rel="self" href="{escape(href)}"/>{further}'
        + "".join(entry(item, author, alone=False) for item in entries)
        + "</feed>"
    )


def nothing_here(identity: str, updated_ms: int) -> str:
    """Write the service's answer to a look-up of something absent: a feed without entries or links."""
    return (
        '<feed xmlns="http://www.w3.org/2005/Atom"><title type="text">Publicly Listed Services</title>'
        f"<id>uuid:{escape(identity)}</id><updated>{timestamp(updated_ms)}</updated></feed>"
    )


def error(status: int, detail: str) -> str:
    """Write an error's body."""
    return f"<Error><Code>{status}</Code><Detail>{escape(detail)}</Detail></Error>"
