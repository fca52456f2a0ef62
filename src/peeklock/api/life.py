"""The operation on the life of one message: what the event log tells of it."""

from __future__ import annotations

from typing import Final

from peeklock.api.exchange import JSON, Answer, Work
from peeklock.api.model import COUNT, INSTANT, SEQUENCE_NUMBER
from peeklock.api.schema import Schema, record, ref
from peeklock.api.table import Call, Operation
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.errors import InvalidOperation
from peeklock.gateway.address import shown

_TEXT: Schema = {"type": "string"}

LIFE_EVENT: Schema = record(
    {
        "time": INSTANT,
        "type": {**_TEXT, "description": "As in the column `event_type` of the event log."},
        "batch": {**COUNT, "description": "With `index` the place of the event in the log."},
        "index": COUNT,
        "reason": _TEXT,
        "deliveryCount": COUNT,
        "lockedUntil": INSTANT,
        "stateBefore": _TEXT,
        "messageId": _TEXT,
        "sessionId": _TEXT,
        "enqueuedSequenceNumber": SEQUENCE_NUMBER,
        "relatedEntity": {**_TEXT, "description": "Where it came from, or went to."},
        "relatedSequenceNumber": SEQUENCE_NUMBER,
        "transactionId": _TEXT,
        "connectionId": COUNT,
        "connectionLost": {"type": "boolean"},
        "linkName": _TEXT,
        "sizeBytes": COUNT,
        "scheduledEnqueueTime": INSTANT,
        "expiresAt": INSTANT,
    },
    ["time", "type", "batch", "index"],
    description="What happened to a message.",
)

LIFE: Schema = record(
    {
        "events": {"type": "array", "items": ref("LifeEvent")},
        "isCut": {"type": "boolean", "description": "Whether there are more events than are shown."},
        "asOf": {**INSTANT, "description": "The last event in the log; what came later is not shown."},
    },
    ["events", "isCut"],
    description="The life of a message in one entity.",
)

NAMED: Final = {"LifeEvent": LIFE_EVENT, "Life": LIFE}


def show_life(call: Call) -> Answer:
    """Show what happened to a message."""
    if not call.context.has_event_log:
        raise InvalidOperation("The event log is off: start the broker with --capture DIR.")
    work = {"work": "life", "entity": shown(call.address), "number": call.given["number"], "form": "json"}
    assert call.node is not None
    identity = call.exchange.grant(Right.LISTEN, call.node.path).identity
    return Work(call.exchange.slim(), (), identity, work, JSON)


OPERATIONS = (
    Operation(
        "showLife",
        "GET",
        "/entities/{entity}/messages/{number}/life",
        "Show what happened to a message, from the event log",
        Right.LISTEN,
        show_life,
        "The broker writes the log in intervals: `asOf` says how far it is. The list is empty if the log has "
        "nothing of this number. Without an event log the answer is `409`.",
        answer=ref("Life"),
        problems=(404, 409),
    ),
)
