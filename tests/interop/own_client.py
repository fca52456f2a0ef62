"""A client made of our own engine on a socket, for what the official client cannot do: disappear, hang, leave
in a chosen way, request an operation that it does not have.

Owns: the socket and waiting on it. Bytes are sent and read only inside a call: between calls the client
hangs. Must not know: the meaning of requests.
"""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Callable
from typing import Any

from peeklock.amqp.events import DeliveryReceived
from peeklock.amqp.messaging import scan
from peeklock.amqp.performatives import ACCEPTED, DeliveryState
from peeklock.amqp.types import Array, Int, Long
from tests.simulation.actors.peer import Peer, ReceiveLink, error_condition, lock_uuid

WAIT_S = 10.0
PEEK = "com.microsoft:peek-message"


class OwnClient:
    """One connection, used from a test's thread."""

    def __init__(self, port: int, connected: socket.socket | None = None) -> None:
        """Connect; `connected` replaces a plain connection to the port."""
        self._socket = connected or socket.create_connection(("127.0.0.1", port))
        self.write = self._socket.sendall
        self.peer = Peer("own", self.write, lambda: time.time_ns() // 1_000_000)
        self.conditions: list[str | None] = []
        """Conditions with which the broker detached links or closed the connection."""
        self.peer.on_lost = self.conditions.append
        self.peer.start()
        self.until(lambda: self.peer.ready)

    def __enter__(self) -> OwnClient:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def until(self, true: Callable[[], bool], wait_s: float = WAIT_S) -> None:
        """Read from the broker until a condition holds."""
        deadline = time.monotonic() + wait_s
        while not true():
            left_s = deadline - time.monotonic()
            assert left_s > 0, "nothing more came in time"
            self._socket.settimeout(left_s)
            data = self._socket.recv(65536)
            if data:
                self.peer.received(data)
            else:
                self.peer.ended()
                assert true(), f"the connection was ended: {self.conditions}"

    def receive(
        self, queue: str, count: int, *, session: tuple[str | None] | None = None, delete: bool = False
    ) -> tuple[ReceiveLink, list[DeliveryReceived]]:
        """Open a receiver and take `count` deliveries."""
        came: list[DeliveryReceived] = []
        link = self.peer.attach_receiver(queue, delete=delete, session=session)
        link.on_delivery = came.append
        link.on_lost = self.conditions.append
        self.until(lambda: link.open)
        if count:
            link.flow(count)
            self.until(lambda: len(came) == count)
        return link, came

    def settle(
        self, link: ReceiveLink, delivery: DeliveryReceived, state: DeliveryState = ACCEPTED
    ) -> str | None:
        """Settle a delivery; return the condition of a refusal."""
        outcomes: list[str | None] = []
        link.settle(delivery.delivery_id, state, lambda found: outcomes.append(error_condition(found)))
        self.until(lambda: bool(outcomes))
        return outcomes[0]

    def ask(self, entity: str, operation: str, body: dict[str, Any]) -> tuple[int, str | None, Any]:
        """Send a request to the management node of an entity; return status, condition and body."""
        answers: list[tuple[int, str | None, Any]] = []
        self.peer.ask(entity, operation, body, lambda *answer: answers.append(answer))
        self.until(lambda: bool(answers))
        return answers[0]

    def browse(self, entity: str) -> list[str]:
        """Return the bodies of the first 100 messages of an entity."""
        body = {"from-sequence-number": Long(0), "message-count": Int(100)}
        status, _, answer = self.ask(entity, PEEK, body)
        assert status in (200, 204)
        found = [scan(one["message"]).decode_body() for one in answer["messages"]] if status == 200 else []
        return [b"".join(section[1] for section in sections).decode() for sections in found]

    def settle_by_token(self, entity: str, delivery: DeliveryReceived, how: str) -> str | None:
        """Settle a delivery of any connection through the management node; return the condition of a
        refusal."""
        body = {"disposition-status": how, "lock-tokens": tokens(delivery)}
        status, condition, _ = self.ask(entity, "com.microsoft:update-disposition", body)
        assert (status == 200) == (condition is None)
        return condition

    def leave(self, link: ReceiveLink, queue: str, how: str) -> None:
        """End a receiver properly, by `detach`, `detach unclosed`, `end` or `close`; then disappear."""
        if how == "close":
            self.peer.close()
            self.until(lambda: self.peer.lost)
        else:
            if how == "end":
                self.peer.end(link.channel)
            else:
                self.peer.connection.detach(link.channel, link.handle, closed=how == "detach")
            # An answer to a later request shows that it has been read.
            self.ask(queue, PEEK, {"from-sequence-number": Long(0), "message-count": Int(1)})
        self._socket.close()

    def vanish(self, *, reset: bool = False) -> None:
        """End the stream without a word, as a killed process does; or reset it."""
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


def tokens(*deliveries: DeliveryReceived) -> Array:
    """Return the lock tokens of deliveries as requests carry them."""
    return Array.of(uuid.UUID, [lock_uuid(delivery.delivery_tag) for delivery in deliveries])
