"""The overlay of a stored message: its changed properties.

The stored body is never rewritten; the gateway merges the overlay into the message for a reader. An overlay
is an encoded AMQP map. The type of a key says what it names:

    string     an application property, which has this value
    binary     an application property (UTF-8), which is removed; its value is null
    symbol     a field of the properties section, or an annotation, which has this value; null = removed

Source: wire contract 3.8, 4.2, 9.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp import codec
from peeklock.amqp.encoding import EncodeError, compound8_or_32
from peeklock.amqp.types import Described, Long, Symbol, Timestamp, ULong
from peeklock.broker.content.subject import OVERLAID_FIELDS
from peeklock.rules.errors import EvaluationError
from peeklock.rules.filters import Value

if TYPE_CHECKING:
    from peeklock.broker.vocabulary.message import Message
    from peeklock.rules.compiled import ActionResult

DEAD_LETTER_REASON: Final = "DeadLetterReason"
STORE_DAMAGED: Final = "StoreDamaged"
"""DeadLetterReason of a message whose body is damaged on the disk. Our choice."""
_STORE_DAMAGED: Final = STORE_DAMAGED.encode()
DEAD_LETTER_DESCRIPTION: Final = "DeadLetterErrorDescription"

_REASON_KEY: Final = codec.encode(DEAD_LETTER_REASON)

RULE_NAME: Final = "RuleName"
"""Property of a copy that a rule's action changed. Source: wire contract 9.1."""

_SCHEDULED_TIME: Final = codec.encode(Symbol("x-opt-scheduled-enqueue-time"))

_FIELDS: Final = {name: field for field, name in OVERLAID_FIELDS.items()}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INT64_MAX: Final = (1 << 63) - 1

OVERLAY_BYTES_MAX: Final = 64 * 1024
"""Source: wire contract 3.3, "properties/annotations > 64 KiB total". The sender's own properties do not
count, since the core does not read bodies (our choice), so the sum can be twice as large."""


def merged(overlay: bytes | None, updates: Mapping[str, Any]) -> bytes:
    """Return an overlay with these application properties added; None is stored as null."""
    pairs = {} if overlay is None else _pairs(overlay)
    for key, value in updates.items():
        _put(pairs, str(key), value)  # some clients send symbols
    return _joined(pairs)


def with_action(overlay: bytes | None, result: ActionResult, rule_name: str) -> bytes:
    """Return the overlay of a copy that a rule's action changed, with the rule's name (P-02).

    Raises: EvaluationError: a value that AMQP cannot encode, or too many bytes.
    """
    pairs = {} if overlay is None else _pairs(overlay)
    for name in result.removed:
        pairs.pop(codec.encode(name), None)
        key = codec.encode(name.encode())
        pairs[key] = key + b"\x40"
    try:
        for name, value in result.user.items():
            _put(pairs, name, wire_value(value))
        for name, value in result.system.items():
            field = _FIELDS.get(name)
            if field is not None:  # a time-to-live is not a property of the body
                key = codec.encode(Symbol(field))
                pairs[key] = key + codec.encode(wire_value(value))
    except EncodeError as error:
        raise EvaluationError(
            f"the action of rule '{rule_name}' sets a value that AMQP cannot encode: {error}"
        ) from error
    _put(pairs, RULE_NAME, rule_name)
    changed = _joined(pairs)
    if len(changed) > OVERLAY_BYTES_MAX:
        raise EvaluationError(
            f"the action of rule '{rule_name}' changes {len(changed)} bytes of properties, at most "
            f"{OVERLAY_BYTES_MAX} are allowed"
        )
    return changed


def with_scheduled_time(overlay: bytes | None, at_ms: int) -> bytes:
    """Return an overlay with another scheduled time."""
    pairs = {} if overlay is None else _pairs(overlay)
    pairs[_SCHEDULED_TIME] = _SCHEDULED_TIME + codec.encode(Timestamp(at_ms))
    return _joined(pairs)


def _pairs(overlay: bytes) -> dict[bytes, bytes]:
    """Return the encoded pairs of an overlay by their encoded keys, which differ by type too."""
    # The values are not decoded: they may have more elements than the decoder allows.
    return {overlay[start:at]: overlay[start:end] for _, start, at, end in codec.iter_map_raw(overlay)}


def _put(pairs: dict[bytes, bytes], name: str, value: Any) -> None:
    """Set an application property, even if it was removed before."""
    pairs.pop(codec.encode(name.encode()), None)
    key = codec.encode(name)
    pairs[key] = key + codec.encode(value)


def _joined(pairs: dict[bytes, bytes]) -> bytes:
    out = bytearray()
    compound8_or_32(out, 0xC1, 0xD1, 2 * len(pairs), b"".join(pairs.values()))
    return bytes(out)


def wire_value(value: Value | None) -> Any:
    """Return the AMQP value for a value of an expression."""
    if isinstance(value, datetime):
        value = value.replace(tzinfo=value.tzinfo or UTC)  # a rule's value may have no zone
        return Timestamp((value - _EPOCH) // timedelta(milliseconds=1))
    if isinstance(value, timedelta):
        return Described(Symbol("com.microsoft:timespan"), Long(value // timedelta(microseconds=1) * 10))
    if isinstance(value, Decimal):
        return float(value)  # our choice: clients differ in how they read AMQP decimals
    if isinstance(value, int) and not isinstance(value, bool):
        return ULong(value) if value > _INT64_MAX else Long(value)
    return value


def with_reason(
    overlay: bytes | None,
    reason: str | None,
    description: str | None,
    properties: Mapping[str, Any] | None = None,
) -> bytes | None:
    """Return the overlay of a dead letter; a reason or description of None is left out."""
    if overlay is None and not properties:
        return _reason_only(reason, description)
    updates = dict(properties or {})
    updates.update(_reasons(reason, description))
    return merged(overlay, updates) if updates else overlay


def dead_letter_reason(overlay: bytes) -> str | None:
    """Return the DeadLetterReason in an overlay; None if it is not a string (wire contract C31)."""
    encoded = _pairs(overlay).get(_REASON_KEY)
    reason = None if encoded is None else codec.decode(encoded, len(_REASON_KEY))[0]
    return str(reason) if isinstance(reason, str) else None


def is_bodiless(message: Message) -> bool:
    """Return whether a dead letter has lost its body."""
    overlay = message.overlay
    return (
        overlay is not None
        and not message.bare_offset
        and _STORE_DAMAGED in overlay
        and dead_letter_reason(overlay) == STORE_DAMAGED
    )


def _reasons(reason: str | None, description: str | None) -> dict[str, str]:
    pairs = ((DEAD_LETTER_REASON, reason), (DEAD_LETTER_DESCRIPTION, description))
    return {name: value for name, value in pairs if value is not None}


@lru_cache(maxsize=64)
def _reason_only(reason: str | None, description: str | None) -> bytes | None:
    """Return an overlay with a reason alone. Messages with the same reason share it."""
    reasons = _reasons(reason, description)
    return codec.encode(reasons) if reasons else None
