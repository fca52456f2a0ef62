"""Where the messages are that a command reads or sends: the namespace, and the entity in it, as options.

It knows the options, and how a failure is told. It does not know what a command does there.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from peeklock.cli.connecting import complete_login
from peeklock.cli.options import EXISTING_FILE, FOLDER, reported

if TYPE_CHECKING:
    from peeklock.client.browsing import Browser
    from peeklock.client.connection import BlockingConnection
    from peeklock.client.connection_string import ConnectionString
    from peeklock.client.errors import ServiceBusError

DEAD_LETTERS: Final = "$DeadLetterQueue"
TRANSFER_DEAD_LETTERS: Final = "$Transfer/$DeadLetterQueue"

TIMEOUT_S: Final = 10.0
"""How long a request is tried. Our choice: a person waits for an error."""

CONNECTING_S: Final = 1.0
"""After how long a person learns that a connection takes time."""


# The namespace


@dataclass(frozen=True, slots=True)
class Given:
    """How the command line names the namespace."""

    connection_string: str | None
    connection: str | None
    ca: Path | None
    entra: bool
    data: Path | None = None

    def settings(self) -> ConnectionString:
        """Return the namespace that a command is for. Raises: OptionError, LoginRefused, click.UsageError."""
        from peeklock.cli.connecting import Login, login_of, logins_file

        if self.connection is not None:
            login = login_of(self.connection, logins_file())
        elif self.data is not None:
            login = Login(_told_by(self.data))
        elif self.connection_string:
            login = Login(self.connection_string)
        else:
            raise click.UsageError(
                "say which namespace: --data DIR, --connection NAME, --connection-string TEXT, or the "
                "variable SERVICEBUS_CONNECTION_STRING."
            )
        ca = login.ca if self.ca is None else str(self.ca)
        login = replace(login, ca=ca, entra=login.entra or self.entra)
        return replace(login.settings(), timeout_s=TIMEOUT_S)

    @contextmanager
    def connected(self, entity: str, *, sends: bool = False) -> Iterator[BlockingConnection]:
        """Yield a connection; report what fails, and exit. `sends`: `entity` may be a topic."""
        from peeklock.cli.connecting import LoginRefused
        from peeklock.client.connection import BlockingConnection
        from peeklock.client.errors import OptionError, ServiceBusError

        try:
            connection = BlockingConnection(self.settings())
            with _connecting(connection):
                yield connection
            connection.close()  # after an error or Ctrl-C the end of the process closes it
        except (OptionError, LoginRefused) as failure:
            raise click.UsageError(str(failure)) from failure
        except ServiceBusError as failure:
            self.report(failure, entity, sends=sends)
            sys.exit(1)

    def report(
        self, failure: ServiceBusError, entity: str, *, sends: bool = False, about_sessions: str = ""
    ) -> None:
        """Print a failure in one line, with the nearest names if the entity is unknown.

        `about_sessions`: what to do if a session is missing, or one too many.
        """
        from peeklock.cli.visible import visible
        from peeklock.client.errors import NOT_ALLOWED, NOT_FOUND

        text = self._unknown(entity, sends) if failure.condition == NOT_FOUND else str(failure)
        if about_sessions and failure.condition == NOT_ALLOWED and "session" in failure.text:
            text = f"{text} {about_sessions}"
        click.echo(f"peeklock: {visible(text)}", err=True)

    def _unknown(self, entity: str, sends: bool) -> str:
        """Return that there is no such entity, with the nearest names."""
        from peeklock.cli.message_text import did_you_mean, nearest

        near = did_you_mean(nearest(entity, _names(self.settings(), sends)))
        if sends:
            return f"there is no queue or topic '{entity}' here{near or '.'}"
        hint = "A subscription is TOPIC/Subscriptions/NAME."
        return f"there is no queue or subscription '{entity}' here{near or '.'} {hint}"


def _told_by(folder: Path) -> str:
    """Return the connection string of the broker that runs on a data folder; exit if none does.

    On this machine a broker takes connections without TLS: its certificate need not be trusted.
    """
    from peeklock.cli.running import BrokerError, find

    with reported(BrokerError):
        told: str = find(folder).value("GET", "/$api/v1/connection-string")["connectionString"]
    plain = "UseDevelopmentEmulator=true;"
    is_here = told.startswith("Endpoint=sb://localhost:")
    return told + plain if is_here and plain not in told else told


@contextmanager
def _connecting(connection: BlockingConnection) -> Iterator[None]:
    """Say in a terminal that no broker has answered for a second."""

    def say() -> None:
        if not connection.is_open:
            click.echo(f"connecting to {connection.host} ...", err=True)

    timer = threading.Timer(CONNECTING_S, say)
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _names(settings: ConnectionString, sends: bool) -> list[str]:
    """Return the paths of what can be sent to, or read; none if the key may not list them."""
    from peeklock.client.administration import Administration
    from peeklock.client.errors import ServiceBusError
    from peeklock.client.requests import AdministrationError

    try:
        administration = Administration.of(settings)
        names = [queue.path for queue in administration.queues()]
        for topic in administration.topics():
            if sends:
                names.append(topic.path)
            else:
                names += [each.path for each in administration.subscriptions(topic.path)]
    except (AdministrationError, ServiceBusError, OSError):
        return []
    return names


# The place


class Place:
    """The queue, subscription or sub-queue that a command reads."""

    def __init__(
        self,
        entity: str,
        given: Given,
        dead_letter: bool,
        transfer_dead_letter: bool,
        session: str | None,
    ) -> None:
        """Raises: click.UsageError."""
        if dead_letter and transfer_dead_letter:
            raise click.UsageError("give --dead-letter or --transfer-dead-letter, not both.")
        self.entity = entity.strip("/")
        below = DEAD_LETTERS if dead_letter else TRANSFER_DEAD_LETTERS if transfer_dead_letter else ""
        if below and "/$" in self.entity:
            owner = self.entity.partition("/$")[0]
            raise click.UsageError(f"'{self.entity}' is a sub-queue already: name its entity, '{owner}'.")
        self.path = f"{self.entity}/{below}" if below else self.entity
        self.session = session
        self.given = given

    @contextmanager
    def connected(self) -> Iterator[BlockingConnection]:
        """Yield a connection for the place; report what fails, and exit."""
        with self.given.connected(self.entity) as connection:
            yield connection

    @property
    def is_sub_queue(self) -> bool:
        """Whether it is a sub-queue: it has no sessions."""
        return "$" in self.path

    def is_topic(self) -> bool:
        """Return whether it is known to be a topic; the key may not be allowed to ask."""
        from peeklock.client.administration import Administration
        from peeklock.client.errors import ServiceBusError
        from peeklock.client.requests import AdministrationError

        if self.is_sub_queue:
            return False
        try:
            found = Administration.of(self.given.settings()).entity(self.path)
        except (AdministrationError, ServiceBusError, OSError):
            return False
        return found is not None and found.kind == "topic"

    def report(self, failure: ServiceBusError, about_sessions: str) -> None:
        """Print a failure; see `Given.report`."""
        self.given.report(failure, self.entity, about_sessions="" if self.is_sub_queue else about_sessions)

    @contextmanager
    def browser(self, *, by_session: bool = False) -> Iterator[Browser]:
        """Yield the reader of the place; report what fails, and exit.

        `by_session`: ask the broker for the session alone. A sub-queue has none, though its messages keep
        theirs.
        """
        from peeklock.client.browsing import Browser

        with self.connected() as connection:
            yield Browser(
                connection, self.path, self.session if by_session and not self.is_sub_queue else None
            )


# Options


def instant_ms(given: str) -> int:
    """Return an instant of ISO 8601 as UTC ms; without a zone it is in UTC. Raises: ValueError."""
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise ValueError(f"{given!r} is not an instant such as 2026-01-31T12:00:00Z.") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1000)


def past_ms(given: str, now_ms: int | None = None) -> int:
    """Return an instant, or one that is a span such as 2h before now, as UTC ms. Raises: ValueError."""
    from peeklock.client.durations import parse_duration

    try:
        return instant_ms(given)
    except ValueError:
        pass
    now_ms = round(time.time() * 1000) if now_ms is None else now_ms
    try:
        span_ms = round(parse_duration(given).total_seconds() * 1000)
    except ValueError:
        span_ms = -1
    if not 0 <= span_ms <= now_ms:
        text = f"{given!r} is not an instant such as 2026-01-31T12:00:00Z, nor a span before now such as 2h."
        raise ValueError(text)
    return now_ms - span_ms


def namespace_options(right: str) -> tuple[Callable[[Any], Any], ...]:
    """Return the options that say which namespace; `right`: what a command needs of its key."""
    return (
        click.option(
            "--connection-string",
            envvar="SERVICEBUS_CONNECTION_STRING",
            show_envvar=True,
            metavar="TEXT",
            help=f"The namespace. Its key needs the right {right}.",
        ),
        click.option(
            "--connection",
            metavar="NAME",
            shell_complete=complete_login,
            help="A namespace of `peeklock logins`.",
        ),
        click.option(
            "--data", type=FOLDER, metavar="DIR", help="The broker that runs on this data folder, here."
        ),
        click.option(
            "--ca", type=EXISTING_FILE, metavar="FILE", help="PEM file of the certificates to trust."
        ),
        click.option("--entra", is_flag=True, help="Ask Entra for tokens."),
    )


def in_a_namespace(right: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options that say which namespace; the command gets a `Given` as `given`."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def placed(
            connection_string: str | None,
            connection: str | None,
            ca: Path | None,
            entra: bool,
            data: Path | None,
            **options: Any,
        ) -> None:
            command(given=Given(connection_string, connection, ca, entra, data), **options)

        for option in reversed(namespace_options(right)):
            placed = option(placed)
        return placed

    return add


_PLACE = (
    click.argument("entity"),
    *namespace_options("Listen"),
    click.option("--dead-letter", is_flag=True, help="Its dead-letter queue."),
    click.option("--transfer-dead-letter", is_flag=True, help="Its transfer dead-letter queue."),
    click.option("--session", metavar="ID", help="Only messages of this session."),
)


def at_a_place(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say where; the command gets a `Place` first."""

    @functools.wraps(command)
    def placed(
        entity: str,
        connection_string: str | None,
        connection: str | None,
        ca: Path | None,
        entra: bool,
        data: Path | None,
        dead_letter: bool,
        transfer_dead_letter: bool,
        session: str | None,
        **options: Any,
    ) -> None:
        given = Given(connection_string, connection, ca, entra, data)
        command(Place(entity, given, dead_letter, transfer_dead_letter, session), **options)

    for option in reversed(_PLACE):
        placed = option(placed)
    return placed
