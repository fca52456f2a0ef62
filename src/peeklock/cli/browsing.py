"""`peeklock peek`, `tail` and `search`: messages seen without being taken, at any Service Bus."""

from __future__ import annotations

import functools
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from peeklock.cli.options import EXISTING_FILE, parsed

if TYPE_CHECKING:
    from peeklock.client.browsing import Browser
    from peeklock.client.connection_string import ConnectionString
    from peeklock.client.errors import ServiceBusError
    from peeklock.search import Peeked, Search

DEAD_LETTERS: Final = "$DeadLetterQueue"
TRANSFER_DEAD_LETTERS: Final = "$Transfer/$DeadLetterQueue"

POLL_S: Final = 0.5
"""How often `tail` looks for new messages. Our choice: at once, to a person; and few requests to pay for."""

TIMEOUT_S: Final = 10.0
"""How long a request is tried. Our choice: a person waits for an error."""

PROGRESS_S: Final = 0.2
"""Seconds between two figures of progress."""

WIDTH: Final = 120
"""Columns of a table where there is no terminal."""

_STATES: Final = ("active", "deferred", "scheduled")


# Connecting


@dataclass(frozen=True, slots=True)
class _Given:
    """How the command line names the namespace."""

    connection_string: str | None
    connection: str | None
    ca: Path | None
    entra: bool

    def settings(self) -> ConnectionString:
        """Return the namespace that a command is for. Raises: OptionError, LoginRefused, click.UsageError."""
        from peeklock.cli.connecting import Login, login_of, logins_file

        if self.connection is not None:
            login = login_of(self.connection, logins_file())
        elif self.connection_string:
            login = Login(self.connection_string)
        else:
            raise click.UsageError(
                "say which namespace: --connection NAME, --connection-string TEXT, or the variable "
                "SERVICEBUS_CONNECTION_STRING."
            )
        ca = login.ca if self.ca is None else str(self.ca)
        login = replace(login, ca=ca, entra=login.entra or self.entra)
        return replace(login.settings(), timeout_s=TIMEOUT_S)


# The place


class _Place:
    """The queue, subscription or sub-queue that a command reads."""

    def __init__(
        self,
        entity: str,
        given: _Given,
        dead_letter: bool,
        transfer_dead_letter: bool,
        session: str | None,
    ) -> None:
        """Raises: click.UsageError."""
        if dead_letter and transfer_dead_letter:
            raise click.UsageError("give --dead-letter or --transfer-dead-letter, not both.")
        self.entity = entity.strip("/")
        below = DEAD_LETTERS if dead_letter else TRANSFER_DEAD_LETTERS if transfer_dead_letter else ""
        self.path = f"{self.entity}/{below}" if below else self.entity
        self.session = session
        self._given = given

    @contextmanager
    def browser(self, *, by_session: bool = False) -> Iterator[Browser]:
        """Yield the reader of the place; report what fails, and exit.

        `by_session`: ask the broker for the session alone. A sub-queue has none, though its messages keep
        theirs.
        """
        from peeklock.cli.connecting import LoginRefused
        from peeklock.client.browsing import Browser
        from peeklock.client.connection import BlockingConnection
        from peeklock.client.errors import OptionError, ServiceBusError

        try:
            connection = BlockingConnection(self._given.settings())
            yield Browser(
                connection, self.path, self.session if by_session and "$" not in self.path else None
            )
            connection.close()  # after an error or Ctrl-C the end of the process closes it
        except (OptionError, LoginRefused) as failure:
            raise click.UsageError(str(failure)) from failure
        except ServiceBusError as failure:
            click.echo(f"peeklock: {self._what(failure)}", err=True)
            sys.exit(1)

    def _what(self, failure: ServiceBusError) -> str:
        """Return a failure in one line, with the nearest names if the entity is unknown."""
        from peeklock.cli.message_text import nearest
        from peeklock.cli.visible import visible
        from peeklock.client.errors import NOT_FOUND

        if failure.condition != NOT_FOUND:
            return visible(str(failure))
        names = nearest(self.entity, _names(self._given.settings()))
        near = f"The nearest: {', '.join(names)}." if names else "Check its name."
        return visible(
            f"there is no queue or subscription '{self.entity}' here. {near} A subscription is "
            "TOPIC/Subscriptions/NAME."
        )


def _names(settings: ConnectionString) -> list[str]:
    """Return the paths of the entities of a namespace; none if the key may not list them."""
    from peeklock.client.administration import Administration
    from peeklock.client.errors import ServiceBusError
    from peeklock.client.requests import AdministrationError

    try:
        administration = Administration.of(settings)
        names = [queue.path for queue in administration.queues()]
        for topic in administration.topics():
            names += [each.path for each in administration.subscriptions(topic.path)]
    except (AdministrationError, ServiceBusError, OSError):
        return []
    return names


