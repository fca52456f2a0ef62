"""`peeklock logins`: connection strings by name, in a file that only its owner can read.

The option `--connection NAME` of other commands names one. The group is not called `connections`: that shows
who is connected to a broker.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from peeklock.cli.options import EXISTING_FILE, reported
from peeklock.cli.tables import table
from peeklock.cli.tasks import Group

if TYPE_CHECKING:
    from peeklock.client.connection_string import ConnectionString

EXIT = "Exit status: 0 done; 1 refused, with the reason on standard error; 2 wrong options; 130 interrupted."


class LoginRefused(Exception):
    """The file or a login in it cannot be used; the text says why, and what to do. It has no secret."""


@dataclass(frozen=True, slots=True)
class Login:
    """How to connect to a namespace."""

    connection_string: str
    ca: str | None = None
    """PEM file of the certificates to trust."""
    entra: bool = False
    websocket: bool = False

    def settings(self) -> ConnectionString:
        """Return the connection string taken apart. Raises: OptionError."""
        from peeklock.client.connection_string import ConnectionString
        from peeklock.client.credentials import entra_credential

        credential = entra_credential() if self.entra else None
        return ConnectionString.parse(
            self.connection_string, ca_file=self.ca, credential=credential, websocket=self.websocket
        )


def logins_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file of the user's logins."""
    folder = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or Path.home(), ".config")
    return Path(folder) / "peeklock" / "connections.toml"


def read_logins(file: Path) -> dict[str, Login]:
    """Return the logins by name. Raises: LoginRefused."""
    import tomllib

    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise LoginRefused(
                    f"{file} has keys, and others can read it (mode {stat.S_IMODE(mode):04o}): "
                    f"run chmod 600 {file}, and replace its keys if others could have read them"
                )
            found = tomllib.load(opened)
    except FileNotFoundError:
        return {}
    except OSError as failure:
        raise LoginRefused(f"{file} cannot be read: {failure.strerror}") from failure
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as failure:
        raise LoginRefused(f"{file} is not TOML; correct it, or remove it") from failure
    return {name: _login(file, name, values) for name, values in found.items()}


def login_of(name: str, file: Path) -> Login:
    """Return the login of a name. Raises: LoginRefused."""
    logins = read_logins(file)
    if name not in logins:
        there = ", ".join(sorted(logins)) or "none"
        raise LoginRefused(f"there is no login '{name}' ({there}): add it with peeklock logins add {name}")
    return logins[name]


def complete_login(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of logins that begin so, for a shell's completion; none if the file cannot be used."""
    try:
        return sorted(name for name in read_logins(logins_file()) if name.startswith(incomplete))
    except LoginRefused:
        return []


def _login(file: Path, name: str, values: Any) -> Login:
    types = {"connection-string": str, "ca": str, "entra": bool, "websocket": bool}
    if (
        not isinstance(values, dict)
        or "connection-string" not in values
        or any(not isinstance(value, types.get(key, ())) for key, value in values.items())
    ):
        raise LoginRefused(
            f"login '{name}' in {file} needs connection-string, and may have ca, entra, websocket"
        )
    return Login(**{key.replace("-", "_"): value for key, value in values.items()})


def _write(file: Path, logins: Mapping[str, Login]) -> None:
    """Replace the file as a whole. Raises: LoginRefused."""
    parts = []
    for name, login in sorted(logins.items()):
        values: dict[str, Any] = {"connection-string": login.connection_string, "ca": login.ca}
        values |= {"entra": login.entra or None, "websocket": login.websocket or None}
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in values.items() if value is not None]
        parts.append(f"[{json.dumps(name)}]\n{''.join(lines)}")
    new = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write("\n".join(parts))
        new.replace(file)
    except OSError as failure:
        raise LoginRefused(f"{file} cannot be written: {failure.strerror}") from failure


@click.group(
    cls=Group,
    help="Keep connection strings by name, for --connection NAME.\n\n"
    "They are in $XDG_CONFIG_HOME/peeklock/connections.toml, which only you can read: a file that others can "
    f"read is refused.\n\n{EXIT}",
)
def logins() -> None:
    pass


@logins.command("add")
@click.argument("name")
@click.option(
    "--connection-string",
    envvar="SERVICEBUS_CONNECTION_STRING",
    metavar="TEXT",
    help="Default: the variable SERVICEBUS_CONNECTION_STRING, else it is asked for, and not shown; without a "
    "terminal it is the first line of standard input.",
)
@click.option("--ca", type=EXISTING_FILE, metavar="FILE", help="PEM file of the certificates to trust.")
@click.option(
    "--entra", is_flag=True, help="Ask Entra for tokens; the connection string is Endpoint=sb://HOST."
)
@click.option("--websocket", is_flag=True, help="AMQP over WebSocket, by port 443 unless another is given.")
def add_login(
    name: str, connection_string: str | None, ca: Path | None, entra: bool, websocket: bool
) -> None:
    """Add a login, or replace the one of this name."""
    from peeklock.client.errors import OptionError

    given = connection_string or _asked()
    login = Login(given.strip(), None if ca is None else str(ca.resolve()), entra, websocket)
    file = logins_file()
    with reported(LoginRefused, OptionError):
        settings = login.settings()
        _write(file, {**read_logins(file), name: login})
    source = click.get_current_context().get_parameter_source("connection_string")
    origin = ", from SERVICEBUS_CONNECTION_STRING" if source is ParameterSource.ENVIRONMENT else ""
    place = f"{settings.host}:{settings.port}"
    click.echo(f"added login '{name}' of {place}{origin}: use it with --connection {name}")


def _asked() -> str:
    """Return the connection string from the terminal, or from standard input where there is none."""
    if sys.stdin.isatty():
        return str(click.prompt("Connection string", hide_input=True))
    if line := sys.stdin.readline().strip():
        return line
    raise click.UsageError("give --connection-string TEXT, or the text on standard input.")


@logins.command("list")
def list_logins() -> None:
    """Show the logins, without their keys."""
    from peeklock.client.connection_string import ConnectionString
    from peeklock.client.errors import OptionError

    with reported(LoginRefused, OptionError):
        rows = []
        for name, login in sorted(read_logins(logins_file()).items()):
            settings = None if login.entra else ConnectionString.parse(login.connection_string)
            host = login.connection_string if settings is None else f"{settings.host}:{settings.port}"
            by = "Entra" if login.entra else "connection string"
            rows.append([name, host, by, "yes" if login.websocket else "no"])
    click.echo("\n".join(table(["NAME", "HOST", "BY", "WEBSOCKET"], rows)))


@logins.command("remove")
@click.argument("name", shell_complete=complete_login)
def remove_login(name: str) -> None:
    """Remove a login."""
    file = logins_file()
    with reported(LoginRefused):
        login_of(name, file)
        _write(file, {each: login for each, login in read_logins(file).items() if each != name})
    click.echo(f"removed login '{name}'")
