"""XML of the service's namespace as text, piece by piece.

Owns: elements and their values, escaped. Must not know: which elements there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from peeklock.admin.atom import SCHEMA_INSTANCE_NAMESPACE, SERVICE_BUS_NAMESPACE, escape


class Markup(str):
    """XML, escaped already."""

    __slots__ = ()


Text: TypeAlias = Markup | str | int | bool | None
"""What stands in an element; None = the element is left out."""


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
