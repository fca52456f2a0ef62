"""A message as the HTTP API shows it, with a body that may be cut."""

from __future__ import annotations

import base64
from typing import Any, Final

from peeklock.search import Peeked, message_json

_TEXT: Final = "body"
_BYTES: Final = "bodyBase64"


def shown(peeked: Peeked, body_bytes_max: int | None) -> dict[str, Any]:
    """Return a message as JSON; a body with more bytes than `body_bytes_max` is cut, and says so."""
    found = message_json(peeked)
    if body_bytes_max is None:
        return found
    body = peeked.body
    if len(body) > body_bytes_max:
        if _TEXT in found:
            found[_TEXT] = body[:body_bytes_max].decode("utf-8", "ignore")
        else:
            found.pop("bodyValue", None)
            found[_BYTES] = base64.b64encode(body[:body_bytes_max]).decode()
        found["bodyTruncated"] = True
    found["bodySizeBytes"] = len(body)
    return found
