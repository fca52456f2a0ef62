"""Operations on the sessions of an entity. They only read: a session's lock belongs to a link."""

from __future__ import annotations

from typing import Any

from peeklock.api.entities import CURSOR, LIMIT
from peeklock.api.exchange import Answer, Ask, Show, answer_json, from_cursor, to_cursor
from peeklock.api.instants import write_instant
from peeklock.api.messages import BODY_BYTES_MAX, FROM, STATE, peek
from peeklock.api.model import COUNT, INSTANT, body_json
from peeklock.api.schema import Schema, page, record, ref
from peeklock.api.table import Call, Operation
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.commands import ListSessions, ShowSession
from peeklock.broker.vocabulary.effects import SessionsFound, SessionShown
from peeklock.broker.vocabulary.message import LOST_BODY, MessageView

SESSION: Schema = record(
    {
        "id": {"type": "string"},
        "lockedUntil": {**INSTANT, "description": "Absent if the session is not locked."},
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

NAMED = {"Session": SESSION, "Sessions": SESSIONS}


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
        held = {"lockedUntil": write_instant(effect.locked_until_ms)} if effect.locked_until_ms else {}
        state = {"state": body_json(payloads[0])} if payloads and payloads[0] is not LOST_BODY else {}
        counts = {"active": effect.active, "deferred": effect.deferred, "scheduled": effect.scheduled}
        return answer_json({"id": effect.session_id, **held, "counts": counts, **state})

    return Show(
        call.exchange, ShowSession(call.address, call.given["session"], exchange.reply_to), views, render
    )


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
        answer=ref("Messages"),
    ),
)
