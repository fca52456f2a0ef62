"""Rounds of start, work, kill; then the final checks.

Owns: when the broker dies and in which way. Must not know: how clients work.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from peeklock.demo.broker import BrokerProcess
from peeklock.store.check import SOUND, check
from tests.kill.clients import Browser, Client, Receiver, Sender
from tests.kill.ledger import Broken, Ledger

QUEUE = "work"
FORWARDING = "forwarding"
"""What is sent here is forwarded to the queue."""

DELIVERIES_MAX = 2000
"""The highest possible count: no message is dead-lettered, however often the broker dies."""

PROPERTIES = {
    "LockDuration": "PT5S",
    "MaxDeliveryCount": DELIVERIES_MAX,
    "RequiresDuplicateDetection": True,
    "DuplicateDetectionHistoryTimeWindow": "PT1H",
}
QUEUES: dict[str, dict[str, Any]] = {QUEUE: PROPERTIES, FORWARDING: {"ForwardTo": QUEUE}}

NAMESPACE = "sbemulatorns"

FORCED = "amqp:connection:forced"
DRAIN_S_MAX = 60.0
WAIT_S_MAX = 60.0
"""For one answer, or for the end of a connection. Our choice: only a broker that hangs takes so long."""


def broker_on(
    folder: Path, *options: str, queues: dict[str, dict[str, Any]] = QUEUES, namespace: str = NAMESPACE
) -> BrokerProcess:
    """Describe a broker on a folder that has the queues; `options` are further ones of `serve`."""
    described = [{"Name": name, "Properties": properties} for name, properties in queues.items()]
    config = {"UserConfig": {"Namespaces": [{"Name": namespace, "Queues": described}]}}
    file = folder / "Config.json"
    file.write_text(json.dumps(config))
    return BrokerProcess(folder, (f"--config={file}", *options))


class Loop(ABC):
    """One run over one folder."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        queues: dict[str, dict[str, Any]],
        options: Sequence[str],
        namespace: str = NAMESPACE,
    ) -> None:
        self.random = Random(seed)
        self.broker = broker_on(folder, *options, queues=queues, namespace=namespace)
        self._names = 0

    async def run(self, rounds: int) -> dict[str, int]:
        """Kill the broker `rounds` times, each fourth time by SIGTERM; then check. Raises: Broken.

        On a slow machine rounds go on until enough was done.
        """
        try:
            for number in itertools.count():
                if number >= rounds and self.is_enough():
                    break
                await asyncio.to_thread(self.broker.start)
                await self.round(polite=number % 4 == 3)
                print(".", end="", flush=True)  # `tests.__main__` takes silence for a hang
            await asyncio.to_thread(self.broker.start)
            await self.finish()
            await self._stop()
            self._check_folder()
            print(flush=True)
        finally:
            self.broker.kill()
        return self.verdict()

    @abstractmethod
    async def round(self, *, polite: bool) -> None:
        """Connect clients to the running broker, let them work, and end it with `kill` or `stop`."""

    def is_enough(self) -> bool:
        """Return whether the clients have done enough for the final checks."""
        return True

    @abstractmethod
    async def finish(self) -> None:
        """Find out what is left."""

    @abstractmethod
    def verdict(self) -> dict[str, int]:
        """Check what was found; return figures. Raises: Broken."""

    def audit_rows(self) -> list[dict[str, object]]:
        """Return what clients learnt, as rows for the audit of an event log; empty if that is not kept."""
        return []

    def name(self, kind: str) -> str:
        """Return a unique name for a connection."""
        self._names += 1
        return f"{kind}-{self._names}"

    async def kill(self, clients: Sequence[Client]) -> None:
        """SIGKILL."""
        self.broker.kill()
        await self.over(clients)

    async def stop(self, clients: Sequence[Client]) -> None:
        """Send SIGTERM: each client gets a close, and the exit status is 0.

        All are open by then: one that is still connecting gets none, since there is nothing to close.
        """
        for client in clients:
            await asyncio.wait_for(client.answered.wait(), WAIT_S_MAX)
        await self._stop()
        await self.over(clients)
        for client in clients:
            if client.condition != FORCED and not client.vanished:
                raise Broken(f"{client.peer.name} was closed with {client.condition}, not {FORCED}")

    async def over(self, clients: Sequence[Client]) -> None:
        """Wait until connections have ended."""
        for client in clients:
            await asyncio.wait_for(client.over.wait(), WAIT_S_MAX)
        self.check(clients)

    def check(self, clients: Sequence[Client]) -> None:
        """Raise what went wrong for a client."""
        for client in clients:
            if client.failure is not None:
                raise client.failure

    async def _stop(self) -> None:
        status = await asyncio.to_thread(self.broker.stop)
        if status != 0:
            raise Broken(f"exit status {status} after SIGTERM:\n{self.broker.log.read_text()[-4000:]}")

    def _check_folder(self) -> None:
        report = check(self.broker.data)
        if report.exit_status != SOUND:
            raise Broken("the store is damaged: " + "; ".join(report.lines))


