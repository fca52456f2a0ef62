"""`peeklock sessions`: the sessions of an entity, their messages and their states, at any Service Bus."""

from __future__ import annotations

import base64
import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from peeklock.cli.options import EXISTING_FILE
from peeklock.cli.places import Given, Place, namespace_options
from peeklock.cli.tables import table
from peeklock.cli.tasks import Group
from peeklock.cli.visible import visible

if TYPE_CHECKING:
    from peeklock.client.browsing import Browser
    from peeklock.client.connection import BlockingConnection
    from peeklock.client.sessions import MessageSessions
    from peeklock.search import Peeked

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_SESSION = click.argument("session")
_NO_SESSIONS = "Name an entity that requires sessions."

SHOWN_CHARACTERS: Final = 200
"""Characters of a state in a table. Our choice; `state` shows all."""


def _at_an_entity(command: Callable[..., None]) -> Callable[..., None]:
    """Add the entity and the namespace; the command gets a `Place` first."""

    @functools.wraps(command)
    def placed(
        entity: str,
        connection_string: str | None,
        connection: str | None,
        ca: Path | None,
        entra: bool,
        data: Path | None,
        session: str | None = None,
        **options: Any,
    ) -> None:
        command(
            Place(entity, Given(connection_string, connection, ca, entra, data), False, False, session),
            **options,
        )

    for option in reversed((click.argument("entity"), *namespace_options("Listen"))):
        placed = option(placed)
    return placed


@click.group(cls=Group)
def sessions() -> None:
    """List the sessions of an entity, show one, and read or set its state.

    ENTITY is a queue or subscription that requires sessions. Works with any Service Bus. `peeklock receive
    ENTITY --session ID` receives the messages of one.
    """


@sessions.command("list")
@_at_an_entity
@_JSON
def list_sessions(place: Place, as_json: bool) -> None:
    """Show the ids of the sessions that have messages or a state.

    \b
    Of a queue:         peeklock sessions list chats
    Of a subscription:  peeklock sessions list news/Subscriptions/sport

    Exit status: 0 shown; 1 refused, or no broker answers; 2 wrong options.
    """
    from peeklock.client.sessions import MessageSessions

    with _reported(place) as broker:
        found = [*MessageSessions(broker, place.path).ids()]
    lines = (
        [json.dumps({"sessionId": each}) for each in found] if as_json else ["SESSION", *map(visible, found)]
    )
    if lines:
        click.echo("\n".join(lines))


@sessions.command("show")
@_at_an_entity
@_SESSION
@_JSON
def show_session(place: Place, as_json: bool) -> None:
    """Show a session: its messages, and its state.

    \b
    For people:     peeklock sessions show chats ann
    For a program:  peeklock sessions show chats ann --json

    All its messages are read, without being taken. To read the state, the command locks the session for a
    moment; if a receiver holds the session, the state is not read.

    Exit status: 0 shown; 1 refused, or no broker answers; 2 wrong options.
    """
    from peeklock.client.browsing import Browser

    with _reported(place) as broker:
        found = _read_state(broker, place)
        counts, oldest = _messages(Browser(broker, place.path, place.session))
    if as_json:
        first = (
            {}
            if oldest is None
            else {"oldestSequenceNumber": oldest.sequence_number, "oldestEnqueuedTime": _enqueued(oldest)}
        )
        click.echo(json.dumps({"sessionId": place.session, **counts, **first, **found.json()}))
        return
    rows = [
        *([name, f"{count:,}"] for name, count in counts.items()),
        ["oldest", "none" if oldest is None else str(oldest.sequence_number)],
        ["enqueued", "-" if oldest is None else str(_enqueued(oldest))],
        ["state", found.line()],
    ]
    click.echo("\n".join(table(["session", visible(place.session or "")], rows)))


