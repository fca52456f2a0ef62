"""Links to a queue and their credit; who is served next.

Owns: what the core knows of a link or a connection. Must not know: AMQP's own counting of credit, delivery
ids.
"""

from __future__ import annotations

from collections import deque

from peeklock.broker.commands import Link
from peeklock.broker.peek_lock import Lock


class SenderLink:
    """A link over which somebody sends to a queue."""

    __slots__ = ("link", "queue_id")

    def __init__(self, link: Link, queue_id: int) -> None:
        self.link = link
        self.queue_id = queue_id


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
        "link",
        "locks",
        "queue_id",
        "size_bytes",
        "waiting",
    )

    def __init__(self, link: Link, queue_id: int, *, deletes: bool) -> None:
        self.link = link
        self.queue_id = queue_id
        self.deletes = deletes  # receive-and-delete
        self.deliveries = 0
        self.deliveries_max = 0
        self.size_bytes = 0
        self.bytes_max = 0
        self.draining = False
        self.waiting = False  # stands in its queue's Receivers
        self.locks: dict[bytes, Lock] = {}

    def has_credit(self) -> bool:
        return self.deliveries < self.deliveries_max and self.size_bytes < self.bytes_max


class Connection:
    """What dies with a connection: its links, and the locks taken through its management requests (L-13)."""

    __slots__ = ("links", "locks")

    def __init__(self) -> None:
        self.links: dict[Link, SenderLink | ReceiverLink] = {}
        self.locks: dict[bytes, Lock] = {}


class Receivers:
    """The receivers of one queue that have credit, served in turn. Those without credit are never looked
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
