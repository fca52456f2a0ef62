"""Links and connections in the core, and the credit of receivers: which one is served next."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from peeklock.broker.queue.peek_lock import Holder
from peeklock.broker.vocabulary.commands import LinkId

if TYPE_CHECKING:
    from peeklock.broker.queue.delivery import ReadyQueue


class Producer:
    """A link that sends to a queue."""

    __slots__ = ("link", "queue_id", "siblings")

    def __init__(self, link: LinkId, queue_id: int, siblings: dict[LinkId, AnyLink]) -> None:
        self.link = link
        self.queue_id = queue_id
        self.siblings = siblings  # the links of its entity


class Consumer:
    """A link that receives from a queue.

    `deliveries` and `size_bytes` are totals since it was opened, compared with the totals of `SetCredit`.
    """

    __slots__ = (
        "awaits_body",
        "body_position",
        "bytes_max",
        "deletes",
        "deliveries",
        "deliveries_max",
        "draining",
        "link",
        "locks",
        "name",
        "queue_id",
        "ready_queue",
        "siblings",
        "size_bytes",
        "wait_until_ms",
        "waiting",
    )

    def __init__(
        self,
        link: LinkId,
        queue_id: int,
        siblings: dict[LinkId, AnyLink],
        name: str | None = None,
        *,
        deletes: bool,
    ) -> None:
        self.link = link
        self.name = name  # on the wire
        self.queue_id = queue_id
        self.siblings = siblings  # the links of its entity
        self.deletes = deletes  # receive-and-delete
        self.deliveries = 0
        self.deliveries_max = 0
        self.size_bytes = 0
        self.bytes_max = 0
        self.draining = False
        self.waiting = False  # it is in `Receivers.turns`
        self.ready_queue: ReadyQueue | None = None  # None while it waits for a session
        self.awaits_body = False  # no delivery until a body has been read
        self.body_position = -1  # of that message, or of the last one
        self.wait_until_ms = 0  # end of its wait for a session
        self.locks = Holder()

    def has_credit(self) -> bool:
        return self.deliveries < self.deliveries_max and self.size_bytes < self.bytes_max


class Coordinator:
    """A link that declares and discharges transactions."""

    __slots__ = ("link", "siblings")

    def __init__(self, link: LinkId) -> None:
        self.link = link
        self.siblings: dict[LinkId, AnyLink] = {}  # it belongs to no entity


AnyLink = Producer | Consumer | Coordinator


class BrokerConnection:
    """What ends with a connection: its links, and the locks that its requests took or renewed (L-13)."""

    __slots__ = ("links", "locks")

    def __init__(self) -> None:
        self.links: dict[LinkId, AnyLink] = {}
        self.locks = Holder()


class LinkRegistry:
    """All links of a namespace, by id and by connection."""

    __slots__ = ("by_link", "connections")

    def __init__(self) -> None:
        self.by_link: dict[LinkId, AnyLink] = {}
        self.connections: dict[int, BrokerConnection] = {}

    def connection(self, connection_id: int) -> BrokerConnection:
        connection = self.connections.get(connection_id)
        if connection is None:
            connection = self.connections[connection_id] = BrokerConnection()
        return connection

    def add(self, opened: AnyLink) -> None:
        link = opened.link
        assert link not in self.by_link, "a link was opened twice"
        self.by_link[link] = opened
        opened.siblings[link] = opened
        self.connection(link.connection_id).links[link] = opened

    def forget(self, opened: AnyLink) -> None:
        """Forget a link in all indexes, but not its locks."""
        link = opened.link
        del self.by_link[link]
        del opened.siblings[link]
        del self.connections[link.connection_id].links[link]
        if isinstance(opened, Consumer) and opened.ready_queue is not None:
            opened.ready_queue.receivers.remove(opened)

    def check(self) -> None:
        """Assert that the indexes agree."""
        for link, opened in self.by_link.items():
            assert opened.link == link
            assert self.connections[link.connection_id].links[link] is opened
            assert opened.siblings[link] is opened
            if isinstance(opened, Consumer):
                is_served = opened.ready_queue is not None and not opened.awaits_body
                assert opened.waiting == (is_served and opened.has_credit())
        assert sum(len(connection.links) for connection in self.connections.values()) == len(self.by_link)


class Receivers:
    """The receivers of a ready queue that have credit, served in turn.

    A receiver is found by the holder of its locks: thousands may leave at once when their waits end together.
    """

    __slots__ = ("draining", "turns")

    def __init__(self) -> None:
        self.turns: OrderedDict[int, Consumer] = OrderedDict()  # by the identity of `locks`
        self.draining: dict[LinkId, Consumer] = {}

    def first(self) -> Consumer:
        """Return the next receiver."""
        return next(iter(self.turns.values()))

    def served(self, receiver: Consumer) -> None:
        """Move a receiver that got a message to the end, or remove it if its credit is used up."""
        if receiver.deliveries >= receiver.deliveries_max or receiver.size_bytes >= receiver.bytes_max:
            self._leave(receiver)
        elif len(self.turns) > 1:
            self.turns.move_to_end(id(receiver.locks))

    def credit_changed(self, receiver: Consumer) -> None:
        """Add a receiver with credit at the end; remove one without."""
        if receiver.awaits_body:
            return
        if receiver.has_credit():
            if not receiver.waiting:
                receiver.waiting = True
                self.turns[id(receiver.locks)] = receiver
        elif receiver.waiting:
            self._leave(receiver)

    def wait_for_body(self, receiver: Consumer, position: int) -> None:
        """Remove a receiver until the body of the message at this position has been read."""
        receiver.awaits_body = True
        receiver.body_position = position
        self._leave(receiver)

    def body_arrived(self, receiver: Consumer) -> None:
        """Add a receiver again, if it still has credit."""
        receiver.awaits_body = False
        self.credit_changed(receiver)

    def go_last(self, locks: Holder) -> None:
        """Serve the receiver that holds these locks after all others."""
        if id(locks) in self.turns:
            self.turns.move_to_end(id(locks))

    def drain(self, receiver: Consumer) -> None:
        """Note that a receiver wants `Drained` when its credit is used up."""
        if not receiver.draining:
            receiver.draining = True
            self.draining[receiver.link] = receiver

    def drained(self) -> list[Consumer]:
        """Use up the credit of receivers that drain, except those that wait for a body; return them."""
        drained = [receiver for receiver in self.draining.values() if not receiver.awaits_body]
        for receiver in drained:
            receiver.draining = False
            del self.draining[receiver.link]
            receiver.deliveries_max = receiver.deliveries
            if receiver.waiting:
                self._leave(receiver)
        return drained

    def remove(self, receiver: Consumer) -> None:
        """Forget a receiver whose link is gone."""
        receiver.awaits_body = False
        if receiver.waiting:
            self._leave(receiver)
        if receiver.draining:
            receiver.draining = False
            del self.draining[receiver.link]

    def check(self) -> None:
        """Assert that each receiver in turn has credit, is there once and has `waiting` set."""
        assert all(key == id(receiver.locks) for key, receiver in self.turns.items())
        assert all(receiver.waiting and receiver.has_credit() for receiver in self.turns.values())
        assert not any(receiver.awaits_body for receiver in self.turns.values())
        assert all(receiver.draining for receiver in self.draining.values())

    def _leave(self, receiver: Consumer) -> None:
        receiver.waiting = False
        del self.turns[id(receiver.locks)]
