"""Senders and receivers over real sockets, with many messages in flight; they report to the ledger.

Owns: the clients' side of the kill loops. Must not know: when the broker dies.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from peeklock.amqp.events import DeliveryReceived
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import BATCH_FORMAT, Properties, scan
from peeklock.amqp.performatives import ACCEPTED, DeliveryState, Modified
from tests.kill.ledger import Ledger
from tests.simulation.actors.peer import Peer, ReceiveLink, SendLink, error_condition
from tests.simulation.oracle.records import uid_of
from tests.simulation.world.accounts import USUAL, Account

IN_FLIGHT_MAX = 64
LARGE_SHARE = 0.01
LARGE_BODY_BYTES = 250_000
LARGE_MEMBERS = 6
"""Size of a batch that only the premium tier takes: 1.5 MB."""
REPEATS_SHARE = 0.1


def now_ms() -> int:
    """UTC ms: the clock of the engine in the client role."""
    return time.time_ns() // 1_000_000


class Client(asyncio.Protocol):
    """One connection that is not made again when it breaks."""

    def __init__(self, name: str, account: Account = USUAL) -> None:
        self.peer = Peer(name, self._write, now_ms, account=account)
        self.peer.on_ready = self._opened
        self.peer.on_lost = self._lost
        self.condition: str | None = None
        self.failure: BaseException | None = None
        self.answered = asyncio.Event()
        """The connection is open, or over before."""
        self.over = asyncio.Event()
        self.vanished = False
        self._transport: asyncio.Transport | None = None

    async def connect(self, port: int) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.peer.start()

    def data_received(self, data: bytes) -> None:
        try:
            self.peer.received(data)
        except BaseException as failure:  # a broken promise: the round's judge raises it again
            self.failure = failure
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self.peer.ended()
        self._end()

    def close(self) -> None:
        if not self.peer.lost:
            self.peer.close()

    def vanish(self) -> None:
        """Break the connection without a word."""
        self.vanished = True
        if self._transport is not None:
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _lost(self, condition: str | None) -> None:
        self.condition = condition
        if self._transport is not None:
            self._transport.close()
        self._end()

    def _end(self) -> None:
        self.answered.set()
        self.over.set()

    def _opened(self) -> None:
        self.answered.set()
        self.ready()

    def ready(self) -> None:
        """The connection is open."""


class Sender(Client):
    """Keeps `IN_FLIGHT_MAX` sends in flight, single ones and batches, until stopped. With `repeats` some are
    sent again, under the same message ids, whatever their outcome; with `large` some batches are larger than
    the standard tier takes."""

    def __init__(
        self,
        name: str,
        ledger: Ledger,
        random: Random,
        queue: str,
        *,
        sends_max: int = 1 << 30,
        repeats: bool = False,
        large: bool = False,
        account: Account = USUAL,
    ) -> None:
        super().__init__(name, account)
        self._large = large
        self.ledger = ledger
        self.random = random
        self._queue = queue
        self._repeats = repeats
        self._link: SendLink | None = None
        self._left = sends_max
        self.in_flight = 0
        self.stopped = False
        self.outcomes = 0

    def ready(self) -> None:
        self._link = self.peer.attach_sender(self._queue)
        self._link.on_credit = self._go

    def allow(self, sends: int) -> None:
        """Let it send so many more, at once if it can."""
        self._left += sends
        if self._link is not None and not self.peer.lost:
            self._go()

    def _go(self) -> None:
        link = self._link
        assert link is not None
        while not self.stopped and self.in_flight < IN_FLIGHT_MAX and link.credit > 0 and self._left > 0:
            self._left -= 1
            self.in_flight += 1
            if self._large and self.random.random() < LARGE_SHARE:
                self.send_batch(LARGE_MEMBERS, LARGE_BODY_BYTES)
                continue
            if self._repeats and self.ledger.fates and self.random.random() < REPEATS_SHARE:
                uids = self.ledger.sent_before(self.random)
            elif self.random.random() < 0.1:
                group = self.ledger.sending()  # the first member's uid names the group
                self.ledger.fates[group].group = group
                uids = [group, *(self.ledger.sending(group) for _ in range(self.random.randint(1, 6)))]
            else:
                uids = [self.ledger.sending()]
            if len(uids) == 1:
                link.send(self._message(uids[0]), self._outcome(uids))
            else:
                payload = encode_message(data=[self._message(uid) for uid in uids])
                link.send(payload, self._outcome(uids), message_format=BATCH_FORMAT)

    @property
    def can_send(self) -> bool:
        """Whether its link is open and has credit."""
        return self._link is not None and self._link.credit > 0

    def send_batch(self, members: int, body_bytes: int) -> None:
        """Send so many new messages in one batch."""
        link = self._link
        assert link is not None
        group = self.ledger.sending()
        self.ledger.fates[group].group = group
        uids = [group, *(self.ledger.sending(group) for _ in range(members - 1))]
        payload = encode_message(data=[self._message(uid, body_bytes) for uid in uids])
        link.send(payload, self._outcome(uids), message_format=BATCH_FORMAT)

    def _message(self, uid: int, body_bytes: int | None = None) -> bytes:
        if body_bytes is None:
            body_bytes = self.random.choice((0, 100, 1000, 4000))
        body = b"uid=%08d;" % uid + b"." * body_bytes
        return encode_message(properties=Properties(message_id=str(uid)), data=body)

    def _outcome(self, uids: list[int]) -> Callable[[DeliveryState | None], None]:
        def outcome(state: DeliveryState | None) -> None:
            self.in_flight -= 1
            self.outcomes += 1
            for uid in uids:
                self.ledger.answered(uid, error_condition(state))
            self._go()

        return outcome


class Completions(Protocol):
    """Gets reports of completions, under the names that it has given."""

    def completing(self, delivered: Any) -> None:
        """Record that its completion is sent."""

    def completed(self, delivered: Any) -> None:
        """Record that its completion was acknowledged."""


class Consumer(Client):
    """Peek-locks with much credit; completes most, abandons some, ignores some."""

    def __init__(
        self,
        name: str,
        completions: Completions,
        random: Random,
        queue: str,
        *,
        careless: bool = True,
        credit: int = 50,
        account: Account = USUAL,
    ) -> None:
        super().__init__(name, account)
        self.random = random
        self.queue = queue
        self._completions = completions
        self._careless = careless
        self._credit = credit
        self._since_flow = 0
        self.deliveries = 0
        self.settling = 0

    def ready(self) -> None:
        link = self.peer.attach_receiver(self.queue, delete=False)
        link.on_attached = lambda: link.flow(self._credit)
        link.on_delivery = lambda event: self._delivered(link, event)

    @abstractmethod
    def note(self, event: DeliveryReceived) -> Any:
        """Report a delivery; return its name."""

    def _delivered(self, link: ReceiveLink, event: DeliveryReceived) -> None:
        delivered = self.note(event)
        self.deliveries += 1
        self._since_flow += 1
        roll = self.random.random() if self._careless else 0.0
        if roll < 0.8:
            self._completions.completing(delivered)
            self.settling += 1
            link.settle(event.delivery_id, ACCEPTED, lambda state: self._settled(delivered, state))
        elif roll < 0.9:
            link.settle(event.delivery_id, Modified(True, False, None), None)
        if self._since_flow >= self._credit // 2:
            self._since_flow = 0
            link.flow(self._credit)

    def _settled(self, delivered: Any, state: DeliveryState | None) -> None:
        self.settling -= 1
        if error_condition(state) is None:
            self._completions.completed(delivered)


class Receiver(Consumer):
    """Receives the messages of a queue."""

    def __init__(self, name: str, ledger: Ledger, random: Random, queue: str, **options: Any) -> None:
        super().__init__(name, ledger, random, queue, **options)
        self._ledger = ledger

    def note(self, event: DeliveryReceived) -> int:
        """Report a delivery to the ledger; return the uid."""
        uid = uid_of(event.payload)
        self._ledger.delivered(uid, number_of(event))
        return uid


def number_of(event: DeliveryReceived) -> int:
    """Return the sequence number of what was delivered."""
    return int(scan(event.payload).decode_message_annotations()["x-opt-sequence-number"])


class Browser(Client):
    """Counts the messages of a queue, by peeking."""

    def __init__(self, name: str, ledger: Ledger, random: Random, queue: str) -> None:
        super().__init__(name)
        self.ledger = ledger
        self.random = random
        self._queue = queue
        self.found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def ready(self) -> None:
        from peeklock.amqp.types import Int, Long

        body = {"from-sequence-number": Long(0), "message-count": Int(100)}
        self.peer.ask(self._queue, "com.microsoft:peek-message", body, self._answered)

    def _answered(self, status: int, condition: str | None, body: Any) -> None:
        if not self.found.done():
            self.found.set_result(len(body["messages"]) if status == 200 else 0)
