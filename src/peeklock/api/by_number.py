"""Operations on one message that nobody holds, by its number: delete it, or change what becomes of it."""

from __future__ import annotations

from peeklock.admin.exchange import Response
from peeklock.api.exchange import Answer, Ask, done
from peeklock.api.instants import read_instant
from peeklock.api.model import INSTANT
from peeklock.api.problems import RightMissing
from peeklock.api.schema import Schema, record, ref
from peeklock.api.table import Call, Operation
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.commands import CancelScheduled, Disposition, SequenceNumber
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.broker.vocabulary.extension_commands import SettleByNumber, ShiftScheduled

TEXT_LENGTH_MAX = 4096
"""Of a reason and a description, as of `rest` and the official clients."""

_DISPOSITIONS = {"deadLetter": Disposition.SUSPENDED, "deferred": Disposition.DEFERRED}

MESSAGE_CHANGE: Schema = record(
    {
        "to": {"type": "string", "enum": list(_DISPOSITIONS)},
        "reason": {
            "type": "string",
            "maxLength": TEXT_LENGTH_MAX,
            "description": "With `deadLetter`: the DeadLetterReason.",
        },
        "description": {
            "type": "string",
            "maxLength": TEXT_LENGTH_MAX,
            "description": "With `deadLetter`: the DeadLetterErrorDescription.",
        },
        "scheduledEnqueueTime": {
            **INSTANT,
            "description": "When a scheduled message is enqueued, instead of `to`; a past time means now.",
        },
    },
    (),
    description="What becomes of a message.",
    examples=[{"to": "deadLetter", "reason": "wrong address"}],
)

NAMED = {"MessageChange": MESSAGE_CHANGE}


def _may_receive(call: Call) -> bool:
    """Return whether the token has Listen; else it has Send alone, for scheduled messages."""
    assert call.node is not None
    return Right.LISTEN in call.exchange.granted_here(call.node.path).rights


def delete_message(call: Call) -> Answer:
    """Delete a message; with Send alone, a scheduled one."""
    number, reply_to = SequenceNumber(call.given["number"]), call.exchange.reply_to
    if _may_receive(call):
        command = SettleByNumber(reply_to, call.address, number, Disposition.COMPLETED)
        return Ask(call.exchange, command, done)
    return Ask(call.exchange, CancelScheduled(call.address, [number], reply_to), done)


def change_message(call: Call) -> Answer:
    """Dead-letter or defer a message, or move a scheduled one in time.

    Raises: ArgumentInvalid, RightMissing.
    """
    given, exchange = call.body, call.exchange
    number = SequenceNumber(call.given["number"])
    if ("to" in given) == ("scheduledEnqueueTime" in given):
        raise ArgumentInvalid("The body has not one of the members 'to' and 'scheduledEnqueueTime'.")
    texts = [name for name in ("reason", "description") if name in given]
    if texts and given.get("to") != "deadLetter":
        raise ArgumentInvalid(f"The member '{texts[0]}' goes with 'to' deadLetter.")
    if "to" not in given:
        at_ms = read_instant(given["scheduledEnqueueTime"], "The member 'scheduledEnqueueTime'")
        shift = ShiftScheduled(exchange.reply_to, call.address, (number,), None, at_ms)
        return Ask(exchange, shift, lambda effect: Response(204))
    if not _may_receive(call):
        raise RightMissing("Listen claim required to settle a message.")
    command = SettleByNumber(
        exchange.reply_to,
        call.address,
        number,
        _DISPOSITIONS[given["to"]],
        given.get("reason"),
        given.get("description"),
    )
    return Ask(exchange, command, done)


OPERATIONS = (
    Operation(
        "deleteMessage",
        "DELETE",
        "/entities/{entity}/messages/{number}",
        "Delete a message that is not locked, or cancel a scheduled one",
        Right.LISTEN,
        delete_message,
        "The message may be active, deferred, scheduled or a dead letter. It is not delivered. A locked one "
        "is refused with 409, one that is gone with 404. Send alone is enough for a scheduled message.",
        or_right=Right.SEND,
        status=204,
    ),
    Operation(
        "changeMessage",
        "PATCH",
        "/entities/{entity}/messages/{number}",
        "Dead-letter or defer a message that is not locked, or schedule one for another time",
        Right.LISTEN,
        change_message,
        "The message is not delivered, and its delivery count stays. A locked one is refused with 409, one "
        "that is gone with 404. A message that is scheduled for another time keeps its number; Send alone is "
        "enough for this.",
        or_right=Right.SEND,
        body=ref("MessageChange"),
        status=204,
    ),
)
