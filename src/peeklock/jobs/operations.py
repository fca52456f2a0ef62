"""What a job asks for, and what comes back. All are values; a driver carries them out, one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from peeklock.jobs.checkpoint import Checkpoint
from peeklock.search import MessageState, Peeked


@dataclass(frozen=True, slots=True)
class Message:
    """A received message; its token names it in later operations."""

    token: bytes
    payload: bytes

    @property
    def number(self) -> int:
        """Its sequence number."""
        found = Peeked(self.payload).sequence_number
        assert found is not None, "a broker numbers its messages"
        return found


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send in place of a received one."""

    token: bytes
    payload: bytes
    number: int
    """Of the received one."""


# Operations


@dataclass(frozen=True, slots=True)
class Save:
    """Keep a checkpoint, durably, before the next operation. Outcome: None."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Open:
    """Begin to receive. Outcome: True; False if another receiver holds the session."""

    session_id: str | None
    """None for an entity without sessions."""


@dataclass(frozen=True, slots=True)
class Receive:
    """Lock up to so many available messages; wait a moment for some. Outcome: tuple[Message, ...]."""

    count_max: int


@dataclass(frozen=True, slots=True)
class Forward:
    """Send messages to the target and complete them. Outcome: Settled."""

    messages: tuple[Outgoing, ...]


@dataclass(frozen=True, slots=True)
class Complete:
    """Remove messages. Outcome: Settled."""

    tokens: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the locks of messages, or of the session. Outcome: None."""

    tokens: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """Release messages, and stop to receive. Outcome: None."""

    tokens: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """See which messages are still in the source. Outcome: frozenset[int], those that are."""

    numbers: frozenset[int]


@dataclass(frozen=True, slots=True)
class Peek:
    """Read messages from a sequence number on. Outcome: tuple[Message, ...]; () at the end."""

    from_number: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove messages of a state by their numbers. Outcome: frozenset[int], those that are not."""

    state: MessageState
    """Deferred or scheduled."""
    numbers: tuple[int, ...]
    session_id: str | None
    """The session of all of them; None for an entity without sessions."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until then. Outcome: None."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class Done:
    """The job is over."""


Operation: TypeAlias = (
    Save | Open | Receive | Forward | Complete | Renew | Close | Look | Peek | Remove | Wait | Done
)


@dataclass(frozen=True, slots=True)
class Settled:
    """Which of the messages of an operation are not done, by token; all others are."""

    sent: frozenset[bytes] = frozenset()
    """Accepted by the target, but their locks were lost: they come again, to be completed alone."""
    unknown: frozenset[bytes] = frozenset()
    """The connection broke: they come again, or they are done."""


Outcome: TypeAlias = bool | tuple[Message, ...] | Settled | frozenset[int] | None
