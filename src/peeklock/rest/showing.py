"""A message as a receiver over HTTP gets it: body, BrokerProperties, headers.

Source: wire contract 8; 3.2 and 3.4 for the place of each property in a message.
"""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import UUID

from peeklock.admin.exchange import Response
from peeklock.amqp.codec import DecodeError, decode, decode_typed
from peeklock.amqp.messaging import Sections, scan
from peeklock.broker.content.routing import PARTITION_KEY, VIA_PARTITION_KEY, key_text
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS, shown_source
from peeklock.broker.vocabulary.effects import Deliver
from peeklock.broker.vocabulary.message import MessageState
from peeklock.gateway.annotations import encode_for_receiver
from peeklock.rest.broker_properties import TEXTS, has_date, write_date, write_json
from peeklock.rest.properties import write_headers

_STATES = {
    MessageState.ACTIVE: "Active",
    MessageState.DEFERRED: "Deferred",
    MessageState.SCHEDULED: "Scheduled",
}
_CONTENT_TYPE = re.compile(r"[!-~](?:[ -~]*[!-~])?", re.ASCII)


def response_of(delivery: Deliver, payload: bytes, *, lock_url: str | None) -> Response:
    """Return the answer that shows a message.

    Args:
        payload: as its sender sent it.
        lock_url: address of the entity's messages, from which that of the lock is made; None = it is deleted.
    """
    encoded = encode_for_receiver(delivery, payload, tag_only=lock_url is None)
    sections = scan(encoded)
    shown = _broker_properties(delivery, sections)
    headers: list[tuple[str, str]] = []
    assert delivery.lock_token is not None
    if lock_url is not None:
        token = str(UUID(bytes_le=delivery.lock_token))
        shown["LockToken"] = token
        shown["LockedUntilUtc"] = write_date(delivery.locked_until_ms)
        headers.append(("Location", f"{lock_url}/{delivery.message.sequence_number}/{token}"))
    content_type = shown.pop("ContentType", None)  # it has its own header
    headers.append(("BrokerProperties", write_json(shown)))
    headers += write_headers(application_properties_of(sections))
    body = body_of(sections)
    return Response(200 if lock_url is None else 201, content_type or "", body, tuple(headers))


def _broker_properties(delivery: Deliver, sections: Sections) -> dict[str, Any]:
    message = delivery.message
    ttl_ms = UNLIMITED_MS if delivery.ttl_ms is None else delivery.ttl_ms
    shown: dict[str, Any] = {
        "DeliveryCount": delivery.delivery_count + 1,  # .NET's count includes this delivery
        "EnqueuedSequenceNumber": message.enqueued_sequence_number,
        "EnqueuedTimeUtc": write_date(message.enqueued_at_ms),
        "SequenceNumber": message.sequence_number,
        "State": _STATES[delivery.state],
        "TimeToLive": ttl_ms / 1000,  # always: Azure's client for Rust rejects a message without it
    }
    if message.dead_letter_source is not None:
        shown["DeadLetterSource"] = shown_source(message.dead_letter_source)
    texts, annotations = known_texts(sections)
    shown.update({name: texts[field] for name, field in TEXTS.items() if field in texts})
    scheduled = annotations.get("x-opt-scheduled-enqueue-time")
    if isinstance(scheduled, int) and has_date(scheduled):
        shown["ScheduledEnqueueTimeUtc"] = write_date(scheduled)
    if not _CONTENT_TYPE.fullmatch(shown.get("ContentType", "-")):
        del shown["ContentType"]
    return shown


def known_texts(sections: Sections) -> tuple[dict[str, str], dict[Any, Any]]:
    """Return a message's texts by field of BrokerProperties, and its annotations; none if
    they are malformed."""
    try:
        properties = sections.decode_properties()
        annotations = sections.decode_message_annotations()
    except DecodeError:
        return {}, {}
    found = {
        "correlation_id": properties.correlation_id,
        "label": properties.subject,
        "message_id": properties.message_id,
        "partition_key": key_text(annotations.get(PARTITION_KEY)),
        "reply_to": properties.reply_to,
        "reply_to_session_id": properties.reply_to_group_id,
        "session_id": properties.group_id,
        "to": properties.to,
        "via_partition_key": key_text(annotations.get(VIA_PARTITION_KEY)),
        "content_type": properties.content_type,
    }
    texts = {
        name: value.hex() if isinstance(value, bytes) else str(value)
        for name, value in found.items()
        if value is not None
    }
    return texts, annotations


def application_properties_of(sections: Sections) -> dict[Any, Any]:
    """Return a message's application properties in the types that they were sent in."""
    span = sections.application_properties
    if span is None:
        return {}
    try:
        found, _ = decode_typed(sections.payload, decode(sections.payload, span[0] + 1)[1])
    except DecodeError:
        return {}
    return dict(found)


def body_of(sections: Sections) -> bytes:
    """Return the body as bytes: data as it is, a string in UTF-8, any other value as JSON."""
    if sections.body is None:
        return b""
    try:
        parts = sections.decode_body()
    except DecodeError:
        return sections.payload[slice(*sections.body)]
    if parts[0][0] == "data":
        return b"".join(value for _, value in parts)
    if parts[0][0] == "value":
        value = parts[0][1]
        if value is None:
            return b""
        if isinstance(value, bytes):
            return bytes(value)
        if isinstance(value, str):
            return str(value).encode()
        return _json(value)
    return _json([item for _, items in parts for item in items])


def _json(value: Any) -> bytes:
    return json.dumps(_plain(value), separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    """Return a value for JSON; types that JSON lacks become strings."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else str(value)
