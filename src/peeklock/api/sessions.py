"""Operations on the sessions of an entity. A session's lock belongs to a link, and with it the session."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from peeklock.api.entities import CURSOR, LIMIT
from peeklock.api.exchange import Answer, Ask, Show, answer_json, done, from_cursor, to_cursor
from peeklock.api.instants import write_instant
from peeklock.api.messages import BODY_BYTES_MAX, FROM, STATE, peek
from peeklock.api.model import COUNT, INSTANT, body_json
from peeklock.api.schema import Schema, page, record, ref
from peeklock.api.table import Call, Operation
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.commands import ListSessions, ShowSession
from peeklock.broker.vocabulary.effects import SessionsFound, SessionShown
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.broker.vocabulary.extension_commands import ReplaceSessionState
from peeklock.broker.vocabulary.message import LOST_BODY, MessageView

SESSION: Schema = record(
    {
        "id": {"type": "string"},
        "lockedUntil": {**INSTANT, "description": "Absent if the session is not locked."},
        "holder": {
            **record(
                {
                    "connection": {**COUNT, "description": "The id of its connection, as in `/connections`."},
                    "link": {"type": "string", "description": "The name of its link."},
                    "identities": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "Names of the keys and roles of this connection.",
                    },
                },
                ["connection", "identities"],
            ),
            "description": "The receiver that holds the session. Absent if nobody does.",
        },
        "counts": record({"active": COUNT, "deferred": COUNT, "scheduled": COUNT}),
        "state": record(
            {
                "body": {"type": "string"},
                "bodyBase64": {"type": "string", "contentEncoding": "base64"},
            },
            (),
            description="Absent if none is set.",
        ),
    },
    ["id", "counts"],
)

SESSIONS = page("sessions", {"type": "string"}, description="Ids.")

SESSION_STATE: Schema = record(
    {
        "state": {"type": "string", "description": "As text, stored in UTF-8."},
        "stateBase64": {
            "type": "string",
            "contentEncoding": "base64",
            "description": "As bytes, instead of `state`.",
        },
    },
    (),
    description="The state of a session.",
    examples=[{"state": "half done"}],
)

NAMED = {"Session": SESSION, "Sessions": SESSIONS, "SessionState": SESSION_STATE}

STATE_BODY_BYTES_MAX = 2 * 1024 * 1024
"""Of JSON: text of control characters takes six times the bytes of the largest state, 256 KiB. Our choice."""


def list_sessions(call: Call) -> Answer:
    """List the ids of sessions."""
    skip, limit, exchange = 0, call.given["limit"], call.exchange
    if "cursor" in call.given:
        (skip,) = from_cursor(call.given["cursor"], int)

    def render(effect: SessionsFound) -> Answer:
        found: dict[str, Any] = {"sessions": effect.session_ids}
        if len(effect.session_ids) == limit:
            found["next"] = to_cursor(effect.next_skip)
        return answer_json(found)

    return Ask(call.exchange, ListSessions(call.address, None, skip, limit, exchange.reply_to), render)


def show_session(call: Call) -> Answer:
    """Show one session with its state."""
    exchange = call.exchange

    def views(effect: SessionShown) -> list[MessageView]:
        return [] if effect.state is None else [effect.state]

    def render(effect: SessionShown, payloads: list[bytes]) -> Answer:
        held: dict[str, Any] = {}
        if effect.locked_until_ms:
            link = {} if effect.link_name is None else {"link": effect.link_name}
            identities = call.context.identities_of(effect.connection_id)
            holder = {"connection": effect.connection_id, **link, "identities": identities}
            held = {"lockedUntil": write_instant(effect.locked_until_ms), "holder": holder}
        state = {"state": body_json(payloads[0])} if payloads and payloads[0] is not LOST_BODY else {}
        counts = {"active": effect.active, "deferred": effect.deferred, "scheduled": effect.scheduled}
        return answer_json({"id": effect.session_id, **held, "counts": counts, **state})

    return Show(
        call.exchange, ShowSession(call.address, call.given["session"], exchange.reply_to), views, render
    )


def set_state(call: Call) -> Answer:
    """Set the state of a session that nobody holds. Raises: ArgumentInvalid."""
    given = call.body
    if ("state" in given) == ("stateBase64" in given):
        raise ArgumentInvalid("The body has not one of the members 'state' and 'stateBase64'.")
    if "state" in given:
        state = given["state"].encode()
    else:
        try:
            state = base64.b64decode(given["stateBase64"], validate=True)
        except (binascii.Error, ValueError):
            raise ArgumentInvalid("The member 'stateBase64' is not base64.") from None
    return _replaced(call, state)


def clear_state(call: Call) -> Answer:
    """Clear the state of a session that nobody holds."""
    return _replaced(call, None)


def _replaced(call: Call, state: bytes | None) -> Answer:
    exchange = call.exchange
    command = ReplaceSessionState(call.address, call.given["session"], state, exchange.reply_to)
    return Ask(exchange, command, done)


OPERATIONS = (
    Operation(
        "listSessions",
        "GET",
        "/entities/{entity}/sessions",
        "List sessions with active or deferred messages, or with state",
        Right.LISTEN,
        list_sessions,
        query=(LIMIT, CURSOR),
        answer=ref("Sessions"),
    ),
    Operation(
        "showSession",
        "GET",
        "/entities/{entity}/sessions/{session}",
        "Show a session with its state",
        Right.LISTEN,
        show_session,
        "The session need not be locked. An id that is not in use names an empty session.",
        answer=ref("Session"),
    ),
    Operation(
        "peekSession",
        "GET",
        "/entities/{entity}/sessions/{session}/messages",
        "Peek: show the messages of a session",
        Right.LISTEN,
        peek,
        query=(FROM, STATE, BODY_BYTES_MAX, LIMIT, CURSOR),
        answer=ref("Peeked"),
    ),
    Operation(
        "setSessionState",
        "PUT",
        "/entities/{entity}/sessions/{session}/state",
        "Set the state of a session that no receiver holds",
        Right.LISTEN,
        set_state,
        "A session that is held is refused with 409: its state belongs to the receiver.",
        body=ref("SessionState"),
        body_bytes_max=STATE_BODY_BYTES_MAX,
        status=204,
    ),
    Operation(
        "clearSessionState",
        "DELETE",
        "/entities/{entity}/sessions/{session}/state",
        "Clear the state of a session that no receiver holds",
        Right.LISTEN,
        clear_state,
        status=204,
    ),
)
