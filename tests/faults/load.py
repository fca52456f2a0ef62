"""The clients of the kill loops at a bounded rate, each over a new connection 100 ms after one breaks.

Owns: which node they use, and what they notice: gaps, and locks that two hold. Must not know: what fails
when.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import Callable
from random import Random
from typing import Any

from peeklock.amqp.events import DeliveryReceived
from peeklock.amqp.performatives import ACCEPTED
from peeklock.amqp.types import Array
from tests.faults.taking import Feeder, Taken, Taker
from tests.kill.clients import Client, Consumer, Sender, number_of
from tests.kill.ledger import Broken
from tests.simulation.actors.peer import lock_uuid
from tests.simulation.oracle.records import uid_of
from tests.simulation.world.accounts import Account
from tests.soak.loads import RecentLedger

QUEUE = "work"
RETRY_S = 0.1
TICK_S = 0.1
MESSAGES_A_TICK = 6
"""Sends of each sender; a tenth of them are batches."""
SENDERS, RECEIVERS, HOLDERS = 2, 2, 1
HELD = 5
"""Messages that a holder has at a time."""
RENEWALS = 4
"""So often it renews each, before it completes it."""
RENEW_S = 1.0
WAIT_S_MAX = 90.0
"""For clients to be served again. Our choice: many times what it takes, also beside other programs."""
DRAIN_S_MAX = 120.0
QUIET_S = 7.0
"""Without a delivery: longer than a lock lasts, so that what was delivered and left comes again."""


class Timed(RecentLedger):
    """Knows when answers came, and which locks have ended with another delivery of their message."""

    def __init__(self) -> None:
        super().__init__()
        self.sends_s: list[float] = []
        """When an accepted send was answered."""
        self.completions_s: list[float] = []
        self._stale: set[tuple[int, int]] = set()

    def answered(self, uid: int, condition: str | None) -> None:
        super().answered(uid, condition)
        if condition is None:
            self.sends_s.append(time.monotonic())

    def note(self, uid: int, number: int) -> tuple[int, int]:
        """Record a delivery; return its name: the uid, and which of its deliveries it is."""
        self.delivered(uid, number)
        return uid, self.fates[uid].seen

    def asking(self, delivery: tuple[int, int]) -> None:
        """Record that its lock is used now: what another delivery has ended may not be accepted."""
        uid, seen = delivery
        if self.fates[uid].seen > seen:
            self._stale.add(delivery)

    def allowed(self, delivery: tuple[int, int], what: str) -> None:
        """Record that such a use was accepted. Raises: Broken."""
        if delivery in self._stale:
            raise Broken(f"two held a lock: a {what} by an earlier delivery was accepted: {delivery}")


class Deliveries:
    """Reports completions by the names of deliveries."""

    def __init__(self, ledger: Timed) -> None:
        self._ledger = ledger

    def completing(self, delivery: tuple[int, int]) -> None:
        """Record that its completion is sent."""
        self._ledger.asking(delivery)
        self._ledger.completing(delivery[0])

    def completed(self, delivery: tuple[int, int]) -> None:
        """Record that its completion was acknowledged."""
        self._ledger.allowed(delivery, "completion")
        self._ledger.completed(delivery[0])
        self._ledger.completions_s.append(time.monotonic())


class Worker(Consumer):
    """Receives, and completes most at once."""

    def __init__(self, name: str, ledger: Timed, random: Random, account: Account) -> None:
        super().__init__(name, Deliveries(ledger), random, QUEUE, account=account)
        self.ledger = ledger

    def note(self, event: DeliveryReceived) -> tuple[int, int]:
        """Report a delivery to the ledger; return its name."""
        return self.ledger.note(uid_of(event.payload), number_of(event))


class Holder(Worker):
    """Holds messages and renews their locks some times, before it completes them."""

    def ready(self) -> None:
        link = self._link = self.peer.attach_receiver(self.queue, delete=False)
        link.on_attached = lambda: link.flow(HELD)
        link.on_delivery = self._hold

    def _hold(self, event: DeliveryReceived) -> None:
        delivery = self.note(event)
        self._later(delivery, event, RENEWALS)

    def _later(self, delivery: tuple[int, int], event: DeliveryReceived, left: int) -> None:
        asyncio.get_running_loop().call_later(RENEW_S, self._use, delivery, event, left)

    def _use(self, delivery: tuple[int, int], event: DeliveryReceived, left: int) -> None:
        if self.peer.lost or self.failure is not None:
            return
        if not left:
            self._completions.completing(delivery)
            self._link.settle(event.delivery_id, ACCEPTED, lambda state: self._settled(delivery, state))
            self._link.flow(HELD)
            return
        self.ledger.asking(delivery)
        token = lock_uuid(event.delivery_tag)

        def answered(status: int, condition: str | None, body: Any) -> None:
            if status == 200:
                self.ledger.allowed(delivery, "renewal")
                self._later(delivery, event, left - 1)
            else:
                self._link.flow(HELD)  # the lock is lost, and the message comes again

        body = {"lock-tokens": Array.of(uuid.UUID, [token])}
        self.peer.ask(self.queue, "com.microsoft:renew-lock", body, answered)


class Load:
    """All clients."""

    def __init__(self, account: Account, seed: int) -> None:
        self.ledger = Timed()
        self.taken = Taken()
        self.random = Random(seed)
        self.port = 0
        """Of the node that they use."""
        self._account = account
        self._clients: list[Client] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._ticking: asyncio.Task[None] | None = None
        self._names = itertools.count(1)
        self._sends = True

    def start(self, port: int) -> None:
        """Begin, at a node."""
        self.port = port
        kinds = (
            [self._sender] * SENDERS
            + [self._worker] * RECEIVERS
            + [self._holder] * HOLDERS
            + [self._feeder, self._taker]
        )
        self._keepers = [asyncio.create_task(self._keep(make)) for make in kinds]
        self._ticking = asyncio.create_task(self._tick())

    def use(self, port: int) -> None:
        """Use another node from now on."""
        if port != self.port:
            self.port = port
            for client in list(self._clients):
                client.vanish()

    async def _keep(self, make: Callable[[str], Client]) -> None:
        """Keep one client connected."""
        while True:
            client = make(f"client-{next(self._names)}")
            with contextlib.suppress(OSError):
                await client.connect(self.port)
                self._clients.append(client)
                await client.over.wait()
                self._clients.remove(client)
            if client.failure is not None:
                raise client.failure
            await asyncio.sleep(RETRY_S)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for client in self._clients:
                client.peer.tick()
                if self._sends and isinstance(client, Feeder):
                    client.feed()
                if self._sends and isinstance(client, Sender) and client.in_flight < MESSAGES_A_TICK:
                    client.allow(MESSAGES_A_TICK)

    def _sender(self, name: str) -> Client:
        return Sender(name, self.ledger, self.random, QUEUE, sends_max=0, repeats=True, account=self._account)

    def _worker(self, name: str) -> Client:
        return Worker(name, self.ledger, self.random, self._account)

    def _holder(self, name: str) -> Client:
        return Holder(name, self.ledger, self.random, self._account)

    def _feeder(self, name: str) -> Client:
        return Feeder(name, self.taken, self._account)

    def _taker(self, name: str) -> Client:
        return Taker(name, self.taken, self._account)

    # What is seen

    def check(self) -> None:
        """Raise what a client has found. Raises: Broken."""
        for task in (*self._keepers, self._ticking):
            if task is not None and task.done():
                task.result()

    async def until_served(self, after_s: float) -> None:
        """Wait until sends and completions that began after a moment are acknowledged. Raises: Broken."""
        until_s = time.monotonic() + WAIT_S_MAX
        while not all(
            moments and moments[-1] > after_s for moments in (self.ledger.sends_s, self.ledger.completions_s)
        ):
            self.check()
            if time.monotonic() > until_s:
                raise Broken(f"clients are not served again within {WAIT_S_MAX:.0f} s")
            await asyncio.sleep(0.02)

    async def drain(self) -> None:
        """Send no more, and wait until nothing is left to receive. Raises: Broken."""
        self._sends = False
        until_s = time.monotonic() + DRAIN_S_MAX
        quiet_s = time.monotonic()
        seen = -1
        while time.monotonic() < quiet_s + QUIET_S or not self.ledger.is_drained():
            self.check()
            if time.monotonic() > until_s:
                self.ledger.finish()
                raise Broken(f"not drained after {DRAIN_S_MAX:.0f} s")
            found = sum(fate.seen for fate in self.ledger.fates.values()) + sum(self.taken.seen.values())
            if found != seen:
                seen, quiet_s = found, time.monotonic()
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        """End all clients."""
        tasks = [task for task in (*self._keepers, self._ticking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self._clients:
            client.close()
            client.vanish()


def gap_s(moments: list[float], from_s: float) -> float:
    """Return the longest time between two answers, of those that ended after a moment."""
    return max((b - a for a, b in itertools.pairwise(moments) if b > from_s), default=0.0)
