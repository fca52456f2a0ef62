"""The open transactions of one connection, and the via entity of each AMQP session with a coordinator.

The via entity is the first one that a sender or receiver on the session uses. An entity counts by its
top-level name: a topic with its subscriptions is one. Only sends may go elsewhere in a transaction: they go
by way of the via entity. A session without a coordinator has no via entity. .NET and Java open all their
links on one session when transactions may cross entities. Source: wire contract 6, C48.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from peeklock.amqp.performatives import TransactionalState
from peeklock.broker.vocabulary.commands import (
    Address,
    Command,
    Enlist,
)
from peeklock.broker.vocabulary.errors import InvalidOperation

SPANS = "Local transactions cannot span multiple top-level entities such as queue or topic."
"""The service's own wording."""


@dataclass(slots=True)
class OpenTransaction:
    """What a connection remembers of a transaction; all else is the broker's."""

    channel: int
    """Of the AMQP session over which it was declared."""
    settled: list[tuple[Callable[[int, TransactionalState], None], int, TransactionalState]] = field(
        default_factory=list
    )
    """Deliveries whose settlement is part of it: what commits one, its id and its provisional outcome."""
    refusal: Exception | None = None
    """Why something that wants no answer did not become part of it, so that it cannot be committed."""


class Transactions:
    """See the module."""

    __slots__ = ("_commands", "_connection_id", "_coordinators", "_first", "open")

    def __init__(self, connection_id: int, commands: list[Command]) -> None:
        self._connection_id = connection_id
        self._commands = commands
        self.open: dict[bytes, OpenTransaction] = {}
        """By transaction id."""
        self._coordinators: dict[int, int] = {}  # channel -> number of coordinator links
        self._first: dict[int, tuple[str, int]] = {}  # channel -> name of the entity, number of the link

    def enlist(self, transaction_id: bytes, channel: int, command: Command) -> None:
        """Add a command, asked for on this channel, to a transaction."""
        transaction = self.open.get(transaction_id)
        via = None
        if transaction is not None and transaction.channel == channel:
            via = self.via_entity(channel)
        self._commands.append(Enlist(self._connection_id, transaction_id, command, via))  # type: ignore[arg-type]  # checked by who asks

    def spoil(self, transaction_id: bytes, refusal: Exception) -> None:
        """Keep a transaction from its commit: a part of it was refused that wants no answer."""
        transaction = self.open.get(transaction_id)
        if transaction is not None:
            transaction.refusal = refusal

    # Via entities

    def coordinator_attached(self, channel: int) -> None:
        """Count a coordinator link of a session."""
        self._coordinators[channel] = self._coordinators.get(channel, 0) + 1

    def coordinator_gone(self, channel: int) -> None:
        """Count the end of a coordinator link."""
        left = self._coordinators.pop(channel, 0) - 1
        if left > 0:
            self._coordinators[channel] = left

    def use(self, channel: int, address: Address, number: int) -> None:
        """Note that the sender or receiver of this number uses an entity."""
        self._first.setdefault(channel, (_top_level(address), number))

    def refused(self, channel: int, number: int) -> None:
        """Forget the use by a link that was refused: its entity is absent, or not for this use.

        A link that only did not get a session has used its entity.
        """
        if self._first.get(channel, ("", 0))[1] == number:
            del self._first[channel]

    def session_ended(self, channel: int) -> None:
        """Forget the via entity of a session."""
        self._first.pop(channel, None)

    def require_via(self, channel: int, address: Address) -> None:
        """Raise InvalidOperation where the via entity of a session is another one."""
        if self.is_elsewhere(channel, address):
            raise InvalidOperation(SPANS)

    def is_elsewhere(self, channel: int, address: Address) -> bool:
        """Return whether the via entity of a session is another one."""
        via = self.via_entity(channel)
        return via is not None and via != _top_level(address)

    def via_entity(self, channel: int) -> str | None:
        """Return the via entity of a session in lower case; None without a coordinator or before any use."""
        return self._first.get(channel, (None,))[0] if channel in self._coordinators else None


def _top_level(address: Address) -> str:
    return address.path.lower().partition("/subscriptions/")[0]
