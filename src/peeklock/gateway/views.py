"""What an operator sees of one connection, as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Client:
    """What a client says of itself in its `open`. Source: AMQP 1.0 2.7.1."""

    product: str = ""
    version: str = ""
    container_id: str = ""


@dataclass(frozen=True, slots=True)
class LinkView:
    """A link, from the client's end."""

    entity: str
    """With its sub-queue."""
    role: str
    """`sender`, `receiver`, `request`, `reply` or `coordinator`."""
    credit: int
    """Deliveries that may come over it now."""
    unsettled: int
    """Deliveries over it that have no outcome yet."""
    deliveries: int
    """Since it was opened. A sender that returns credit, as a drain asks, counts that too."""
    key: tuple[int, int]
    """Channel and handle; a later link may have the same."""
    session_id: str | None = None
    """Of the message session that it holds; None = it holds none."""


@dataclass(frozen=True, slots=True)
class ConnectionView:
    """A connection."""

    client: Client
    identities: list[str]
    """Names of the keys and roles that it has shown, as long as they are valid."""
    links: list[LinkView]
