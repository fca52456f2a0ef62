"""The one way for commands to a running broker: find it, ask it, and say what went wrong.

A command takes `@to_a_running_broker` and calls `broker.ask(method, path)`. A broker is found by
1. what the command line names: `--data DIR` (its control socket), `--control PATH`, `--connection-string`,
   `--connection` (a login), or `--url`;
2. else the environment: `PEEKLOCK_CONTROL`, `PEEKLOCK_DATA`, `SERVICEBUS_CONNECTION_STRING`;
3. else the default port of this machine, where a broker in development mode asks for no key.
The socket needs no key; a connection string needs one with the right that the page asks for. Over it the
command signs a token for the namespace. Every port of a broker takes HTTP, so the port of the connection
string is right as it is.

`peeklock health` runs every few seconds in a container: what a socket does not need is imported where it is.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from peeklock.cli.connecting import complete_login
from peeklock.cli.options import EXISTING_FILE, SOCKET, parsed, reported

if TYPE_CHECKING:
    from http.client import HTTPConnection

    from peeklock.cli.connecting import Login
    from peeklock.client.connection_string import ConnectionString
    from peeklock.client.requests import Requests

DEFAULT_URL = "http://127.0.0.1:5300"

SOCKET_NAME = "control.sock"
"""In the data folder. Source: `server.settings.CONTROL_SOCKET`, whose import takes as long as an answer."""

TIMEOUT_S = 10.0
"""For a connection and for an answer. Our choice: a broker that takes longer does not live."""

_HINT = "name a running one with --data DIR, --control PATH or --connection-string"


class BrokerError(Exception):
    """No broker answers, or it refuses; the text says what to do."""


class NotRunning(BrokerError):
    """No broker answers."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a broker answers."""

    status: int
    value: Any
    """From JSON; None = no body."""


