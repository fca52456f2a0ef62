"""Clients that work on one message for hours and keep renewing its lock (L-18)."""

from __future__ import annotations

from peeklock.amqp.events import DeliveryReceived
from tests.simulation.actors.actors import Actor, Shared
from tests.simulation.actors.peer import ReceiveLink
from tests.simulation.actors.requests import read_delivery, renew, update_disposition
from tests.simulation.oracle.history import Lock

LONGEST_MS = 3 * 3_600_000


class LockRenewer(Actor):
    """Receives one message, renews its lock for a while, then completes it or lets it lapse."""

    def __init__(self, shared: Shared, name: str, queue: str) -> None:
        super().__init__(shared, name)
        self._queue = queue
        self._link: ReceiveLink | None = None

    def ready(self) -> None:
        self._attach()

    def left(self) -> None:
        self._link = None

    def stop(self) -> None:
        super().stop()
        if self._link is not None:
            self.checker.link_lost(self.connection)
            self._link.detach()
            self._link = None

    def _attach(self) -> None:
        if self.peer is None or self.stopped:
            return
        self._link = link = self.peer.attach_receiver(self._queue, delete=False)
        link.on_attached = lambda: link.flow(1)
        link.on_delivery = lambda event: self._delivered(link, event)
        link.on_lost = lambda condition: self._link_lost(condition)

    def _link_lost(self, condition: str | None) -> None:
        self._link = None
        if self.peer is None or self.peer.lost:
            return
        self.checker.graces.link_ended(self.connection)
        assert self.checker.may_refuse(condition, self._queue) or self.checker.excused(self.connection)
        self.next_time(1_000, self._attach)

    def _delivered(self, link: ReceiveLink, event: DeliveryReceived) -> None:
        seen = read_delivery(event.payload)
        lock = self.checker.delivered(seen, self._queue, event.delivery_tag, self.connection)
        assert lock is not None
        wanted_ms = self.random.randint(1, LONGEST_MS)
        self.world.note(f"{self.name} keeps {seen} for {wanted_ms} ms")
        self._renew(lock, self.now_ms + wanted_ms)

    def _renew(self, lock: Lock, enough_ms: int) -> None:
        self.later((lock.until_ms - self.now_ms) // 2, self._go_on, lock, enough_ms)

    def _go_on(self, lock: Lock, enough_ms: int) -> None:
        if self.stopped or self._link is None:
            return
        if self.now_ms < enough_ms:
            renew(
                self, self._queue, lock, lambda done: self._renew(lock, enough_ms) if done else self._next()
            )
            return
        if self.random.random() < 0.5:
            update_disposition(self, self._queue, lock, "complete")
            self._next()
        else:
            # Once the lock has lapsed it is too late.
            self.later(lock.until_ms - self.now_ms, update_disposition, self, self._queue, lock, "complete")
            self.later(lock.until_ms - self.now_ms + 1, self._next)

    def _next(self) -> None:
        if self._link is not None and self._link.open:
            self._link.flow(1)
