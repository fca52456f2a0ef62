"""Messages as JSON: their schemas, read and written.

Source: wire contract 3.2 and 3.4 for the place of each property in a message.
"""

from __future__ import annotations

import base64
import binascii
import math
from codecs import getincrementaldecoder
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote
from uuid import UUID

from peeklock.amqp.decimals import number_of
from peeklock.amqp.messaging import scan
from peeklock.amqp.types import Char, Decimal32, Decimal64, Decimal128, Timestamp
from peeklock.api.instants import read_instant, write_instant, written
from peeklock.api.schema import Schema, page, record, ref
from peeklock.api.section_json import BODY_KINDS, sections_json
from peeklock.api.section_json import NAMED as SECTIONS_NAMED
from peeklock.api.table import ROOT
from peeklock.broker.vocabulary.commands import Address
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS, shown_source
from peeklock.broker.vocabulary.effects import Deliver
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.broker.vocabulary.message import NEVER_MS, MessageState, MessageView
from peeklock.gateway.address import shown
from peeklock.gateway.annotations import encode_for_receiver
from peeklock.rest.broker_properties import BrokerProperties
from peeklock.rest.encoding import Encoded, message_of
from peeklock.rest.properties import read_member
from peeklock.rest.showing import application_properties_of, body_of, known_texts

SEQUENCE_NUMBER: Schema = {"type": "integer", "format": "int64", "minimum": 0, "maximum": (1 << 63) - 1}
INSTANT: Schema = {"type": "string", "format": "date-time"}
COUNT: Schema = {"type": "integer", "minimum": 0}
STATES = {
    MessageState.ACTIVE: "active",
    MessageState.DEFERRED: "deferred",
    MessageState.SCHEDULED: "scheduled",
}
STATES_BY_NAME = {name: state for state, name in STATES.items()}
_TEXT: Schema = {"type": "string"}
_ID: Schema = {"type": "string", "maxLength": 128}

_TEXTS = {
    "correlationId": "correlation_id",
    "messageId": "message_id",
    "partitionKey": "partition_key",
    "replyTo": "reply_to",
    "replyToSessionId": "reply_to_session_id",
    "sessionId": "session_id",
    "subject": "label",
    "to": "to",
    "viaPartitionKey": "via_partition_key",
}
"""Member -> field of BrokerProperties."""

_SHOWN_TEXTS = {"contentType": "content_type", **_TEXTS}

_IDS = ("messageId", "partitionKey", "replyToSessionId", "sessionId", "viaPartitionKey")

VALUES: Schema = {
    "type": "object",
    "maxProperties": 250,
    "additionalProperties": {"type": ["string", "integer", "number", "boolean", "null"]},
    "examples": [{"priority": "high", "count": 1}],
}

MESSAGE_TO_SEND: Schema = record(
    {
        "body": {"type": "string", "description": "The body as text, sent in UTF-8."},
        "bodyBase64": {
            "type": "string",
            "contentEncoding": "base64",
            "description": "The body as bytes, instead of `body`.",
        },
        "contentType": {"type": "string", "maxLength": 1024, "pattern": "^[ -~]*$"},
        **{name: _ID if name in _IDS else _TEXT for name in _TEXTS},
        "timeToLive": {"type": "number", "exclusiveMinimum": 0, "description": "Seconds."},
        "scheduledEnqueueTime": {
            **INSTANT,
            "description": "When to enqueue the message; a past time means now.",
        },
        "properties": {**VALUES, "description": "Application properties."},
    },
    (),
    description="A message to send.",
    examples=[{"body": "one pizza", "messageId": "order-1", "properties": {"priority": "high"}}],
)

MESSAGE: Schema = record(
    {
        "entity": {"type": "string", "description": "The message's entity. Only in search results."},
        "sequenceNumber": SEQUENCE_NUMBER,
        "enqueuedSequenceNumber": SEQUENCE_NUMBER,
        "state": {"type": "string", "enum": list(STATES.values())},
        "lockedUntil": {**INSTANT, "description": "Absent if the message is not locked."},
        "heldByCursor": {"type": "string", "description": "The cursor that holds the message."},
        "enqueuedTime": INSTANT,
        "scheduledEnqueueTime": INSTANT,
        "expiresAt": INSTANT,
        "timeToLive": {"type": "number", "description": "Seconds."},
        "deliveryCount": {
            **COUNT,
            "description": "Deliveries, including the current one in the answer to a receive.",
        },
        "sizeBytes": COUNT,
        "deadLetterSource": _TEXT,
        "body": {"type": "string", "description": "If it is text in UTF-8."},
        "bodyBase64": {"type": "string", "contentEncoding": "base64", "description": "If it is not."},
        "bodySizeBytes": {**COUNT, "description": "Only with `bodyBytesMax`."},
        "bodyTruncated": {"type": "boolean", "description": "Present if the body is cut."},
        "bodyKind": {"type": "string", "enum": list(BODY_KINDS), "description": "Only with `sections`."},
        "sections": ref("Sections"),
        "contentType": _TEXT,
        **dict.fromkeys(_TEXTS, _TEXT),
        "properties": {
            "type": "object",
            "description": "Application properties. Values without a JSON type are text; bytes are base64.",
        },
    },
    [
        "sequenceNumber",
        "enqueuedSequenceNumber",
        "state",
        "deliveryCount",
        "sizeBytes",
        "properties",
    ],
    description="A message in an entity.",
)

MESSAGES = page("messages", ref("Message"), may_be_empty=True)

LOCK: Schema = record(
    {
        "token": {"type": "string", "format": "uuid"},
        "lockedUntil": INSTANT,
        "href": {"type": "string", "format": "uri-reference", "description": "The address of the lock."},
    }
)

