"""Senders and receivers over HTTP, with several connections each; they report to the ledger.

Owns: the HTTP clients' side of a kill loop. Must not know: when the broker dies. What is in flight then has
no outcome, as with any client.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from random import Random

from peeklock.auth import DEVELOPMENT_KEY, DEVELOPMENT_KEY_NAME, generate
from tests.kill.clients import REPEATS_SHARE, now_ms
from tests.kill.ledger import Broken, Ledger
from tests.simulation.oracle.records import uid_of

CONNECTIONS = 8
BATCH_TYPE = "application/vnd.microsoft.servicebus.json"

Answer = tuple[int, dict[str, str], bytes]


class WebClient(ABC):
    """Connections that work until the broker is gone."""

    def __init__(self, name: str, ledger: Ledger, random: Random, queue: str) -> None:
        self.name = name
        self.ledger = ledger
        self.random = random
        self.queue = queue
        self.stopped = False
        self.failure: BaseException | None = None
        self.answers = 0
        self._tasks: list[asyncio.Task[None]] = []

    def connect(self, port: int) -> None:
        """Begin."""
        self._tasks = [asyncio.create_task(self._run(port)) for _ in range(CONNECTIONS)]

    async def over(self) -> None:
        """Wait until all connections have ended; raise what went wrong."""
        self.stopped = True
        _, left = await asyncio.wait(self._tasks, timeout=10)
        if self.failure is not None:
            raise self.failure
        if left:
            raise Broken(f"{self.name} still has {len(left)} connections")

    async def _run(self, port: int) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                while not self.stopped:
                    await self.work(Web(port, reader, writer))
                    self.answers += 1
            finally:
                writer.close()
        except (OSError, EOFError):
            pass  # the broker is gone
        except BaseException as failure:
            self.failure = failure

    @abstractmethod
    async def work(self, web: Web) -> None:
        """Act once; what ends the connection is raised."""


class Web:
    """One connection. Raises: OSError, EOFError: it has ended."""

    def __init__(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._host = f"localhost:{port}"
        self._reader = reader
        self._writer = writer

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        token = generate(f"http://{self._host}", DEVELOPMENT_KEY_NAME, DEVELOPMENT_KEY, now_ms() + 3_600_000)
        said = {"Host": self._host, "Authorization": token, "Content-Length": str(len(body)), **headers}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items())]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        status, *found = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        head = dict(line.split(": ", 1) for line in found)
        size = int(head.get("Content-Length", 0))
        return int(status.split()[1]), head, await self._reader.readexactly(size)


class WebSender(WebClient):
    """Sends single messages and batches; some again, under the same message ids."""

    async def work(self, web: Web) -> None:
        if self.ledger.fates and self.random.random() < REPEATS_SHARE:
            uids = self.ledger.sent_before(self.random)
        elif self.random.random() < 0.1:
            group = self.ledger.sending()  # the first member's uid names the group
            self.ledger.fates[group].group = group
            uids = [group, *(self.ledger.sending(group) for _ in range(self.random.randint(1, 6)))]
        else:
            uids = [self.ledger.sending()]
        path = f"/{self.queue}/messages"
        if len(uids) == 1:
            said = {"BrokerProperties": json.dumps({"MessageId": str(uids[0])})}
            status, _, _ = await web.ask("POST", path, self._body(uids[0]).encode(), **said)
        else:
            members = [{"Body": self._body(uid), "BrokerProperties": {"MessageId": str(uid)}} for uid in uids]
            kind = {"Content-Type": BATCH_TYPE}
            status, _, _ = await web.ask("POST", path, json.dumps(members).encode(), **kind)
        if status not in (201, 503):
            raise Broken(f"{self.name} was answered with {status}")
        if status == 201:  # after a 503 others may send it again, so that it may be stored all the same
            for uid in uids:
                self.ledger.answered(uid, None)

    def _body(self, uid: int) -> str:
        return f"uid={uid:08d};" + "." * self.random.choice((0, 100, 1000, 4000))


class WebReceiver(WebClient):
    """Peek-locks message by message; completes most, some after a renewal, abandons some, ignores some."""

    async def work(self, web: Web) -> None:
        status, headers, body = await web.ask("POST", f"/{self.queue}/messages/head?timeout=1")
        if status in (204, 503):
            return
        if status != 201:
            raise Broken(f"{self.name} was answered with {status}")
        uid = uid_of(body)
        self.ledger.delivered(uid, json.loads(headers["BrokerProperties"])["SequenceNumber"])
        lock = "/" + headers["Location"].split("/", 3)[3]
        roll = self.random.random()
        if roll > 0.9:
            return
        if roll > 0.8:
            await web.ask("PUT", lock)
            return
        if roll > 0.7:
            await web.ask("POST", lock)
        self.ledger.completing(uid)
        if (await web.ask("DELETE", lock))[0] == 200:
            self.ledger.completed(uid)
