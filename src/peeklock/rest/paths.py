"""What the path of a request for messages means.

Owns: the forms of wire contract 8. Must not know: which entities exist; a queue may have any of these names,
and `api` asks for it where that matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from urllib.parse import unquote
from uuid import UUID

from peeklock.broker.vocabulary.errors import MessageLockLost, ServiceBusError
from peeklock.gateway.address import Node, parse_node
from peeklock.rest.names import shortened

_GUID = UUID("1b4e28ba-2fa1-11d2-883f-0016d3cca427")
"""To show what one looks like."""


class Form(Enum):
    """What a path names below its entity."""

    MESSAGES = "POST"
    """`messages`: what is sent."""
    HEAD = "POST, DELETE"
    """`messages/head`: the next message."""
    LOCK = "POST, PUT, DELETE"
    """`messages/ID/TOKEN`: a message that is locked. The value of each is the methods that it takes."""


@dataclass(frozen=True, slots=True)
class Place:
    """A path, taken apart."""

    form: Form
    entity: str
    """The path of the entity or of its dead-letter queue, as it was sent: percent-encoded."""
    node: Node
    """The same, read."""
    token: str = ""
    """The lock token, as text."""

    def takes(self, method: str) -> bool:
        """Return whether this place has a method, in upper case."""
        return method in self.form.value.split(", ")


@lru_cache(maxsize=256)  # asked for several times a request; most are for the same few
def place_of(path: str) -> Place | None:
    """Return what a path means as one for messages; None = it is none.

    `path`: percent-encoded, without the query. It is split before it is decoded: an encoded slash belongs to
    a name.
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


def lock_token(text: str) -> bytes:
    """Return a lock token in .NET's byte order; one that cannot be a token is none that is held."""
    try:
        return UUID(text).bytes_le
    except ValueError:
        return b""


def lock_refusal(failure: ServiceBusError, text: str) -> ServiceBusError:
    """Return the refusal of a command for a lock; that of a text which is no token shows the text."""
    if isinstance(failure, MessageLockLost) and not lock_token(text):
        return MessageLockLost(
            f"The lock token '{shortened(text)}' is not a GUID such as {_GUID}: use that of the answer which "
            f"locked the message."
        )
    return failure