# Output


class _Output:
    """Messages on standard output, and how far the search is on standard error, if that is a terminal."""

    def __init__(self, *, as_json: bool, full: bool) -> None:
        self._as_json = as_json
        self._full = full
        self._layout: dict[str, int] = {}
        self._shown = 0
        self._has_progress = sys.stderr.isatty()
        self._started = self._last = time.monotonic()

    def begin(self) -> None:
        """Print the head of the table, if there is one, once. An error before it leaves no table."""
        from peeklock.cli import message_text

        if not self._as_json and not self._full and not self._layout:
            self._layout = message_text.columns(shutil.get_terminal_size((WIDTH, 24)).columns)
            click.echo(message_text.head(self._layout))

    def show(self, found: Iterable[Peeked]) -> None:
        """Print messages, all at once."""
        from peeklock.cli import message_text
        from peeklock.search import message_json

        self.begin()
        lines: list[str] = []
        for each in map(message_json, found):
            self._shown += 1
            if self._as_json:
                lines.append(json.dumps(each))
            elif self._full:
                lines += ([""] if self._shown > 1 else []) + [*message_text.whole(each)]
            else:
                lines.append(message_text.line(each, self._layout))
        if lines:
            self.clear()
            click.echo("\n".join(lines))

    def progress(self, count: int) -> None:
        """Show that so many messages have been looked at."""
        now = time.monotonic()
        if self._has_progress and now - self._last >= PROGRESS_S:
            self._last = now
            rate = count / (now - self._started)
            click.echo(f"\r{count:,} seen, {self._shown:,} found, {rate:,.0f}/s\x1b[K", err=True, nl=False)

    def clear(self) -> None:
        """Remove the progress."""
        if self._has_progress:
            click.echo("\r\x1b[K", err=True, nl=False)


# Options


def _instant_ms(given: str) -> int:
    """Return an instant of ISO 8601 as UTC ms; without a zone it is in UTC. Raises: ValueError."""
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise ValueError(f"{given!r} is not an instant such as 2026-01-31T12:00:00Z.") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1000)


_NUMBER = click.IntRange(0, (1 << 63) - 1)

