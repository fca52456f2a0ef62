"""Changed application properties of a stored message: its overlay.

Owns: how changes add up, and the properties the broker itself sets when it dead-letters. Must not know: the
body, which is never rewritten; whoever encodes the message for a reader merges the overlay into it.
Source: wire contract 3.8, 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from peeklock.amqp import codec
from peeklock.amqp.encoding import compound8_or_32

DEAD_LETTER_REASON = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION = "DeadLetterErrorDescription"

OVERLAY_BYTES_MAX = 64 * 1024
"""Source: wire contract 3.3, "properties/annotations > 64 KiB total". What the sender set is not counted: the
core does not look into bodies (our choice), so that the sum can be up to twice as large."""


def merged(overlay: bytes | None, updates: Mapping[str, Any]) -> bytes:
    """Encode the map that has these properties on top of those changed before; a None value is kept as
    null."""
    if overlay is None:
        return codec.encode(dict(updates))
    # What was changed before is not decoded: it may have more elements by now than a decoder takes.
    pairs = {key: overlay[start:end] for key, start, _, end in codec.iter_map_raw(overlay)}
    pairs.update((key, codec.encode(key) + codec.encode(value)) for key, value in updates.items())
    out = bytearray()
    compound8_or_32(out, 0xC1, 0xD1, 2 * len(pairs), b"".join(pairs.values()))
    return bytes(out)


def with_reason(
    overlay: bytes | None,
    reason: str | None,
    description: str | None,
    properties: Mapping[str, Any] | None = None,
) -> bytes | None:
    """Encode the overlay of a dead-lettered message; a reason or description that is None is left out."""
    if overlay is None and not properties:
        return _reason_only(reason, description)
    updates = dict(properties or {})
    updates.update(_reasons(reason, description))
    return merged(overlay, updates) if updates else overlay


def _reasons(reason: str | None, description: str | None) -> dict[str, str]:
    pairs = ((DEAD_LETTER_REASON, reason), (DEAD_LETTER_DESCRIPTION, description))
    return {name: value for name, value in pairs if value is not None}


@lru_cache(maxsize=64)
def _reason_only(reason: str | None, description: str | None) -> bytes | None:
    """Encode a reason alone. Many messages share theirs, and then they share these bytes."""
    reasons = _reasons(reason, description)
    return codec.encode(reasons) if reasons else None