DELIVERY: Schema = record(
    {"lock": ref("Lock"), "message": ref("Message")},
    ["message"],
    description="A received message. `lock` is absent after `receiveAndDelete`.",
)

NAMED: Mapping[str, Schema] = {
    **SECTIONS_NAMED,
    "MessageToSend": MESSAGE_TO_SEND,
    "Message": MESSAGE,
    "Messages": MESSAGES,
    "Lock": LOCK,
    "Delivery": DELIVERY,
}


def read_message(given: Mapping[str, Any], now_ms: int, where: str) -> Encoded:
    """Encode a message whose JSON the schema allows; `where` precedes the names of members in a refusal.

    Raises: ArgumentInvalid, ArgumentOutOfRange, InvalidOperation.
    """
    found = BrokerProperties()
    for member, name in _TEXTS.items():
        if member in given:
            setattr(found, name, given[member])
    found.content_type = given.get("contentType") or None
    if "timeToLive" in given:
        found.ttl_ms = ttl_ms(given["timeToLive"])
    if "scheduledEnqueueTime" in given:
        at_ms = read_instant(given["scheduledEnqueueTime"], f"The member '{where}scheduledEnqueueTime'")
        found.scheduled_at_ms = max(at_ms, 0)
    body = given.get("body", "").encode()
    if "bodyBase64" in given:
        if "body" in given:
            raise ArgumentInvalid(f"The members '{where}body' and '{where}bodyBase64' exclude each other.")
        try:
            body = base64.b64decode(given["bodyBase64"], validate=True)
        except (binascii.Error, ValueError):
            raise ArgumentInvalid(f"The member '{where}bodyBase64' is not base64.") from None
    return message_of(body, found, read_member(given.get("properties", {})), now_ms)


def ttl_ms(seconds: float) -> int:
    """Return a time to live in ms, of which the shortest is 1 ms."""
    return max(1, round(min(seconds * 1000, UNLIMITED_MS)))


def message_json(
    view: MessageView,
    payload: bytes,
    *,
    entity: Address | None = None,
    body_bytes_max: int | None = None,
    with_sections: bool = False,
) -> dict[str, Any]:
    """Return a message as JSON; with its entity if one is given, and with its sections if they are asked for.

    `body_bytes_max`: a longer body is cut; None = it is whole.
    """
    message = view.message
    sections = scan(encode_for_receiver(view, payload))
    instants = {
        "lockedUntil": 0 if view.lock_token is not None else view.locked_until_ms,
        "enqueuedTime": message.enqueued_at_ms,
        "scheduledEnqueueTime": message.scheduled_at_ms or 0,
        "expiresAt": 0 if message.expires_at_ms == NEVER_MS else message.expires_at_ms,
    }
    found: dict[str, Any] = {
        **({} if entity is None else {"entity": shown(entity)}),
        "sequenceNumber": message.sequence_number,
        "enqueuedSequenceNumber": message.enqueued_sequence_number,
        "state": STATES[view.state],
        **written(instants),
        "deliveryCount": view.delivery_count + (view.lock_token is not None),
        "sizeBytes": message.size_bytes,
        "properties": {
            str(name): _plain(value) for name, value in application_properties_of(sections).items()
        },
    }
    if view.ttl_ms is not None:
        found["timeToLive"] = view.ttl_ms / 1000
    if view.cursor is not None:
        found["heldByCursor"] = view.cursor
    if message.dead_letter_source is not None:
        found["deadLetterSource"] = shown_source(message.dead_letter_source)
    texts, _ = known_texts(sections)
    found.update({member: texts[field] for member, field in _SHOWN_TEXTS.items() if field in texts})
    body = body_of(sections)
    is_cut = body_bytes_max is not None and len(body) > body_bytes_max
    found.update(_cut_json(body, body_bytes_max) if is_cut else body_json(body))
    if body_bytes_max is not None:
        found["bodySizeBytes"] = len(body)
    if with_sections:
        found.update(sections_json(sections, with_body=not is_cut))
    return found


def _cut_json(body: bytes, bytes_max: int | None) -> dict[str, Any]:
    """Return the beginning of a body: text if it is UTF-8 up to there, without the half of a character."""
    body = body[:bytes_max]
    try:
        return {"body": getincrementaldecoder("utf-8")().decode(body), "bodyTruncated": True}
    except UnicodeDecodeError:
        return {"bodyBase64": base64.b64encode(body).decode(), "bodyTruncated": True}


def body_json(body: bytes) -> dict[str, str]:
    """Return a body as JSON: text if it is UTF-8, else base64."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"bodyBase64": base64.b64encode(body).decode()}


def lock_json(delivery: MessageView, address: Address) -> dict[str, Any]:
    """Return the lock of a received message as JSON."""
    assert delivery.lock_token is not None
    token = str(UUID(bytes_le=delivery.lock_token))
    return {
        "token": token,
        "lockedUntil": write_instant(delivery.locked_until_ms),
        "href": f"{entity_href(address)}/locks/{token}",
    }


def entity_href(address: Address) -> str:
    """Return the address of an entity."""
    return f"{ROOT}/entities/{quote(shown(address), safe='$')}"


def _plain(value: Any) -> Any:
    """Return a property's value in a type of JSON."""
    if isinstance(value, Timestamp):
        return write_instant(value) or str(int(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Decimal32 | Decimal64 | Decimal128):
        return str(number_of(value))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, str | Char | UUID) else repr(value)


def delivery_json(delivery: Deliver, payload: bytes, address: Address, *, deleted: bool) -> dict[str, Any]:
    """Return a received message as JSON."""
    lock = {} if deleted else {"lock": lock_json(delivery, address)}
    return {**lock, "message": message_json(delivery, payload)}
