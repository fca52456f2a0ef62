"""The target of a forward as clients write it: a name, or an address such as `sb://host/name`.

Source: wire contract 7.8, C14, C41.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from peeklock.broker.entities.validation import NAME_LENGTH_MAX

ADDRESS_LENGTH_MAX = 2_048
"""Characters. Our choice: a name of 260 characters takes 780 in percent-encoding, a host 253."""

_ADDRESS = re.compile(r"(?:sb|https?|amqps?)://(?P<authority>[^/?#]*)(?P<path>/[^?#]*)?", re.IGNORECASE)


def read_forward(text: str) -> tuple[str | None, str | None]:
    """Return the name of the target, and the text itself if it is an address.

    Raises: ValueError: it is neither.
    """
    if "://" not in text:
        name, address = text.strip("/"), None
    else:
        found = _ADDRESS.fullmatch(text)
        if found is None:
            raise ValueError("is neither a name nor an address such as sb://host/name")
        if len(text) > ADDRESS_LENGTH_MAX:
            raise ValueError(f"is longer than {ADDRESS_LENGTH_MAX} characters")
        name, address = unquote(found["path"] or "").strip("/"), text
        if not name:
            raise ValueError("is an address that names no entity")
    if len(name) > NAME_LENGTH_MAX:
        raise ValueError("is longer than a name can be")
    return name or None, address


def authority_of(address: str) -> str:
    """Return the host, and the port if there is one, of an address that was read."""
    found = _ADDRESS.fullmatch(address)
    assert found is not None
    return found["authority"]
