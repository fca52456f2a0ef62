"""The operation on the history: messages that left recently, what was sent and who received it."""

from __future__ import annotations

from typing import Any

from peeklock.api.entities import CURSOR, LIMIT
from peeklock.api.exchange import Answer, Ask, answer_json, from_cursor, to_cursor
from peeklock.api.instants import written
from peeklock.api.model import COUNT, INSTANT, message_json
from peeklock.api.problems import NotHere
from peeklock.api.schema import Schema, page, record, ref
from peeklock.api.search import ENTITY_PARAMETER
from peeklock.api.table import Call, Operation, Parameter
from peeklock.auth.rights import Right
from peeklock.broker.record.history import Delivery, Ending, Entry, Outcome
from peeklock.broker.vocabulary.commands import LookUp
from peeklock.broker.vocabulary.message import EMPTY_PAYLOAD
from peeklock.gateway.address import shown

_OUTCOMES = [outcome.value for outcome in Outcome]

LOOKED_AT_MAX = 5000
"""Entries that are read for one page. Our choice: 5 ms."""

ENTRY: Schema = record(
    {
        "number": {**COUNT, "description": "Entries are numbered 1, 2, ... since the broker's start."},
        "leftAt": INSTANT,
        "outcome": {"type": "string", "enum": _OUTCOMES},
        "reason": {"type": "string", "description": "Why it was dead-lettered."},
        "movedTo": {"type": "string", "description": "The dead-letter queue that it moved to."},
        "connection": {
            **COUNT,
            "description": "The connection that requested it; this API is one connection. Absent on expiry.",
        },
        "message": {**ref("Message"), "description": "Without a body if that is unknown."},
        "bodyCut": {"type": "boolean", "description": "Whether the body is cut to 4 KiB or less."},
        "deliveries": {
            "type": "array",
            "description": "The last 16 that are known.",
            "items": record(
                {
                    "at": INSTANT,
                    "connection": COUNT,
                    "link": {"type": "string", "description": "The client's name for its link."},
                    "ended": {
                        "type": "string",
                        "enum": [ending.value for ending in Ending],
                        "description": "Absent if the message left with this delivery.",
                    },
                    "endedAt": INSTANT,
                },
                ["at", "connection"],
            ),
        },
        "deliveriesTotal": COUNT,
    },
    ["number", "leftAt", "outcome", "message", "bodyCut", "deliveries", "deliveriesTotal"],
    description="A message that left a queue.",
)

ENTRIES = page("entries", ref("HistoryEntry"), may_be_empty=True)

NAMED = {"HistoryEntry": ENTRY, "HistoryEntries": ENTRIES}


def list_history(call: Call) -> Answer:
    """List the messages that left, the newest first."""
    history = call.context.history
    if history is None:
        raise NotHere("No history is kept: start the broker with --history N.")
    before = None
    if "cursor" in call.given:
        (before,) = from_cursor(call.given["cursor"], int)
    looked_at = history.newest(before, LOOKED_AT_MAX)
    chosen = [entry for entry in looked_at if _is_wanted(entry, call)][: call.given["limit"]]
    last = chosen[-1] if len(chosen) == call.given["limit"] else looked_at[-1] if looked_at else None
    more = {"next": to_cursor(last.no)} if last is not None and history.newest(last.no, 1) else {}
    answer = answer_json({"entries": [entry_json(entry) for entry in chosen], **more})
    if before is None and not more and not any(_is_of_entity(entry, call) for entry in looked_at):
        return _unless_absent(call, answer)
    return answer


def _unless_absent(call: Call, answer: Answer) -> Answer:
    """Answer 404 for an entity that neither exists nor has entries; a deleted one may have some."""

    if call.node is None:
        return answer
    return Ask(call.exchange, LookUp(call.address, call.exchange.reply_to), lambda effect: answer)


def _is_wanted(entry: Entry, call: Call) -> bool:
    outcome = call.given.get("outcome")
    return (outcome is None or entry.outcome.value == outcome) and _is_of_entity(entry, call)


def _is_of_entity(entry: Entry, call: Call) -> bool:
    return call.node is None or shown(entry.address).lower() == shown(call.address).lower()


def entry_json(entry: Entry) -> dict[str, Any]:
    """Return a message that left as JSON."""
    payload = entry.payload
    message = message_json(entry.view, EMPTY_PAYLOAD if payload is None else payload, entity=entry.address)
    if payload is None:
        message.pop("body", None)
    optional = {"reason": entry.reason, "movedTo": entry.moved_to, "connection": entry.connection_id or None}
    return {
        "number": entry.no,
        **written({"leftAt": entry.left_at_ms}),
        "outcome": entry.outcome.value,
        **{name: value for name, value in optional.items() if value is not None},
        "message": message,
        "bodyCut": entry.body_cut,
        "deliveries": [_delivery_json(delivery) for delivery in entry.deliveries],
        "deliveriesTotal": entry.deliveries_total,
    }


def _delivery_json(delivery: Delivery) -> dict[str, Any]:
    return {
        **written({"at": delivery.at_ms, "endedAt": delivery.ended_at_ms}),
        "connection": delivery.connection_id,
        **({} if delivery.link_name is None else {"link": delivery.link_name}),
        **({} if delivery.ended is None else {"ended": delivery.ended.value}),
    }


OPERATIONS = (
    Operation(
        "listHistory",
        "GET",
        "/history",
        "List messages that left recently, newest first",
        Right.LISTEN,
        list_history,
        "Each entry has the message as sent, its deliveries and its outcome. The history is in memory, so it "
        "is empty after a start. It has the last 1,000 messages in development mode, otherwise as many as "
        "`--history N` sets. Entries outlive their entity: 404 means no such entity and no entries.",
        query=(
            ENTITY_PARAMETER,
            Parameter("outcome", {"type": "string", "enum": _OUTCOMES}, "Only messages with this outcome."),
            LIMIT,
            CURSOR,
        ),
        answer=ref("HistoryEntries"),
        problems=(404,),
    ),
)
