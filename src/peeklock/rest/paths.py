"""Paths of the data plane. A queue may have such a name too; `api` checks that where it matters.

Source: wire contract 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from urllib.parse import unquote
from uuid import UUID

from peeklock.broker.vocabulary.addresses import LockToken
from peeklock.broker.vocabulary.errors import MessageLockLost, ServiceBusError
from peeklock.gateway.address import Node, parse_node
from peeklock.rest.names import shortened

_GUID = UUID("1b4e28ba-2fa1-11d2-883f-0016d3cca427")
"""An example for a refusal."""


class Form(Enum):
    """What a path names below its entity; the value is the methods that it takes."""

    MESSAGES = "POST"
    """`messages`: send."""
    HEAD = "POST, DELETE"
    """`messages/head`: the next message."""
    LOCK = "POST, PUT, DELETE"
    """`messages/ID/TOKEN`: a locked message."""


@dataclass(frozen=True, slots=True)
class Place:
    """A path, parsed."""

    form: Form
    entity: str
    """The path of the entity or of its dead-letter queue as sent, percent-encoded."""
    node: Node
    """The same, parsed."""
    token: str = ""
    """The lock token, as text."""

    def takes(self, method: str) -> bool:
        """Return whether this place has a method, in upper case."""
        return method in self.form.value.split(", ")


@lru_cache(maxsize=256)  # called several times a request, mostly for the same few
def place_of(path: str) -> Place | None:
    """Parse a path, percent-encoded and without the query; None = it is not for messages.

    It is split before it is decoded: an encoded slash belongs to a name.
    """
    parts = path.strip("/").split("/")
    names = [unquote(part).lower() for part in parts[-3:]]
    token = ""
    if len(parts) > 1 and names[-1] == "messages":
        form, count = Form.MESSAGES, 1
    elif len(parts) > 2 and names[-2:] == ["messages", "head"]:
        form, count = Form.HEAD, 2
    elif len(parts) > 3 and names[0] == "messages":
        form, count, token = Form.LOCK, 3, unquote(parts[-1])
    else:
        return None
    entity = "/".join(parts[:-count])
    return Place(form, entity, parse_node(entity), token)


def lock_token(text: str) -> LockToken:
    """Return a lock token in .NET's byte order; empty, which no lock has, if the text is not a GUID."""
    try:
        return LockToken(UUID(text).bytes_le)
    except ValueError:
        return LockToken(b"")


def lock_refusal(failure: ServiceBusError, text: str) -> ServiceBusError:
    """Return the error for a failed command on a lock; it quotes a text that is not a token."""
    if isinstance(failure, MessageLockLost) and not lock_token(text):
        return MessageLockLost(
            f"The lock token '{shortened(text)}' is not a GUID such as {_GUID}: use the one from the answer "
            "that locked the message."
        )
    return failure
