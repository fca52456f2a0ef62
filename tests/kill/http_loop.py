"""Messages of one queue, sent and received over HTTP beside AMQP.

Owns: which clients work together. Must not know: what they do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.kill.clients import Client, Receiver, Sender
from tests.kill.http_clients import WebClient, WebReceiver, WebSender
from tests.kill.loop import FORWARDING, NAMESPACE, QUEUE, MessageLoop


class HttpLoop(MessageLoop):
    """What clients of one protocol send reaches those of both."""

    def __init__(
        self, folder: Path, seed: int, *, options: Sequence[str] = (), namespace: str = NAMESPACE
    ) -> None:
        super().__init__(folder, seed, options=options, namespace=namespace)
        self._web: list[WebClient] = []
        self.answers = 0

    async def connect(
        self, *, senders: int, receivers: int, sends_max: int = 1 << 30
    ) -> tuple[list[Sender], list[Receiver]]:
        """Connect one AMQP client of each kind, and two HTTP clients."""
        amqp = await super().connect(senders=1, receivers=1, sends_max=sends_max)
        while not all(client.peer.ready or client.peer.lost for client in (*amqp[0], *amqp[1])):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # a stop informs only connections that the broker knows
        self._web = [
            made(self.name("web"), self.ledger, self.random, queue)
            for made, queue in (
                (WebSender, QUEUE), (WebSender, FORWARDING), (WebReceiver, QUEUE), (WebReceiver, QUEUE),
            )
        ]  # fmt: skip
        for client in self._web:
            client.connect(self.broker.http_port)
        return amqp

    async def over(self, clients: Sequence[Client]) -> None:
        """Wait for the HTTP clients too."""
        await super().over(clients)
        web, self._web = self._web, []
        for client in web:
            await client.over()
            self.answers += client.answers
