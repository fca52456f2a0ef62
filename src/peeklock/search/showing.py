"""A peeked message as one JSON object, with the names of the HTTP API where it has them."""

from __future__ import annotations

import base64
from typing import Any

from peeklock.amqp.codec import DecodeError
from peeklock.amqp.messaging import Header
from peeklock.broker.content.routing import PARTITION_KEY, VIA_PARTITION_KEY, key_text
from peeklock.search.peeked import STATES, Peeked
from peeklock.search.plain import instant_text, plain
from peeklock.search.subject import expires_at_ms

_ANNOTATIONS = {
    "sequenceNumber": "x-opt-sequence-number",
    "enqueuedSequenceNumber": "x-opt-enqueue-sequence-number",
    "enqueuedTime": "x-opt-enqueued-time",
    "scheduledEnqueueTime": "x-opt-scheduled-enqueue-time",
    "lockedUntil": "x-opt-locked-until",
    "deadLetterSource": "x-opt-deadletter-source",
}
"""Key -> annotation. Source: wire contract 3.2."""

_FIELDS = {
    "messageId": "message_id",
    "correlationId": "correlation_id",
    "sessionId": "group_id",
    "subject": "subject",
    "to": "to",
    "replyTo": "reply_to",
    "replyToSessionId": "reply_to_group_id",
    "contentType": "content_type",
    "contentEncoding": "content_encoding",
    "userId": "user_id",
}
"""Key -> field of the properties section."""


def message_json(peeked: Peeked) -> dict[str, Any]:
    """Return a message as JSON; what it does not have is left out.

    The body is `body` if it is text in UTF-8, `bodyBase64` if it is other bytes, and `bodyValue` if it is an
    AMQP value that is neither, or a sequence. `bodyType` says how it was sent: `data`, `value`, `sequence`.
    """
    annotations, properties = peeked.annotations, peeked.properties
    try:
        header = peeked.sections.decode_header()
    except DecodeError:
        header = Header()
    found: dict[str, Any] = {key: plain(annotations.get(name)) for key, name in _ANNOTATIONS.items()}
    found["state"] = STATES[peeked.state]
    found["deliveryCount"] = header.delivery_count
    found["sizeBytes"] = len(peeked.payload)
    if header.ttl is not None:
        found["timeToLive"] = header.ttl / 1000
    if (at_ms := expires_at_ms(peeked)) is not None:
        found["expiresAt"] = instant_text(at_ms)
    found.update((key, plain(getattr(properties, field))) for key, field in _FIELDS.items())
    found["partitionKey"] = key_text(annotations.get(PARTITION_KEY))
    found["viaPartitionKey"] = key_text(annotations.get(VIA_PARTITION_KEY))
    found["properties"] = plain(peeked.application_properties)
    return {key: value for key, value in found.items() if value is not None} | _body(peeked)


def _body(peeked: Peeked) -> dict[str, Any]:
    parts = peeked.body_parts()
    if not parts:
        return {}
    kind, value = parts[0]
    if kind == "sequence":
        return {"bodyType": kind, "bodyValue": plain([item for _, items in parts for item in items])}
    if kind == "value" and not isinstance(value, str) and type(value) is not bytes:
        return {"bodyType": kind, "bodyValue": plain(value)}
    text = peeked.body_text
    if text is None:
        return {"bodyType": kind, "bodyBase64": base64.b64encode(peeked.body).decode()}
    return {"bodyType": kind, "body": text}
