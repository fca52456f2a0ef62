"""Which entity each AMQP session with a coordinator is about: the via entity.

Owns: that it is the first one that a sender or receiver on the session uses, and what others are refused.
Must not know: links, transactions. An entity counts by its top-level name: a topic with its subscriptions is
one. Senders are free: what they send elsewhere in a transaction goes by way of the via entity. A session
without a coordinator is about nothing. .NET and Java open all their links on one session when they are told
that transactions cross entities. Source: wire contract 6, C48.
"""

from __future__ import annotations

from peeklock.broker.vocabulary.commands import Address
from peeklock.broker.vocabulary.errors import InvalidOperation

SPANS = "Local transactions cannot span multiple top-level entities such as queue or topic."
"""The service's own wording."""


class ViaEntities:
    """The AMQP sessions of one connection, by channel."""

    __slots__ = ("_coordinators", "_first")

    def __init__(self) -> None:
        self._coordinators: dict[int, int] = {}  # how many there are
        self._first: dict[int, tuple[str, int]] = {}  # name of the entity, number of the link

    def coordinated(self, channel: int) -> None:
        """Take note of a coordinator link."""
        self._coordinators[channel] = self._coordinators.get(channel, 0) + 1

    def coordinator_gone(self, channel: int) -> None:
        """Take note of its end."""
        left = self._coordinators.pop(channel, 0) - 1
        if left > 0:
            self._coordinators[channel] = left

    def use(self, channel: int, address: Address, number: int) -> None:
        """Take note that a sender or receiver of this number is attached."""
        self._first.setdefault(channel, (_top_level(address), number))

    def refused(self, channel: int, number: int) -> None:
        """Forget the use of an entity by a link that was refused: the entity is not there, or not for this
        use. Who only did not get a session has used it."""
        if self._first.get(channel, ("", 0))[1] == number:
            del self._first[channel]

    def ended(self, channel: int) -> None:
        """Forget an AMQP session."""
        self._first.pop(channel, None)

    def require(self, channel: int, address: Address) -> None:
        """Raises: InvalidOperation: something other than sending is asked of a second entity."""
        if self.is_elsewhere(channel, address):
            raise InvalidOperation(SPANS)

    def is_elsewhere(self, channel: int, address: Address) -> bool:
        """Tell whether a session is about another entity."""
        via = self.of(channel)
        return via is not None and via != _top_level(address)

    def of(self, channel: int) -> str | None:
        """Return the name of a session's via entity in lower case; None where there is no coordinator, or
        nothing was used."""
        return self._first.get(channel, (None,))[0] if channel in self._coordinators else None


def _top_level(address: Address) -> str:
    return address.path.lower().partition("/subscriptions/")[0]
