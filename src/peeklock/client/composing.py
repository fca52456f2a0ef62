"""Messages to send, made of JSON objects with the keys of `peeklock peek --json`. Pure.

It knows the keys that a sender may set, and the AMQP types of their values. It knows no file and no link.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from peeklock.amqp.encoding import EncodeError
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Properties
from peeklock.amqp.types import Timestamp, ULong

TTL_MS_MAX: Final = (1 << 32) - 1
"""Longest time to live in a header: 49 days, 17 hours. Source: AMQP 3.2.1."""

SET_BY_THE_BROKER: Final = frozenset(
    {
        "sequenceNumber", "enqueuedSequenceNumber", "enqueuedTime", "lockedUntil", "expiresAt", "state",
        "deliveryCount", "sizeBytes", "deadLetterSource", "viaPartitionKey",
    }
)  # fmt: skip
"""Keys of a message that a sender cannot set."""

_BODY_KEYS: Final = ("body", "bodyBase64", "bodyValue")
_BODY_TYPES: Final = ("data", "value", "sequence")
_ULONG_END: Final = 1 << 64


class ComposeError(ValueError):
    """A JSON object is no message; the text names the key."""


def compose_line(line: bytes | str) -> dict[str, Any]:
    """Return the object that a line of JSON Lines holds. Raises: ComposeError."""
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise ComposeError(f"this is not JSON: {error.msg}, at character {error.pos + 1}") from error
    except (ValueError, RecursionError) as error:
        raise ComposeError(f"this is not JSON: {error}") from error
    if type(found) is not dict:
        raise ComposeError('a message is a JSON object, such as {"body": "hello"}')
    return found


def compose(row: Mapping[str, Any]) -> bytes:
    """Return the encoded message of an object; what a sender cannot set is ignored.

    Raises:
        ComposeError: a key is unknown, or its value is of another type.
    """
    properties = Properties()
    annotations: dict[str, Any] = {}
    header = application = None
    for key, value in row.items():
        if value is None and key != "bodyValue":
            continue
        if key in _FIELDS:
            name, convert = _FIELDS[key]
            setattr(properties, name, convert(key, value))
        elif key == "properties":
            application = _application_properties(value)
        elif key == "timeToLive":
            header = Header(ttl=_ttl_ms(value))
        elif key == "scheduledEnqueueTime":
            annotations["x-opt-scheduled-enqueue-time"] = Timestamp(_instant_ms(key, value))
        elif key == "partitionKey":
            annotations["x-opt-partition-key"] = _text(key, value)
        elif key not in _BODY_KEYS and key != "bodyType" and key not in SET_BY_THE_BROKER:
            raise ComposeError(f"'{key}' is no key of a message")
    try:
        return encode_message(
            header=header,
            message_annotations=annotations or None,
            properties=properties,
            application_properties=application,
            **_body(row),
        )
    except (EncodeError, RecursionError) as error:
        raise ComposeError(str(error)) from error


def groups_with(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what the messages of a batch must have in common: session and partition key."""
    return row.get("sessionId"), row.get("partitionKey")


def _body(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `encode_message` for the body; without a key it is empty."""
    given = [key for key in _BODY_KEYS if key in row]
    if len(given) > 1:
        raise ComposeError(f"'{given[0]}' and '{given[1]}': a message has one body")
    key = given[0] if given else "body"
    value = row.get(key, "")
    kind = row.get("bodyType", "value" if key == "bodyValue" else "data")
    if kind not in _BODY_TYPES:
        raise ComposeError(f"'bodyType' is {kind!r}; it is data, value or sequence")
    if key == "body":
        if type(value) is not str:
            raise ComposeError(
                f"'body' is not a text: {value!r}; write JSON as a text, or an AMQP value as 'bodyValue'"
            )
        body: Any = value
        if kind == "data":
            try:
                body = body.encode()
            except UnicodeEncodeError as error:
                raise ComposeError(f"'body' is no text: {error.reason}") from error
    elif key == "bodyBase64":
        body = _binary(key, value)
    else:
        body = value
    if (kind == "data" and key == "bodyValue") or (kind == "sequence" and type(body) is not list):
        raise ComposeError(f"'{key}' is no body of the type {kind}")
    return {kind: body}


def _application_properties(given: Any) -> dict[str, Any]:
    if type(given) is not dict:
        raise ComposeError("'properties' is not an object")
    for key, value in given.items():
        if isinstance(value, (dict, list)):
            raise ComposeError(f"property '{key}' is neither text, number, true, false nor null")
    return given


def _text(key: str, value: Any) -> str:
    if type(value) is not str:
        raise ComposeError(f"'{key}' is not a text: {value!r}")
    return value


def _id(key: str, value: Any) -> str | ULong:
    if type(value) is int and 0 <= value < _ULONG_END:
        return ULong(value)
    if type(value) is str:
        return value
    raise ComposeError(f"'{key}' is neither a text nor a whole number: {value!r}")


def _binary(key: str, value: Any) -> bytes:
    text = _text(key, value)
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ComposeError(f"'{key}' is not base64: {error}") from error


def _ttl_ms(value: Any) -> int:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value * 1000 <= TTL_MS_MAX:
        raise ComposeError(
            f"'timeToLive' is not a number of seconds above 0, and at most {TTL_MS_MAX // 1000}: {value!r}"
        )
    return max(1, round(value * 1000))


def _instant_ms(key: str, value: Any) -> int:
    text = _text(key, value)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ComposeError(f"'{key}' is not an instant such as 2026-01-31T12:00:00Z: {text!r}") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1000)


_FIELDS: Final[dict[str, tuple[str, Callable[[str, Any], Any]]]] = {
    "messageId": ("message_id", _id),
    "correlationId": ("correlation_id", _id),
    "sessionId": ("group_id", _text),
    "subject": ("subject", _text),
    "to": ("to", _text),
    "replyTo": ("reply_to", _text),
    "replyToSessionId": ("reply_to_group_id", _text),
    "contentType": ("content_type", _text),
    "contentEncoding": ("content_encoding", _text),
    "userId": ("user_id", _binary),
}
"""Key -> field of the properties section, and what makes its value."""
