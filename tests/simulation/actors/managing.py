"""A client that uses the management nodes all the time.

Owns: what is asked, by the world's random source. Must not know: the broker's internals, the form of requests
(`requests`).
"""

from __future__ import annotations

from peeklock.broker.vocabulary.descriptions import QueueDescription, SubscriptionDescription
from tests.simulation.actors.actors import Actor, Shared
from tests.simulation.actors.messages import SESSIONS
from tests.simulation.actors.requests import (
    cancel,
    delete_messages,
    list_sessions,
    peek,
    purge,
    receive_deferred,
    renew,
    update_disposition,
)
from tests.simulation.oracle.checker import split
from tests.simulation.oracle.history import Lock
from tests.simulation.oracle.spellings import spelt


class Manager(Actor):
    """Peeks, cancels, fetches deferred messages, settles for others, deletes and purges."""

    def __init__(
        self,
        shared: Shared,
        name: str,
        queues: list[QueueDescription | SubscriptionDescription],
        *,
        cbs: bool = False,
    ) -> None:
        super().__init__(shared, name, cbs=cbs)
        self._queues = queues

    def ready(self) -> None:
        self.next_time(self.random.randint(0, 500), self._act)

    def _act(self) -> None:
        if self.stopped:
            return
        self.next_time(self.random.randint(20, 1_500), self._act)
        random, shared = self.random, self.shared
        roll = random.random()
        queue = random.choice(self._queues)
        subs = ("", "", "/$DeadLetterQueue", "/$Transfer/$DeadLetterQueue")
        address = queue.name + random.choice(subs[: 3 if queue.forward_to is None else 4])
        if roll < 0.2:
            of_session = queue.requires_session and address == queue.name and random.random() < 0.5
            session_id = spelt(random.choice(SESSIONS), self.now_ms) if of_session else None
            start = random.choice((0, 1, 7, 3 << 48))
            peek(self, address, start, random.choice((1, 5, 50)), lambda found: None, session_id)
        elif roll < 0.4 and shared.scheduled:
            cancel(self, *random.choice(shared.scheduled[-8:]))
        elif roll < 0.62 and shared.deferred:
            self._fetch()
        elif roll < 0.78 and shared.locks:
            kind = random.choice(("complete", "abandon"))
            update_disposition(self, *random.choice(shared.locks[-12:]), kind)
        elif roll < 0.86 and shared.locks:
            where, lock = random.choice(shared.locks[-12:])
            if lock.hold is None:
                renew(self, where, lock)
        elif roll < 0.9 and queue.requires_session:
            list_sessions(self, queue.name)
        elif roll < 0.92:
            delete_messages(self, address, random.choice((1, 3)))
        elif roll < 0.926:
            purge(self, address)
        elif roll < 0.945:
            self.leave()

    def _fetch(self) -> None:
        address = self.random.choice(self.shared.deferred[-20:])[0]
        known = [number for where, number, _ in self.shared.deferred if where == address]
        numbers = self.random.sample(known, min(len(known), self.random.choice((1, 1, 2))))
        numbers = list(dict.fromkeys(numbers))
        delete = self.random.random() < 0.15
        receive_deferred(self, address, numbers, delete, lambda lock: self._got(address, lock))

    def _got(self, address: str, lock: Lock) -> None:
        self.shared.locks.append((address, lock))
        kind = self.random.choice(("complete", "complete", "abandon", "dead-letter", "defer", "lapse"))
        if kind != "lapse" and not (split(address)[1] and kind == "dead-letter"):
            self.later(self.random.choice((0, 10, 1_000)), update_disposition, self, address, lock, kind)
