"""The clients of the kill loops on the shared broker, at a bounded rate.

Owns: when they connect, how much they may send. Must not know: when the broker dies; what is checked.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from random import Random

from peeklock.demo.broker import BrokerProcess
from tests.kill.bank_loop import BankLoop
from tests.kill.clients import Client, Sender
from tests.kill.copies import Copies
from tests.kill.http_clients import Web, WebClient, WebReceiver, WebSender
from tests.kill.ledger import LATE, Broken, Ledger
from tests.kill.loop import FORWARDING, QUEUE, Loop, MessageLoop
from tests.kill.topic_loop import TopicLoop, make_topic
from tests.simulation.world.accounts import KEY, KEY_NAME, Account

SERVER_BUSY = "com.microsoft:server-busy"
TICK_S = 0.1
MESSAGES_A_TICK = 6
"""Sends of each sender; a tenth of them are batches."""
PUBLISHED_A_TICK = 1
RULES_A_LIFE = 8
WEB_PAUSE_S = 0.4
"""Between two sends over each HTTP connection."""
BURST_S = 0.3
BETWEEN_BURSTS_S = 8.0
"""Transfers go as fast as they can for `BURST_S`, then pause: their clients have no rate."""


class RecentLedger(Ledger):
    """A ledger whose messages are repeated soon or not at all. Windows of duplicates are short in a soak, so
    that the broker forgets old ids and does not grow by them.

    A busy broker's refusal is no outcome: the same message may have been accepted before, or is later.
    """

    def answered(self, uid: int, condition: str | None) -> None:
        if condition != SERVER_BUSY:
            super().answered(uid, condition)

    def sent_before(self, random: Random) -> list[int]:
        last = len(self.fates)
        group = self.fates[uid].group if (uid := random.randint(max(1, last - LATE), last)) else 0
        if not group:
            return [uid]
        members = [group]
        while (following := self.fates.get(members[-1] + 1)) is not None and following.group == group:
            members.append(following.uid)
        return members


class Load(ABC):
    """Clients of one loop."""

    loop: Loop

    def __init__(self) -> None:
        self.clients: list[Client] = []

    @abstractmethod
    async def begin(self) -> None:
        """Connect to the running broker."""

    @abstractmethod
    def tick(self) -> None:
        """Let clients send; called every `TICK_S`."""

    def check(self) -> None:
        """Raise what went wrong."""
        self.loop.check(self.clients)

    def keep_alive(self) -> None:
        """Keep clients that have nothing to say from the broker's idle time-out: some lives are long."""
        for client in self.clients:
            client.peer.tick()

    def quiet(self) -> None:
        """Send no more."""
        for client in self.clients:
            if isinstance(client, Sender):
                client.stopped = True

    async def over(self, *, polite: bool) -> None:
        """Wait until the connections have ended with the broker."""
        await self.loop.over(self.clients)
        if polite:
            for client in self.clients:
                if client.condition not in ("amqp:connection:forced", None) and not client.vanished:
                    raise Broken(f"{client.peer.name} was closed with {client.condition}")
        self.clients = []


class MessagesLoad(Load):
    """Queue, forwarding, duplicates, batches; over AMQP and HTTP."""

    loop: MessageLoop

    def __init__(self, broker: BrokerProcess, scratch: Path, seed: int) -> None:
        super().__init__()
        scratch.mkdir()
        self.loop = MessageLoop(scratch, seed)
        self.loop.broker = broker
        self.loop.ledger = RecentLedger()
        self._web: list[WebClient] = []

    async def begin(self) -> None:
        senders, receivers = await self.loop.connect(senders=2, receivers=2, sends_max=0)
        self.clients = [*senders, *receivers]
        ledger, random = self.loop.ledger, self.loop.random
        self._web = [
            PacedWebSender(self.loop.name("web"), ledger, random, QUEUE),
            PacedWebSender(self.loop.name("web"), ledger, random, FORWARDING),
            WebReceiver(self.loop.name("web"), ledger, random, QUEUE),
        ]
        for web in self._web:
            web.connect(self.loop.broker.http_port)

    def tick(self) -> None:
        for client in self.clients:
            if isinstance(client, Sender):
                client.allow(MESSAGES_A_TICK)

    def check(self) -> None:
        super().check()
        for web in self._web:
            if web.failure is not None:
                raise web.failure

    async def over(self, *, polite: bool) -> None:
        web, self._web = self._web, []
        for one in web:
            one.stopped = True
        await super().over(polite=polite)
        for one in web:
            await one.over()


class PacedWebSender(WebSender):
    """Pauses between its sends."""

    async def work(self, web: Web) -> None:
        await asyncio.sleep(WEB_PAUSE_S)
        await super().work(web)


class TopicsLoad(Load):
    """A topic with rules, some messages scheduled."""

    loop: TopicLoop

    def __init__(self, broker: BrokerProcess, scratch: Path, seed: int) -> None:
        super().__init__()
        scratch.mkdir()
        self.loop = TopicLoop(scratch, seed)
        self.loop.broker = broker
        self.loop.sends = RecentLedger()
        self.loop.copies = Copies(self.loop.sends)

    async def make(self) -> None:
        """Create the topic."""
        key = f"SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY};"
        await asyncio.to_thread(make_topic, self.loop.broker, key)

    async def begin(self) -> None:
        self.clients = await self.loop.connect(sends_max=0, changes_max=RULES_A_LIFE)

    def tick(self) -> None:
        for client in self.clients:
            if isinstance(client, Sender):
                client.allow(PUBLISHED_A_TICK)


class BankLoad(Load):
    """Transactions, states of sessions, markers, in bursts; in the second namespace."""

    loop: BankLoop

    def __init__(self, broker: BrokerProcess, scratch: Path, seed: int, account: Account) -> None:
        super().__init__()
        scratch.mkdir()
        self.loop = BankLoop(scratch, seed)
        self.loop.broker = broker
        self.loop.account = account
        self._working: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        await self.loop.audit()
        self._working = asyncio.create_task(self._bursts())

    def check(self) -> None:
        super().check()
        if self._working is not None and self._working.done():
            self._working.result()

    def quiet(self) -> None:
        if self._working is not None:
            self._working.cancel()

    def tick(self) -> None:
        """Transfers have no rate."""

    async def _bursts(self) -> None:
        while True:
            self.clients = await self.loop.connect()
            await asyncio.sleep(BURST_S)
            for client in self.clients:
                # A connection that is not open yet cannot be closed in order.
                client.close() if client.peer.ready else client.vanish()
            await self.loop.over(self.clients)
            self.clients = []
            await asyncio.sleep(BETWEEN_BURSTS_S)

    async def over(self, *, polite: bool) -> None:
        working, self._working = self._working, None
        if working is not None:
            working.cancel()
            with suppress(asyncio.CancelledError, OSError, TimeoutError):
                await working
        for client in self.clients:
            client.vanish()
        await super().over(polite=False)
