"""Rounds of start, work, kill; then a drain and the verdict.

Owns: when the broker dies and in which way. Must not know: how clients work.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

from peeklock.demo.broker import BrokerProcess
from tests.kill.clients import Browser, Client, Receiver, Sender
from tests.kill.ledger import Broken, Ledger

QUEUE = "work"
PROPERTIES = {"LockDuration": "PT5S", "MaxDeliveryCount": 2000}
"""The highest delivery count there is: nothing is dead-lettered, however often the broker dies."""

FORCED = "amqp:connection:forced"
DRAIN_S_MAX = 60.0


def broker_on(folder: Path, *options: str) -> BrokerProcess:
    """Describe a broker on a folder that has the one queue; `options` are further ones of `serve`."""
    queue = {"Name": QUEUE, "Properties": PROPERTIES}
    config = {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [queue]}]}}
    file = folder / "Config.json"
    file.write_text(json.dumps(config))
    return BrokerProcess(folder, (f"--config={file}", *options))


class KillLoop:
    """One run over one folder."""

    def __init__(self, folder: Path, seed: int, *, options: tuple[str, ...] = ()) -> None:
        self.random = Random(seed)
        self.ledger = Ledger()
        self.broker = broker_on(folder, *options)
        self._names = 0

    async def run(self, rounds: int) -> dict[str, int]:
        """Kill the broker `rounds` times, each fourth time politely; then drain and judge. Raises: Broken."""
        try:
            for number in range(rounds):
                await asyncio.to_thread(self.broker.start)
                if number % 4 == 3:
                    await self.polite_round()
                else:
                    await self.kill_round()
            await asyncio.to_thread(self.broker.start)
            await self.drain()
            await self._stop()
        finally:
            self.broker.kill()
        return self.ledger.finish()

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}-{self._names}"

    async def connect(self, *, senders: int, receivers: int) -> tuple[list[Sender], list[Receiver]]:
        """Connect clients, which begin at once."""
        sending = [Sender(self._name("sender"), self.ledger, self.random, QUEUE) for _ in range(senders)]
        receiving = [
            Receiver(self._name("receiver"), self.ledger, self.random, QUEUE) for _ in range(receivers)
        ]
        for client in (*sending, *receiving):
            await client.connect(self.broker.amqp_port)
        return sending, receiving

    async def kill_round(self) -> None:
        """Work for a random time, then SIGKILL."""
        senders, receivers = await self.connect(senders=3, receivers=2)
        await asyncio.sleep(self.random.uniform(0.01, 0.7))
        if self.random.random() < 0.5:
            for sender in senders:  # so that the backlog does not only grow
                sender.stopped = True
            await asyncio.sleep(self.random.uniform(0.0, 0.4))
        self.broker.kill()
        await self._over([*senders, *receivers])

    async def polite_round(self) -> None:
        """Work for a random time, then SIGTERM: everybody is told, and the exit status is 0."""
        senders, receivers = await self.connect(senders=2, receivers=2)
        await asyncio.sleep(self.random.uniform(0.1, 0.6))
        await self._stop()
        await self._over([*senders, *receivers])
        for client in (*senders, *receivers):
            if client.condition != FORCED:
                raise Broken(f"{client.peer.name} was told {client.condition}, not {FORCED}")

    async def drain(self) -> None:
        """Receive and complete all that is left; locks of the process before are gone with it."""
        receiver = Receiver(
            self._name("drainer"), self.ledger, self.random, QUEUE, careless=False, credit=200
        )
        await receiver.connect(self.broker.amqp_port)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DRAIN_S_MAX
        while True:
            before = receiver.deliveries
            await asyncio.sleep(0.2)
            self._check([receiver])
            if loop.time() > deadline:
                raise Broken(f"not drained after {DRAIN_S_MAX} s")
            if receiver.deliveries == before and receiver.settling == 0 and await self.count() == 0:
                break
        receiver.close()
        await self._over([receiver])

    async def count(self) -> int:
        """Give how many messages the queue holds, 100 at most."""
        browser = Browser(self._name("browser"), self.ledger, self.random, QUEUE)
        await browser.connect(self.broker.amqp_port)
        found = await asyncio.wait_for(browser.found, 10)
        browser.close()
        return found

    async def _stop(self) -> None:
        status = await asyncio.to_thread(self.broker.stop)
        if status != 0:
            raise Broken(f"exit status {status} after SIGTERM:\n{self.broker.log.read_text()[-4000:]}")

    async def _over(self, clients: list[Client]) -> None:
        for client in clients:
            await asyncio.wait_for(client.over.wait(), 10)
        self._check(clients)

    def _check(self, clients: list[Client]) -> None:
        for client in clients:
            if client.failure is not None:
                raise client.failure
