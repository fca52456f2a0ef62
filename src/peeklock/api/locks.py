"""Operations on locks: receive messages or a stream of them, receive deferred ones, renew, settle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peeklock.admin.exchange import Response
from peeklock.api.exchange import Answer, Ask, Show, Stream, answer_json, done, to_json
from peeklock.api.instants import write_instant
from peeklock.api.messages import views_found
from peeklock.api.model import INSTANT, SEQUENCE_NUMBER, VALUES, delivery_json, lock_json, message_json
from peeklock.api.schema import Schema, record, ref
from peeklock.api.table import Call, Operation, Parameter
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.commands import (
    Command,
    Disposition,
    LockToken,
    ReceiveDeferred,
    ReceiveMode,
    RenewLocks,
    SequenceNumber,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.effects import Deliver, LocksRenewed, MessagesFound
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.broker.vocabulary.message import LOST_BODY
from peeklock.rest.exchange import Take
from peeklock.rest.paths import lock_refusal, lock_token
from peeklock.rest.properties import read_member

WAIT_S_MAX = 60.0
RECEIVE_MAX = 100
WINDOW_MAX = 1000
_REASON_LENGTH_MAX = 4096

_OUTCOMES = {
    "abandon": Disposition.ABANDONED,
    "defer": Disposition.DEFERRED,
    "deadLetter": Disposition.SUSPENDED,
}
_MODES = ("peekLock", "receiveAndDelete")

RECEIVE: Schema = record(
    {
        "mode": {
            "type": "string",
            "enum": list(_MODES),
            "default": "peekLock",
            "description": "`receiveAndDelete` locks nothing: the messages of the answer are deleted.",
        },
        "max": {"type": "integer", "minimum": 1, "maximum": RECEIVE_MAX, "default": 1},
        "wait": {
            "type": "number",
            "minimum": 0,
            "maximum": WAIT_S_MAX,
            "default": 0,
            "description": "Seconds to wait for the first message.",
        },
        "sequenceNumbers": {
            "type": "array",
            "items": SEQUENCE_NUMBER,
            "minItems": 1,
            "maxItems": RECEIVE_MAX,
            "description": "Receive exactly these deferred messages, or none; `max` and `wait` are ignored.",
        },
    },
    (),
)

SETTLE: Schema = record(
    {
        "outcome": {"type": "string", "enum": list(_OUTCOMES)},
        "reason": {
            "type": "string",
            "maxLength": _REASON_LENGTH_MAX,
            "description": "Why the message is dead-lettered.",
        },
        "description": {
            "type": "string",
            "maxLength": _REASON_LENGTH_MAX,
            "description": "Details of the reason.",
        },
        "properties": {**VALUES, "description": "Properties of the message to change."},
    },
    ["outcome"],
    examples=[{"outcome": "deadLetter", "reason": "burnt"}],
)

DELIVERIES: Schema = record({"deliveries": {"type": "array", "items": ref("Delivery")}})

RENEWED: Schema = record({"lockedUntil": INSTANT})

NAMED = {"Receive": RECEIVE, "Settle": SETTLE, "Deliveries": DELIVERIES, "Renewed": RENEWED}


def receive(call: Call) -> Answer:
    """Lock messages, or delete them."""
    deletes = call.body.get("mode") == "receiveAndDelete"
    if "sequenceNumbers" in call.body:
        return _receive_deferred(call, call.body["sequenceNumbers"], deletes=deletes)
    address = call.address

    def show(delivery: Deliver, payload: bytes) -> dict[str, Any]:
        return delivery_json(delivery, payload, address, deleted=deletes)

    count_max, wait_s = call.body.get("max", 1), float(call.body.get("wait", 0))
    return Take(call.exchange.slim(), address, count_max, wait_s, deletes, show, _deliveries)


def _deliveries(found: list[dict[str, Any]]) -> Response:
    return answer_json({"deliveries": found})


def _receive_deferred(call: Call, numbers: list[SequenceNumber], *, deletes: bool) -> Answer:
    exchange, address = call.exchange, call.address
    mode = ReceiveMode.RECEIVE_AND_DELETE if deletes else ReceiveMode.PEEK_LOCK

    def render(effect: MessagesFound, payloads: list[bytes]) -> Answer:
        found: list[dict[str, Any]] = []
        for view, payload in zip(effect.messages, payloads, strict=True):
            if payload is not LOST_BODY:
                lock = {} if deletes else {"lock": lock_json(view, address)}
                found.append({**lock, "message": message_json(view, payload)})
        return answer_json({"deliveries": found})

    return Show(
        call.exchange, ReceiveDeferred(address, numbers, mode, exchange.reply_to), views_found, render
    )


def renew(call: Call) -> Answer:
    """Renew a lock."""

    def render(effect: LocksRenewed) -> Answer:
        return answer_json({"lockedUntil": write_instant(effect.locked_until_ms[0])})

    return _ask_for_lock(call, RenewLocks(call.address, _tokens(call), call.exchange.reply_to), render)


def complete(call: Call) -> Answer:
    """Complete a message."""
    return _settle(call, Disposition.COMPLETED)


def settle(call: Call) -> Answer:
    """Abandon, defer or dead-letter a message."""
    given = call.body
    outcome = _OUTCOMES[given["outcome"]]
    if outcome is not Disposition.SUSPENDED:
        for name in ("reason", "description"):
            if name in given:
                raise ArgumentInvalid(f"The member '{name}' requires the outcome deadLetter.")
    changed = read_member(given["properties"]) if "properties" in given else None
    return _settle(call, outcome, given.get("reason"), given.get("description"), changed)


def _settle(
    call: Call,
    disposition: Disposition,
    reason: str | None = None,
    description: str | None = None,
    changed: dict[str, Any] | None = None,
) -> Answer:
    command = UpdateDisposition(
        call.address,
        _tokens(call),
        disposition,
        call.exchange.reply_to,
        reason,
        description,
        changed,
    )
    return _ask_for_lock(call, command, done)


def _tokens(call: Call) -> list[LockToken]:
    return [lock_token(call.given["token"])]


def _ask_for_lock(call: Call, command: Command, render: Callable[[Any], Answer]) -> Ask:
    return Ask(call.exchange, command, render, lambda error: lock_refusal(error, call.given["token"]))


def deliver(call: Call) -> Answer:
    """Lock messages as they come."""
    address = call.address

    def render(delivery: Deliver, payload: bytes) -> bytes:
        data = to_json(delivery_json(delivery, payload, address, deleted=False))
        return b"event: delivery\nid: %d\ndata: %s\n\n" % (delivery.message.sequence_number, data)

    return Stream(call.exchange.slim(), address, call.given["window"], render)


OPERATIONS = (
    Operation(
        "receiveMessages",
        "POST",
        "/entities/{entity}/locks",
        "Receive: lock the next messages, or deferred ones by number",
        Right.LISTEN,
        receive,
        "The list is empty if no message came in time. A lock belongs to no connection and lasts for the "
        "entity's lock duration. AMQP clients can use its token too, to renew or settle. Entities that "
        "require sessions refuse this request: only an AMQP link can hold a session.",
        body=ref("Receive"),
        body_required=False,
        answer=ref("Deliveries"),
    ),
    Operation(
        "renewLock",
        "POST",
        "/entities/{entity}/locks/{token}",
        "Renew a lock",
        Right.LISTEN,
        renew,
        answer=ref("Renewed"),
    ),
    Operation(
        "completeMessage",
        "DELETE",
        "/entities/{entity}/locks/{token}",
        "Complete a message",
        Right.LISTEN,
        complete,
        status=204,
    ),
    Operation(
        "settleMessage",
        "PATCH",
        "/entities/{entity}/locks/{token}",
        "Abandon, defer or dead-letter a message",
        Right.LISTEN,
        settle,
        body=ref("Settle"),
        status=204,
    ),
    Operation(
        "streamDeliveries",
        "GET",
        "/entities/{entity}/deliveries",
        "Receive as a stream of server-sent events",
        Right.LISTEN,
        deliver,
        "Each message is locked and sent as an event `delivery` with a `Delivery` as its data. Settle it at "
        "the address of its lock. A comment is sent every 15 s. If the client disconnects, unsent messages "
        "are released without counting a delivery. An event `end` with a problem ends the stream.",
        query=(
            Parameter(
                "window",
                {"type": "integer", "minimum": 1, "maximum": WINDOW_MAX, "default": 100},
                "Maximum number of messages locked at a time. A message no longer counts when this API "
                "settles it or its lock lapses.",
            ),
        ),
        streams=True,
        problems=(404, 409, 503),
    ),
)