@sessions.command("state")
@_at_an_entity
@_SESSION
@click.option("--set", "text", metavar="TEXT", help="Set it to this text.")
@click.option("--file", type=EXISTING_FILE, metavar="FILE", help="Set it to what this file has.")
@click.option("--clear", is_flag=True, help="Clear it.")
@_JSON
def session_state(place: Place, text: str | None, file: Path | None, clear: bool, as_json: bool) -> None:
    """Show the state of a session, or set it.

    \b
    Show it:   peeklock sessions state chats ann
    Set it:    peeklock sessions state chats ann --set '{"step": 3}'
    Clear it:  peeklock sessions state chats ann --clear

    The command locks the session for a moment. A session that a receiver holds is refused.

    Exit status: 0 done; 1 refused, the session is held, or no broker answers; 2 wrong options.
    """
    given = [text is not None, file is not None, clear]
    if sum(given) > 1:
        raise click.UsageError("give one of --set, --file and --clear.")
    if any(given) and as_json:
        raise click.UsageError("--json is to show the state: leave out --set, --file and --clear.")
    name = f"session '{visible(place.session or '')}'"
    with _reported(place) as broker, _held(broker, place) as there:
        if not any(given):
            found = _State(there.state(place.session or ""))
        else:
            state = None if clear else file.read_bytes() if file is not None else (text or "").encode()
            there.set_state(place.session or "", state)
    if not any(given):
        click.echo(json.dumps({"sessionId": place.session, **found.json()}) if as_json else found.whole())
    elif clear:
        click.echo(f"state of {name} cleared")
    else:
        click.echo(f"state of {name} set, {len(state or b''):,} bytes")


@dataclass(frozen=True, slots=True)
class _State:
    """The state of a session, as far as it is known."""

    data: bytes | None
    is_held: bool = False
    """Another receiver holds the session, so the state is unknown."""

    def json(self) -> dict[str, Any]:
        """Return it as keys of an object."""
        if self.is_held:
            return {"isHeld": True}
        text = self._text()
        if self.data is not None and text is None:
            return {"isHeld": False, "stateBase64": base64.b64encode(self.data).decode()}
        return {"isHeld": False, "state": text}

    def line(self) -> str:
        """Return it for a line of a table."""
        if self.is_held:
            return "not read: a receiver holds the session"
        text = self.whole().replace("\n", "\\n")
        return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"

    def whole(self) -> str:
        """Return all of it, for people."""
        if self.data is None:
            return "none"
        text = self._text()
        if text is None:
            return f"base64: {base64.b64encode(self.data).decode()}"
        return "\n".join(map(visible, text.replace("\r\n", "\n").split("\n")))

    def _text(self) -> str | None:
        try:
            return None if self.data is None else self.data.decode()
        except UnicodeDecodeError:
            return None


def _read_state(broker: BlockingConnection, place: Place) -> _State:
    """Return the state of the session, if it is not held. Raises: ServiceBusError."""
    from peeklock.client.errors import SESSION_CANNOT_BE_LOCKED, ServiceBusError

    try:
        with _held(broker, place) as there:
            return _State(there.state(place.session or ""))
    except ServiceBusError as failure:
        if failure.condition != SESSION_CANNOT_BE_LOCKED:
            raise
        return _State(None, is_held=True)


@contextmanager
def _held(broker: BlockingConnection, place: Place) -> Iterator[MessageSessions]:
    """Hold the lock of the session. Raises: ServiceBusError."""
    from peeklock.client.links import ReceiveMode
    from peeklock.client.sessions import MessageSessions

    receiver = broker.receiver(place.path, ReceiveMode.PEEK_LOCK, place.session)
    receiver.start()
    yield MessageSessions(broker, place.path)
    receiver.close()


@contextmanager
def _reported(place: Place) -> Iterator[BlockingConnection]:
    """Yield a connection; report what fails, and exit."""
    from peeklock.client.errors import ServiceBusError

    with place.connected() as broker:
        try:
            yield broker
        except ServiceBusError as failure:
            place.report(failure, _NO_SESSIONS)
            sys.exit(1)


def _messages(browser: Browser) -> tuple[dict[str, int], Peeked | None]:
    """Return how many messages there are in each state, and the first one. Raises: ServiceBusError."""
    from peeklock.search import STATES, Peeked

    counts = dict.fromkeys(STATES.values(), 0)
    oldest = None
    for messages in browser.read():
        for each in map(Peeked, messages):
            oldest = oldest or each
            counts[STATES[each.state]] += 1
    return counts, oldest


def _enqueued(message: Peeked) -> str | None:
    from peeklock.search import instant_text

    at_ms = message.enqueued_at_ms
    return None if at_ms is None else instant_text(at_ms)
