"""What the tests of the streams share: entities, messages, and a wire that loses answers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterable
from itertools import count
from typing import Any

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties
from peeklock.client.connection import connection
from peeklock.spark.options import Options, Use, read_options
from peeklock.testing.served import ServedBroker
from tests.spark.relay import Relay

_numbers = count(1)


class Namespace:
    """A broker with the words of a test."""

    def __init__(self, broker: ServedBroker, administration: Any) -> None:
        self.broker = broker
        self.administration = administration

    def queue(self, **settings: Any) -> str:
        """Make a queue of the test's own."""
        name = f"queue-{next(_numbers)}"
        self.administration.create_queue(name, **settings)
        return name

    def options(self, *entities: str, connection_string: str | None = None, **given: str) -> Options:
        """Return the options of a stream; in mode cursor its cursor is `spark` if it names none."""
        if given.get("mode", "cursor") == "cursor":
            given.setdefault("consumerName", "spark")
        text = connection_string or self.broker.connection_string
        return read_options(
            {"connectionString": text, "entity": ",".join(entities), **given}, Use.STREAM_READ
        )

    def send(self, entity: str, bodies: Iterable[str], session: str | None = None, size: int = 0) -> None:
        """Send messages, each filled up to `size` with spaces."""
        self.send_to_sessions(entity, [(session, body.ljust(size)) for body in bodies])

    def send_to_sessions(self, entity: str, messages: Iterable[tuple[str | None, str]]) -> None:
        """Send messages of session and body."""
        sender = connection(self.options(entity).settings).sender(entity)
        for session, body in messages:
            sender.send(encode_message(properties=Properties(group_id=session), data=body.encode()))
        sender.flush()
        sender.close()

    def left(self, entity: str) -> int:
        """Return how many messages a queue has, in any state."""
        found = self.administration.get_queue_runtime_properties(entity)
        return int(found.active_message_count + found.scheduled_message_count)

    def states(self, entity: str) -> list[str]:
        """Return body and state of each message of an entity, by its number."""
        from peeklock.client.claims import READ_BYTES
        from peeklock.spark.source.rows import record_batch
        from peeklock.spark.source.schema import row_schema

        management = connection(self.options(entity).settings).management(entity)
        found: list[str] = []
        start = 0
        while True:
            body = {"from-sequence-number": start, "message-count": READ_BYTES}
            messages = management.request("com.microsoft:peek-message", body).body.get("messages") or []
            if not messages:
                return found
            rows = record_batch([one["message"] for one in messages], entity, row_schema()).to_pylist()
            found += [f"{row['body'].decode().strip()} {row['state']}" for row in rows]
            start = rows[-1]["sequenceNumber"] + 1


def numbered(count: int, first: int = 0) -> list[str]:
    """Return bodies that tell messages apart."""
    return [str(number) for number in range(first, first + count)]


class LossyRelay(Relay):
    """A relay that can lose what the broker says next, and the connection with it."""

    def __init__(self, port: int) -> None:
        self.loses = threading.Event()
        """Set: the next answer is lost; it is cleared then."""
        super().__init__(port)

    def _copy(self, source: socket.socket, target: socket.socket, log: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if log is None and self.loses.is_set():
                    self.loses.clear()
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
