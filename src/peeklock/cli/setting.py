"""One setting of `peeklock serve`, with all that its option, its variable, its key and the reference need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import click

Scope = Literal["process", "namespace"]

PREFIX = "PEEKLOCK_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting."""

    name: str
    """Of the option, without dashes before it, and of the key in the settings file."""
    field: str
    """Of `server.settings.Settings`."""
    topic: str
    """The part of the reference that it stands in."""
    help: str
    scope: Scope = "process"
    """Whether it holds for the process or for one namespace."""
    more: str = ""
    """Markdown that the reference adds to the help: links."""
    type: click.ParamType[Any] | None = None
    """None = text."""
    parse: Callable[[str], Any] | None = None
    """Raises: ValueError."""
    default: Any = None
    default_text: str = ""
    """For the reference, if the default is not the value itself."""
    metavar: str | None = None
    repeatable: bool = False
    flag: bool = False
    secret: bool = False
    """`PEEKLOCK_..._FILE` may name a file that has the value."""
    reloads: bool = False
    """The file that it names is read again when it changes."""

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.replace("-", "_").upper()

    @property
    def is_path(self) -> bool:
        return isinstance(self.type, click.Path)