class MessageLoop(Loop):
    """Messages of one queue, sent to it or to one that forwards there, some of them twice."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        options: Sequence[str] = (),
        namespace: str = NAMESPACE,
        large: bool = False,
    ) -> None:
        """Set up; `large`: some batches are larger than the standard tier takes."""
        queues = QUEUES
        if large:
            queues = {name: {**about, "MaxMessageSizeInKilobytes": 2048} for name, about in QUEUES.items()}
        super().__init__(folder, seed, queues, options, namespace)
        self.ledger = Ledger()
        self._large = large

    async def round(self, *, polite: bool) -> None:
        """Work for a random time."""
        senders, receivers = await self.connect(senders=2 if polite else 3, receivers=2)
        if polite:
            await asyncio.sleep(self.random.uniform(0.1, 0.6))
            await self.stop([*senders, *receivers])
            return
        await asyncio.sleep(self.random.uniform(0.01, 0.7))
        if self.random.random() < 0.5:
            for sender in senders:  # so that the backlog does not only grow
                sender.stopped = True
            await asyncio.sleep(self.random.uniform(0.0, 0.4))
        await self.kill([*senders, *receivers])

    async def connect(
        self, *, senders: int, receivers: int, sends_max: int = 1 << 30
    ) -> tuple[list[Sender], list[Receiver]]:
        """Connect clients, which begin at once; `sends_max`: of each sender."""
        sending = [
            Sender(
                self.name("sender"),
                self.ledger,
                self.random,
                FORWARDING if number % 2 else QUEUE,
                sends_max=sends_max,
                repeats=True,
                large=self._large,
            )
            for number in range(senders)
        ]
        receiving = [
            Receiver(self.name("receiver"), self.ledger, self.random, QUEUE) for _ in range(receivers)
        ]
        for client in (*sending, *receiving):
            await client.connect(self.broker.amqp_port)
        return sending, receiving

    async def finish(self) -> None:
        """Receive and complete all that is left; locks of the process before are gone with it."""
        receiver = Receiver(self.name("drainer"), self.ledger, self.random, QUEUE, careless=False, credit=200)
        await receiver.connect(self.broker.amqp_port)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DRAIN_S_MAX
        while True:
            before = receiver.deliveries
            await asyncio.sleep(0.2)
            self.check([receiver])
            if loop.time() > deadline:
                raise Broken(f"not drained after {DRAIN_S_MAX} s")
            if receiver.deliveries == before and receiver.settling == 0 and await self.count(QUEUE) == 0:
                break
        receiver.close()
        await self.over([receiver])
        for left in (FORWARDING, f"{FORWARDING}/$Transfer/$DeadLetterQueue", f"{QUEUE}/$DeadLetterQueue"):
            if await self.count(left):
                raise Broken(f"messages are left in {left}")

    async def count(self, queue: str) -> int:
        """Return how many messages a queue holds, 100 at most."""
        browser = Browser(self.name("browser"), self.ledger, self.random, queue)
        await browser.connect(self.broker.amqp_port)
        found = await asyncio.wait_for(browser.found, WAIT_S_MAX)
        browser.close()
        return found

    def verdict(self) -> dict[str, int]:
        """Check the ledger."""
        return self.ledger.finish()

    def audit_rows(self) -> list[dict[str, object]]:
        """Return the ledger's rows."""
        return self.ledger.audit_rows(QUEUE)
