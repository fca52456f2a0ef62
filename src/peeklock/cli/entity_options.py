"""The settings of an entity as options, made of the client's table: one rule for all names.

An option is the setting's name in lower case with hyphens, without Enable, Requires and the unit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click

from peeklock.cli.options import parsed
from peeklock.client.durations import parse_duration, short_duration
from peeklock.client.entities import ELEMENTS, SETTINGS, Kind, Value

_UNITS = {"InMegabytes": 1 << 20, "InKilobytes": 1 << 10}
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def option_of(element: str) -> str:
    """Return the option of a setting, such as `--lock-duration`."""
    name = re.sub("^(Enable|Requires)|(InMegabytes|InKilobytes)$", "", element)
    return "--" + re.sub("(?<!^)([A-Z])", r"-\1", name).lower()


def setting_options(
    kind: Kind, *, update: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the settings of a kind; `update`: those that can be changed later."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for element in reversed(ELEMENTS[kind]):
            if element in SETTINGS and not (update and SETTINGS[element].fixed):
                command = _option(element)(command)
        return command

    return decorate


def settings_of(given: dict[str, Any]) -> dict[str, Value]:
    """Remove the settings from the arguments of a command; return those that were given, by element."""
    found = {element: given.pop(element) for element in SETTINGS if element in given}
    return {element: value for element, value in found.items() if value is not None}


def shown(element: str, value: Value | None) -> str:
    """Return the value of a setting for people."""
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, timedelta):
        return short_duration(value)
    for suffix, unit in _UNITS.items():
        if element.endswith(suffix):
            return size_text(int(value) * unit)
    return str(value)


def size_text(size_bytes: int) -> str:
    """Return a size for people, such as 1.5 MiB."""
    size, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"


def _size_in(unit: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        found = re.fullmatch("([0-9]{1,12})([kmg]?)", text.lower())
        size = int(found[1]) * _FACTORS[found[2]] if found else 0
        if size == 0 or size % unit:
            least = "1m" if unit == 1 << 20 else "1k"
            raise ValueError(f"{text!r} is not a size such as 1g or 512m, in whole {least} units.")
        return size // unit

    return read


def _option(element: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    setting, name = SETTINGS[element], option_of(element)
    if setting.type is bool:
        return click.option(f"{name}/--no-{name[2:]}", element, default=None, help=setting.about)
    for suffix, unit in _UNITS.items():
        if element.endswith(suffix):
            read = parsed(_size_in(unit))
            return click.option(name, element, callback=read, metavar="SIZE", help=setting.about)
    if setting.type is timedelta:
        read = parsed(parse_duration)
        return click.option(name, element, callback=read, metavar="SPAN", help=setting.about)
    if setting.choices:
        kind = click.Choice(setting.choices, case_sensitive=False)
        return click.option(name, element, type=kind, help=setting.about)
    metavar = "N" if setting.type is int else "ENTITY" if setting.names_entity else "TEXT"
    return click.option(name, element, type=setting.type, metavar=metavar, help=setting.about)
