"""Where the value of a setting comes from: command line, environment, settings file, default, in this order.

Makes the options of a command from the table of settings. A mistake names its place: the option, the
variable, or file, line and key.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from peeklock.cli.options import EXISTING_FILE, parsed
from peeklock.cli.setting import PREFIX, Setting
from peeklock.cli.settings_table import SETTINGS

SETTINGS_VARIABLE = PREFIX + "SETTINGS"

_FILE = "_FILE"

_OTHERS = re.compile(r"PEEKLOCK_(SERVICE_.*|PORT|PORT_.*|PYTHON|PURE|COMPILE)")
"""Kubernetes sets the first three in every pod beside a service named peeklock; `./run` reads the next,
`peeklock.form` and the build of a wheel the last."""

_LINES = "peeklock.settings_lines"
"""Key of the context's `meta`: the file, and the line of each of its keys."""


def setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each setting, and `--settings`, which names the file."""
    for setting in reversed(SETTINGS):
        command = _option(setting)(command)
    return click.option(
        "--settings",
        type=EXISTING_FILE,
        envvar=SETTINGS_VARIABLE,
        is_eager=True,
        expose_value=False,
        callback=_read_sources,
        help="TOML file with settings: its keys are the names of these options. Each option can also be "
        "set by a variable, as PEEKLOCK_AMQP_PORT. The command line wins over the environment, and that "
        "over the file.",
    )(command)


def settings_file_of(context: click.Context) -> Path | None:
    """Return the settings file that was read."""
    return context.meta[_LINES][0] if _LINES in context.meta else None


class SettingOption(click.Option):
    """An option that knows its setting."""

    def __init__(self, *args: Any, setting: Setting, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.setting = setting

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the place of a wrong value."""
        source = None if ctx is None else ctx.get_parameter_source(self.setting.field)
        if ctx is not None and source is ParameterSource.ENVIRONMENT:
            return self.setting.variable
        if ctx is not None and source is ParameterSource.DEFAULT_MAP:
            file, lines = ctx.meta[_LINES]
            return f"{self.setting.name} in {_place(file, lines.get(self.setting.name))}"
        return super().get_error_hint(ctx)

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """Return the value of the variable, a list split at commas and blanks; None = not set."""
        value = self.resolve_envvar_value(ctx)
        if value is None and self.setting.secret and (named := os.environ.get(self.setting.variable + _FILE)):
            value = _secret_of(self.setting, Path(named))
        if value is not None and self.multiple:
            return re.split(r"[\s,]+", value.strip(" \t\r\n,"))
        return value


def _option(setting: Setting) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    help_text = f"{setting.help}  [default: {setting.default_text}]" if setting.default_text else setting.help
    given: dict[str, Any] = {
        "cls": SettingOption,
        "setting": setting,
        "help": help_text,
        "envvar": setting.variable,
        "hidden": setting.secret,
    }
    if setting.flag:
        given["is_flag"] = True
    else:
        given |= {"type": setting.type, "multiple": setting.repeatable, "metavar": setting.metavar}
        if setting.default is not None:
            given["default"] = setting.default
    if setting.parse is not None:
        given["callback"] = parsed(setting.parse)
    return click.option(f"--{setting.name}", setting.field, **given)


def _secret_of(setting: Setting, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as failure:
        why = getattr(failure, "strerror", None) or "it is not text"
        raise click.UsageError(
            f"{setting.variable}{_FILE} names {file}, which cannot be read: {why}."
        ) from failure


def _read_sources(context: click.Context, parameter: click.Parameter, given: Path | None) -> None:
    """Check the names of the variables, and read the settings file. Raises: click.UsageError."""
    problems = problems_of(os.environ)
    if problems:
        raise click.UsageError("\n".join(problems))
    if given is None:
        return
    values, lines = read_settings_file(given)
    context.meta[_LINES] = given, lines
    context.default_map = {**(context.default_map or {}), **values}


def problems_of(environ: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the names of the variables that begin with `PEEKLOCK_`, in any case."""
    secrets = {setting.variable + _FILE: setting.variable for setting in SETTINGS if setting.secret}
    known = {SETTINGS_VARIABLE, *(setting.variable for setting in SETTINGS), *secrets}
    problems = []
    for name in sorted(environ):
        if not name.upper().startswith(PREFIX) or _OTHERS.fullmatch(name):
            continue
        if name in known:
            if (double := secrets.get(name)) is not None and double in environ:
                problems.append(f"{double} and {name} set the same: remove one of them.")
        elif name.upper() in known:
            problems.append(f"{name} is not read: write {name.upper()}, and only once.")
        else:
            problems.append(
                f"{name} is not a setting{_nearest(name, known)} `peeklock serve --help` lists all."
            )
    return problems


def read_settings_file(file: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the values by field, as texts, and the line of each key.

    Paths in the file are relative to its folder. Raises: click.UsageError with all that is wrong, with file,
    line and key.
    """
    try:
        text = file.read_text(encoding="utf-8")
        found = tomllib.loads(text)
    except OSError as failure:
        raise click.UsageError(f"{file} cannot be read: {failure.strerror or failure}.") from failure
    except UnicodeError as failure:
        raise click.UsageError(f"{file} is not a settings file: it is not UTF-8 text.") from failure
    except tomllib.TOMLDecodeError as failure:
        raise click.UsageError(f"{file} is not TOML: {failure}.") from failure
    lines = {key: line for key in found if (line := _line_of(key, text))}
    table = {setting.name: setting for setting in SETTINGS}
    values: dict[str, Any] = {}
    problems = []
    for key, value in found.items():
        setting = table.get(key)
        place = _place(file, lines.get(key))
        if setting is None:
            problems.append(f"{place}: {key!r} is not a setting{_nearest(key, table)}")
            continue
        try:
            values[setting.field] = _value_of(setting, value, file.parent)
        except ValueError as failure:
            problems.append(f"{place}: {key} {failure}.")
    if problems:
        raise click.UsageError("\n".join(problems))
    return values, lines


def _value_of(setting: Setting, value: Any, base: Path) -> Any:
    """Return the value as the command line would have it. Raises: ValueError, for a value of another kind."""
    if setting.flag:
        if not isinstance(value, bool):
            raise ValueError(f"is {_shown(value)}, and must be true or false, without quotation marks")
        return value
    if setting.repeatable:
        if not isinstance(value, list):
            raise ValueError(f"is {_shown(value)}, and must be a list, as [{_shown(value)}]")
        return [_text_of(setting, member, base) for member in value]
    return _text_of(setting, value, base)


def _text_of(setting: Setting, value: Any, base: Path) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"is {_shown(value)}, and must be a text or a number")
    if setting.is_path and value != "":
        return str(base / str(value))
    return str(value)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _nearest(name: str, known: Iterable[str]) -> str:
    by_rest = {each.removeprefix(PREFIX): each for each in known}
    near = get_close_matches(name.removeprefix(PREFIX), by_rest, 1)
    return f", did you mean {by_rest[near[0]]}?" if near else "."


def _line_of(key: str, text: str) -> int | None:
    """Return the line that sets a key, or begins its table."""
    found = re.search(rf"""^[ \t]*\[?\[?[ \t]*["']?{re.escape(key)}["']?[ \t]*[\].=]""", text, re.MULTILINE)
    return None if found is None else text.count("\n", 0, found.start()) + 1


def _place(file: Path, line: int | None) -> str:
    return f"{file}, line {line}" if line else str(file)
