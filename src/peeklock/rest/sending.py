"""Sends over HTTP: from headers and JSON to AMQP messages.

Source: wire contract 8; 3.2 for the place of each property in a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    InvalidOperation,
    MessageSizeExceeded,
)
from peeklock.gateway.inspection import BATCH_MESSAGES_MAX
from peeklock.rest.broker_properties import BrokerProperties, read_broker_properties, read_json
from peeklock.rest.encoding import Encoded, message_of
from peeklock.rest.exchange import DataRequest
from peeklock.rest.names import unknown
from peeklock.rest.properties import read_headers, read_member

BATCH_TYPE = "application/vnd.microsoft.servicebus.json"
"""Of a batch."""

BATCH_BODY_BYTES_MAX = 1024 * 1024
"""Of such a body. Source: Learn "Service Bus quotas": no batch is larger, on any tier. Reading more JSON than
this would take more than 20 ms of a turn."""

_MEMBERS = ("Body", "BrokerProperties", "UserProperties")

SLICE_MESSAGES = 128
"""Members of a batch that are encoded in one turn, at 30 us each."""


def is_batch(request: DataRequest) -> bool:
    """Return whether a request sends several messages."""
    kind = request.headers.get("content-type", "").partition(";")[0]
    return kind.strip().lower() == BATCH_TYPE


def read_one(request: DataRequest, now_ms: int) -> Encoded:
    """Return the message that a request sends.

    Raises: ArgumentInvalid, ArgumentOutOfRange, InvalidOperation: as the message is.
    """
    given = BrokerProperties()
    text = request.headers.get("brokerproperties")
    if text is not None:
        given = read_broker_properties(read_json(text.encode("latin-1"), "The header BrokerProperties"))
    given.content_type = _content_type(request.headers.get("content-type"))
    return message_of(request.body, given, read_headers(request.fields), now_ms)


def iter_batch(request: DataRequest, now_ms: int) -> Iterator[Encoded]:
    """Yield the messages of a batch.

    Raises: as `read_one`, with the index of the message; MessageSizeExceeded: too many messages, or too
    large a body.
    """
    if len(request.body) > BATCH_BODY_BYTES_MAX:
        raise MessageSizeExceeded(
            f"The batch has {len(request.body)} bytes; the limit is {BATCH_BODY_BYTES_MAX}."
        )
    members = read_json(request.body, "The batch")
    if not isinstance(members, list) or not members:
        raise ArgumentInvalid("The batch is not a JSON array with at least one message.")
    if len(members) > BATCH_MESSAGES_MAX:
        raise MessageSizeExceeded(
            f"The batch has {len(members)} messages; the limit is {BATCH_MESSAGES_MAX}."
        )
    for at, member in enumerate(members):
        try:
            yield _member(member, now_ms)
        except (ArgumentInvalid, ArgumentOutOfRange, InvalidOperation) as failure:
            raise type(failure)(f"The message [{at}] of the batch is refused: {failure}") from None


def _member(member: Any, now_ms: int) -> Encoded:
    if not isinstance(member, Mapping):
        raise ArgumentInvalid("It is not a JSON object.")
    for name in member:
        if name not in _MEMBERS:
            raise ArgumentInvalid(f"It has {unknown('member', name, _MEMBERS)}")
    body = member.get("Body")
    if not isinstance(body, str | None):
        raise ArgumentInvalid("Its Body is not a string.")
    try:
        encoded_body = (body or "").encode()
    except UnicodeEncodeError:
        raise ArgumentInvalid("Its Body contains an unpaired surrogate.") from None
    given = read_broker_properties(member.get("BrokerProperties") or {}, in_batch=True)
    given.content_type = _content_type(given.content_type)
    return message_of(encoded_body, given, read_member(member.get("UserProperties") or {}), now_ms)


def _content_type(text: str | None) -> str | None:
    """Return a content type, a symbol in AMQP; None = none is given."""
    if text and not text.isascii():
        raise ArgumentInvalid("The content type contains characters outside ASCII.")
    return text or None
