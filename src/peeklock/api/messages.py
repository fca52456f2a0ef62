"""Operations on the messages of one entity: peek, show one, send, schedule, cancel, purge."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from peeklock.api.entities import CURSOR, LIMIT
from peeklock.api.exchange import (
    Answer,
    Ask,
    Show,
    answer_json,
    from_cursor,
    to_cursor,
)
from peeklock.api.instants import read_instant
from peeklock.api.model import (
    COUNT,
    INSTANT,
    MESSAGE_TO_SEND,
    SEQUENCE_NUMBER,
    STATES,
    STATES_BY_NAME,
    message_json,
    read_message,
)
from peeklock.api.problems import SEND_STATUSES
from peeklock.api.schema import Schema, check, page, record, ref
from peeklock.api.table import Call, Operation, Parameter
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.commands import (
    LookUp,
    Peek,
    PurgeMessages,
    Schedule,
    SequenceNumber,
)
from peeklock.broker.vocabulary.effects import EntityFound, MessagesDeleted, MessagesFound, MessagesScheduled
from peeklock.broker.vocabulary.errors import ArgumentInvalid, MessageNotFound
from peeklock.broker.vocabulary.message import LOST_BODY, MessageView
from peeklock.gateway.address import shown
from peeklock.rest.encoding import Encoded
from peeklock.rest.exchange import Step

PAGE_BYTES_MAX = 1024 * 1024
"""Of the messages in a page, unless one is larger. Our choice: it is read and encoded in some 20 ms."""

SEND_BYTES_MAX = 1024 * 1024
"""Of JSON with messages; a larger message is sent by the REST data plane. Our choice: see `rest.sending`."""

SEND_MAX = 1000
"""Messages of one array. Our choice: their JSON is read and checked in some 20 ms."""

SLICE_MESSAGES = 32
"""Messages of an array that are encoded in one turn. Our choice: 3 ms, and 20 with the most properties."""

_ARRAY: Schema = {"type": "array", "minItems": 1, "maxItems": SEND_MAX}

SENT: Schema = record(
    {
        "sequenceNumbers": {
            "type": "array",
            "items": SEQUENCE_NUMBER,
            "description": "In the order of the messages. A duplicate has the number of the first one.",
        }
    }
)

DELETED: Schema = record({"deleted": COUNT})

_PAGE: Schema = page("messages", ref("Message"), may_be_empty=True)
_NEXT = {**SEQUENCE_NUMBER, "description": "The sequence number that the next page begins at or after."}
PEEKED: Schema = {**_PAGE, "properties": {**_PAGE["properties"], "nextNumber": _NEXT}}

NAMED = {"Sent": SENT, "Deleted": DELETED, "Peeked": PEEKED}

STATE = Parameter(
    "state",
    {"type": "string", "enum": list(STATES.values())},
    "Only messages in this state. A request passes over a bounded number of others, so a page may be empty "
    "and have a `next`.",
)
FROM = Parameter("from", SEQUENCE_NUMBER, "The lowest sequence number to show.")
BODY_BYTES_MAX = Parameter(
    "bodyBytesMax",
    {"type": "integer", "minimum": 0, "maximum": 1 << 30},
    "Cut a longer body to so many bytes. Default: it is shown whole.",
)


def peek(call: Call) -> Answer:
    """Show messages without locking them."""
    first = SequenceNumber(call.given.get("from", 0))
    if "cursor" in call.given:
        (first,) = from_cursor(call.given["cursor"], int)
    given, exchange = call.given, call.exchange
    state = STATES_BY_NAME[given["state"]] if "state" in given else None
    command = Peek(
        call.address, first, given["limit"], PAGE_BYTES_MAX, exchange.reply_to, given.get("session"), state
    )

    def render(effect: MessagesFound, payloads: list[bytes]) -> Answer:
        listed = zip(effect.messages, payloads, strict=True)
        found: dict[str, Any] = {
            "messages": [
                message_json(view, payload, body_bytes_max=given.get("bodyBytesMax"))
                for view, payload in listed
                if payload is not LOST_BODY
            ]
        }
        following = effect.stopped_at
        if following is None and effect.messages:
            following = SequenceNumber(effect.messages[-1].message.sequence_number + 1)
        if following is not None:
            found["next"] = to_cursor(following)
            found["nextNumber"] = following
        return answer_json(found)

    return Show(call.exchange, command, views_found, render)


def views_found(effect: MessagesFound) -> list[MessageView]:
    """Return the messages of an answer."""
    return effect.messages


def show_message(call: Call) -> Answer:
    """Show the message with a sequence number."""
    number, exchange = SequenceNumber(call.given["number"]), call.exchange

    def render(effect: MessagesFound, payloads: list[bytes]) -> Answer:
        is_there = effect.messages and effect.messages[0].message.sequence_number == number
        if not is_there or payloads[0] is LOST_BODY:
            text = f"No message of '{shown(call.address)}' has the sequence number {number}."
            return exchange.refusal(MessageNotFound(text))
        return answer_json(
            message_json(
                effect.messages[0],
                payloads[0],
                body_bytes_max=call.given.get("bodyBytesMax"),
                with_sections=call.given["sections"],
            )
        )

    return Show(
        call.exchange, Peek(call.address, number, 1, PAGE_BYTES_MAX, exchange.reply_to), views_found, render
    )


def send(call: Call) -> Answer:
    """Store messages, all or none."""
    call.exchange.statuses = SEND_STATUSES
    is_array = isinstance(call.body, list)
    given = check(call.body, _ARRAY, {}) if is_array else [call.body]
    key = call.given.get("Idempotency-Key")
    if key is not None and len(given) != 1:
        raise ArgumentInvalid("The header Idempotency-Key is for one message only.")
    prefixes = [f"[{number}]" for number in range(len(given))] if is_array else [""]
    encoded = (_encoded(call, member, at, key) for member, at in zip(given, prefixes, strict=True))
    return _read_on(call, encoded, [])


def _encoded(call: Call, given: Any, at: str, key: str | None) -> Encoded:
    """Make a message of a member; `at`: its place in the body."""
    member = check(given, MESSAGE_TO_SEND, {}, f"The member '{at}'" if at else "The body")
    if key is not None and member.setdefault("messageId", key) != key:
        raise ArgumentInvalid(
            "The header Idempotency-Key differs from the messageId: leave out one of them, or use one value."
        )
    return read_message(member, call.exchange.now_ms, f"{at}." if at else "")


def _read_on(call: Call, encoded: Iterator[Encoded], read: list[Encoded]) -> Answer:
    """Make the next messages."""
    count = len(read)
    read += islice(encoded, SLICE_MESSAGES)
    if len(read) - count == SLICE_MESSAGES:
        return Step(lambda: call.exchange.guarded(lambda: _read_on(call, encoded, read)))
    stored = _store(call, read)
    return _require_ids(call, stored) if "Idempotency-Key" in call.given else stored


def _require_ids(call: Call, then: Ask) -> Ask:
    """Continue if the entity detects duplicates."""

    def render(effect: EntityFound) -> Answer:
        if not effect.entity.description.requires_duplicate_detection:
            return call.exchange.refusal(
                ArgumentInvalid(
                    f"The header Idempotency-Key has no effect on '{shown(call.address)}', which does not "
                    f"detect duplicates."
                )
            )
        return then

    return Ask(call.exchange, LookUp(call.address, call.exchange.reply_to), render)


def _store(call: Call, messages: list[Encoded]) -> Ask:
    def render(effect: MessagesScheduled) -> Answer:
        return answer_json({"sequenceNumbers": effect.sequence_numbers}, 201)

    # A schedule answers with numbers; messages without a time, or with a past one, are enqueued at once.
    return Ask(call.exchange, Schedule(call.address, messages, call.exchange.reply_to), render)


def purge(call: Call) -> Answer:
    """Delete active and deferred messages that are not locked."""
    before_ms = call.exchange.now_ms
    if "before" in call.given:
        before_ms = read_instant(call.given["before"], "The parameter 'before'")

    def render(effect: MessagesDeleted) -> Answer:
        return answer_json({"deleted": effect.count})

    return Ask(call.exchange, PurgeMessages(call.address, before_ms, call.exchange.reply_to), render)


OPERATIONS = (
    Operation(
        "peekMessages",
        "GET",
        "/entities/{entity}/messages",
        "Peek: show messages in any state, by sequence number",
        Right.LISTEN,
        peek,
        "A peek locks no message and counts no delivery.",
        query=(FROM, STATE, BODY_BYTES_MAX, LIMIT, CURSOR),
        answer=ref("Peeked"),
    ),
    Operation(
        "sendMessages",
        "POST",
        "/entities/{entity}/messages",
        "Send or schedule one message, or an array of them: all or none",
        Right.SEND,
        send,
        "A message with a `scheduledEnqueueTime` is scheduled; its sequence number cancels it. "
        "The limit is 1 MiB of JSON; send a larger message to `/{entity}/messages`.",
        headers=(
            Parameter(
                "Idempotency-Key",
                {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[!-~]+$"},
                "The message id of a single message. If it is sent again within the entity's duplicate "
                "detection window, it is stored once. Entities without duplicate detection refuse it.",
            ),
        ),
        body={
            "anyOf": [
                ref("MessageToSend"),
                {**_ARRAY, "items": ref("MessageToSend")},
            ]
        },
        checks_body=False,
        body_bytes_max=SEND_BYTES_MAX,
        status=201,
        answer=ref("Sent"),
    ),
    Operation(
        "purgeMessages",
        "DELETE",
        "/entities/{entity}/messages",
        "Purge: delete all active and deferred messages that are not locked",
        Right.LISTEN,
        purge,
        "Scheduled messages stay. The answer comes when all others are deleted.",
        query=(Parameter("before", INSTANT, "Only messages enqueued at or before this time. Default: now."),),
        answer=ref("Deleted"),
    ),
    Operation(
        "showMessage",
        "GET",
        "/entities/{entity}/messages/{number}",
        "Show the message with a sequence number",
        Right.LISTEN,
        show_message,
        query=(
            BODY_BYTES_MAX,
            Parameter(
                "sections",
                {"type": "boolean", "default": False},
                "Show each AMQP section too, with the types of its values.",
            ),
        ),
        answer=ref("Message"),
    ),
)
