"""What a moved message has of its own: ids, properties, marks. All else stays bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from peeklock.amqp.annotations import broker_annotations
from peeklock.amqp.encoding import encode
from peeklock.amqp.messaging import scan
from peeklock.amqp.types import Symbol
from peeklock.client.overrides import NULL, Overrides, override

Value: TypeAlias = str | int | float | bool

DEAD_LETTER_PROPERTIES: Final = ("DeadLetterReason", "DeadLetterErrorDescription")
RESUBMITS: Final = "peeklock-resubmits"
"""Application property: how often a message was resubmitted."""
RESUBMITTED_FROM: Final = "peeklock-resubmitted-from"
"""Application property: the path of the queue or subscription whose dead letter it was."""

ID_LENGTH_MAX: Final = 128
"""Longest message id, characters. Source: wire contract 3.3."""

_MESSAGE_ID: Final = 0
_SUBJECT: Final = 3
_EXPIRY: Final = 8
_SESSION_ID: Final = 10
"""Places in the properties section. Source: AMQP 3.2.4."""

_PARTITION_KEY: Final = Symbol("x-opt-partition-key")
_KEY_PLACE: Final = 4
"""Place of the partition key in `peeklock.amqp.annotations`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """What a user changes in the messages of a job; each default leaves it as it is."""

    set: Mapping[str, Value] = field(default_factory=dict)
    """Application properties."""
    remove: tuple[str, ...] = ()
    """Application properties, by name."""
    subject: str | None = None
    session_id: str | None = None
    ttl_ms: int | None = None

    def __post_init__(self) -> None:
        """Raises: EncodeError, a ValueError: a value is none of AMQP."""
        encode([*self.set, *self.set.values(), *self.remove, self.subject, self.session_id])


def edited(
    payload: bytes, edits: Edits, *, message_id: str | None, marks: Mapping[str, Value | None]
) -> bytes:
    """Return a received message as one to send.

    Args:
        message_id: a new one; None keeps the old one.
        marks: application properties that the job sets, or removes with None; those of `edits` win.

    Raises: DecodeError.
    """
    fields: dict[int, bytes] = {}
    annotations: list[bytes] = []
    if message_id is not None:
        fields[_MESSAGE_ID] = encode(message_id)
    if edits.subject is not None:
        fields[_SUBJECT] = encode(edits.subject)
    if edits.session_id is not None:
        fields[_SESSION_ID] = encode(edits.session_id)
        if broker_annotations(payload)[_KEY_PLACE] is not None:  # the two must be the same
            annotations.append(encode(_PARTITION_KEY) + encode(edits.session_id))
    if edits.ttl_ms is not None and scan(payload).decode_properties().absolute_expiry_time is not None:
        fields[_EXPIRY] = NULL
    properties: dict[str, Any] = {**marks, **dict.fromkeys(edits.remove), **edits.set}
    changes = Overrides(
        ttl_ms=edits.ttl_ms, annotations=annotations, fields=fields, application_properties=properties
    )
    return override(payload, changes)[0]


def new_id(old: object, number: int, done: str = "resubmitted") -> str:
    """Return the new message id of the message with a sequence number: always the same one.

    A target with duplicate detection would drop a message with the old id, and it would be lost.
    """
    made = f"{'' if old is None else old}+{done}-{number}"
    if len(made) <= ID_LENGTH_MAX:
        return made
    return f"{done}-{number}-{hashlib.blake2b(made.encode(), digest_size=16).hexdigest()}"