class RunningBroker:
    """A broker that a command asks."""

    def __init__(self, connect: Callable[[], HTTPConnection], where: str, missing: str) -> None:
        """`connect` makes a connection, which need not be open; `missing` says that nobody answers there."""
        self._connect = connect
        self.where = where
        """For texts."""
        self._missing = missing
        self.headers: dict[str, str] = {}
        self.authorization: Callable[[], str] | None = None
        """Returns a token that is valid for some minutes."""
        self.connection_string: ConnectionString | None = None
        """By which it was named."""

    def runs(self) -> bool:
        """Return whether a broker can be reached. Raises: BrokerError."""
        try:
            self._connect().close()
        except OSError as failure:
            failed = self._failed(failure)
            if isinstance(failed, NotRunning):
                return False
            raise failed from failure
        return True

    def ask(self, method: str, path: str, body: bytes = b"") -> Answer:
        """Return the answer to a request, of any status. Raises: NotRunning, BrokerError."""
        status, body, _ = self.exchange(method, path, body, {})
        return _answer(status, body)

    def exchange(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Return status, body, and headers by names in lower case, of any answer.

        Raises: NotRunning, BrokerError.
        """
        from http.client import HTTPException

        sent = {**self.headers, **headers}
        if self.authorization is not None:
            sent["Authorization"] = self.authorization()
        try:
            connection = self._connect()
        except OSError as failure:
            raise self._failed(failure) from failure
        try:
            connection.request(method, path, body or None, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, answer.read(), found
        except (OSError, HTTPException) as failure:
            raise self._failed(failure) from failure
        finally:
            connection.close()

    def requests(self) -> Requests:
        """Return requests to its administration."""
        from peeklock.client.requests import Reply, Requests

        def ask(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
            return Reply(*self.exchange(method, path, body, headers))

        return Requests(ask, self.where)

    def _failed(self, failure: Exception) -> BrokerError:
        """Return the error for a request without an answer."""
        match failure:
            case FileNotFoundError() | ConnectionRefusedError():
                return NotRunning(self._missing)
            case TimeoutError():
                return NotRunning(f"{self.where} has not answered within {TIMEOUT_S:.0f} s")
            case PermissionError():
                text = f"{self.where} is another user's: run the command as the user who runs the broker"
                return BrokerError(text)
        return BrokerError(f"cannot ask {self.where}: {_why(failure)}")

    def value(self, method: str, path: str, body: bytes = b"") -> Any:
        """Return what a request is answered with. Raises: BrokerError, also for a refusal."""
        answer = self.ask(method, path, body)
        if answer.status < 300:
            return answer.value
        raise self._refusal(answer)

    def data(self, method: str, path: str) -> bytes:
        """Return the bytes that a request is answered with. Raises: BrokerError, also for a refusal."""
        status, body, _ = self.exchange(method, path, b"", {})
        if status < 300:
            return body
        raise self._refusal(_answer(status, body))

    def _refusal(self, answer: Answer) -> BrokerError:
        reason = answer.value.get("detail") if isinstance(answer.value, Mapping) else answer.value
        return BrokerError(
            f"{self.where} refused it: {str(reason or answer.status).rstrip('.')}{_advice(answer.status)}"
        )


def _answer(status: int, body: bytes) -> Answer:
    try:
        return Answer(status, json.loads(body) if body else None)
    except ValueError:
        return Answer(status, body.decode(errors="replace").strip())


def to_a_running_broker(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that find a broker, and call a command with the argument `broker`."""

    @functools.wraps(command)
    def found(
        *,
        data: Path | None,
        control: Path | None,
        connection_string: str | None,
        url: str | None,
        connection: str | None,
        entra: bool,
        ca: Path | None,
        **given: Any,
    ) -> Any:
        context = click.get_current_context()
        broker = context.find_object(RunningBroker)  # of the group that this command is in
        if broker is None or any((data, control, connection_string, url, connection)):
            broker = find(data, control, connection_string, url, ca, connection=connection, entra=entra)
        context.obj = broker
        return command(broker=broker, **given)

    for option in reversed(_OPTIONS):
        found = option(found)
    return found


Place = RunningBroker | Path
"""A running broker, or the data folder on which none runs."""


def to_a_broker_or_folder(*, named: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator: it adds DIR and the options that find a broker; the command gets `place`.

    DIR is a folder; the broker that runs on it is asked. If none does, or its socket is elsewhere, the
    command gets the folder. `named`: a NAME follows DIR, and the command gets `name`.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def found(
            *,
            words: tuple[str, ...],
            control: Path | None,
            connection_string: str | None,
            url: str | None,
            connection: str | None,
            entra: bool,
            ca: Path | None,
            **given: Any,
        ) -> Any:
            folders, names = (words[:-1], words[-1:]) if named else (words, ())
            if len(folders) > 1 or len(names) < named:
                raise click.UsageError("give [DIR] NAME." if named else "give one DIR at most.")
            if named:
                given["name"] = names[0]
            folder = Path(folders[0]) if folders else None
            broker = find(folder, control, connection_string, url, ca, connection=connection, entra=entra)
            with reported(BrokerError):
                place: Place = broker if folder is None or broker.runs() else folder
            return command(place=place, **given)

        for option in reversed(_OPTIONS[1:]):
            found = option(found)
        # Not two arguments: the only one of `keys add NAME` would be DIR.
        return click.argument("words", nargs=-1, metavar="[DIR] NAME" if named else "[DIR]")(found)

    return decorate


def find(
    data: Path | None = None,
    control: Path | None = None,
    connection_string: str | None = None,
    url: str | None = None,
    ca: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    connection: str | None = None,
    entra: bool = False,
) -> RunningBroker:
    """Return the broker that is meant; see the module. `ca`: PEM file of the certificates to trust.

    Raises: click.UsageError.
    """
    named = [name for name in (data, control, connection_string, url, connection) if name is not None]
    if len(named) > 1:
        raise click.UsageError("give one of --data, --control, --connection-string, --url and --connection.")
    if connection is not None:
        return _by_login(connection, ca, entra, environ)
    if control is not None:
        return _by_socket(control, f"no broker listens at {control}: start it with --control {control}")
    if data is not None:
        return _by_folder(data)
    if connection_string is not None:
        return _by_connection_string(connection_string, ca, entra)
    if url is not None:
        return _by_url(url, ca)
    for path in _sockets(environ):
        if path.is_socket():  # not every volume has sockets: the port answers too
            return _by_socket(path, f"no broker listens at {path}: it has ended; start it again")
    if (given := environ.get("SERVICEBUS_CONNECTION_STRING")) and not list(_sockets(environ)):
        return _by_connection_string(given, ca, entra)
    return _by_url(f"http://127.0.0.1:{environ.get('PEEKLOCK_HTTP_PORT') or 5300}", ca)


def _sockets(environ: Mapping[str, str]) -> list[Path]:
    found = []
    if path := environ.get("PEEKLOCK_CONTROL"):
        found.append(Path(path))
    elif folder := environ.get("PEEKLOCK_DATA"):
        found.append(Path(folder) / SOCKET_NAME)
    return found


def _by_folder(folder: Path) -> RunningBroker:
    if not folder.is_dir():
        raise click.UsageError(f"there is no folder {folder}.")
    return _by_socket(
        folder / SOCKET_NAME,
        f"no broker runs on {folder}, or its socket is elsewhere: start it with `peeklock serve --data "
        f"{folder}`, or name its socket with --control PATH",
    )


def _by_socket(path: Path, missing: str) -> RunningBroker:
    return RunningBroker(lambda: _to_socket(path), f"the broker at {path}", missing)


def _by_url(url: str, ca: Path | None) -> RunningBroker:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise click.UsageError(f"--url {url} is not an address such as {DEFAULT_URL}.")
    host = parts.hostname
    connect = _connection_to(host, port, parts.scheme == "https", ca)
    return RunningBroker(
        connect, f"the broker at {url}", f"no broker answers at {url}: start one, or {_HINT}"
    )


def _by_connection_string(text: str, ca: Path | None, entra: bool) -> RunningBroker:
    from peeklock.cli.connecting import Login

    return _by(Login(text, None if ca is None else str(ca), entra))


def _by_login(name: str, ca: Path | None, entra: bool, environ: Mapping[str, str]) -> RunningBroker:
    from peeklock.cli.connecting import Login, LoginRefused, login_of, logins_file

    try:
        login = login_of(name, logins_file(environ))
    except LoginRefused as failure:
        raise click.UsageError(str(failure)) from failure
    trusted = login.ca if ca is None else str(ca)
    return _by(Login(login.connection_string, trusted, entra or login.entra, login.websocket))


def _by(login: Login) -> RunningBroker:
    from peeklock.client.errors import OptionError
    from peeklock.client.http import connect, http_port

    try:
        given = login.settings()
    except OptionError as failure:
        raise click.UsageError(str(failure)) from failure
    at = f"{given.host}:{http_port(given)}"
    broker = RunningBroker(
        lambda: connect(given, TIMEOUT_S),
        f"the broker at {at}",
        f"no broker answers at {at}, which the connection string names: start it, or correct the Endpoint",
    )
    broker.authorization = lambda: _authorization(given)
    broker.connection_string = given
    return broker


def _authorization(given: ConnectionString) -> str:
    """Return the header of a request. Raises: BrokerError."""
    from peeklock.client.errors import ServiceBusError

    try:
        return given.authorization(int(time.time() * 1000))
    except ServiceBusError as failure:
        raise BrokerError(str(failure)) from failure


def _connection_to(host: str, port: int | None, tls: bool, ca: Path | None) -> Callable[[], HTTPConnection]:
    def connect() -> HTTPConnection:
        from http.client import HTTPConnection, HTTPSConnection

        if not tls:
            return HTTPConnection(host, port, timeout=TIMEOUT_S)
        import ssl

        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        return HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)

    return connect


def _to_socket(path: Path) -> HTTPConnection:
    """Return a connection to a Unix socket. Raises: OSError."""
    from http.client import HTTPConnection

    connection = HTTPConnection("localhost", timeout=TIMEOUT_S)
    connection.sock = sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # so that it opens none
    try:
        sock.settimeout(TIMEOUT_S)
        sock.connect(os.fspath(path))
    except OSError:
        sock.close()
        raise
    return connection


def _why(failure: Exception) -> str:
    text = str(failure)
    if "certificate verify failed" in text:
        return f"{text}; name its authority with --ca FILE, which `peeklock ca DIR` shows"
    if "AF_UNIX path too long" in text:
        return f"{text}: name its socket with --control PATH, as `peeklock serve` was started"
    return text or type(failure).__name__


def _advice(status: int) -> str:
    if status in (401, 403):
        return "; use --data DIR on its machine, or --connection-string with a key that has the right"
    return ""


def _not_empty(given: str) -> str:
    if not given:
        raise ValueError("it is empty.")
    return given


_OPTIONS = (
    click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="The broker that runs on this data folder, by its control socket. No key is needed.",
    ),
    click.option(
        "--control", type=SOCKET, metavar="PATH", help="The broker that was started with this --control."
    ),
    click.option(
        "--connection-string",
        callback=parsed(_not_empty),
        metavar="TEXT",
        help="The broker of this connection string, also on another machine. Its key needs the right to what "
        "is asked. Use the variable SERVICEBUS_CONNECTION_STRING where others can see the command line.",
    ),
    click.option(
        "--url",
        metavar="URL",
        help=f"The broker at this address, without a key. Default: {DEFAULT_URL}, unless PEEKLOCK_DATA, "
        "PEEKLOCK_CONTROL or SERVICEBUS_CONNECTION_STRING names a broker.",
    ),
    click.option(
        "--connection",
        metavar="NAME",
        shell_complete=complete_login,
        help="The broker of this login; see peeklock logins.",
    ),
    click.option(
        "--entra",
        is_flag=True,
        help="Ask Entra for a token; the connection string is Endpoint=sb://HOST. Needs the extra entra.",
    ),
    click.option(
        "--ca",
        type=EXISTING_FILE,
        metavar="FILE",
        help="PEM file of the certificate authority to trust, which `peeklock ca` shows.",
    ),
)
