"""Links to a queue and their credit; who is served next.

Owns: what the core knows of a link or a connection. Must not know: AMQP's own counting of credit, delivery
ids.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from peeklock.broker.commands import Link
from peeklock.broker.peek_lock import Lock

if TYPE_CHECKING:
    from peeklock.broker.delivery import Line


class SenderLink:
    """A link over which somebody sends to a queue."""

    __slots__ = ("link", "queue_id", "siblings")

    def __init__(self, link: Link, queue_id: int, siblings: dict[Link, AnyLink]) -> None:
        self.link = link
        self.queue_id = queue_id
        self.siblings = siblings  # the links of its entity


class ReceiverLink:
    """A link over which messages of a queue are delivered.

    `deliveries` and `size_bytes` are totals since it was opened, compared with the totals `SetCredit` allows.
    """

    __slots__ = (
        "bytes_max",
        "deletes",
        "deliveries",
        "deliveries_max",
        "draining",
        "line",
        "link",
        "locks",
        "name",
        "queue_id",
        "siblings",
        "size_bytes",
        "wait_until_ms",
        "waiting",
    )

    def __init__(
        self,
        link: Link,
        queue_id: int,
        siblings: dict[Link, AnyLink],
        name: str | None = None,
        *,
        deletes: bool,
    ) -> None:
        self.link = link
        self.name = name  # as its peer calls it
        self.queue_id = queue_id
        self.siblings = siblings  # the links of its entity
        self.deletes = deletes  # receive-and-delete
        self.deliveries = 0
        self.deliveries_max = 0
        self.size_bytes = 0
        self.bytes_max = 0
        self.draining = False
        self.waiting = False  # stands in its line's Receivers
        self.line: Line | None = None  # what it receives from; None while it waits for a session
        self.wait_until_ms = 0  # for a session, then its wish is refused
        self.locks: dict[bytes, Lock] = {}

    def has_credit(self) -> bool:
        return self.deliveries < self.deliveries_max and self.size_bytes < self.bytes_max


class Coordinator:
    """A link over which transactions are declared and discharged."""

    __slots__ = ("link", "siblings")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.siblings: dict[Link, AnyLink] = {}  # it belongs to no entity


AnyLink = SenderLink | ReceiverLink | Coordinator


class Connection:
    """What dies with a connection: its links, and the locks taken through its management requests (L-13)."""

    __slots__ = ("links", "locks")

    def __init__(self) -> None:
        self.links: dict[Link, AnyLink] = {}
        self.locks: dict[bytes, Lock] = {}


class Links:
    """All links of a namespace, by name and by connection."""

    __slots__ = ("by_link", "connections")

    def __init__(self) -> None:
        self.by_link: dict[Link, AnyLink] = {}
        self.connections: dict[int, Connection] = {}

    def connection(self, connection_id: int) -> Connection:
        connection = self.connections.get(connection_id)
        if connection is None:
            connection = self.connections[connection_id] = Connection()
        return connection

    def add(self, opened: AnyLink) -> None:
        link = opened.link
        assert link not in self.by_link, "a link was opened twice"
        self.by_link[link] = opened
        opened.siblings[link] = opened
        self.connection(link[0]).links[link] = opened

    def forget(self, opened: AnyLink) -> None:
        """Forget a link everywhere; what it holds stays as it is."""
        link = opened.link
        del self.by_link[link]
        del opened.siblings[link]
        del self.connections[link[0]].links[link]
        if isinstance(opened, ReceiverLink) and opened.line is not None:
            opened.line.receivers.remove(opened)

    def check(self) -> None:
        """Compare the indexes with each other; an assertion fails when they do not agree."""
        for link, opened in self.by_link.items():
            assert opened.link == link
            assert self.connections[link[0]].links[link] is opened
            assert opened.siblings[link] is opened
            if isinstance(opened, ReceiverLink):
                assert opened.waiting == (opened.line is not None and opened.has_credit())
        assert sum(len(connection.links) for connection in self.connections.values()) == len(self.by_link)


class Receivers:
    """The receivers of one line that have credit, served in turn. Those without credit are never looked
    at."""

    __slots__ = ("draining", "turns")

    def __init__(self) -> None:
        self.turns: deque[ReceiverLink] = deque()
        self.draining: list[ReceiverLink] = []

    def credit_changed(self, receiver: ReceiverLink) -> None:
        """Let a receiver with credit stand in line, at the end; one without leaves it."""
        if receiver.has_credit():
            if not receiver.waiting:
                receiver.waiting = True
                self.turns.append(receiver)
        elif receiver.waiting:
            self._leave(receiver)

    def drain(self, receiver: ReceiverLink) -> None:
        """Owe a receiver the answer that its credit is used up, once what is available has been delivered."""
        if not receiver.draining:
            receiver.draining = True
            self.draining.append(receiver)

    def drained(self) -> list[ReceiverLink]:
        """Take the rest of the credit of all who asked for it, and name them."""
        drained = self.draining
        self.draining = []
        for receiver in drained:
            receiver.draining = False
            receiver.deliveries_max = receiver.deliveries
            if receiver.waiting:
                self._leave(receiver)
        return drained

    def remove(self, receiver: ReceiverLink) -> None:
        """Forget a receiver whose link is gone."""
        if receiver.waiting:
            self._leave(receiver)
        if receiver.draining:
            receiver.draining = False
            self.draining.remove(receiver)

    def check(self) -> None:
        """Whoever stands in line has credit, once, and knows it."""
        assert len({receiver.link for receiver in self.turns}) == len(self.turns)
        assert all(receiver.waiting and receiver.has_credit() for receiver in self.turns)
        assert all(receiver.draining for receiver in self.draining)

    def _leave(self, receiver: ReceiverLink) -> None:
        receiver.waiting = False
        self.turns.remove(receiver)