_PLACE = (
    click.argument("entity"),
    click.option(
        "--connection-string",
        envvar="SERVICEBUS_CONNECTION_STRING",
        show_envvar=True,
        metavar="TEXT",
        help="The namespace. Its key needs the right Listen.",
    ),
    click.option("--connection", metavar="NAME", help="A namespace of `peeklock logins`."),
    click.option("--ca", type=EXISTING_FILE, metavar="FILE", help="PEM file of the certificates to trust."),
    click.option("--entra", is_flag=True, help="Ask Entra for tokens."),
    click.option("--dead-letter", is_flag=True, help="Its dead-letter queue."),
    click.option("--transfer-dead-letter", is_flag=True, help="Its transfer dead-letter queue."),
    click.option("--session", metavar="ID", help="Only messages of this session."),
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON Lines: a message on each line.")
_FULL = click.option("--full", is_flag=True, help="Print each message whole, instead of a table.")
_STATE = click.option("--state", type=click.Choice(_STATES), help="Only messages in this state.")


def _at_a_place(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say where; the command gets a `_Place` first."""

    @functools.wraps(command)
    def placed(
        entity: str,
        connection_string: str | None,
        connection: str | None,
        ca: Path | None,
        entra: bool,
        dead_letter: bool,
        transfer_dead_letter: bool,
        session: str | None,
        **options: Any,
    ) -> None:
        given = _Given(connection_string, connection, ca, entra)
        command(_Place(entity, given, dead_letter, transfer_dead_letter, session), **options)

    for option in reversed(_PLACE):
        placed = option(placed)
    return placed


# Commands


@click.command()
@_at_a_place
@click.option("--from", "from_number", type=_NUMBER, default=0, metavar="NUMBER", help="First number.")
@click.option(
    "--count", type=click.IntRange(1), metavar="N", help="Messages to show.", show_default="20; 1 with --full"
)
@_STATE
@_FULL
@_JSON
def peek(
    place: _Place, from_number: int, count: int | None, state: str | None, full: bool, as_json: bool
) -> None:
    """Show messages of ENTITY without taking them.

    \b
    The oldest:           peeklock peek orders
    From a number on:     peeklock peek orders --from 1200
    One message whole:    peeklock peek orders --from 1234 --full
    A subscription:       peeklock peek news/Subscriptions/sport
    Dead letters:         peeklock peek orders --dead-letter
    For a program:        peeklock peek orders --json | jq .sequenceNumber

    Nothing is locked or counted. Works with any Service Bus. In a table, characters that a terminal would not
    show are escaped; columns that do not fit are left out.

    Exit status: 0 shown; 1 refused, or no broker answers; 2 wrong options.
    """
    search = _compiled(session_id=place.session, state=_state_of(state))
    left = count or (1 if full else 20)
    output = _Output(as_json=as_json, full=full)
    with place.browser(by_session=True) as browser:
        _show(browser, search, output, from_number, left, ahead=False)


@click.command()
@_at_a_place
@_FULL
@_JSON
def tail(place: _Place, full: bool, as_json: bool) -> None:
    """Show new messages of ENTITY as they come, without taking them, until it is stopped.

    \b
    Follow a queue:       peeklock tail orders
    Follow dead letters:  peeklock tail orders --dead-letter
    For a program:        peeklock tail orders --json

    It peeks from the last number on, twice a second. A message that a receiver completes before that is not
    seen.

    Exit status: 130 stopped by Ctrl-C; 1 refused, or no broker answers; 2 wrong options.
    """
    search = _compiled(session_id=place.session)
    output = _Output(as_json=as_json, full=full)
    with place.browser(by_session=True) as browser:
        last_numbers = browser.last_numbers()
        output.begin()
        while True:
            for messages in browser.read_new(last_numbers):
                output.show(search.among(messages))
            time.sleep(POLL_S)


@click.command()
@_at_a_place
@click.option("--filter", metavar="SQL", help="A filter as of a subscription's rule, such as n > 3.")
@click.option("--text", metavar="TEXT", help="The body contains this.")
@click.option("--regex", metavar="REGEX", help="This expression of Python is found in the body.")
@click.option("-i", "--ignore-case", is_flag=True, help="Of --text and --regex.")
@click.option("--json-path", metavar="PATH", help="The body is JSON with this: '$.order.total > 100'.")
@click.option("--from", "from_number", type=_NUMBER, metavar="NUMBER", help="Lowest sequence number.")
@click.option("--to", "to_number", type=_NUMBER, metavar="NUMBER", help="Highest sequence number.")
@click.option(
    "--since", "since_ms", callback=parsed(_instant_ms), metavar="TIME", help="Enqueued at this or later."
)
@click.option(
    "--until", "until_ms", callback=parsed(_instant_ms), metavar="TIME", help="Enqueued before this."
)
@_STATE
@click.option("--dead-letter-reason", metavar="TEXT", help="Its DeadLetterReason, in full.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after so many.", show_default="all")
@_FULL
@_JSON
def search(
    place: _Place, state: str | None, count: int | None, full: bool, as_json: bool, **criteria: Any
) -> None:
    """Find messages of ENTITY without taking them. All criteria that are given must be true of a message.

    \b
    By properties:   peeklock search orders --filter "sys.Label = 'pizza' AND n > 2"
    By the body:     peeklock search orders --text banana -i
    In JSON:         peeklock search orders --json-path '$.items[*].sku == "A1"'
    By time:         peeklock search orders --since 2026-01-31T12:00Z --state deferred
    Dead letters:    peeklock search orders --dead-letter --dead-letter-reason MaxDeliveryCountExceeded

    All messages are read, from the lowest number on; memory does not grow. Works with any Service Bus. TIME
    is ISO 8601, in UTC if it has no zone.

    Exit status: 0 searched, also if nothing is found; 1 refused, or no broker answers; 2 wrong options.
    """
    compiled = _compiled(session_id=place.session, state=_state_of(state), **criteria)
    output = _Output(as_json=as_json, full=full)
    with place.browser() as browser:
        _show(browser, compiled, output, criteria["from_number"] or 0, count, ahead=True)


def _state_of(name: str | None) -> Any:
    from peeklock.search import STATES

    return next((state for state, known in STATES.items() if known == name), None)


def _compiled(**criteria: Any) -> Search:
    """Return the search. Raises: click.BadParameter."""
    from peeklock.search import Criteria, Search, SearchError

    try:
        return Search.compile(Criteria(**criteria))
    except SearchError as failure:
        raise click.BadParameter(
            str(failure), param_hint=f"--{failure.criterion.replace('_', '-')}"
        ) from failure


def _show(
    browser: Browser, search: Search, output: _Output, number: int, left: int | None, *, ahead: bool
) -> None:
    """Show the messages from a number on that match, at most `left`; `ahead`: expect to read many."""
    from peeklock.client.browsing import PEEK_COUNT, sequence_number

    last = search.criteria.to_number
    count = 0
    first = PEEK_COUNT if ahead or left is None else min(left, PEEK_COUNT)
    for messages in browser.read(number, first):
        found = search.among(messages)
        if left is None:
            output.show(found)
        else:
            some = list(islice(found, left))
            output.show(some)
            left -= len(some)
        count += len(messages)
        output.progress(count)
        if left == 0 or (last is not None and sequence_number(messages[-1]) >= last):
            break
    output.begin()
    output.clear()
