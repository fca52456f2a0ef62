"""Sending to a queue or topic, many messages under way at a time. Source: wire contract 2.3, 3.7, 4.1."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from peeklock.amqp.events import DispositionReceived, Event, LinkAttached, LinkFlow
from peeklock.amqp.messaging import BATCH_FORMAT, scan
from peeklock.amqp.performatives import ACCEPTED, DeliveryState, Rejected, Source, Target
from peeklock.amqp.serial import ids_in_range
from peeklock.amqp.types import Role
from peeklock.client.errors import (
    MESSAGE_SIZE_EXCEEDED,
    SERVER_BUSY,
    TIMEOUT,
    UNAUTHORIZED,
    ServiceBusError,
    refused,
)
from peeklock.client.links import PROGRESS_S, BusyPauses, Link

if TYPE_CHECKING:
    from peeklock.client.connection import BlockingConnection

BATCH_SIZE: Final = "com.microsoft:max-message-batch-size"

_BATCH_DEFAULTS: Final = (262_144, 1_048_576)
"""Largest batch if the link does not say: with messages below 1 MiB, and from 1 MiB. Wire contract 2.3."""

_WRITE_BYTES: Final = 1 << 16


@dataclass(slots=True)
class _Sent:
    """A transfer without an outcome: one message, or a batch of `count`."""

    index: int
    count: int
    tag: object
    payload: bytes
    message_format: int


class Sender(Link):
    """Sends to a queue or topic, many messages under way at a time.

    Messages without an outcome when a connection breaks are sent again, so one may arrive twice; duplicate
    detection drops the second. Where `sends_again` is False, the break is an error. An error ends the sender:
    every later call raises it again.
    """

    def __init__(
        self,
        connection: BlockingConnection,
        path: str,
        in_flight_max: int,
        in_flight_bytes_max: int,
        sends_again: bool,
    ) -> None:
        super().__init__(connection, path)
        self._sends_again = sends_again
        self._count_max = in_flight_max
        self._bytes_max = in_flight_bytes_max
        self._handle = -1
        self._index = 0
        self._tags = 0
        self._queue: deque[_Sent] = deque()
        self._under_way: dict[int, _Sent] = {}
        self._again: list[_Sent] = []
        """Refused by a busy broker; sent before all others once nothing is under way."""
        self._count = 0
        self._bytes = 0
        self._settled = 0
        self._failure: ServiceBusError | None = None
        self._pauses = BusyPauses(connection.settings.timeout_s)
        self._message_bytes_max = 0
        self._batch_bytes_max = 0
        self.on_accepted: Callable[[object], None] | None = None
        """Called with the tag of each message, or batch, once it is accepted, from inside a call."""

    @property
    def message_bytes_max(self) -> int:
        """Largest message of the entity, bytes; 0 = unknown. Opens the link."""
        with self.connection.lock:
            self.connection.retrying(self.open)
            return self._message_bytes_max

    @property
    def batch_bytes_max(self) -> int:
        """Largest batch of the entity, bytes. Opens the link."""
        with self.connection.lock:
            self.connection.retrying(self.open)
            return self._batch_bytes_max

    def send(self, payload: bytes, tag: object = None) -> None:
        """Send an encoded message; wait only while too much is under way. `flush` waits for the outcomes.

        `tag` names the message in errors, beside its place among all messages of this sender.

        Raises:
            ServiceBusError: this message or an earlier one was refused.
        """
        self._offer(_Sent(self._index, 1, tag, payload, 0))

    def send_batch(self, payloads: list[bytes], tag: object = None) -> None:
        """Send encoded messages as one batch, stored as a whole; `batch_bytes_max` limits its size.

        A broker that is not Service Bus knows no batches: it gets message by message.

        Raises:
            ServiceBusError: as `send`; it names the first message of the batch.
        """
        if len(payloads) == 1 or self.connection.settings.generic:
            for payload in payloads:
                self.send(payload, tag)
        elif payloads:
            self._offer(_Sent(self._index, len(payloads), tag, encode_batch(payloads), BATCH_FORMAT))

    def flush(self) -> None:
        """Wait for the outcomes of all messages.

        Raises:
            ServiceBusError: as `send`.
        """
        with self.connection.lock:
            self._wait_for(0, 0)
            self._check()

    def first_open(self) -> tuple[int, object] | None:
        """Return place and tag of the first message that is not known to be accepted; None = all are.

        Of a batch, those of its first message. Later messages may be accepted.
        """
        with self.connection.lock:
            left = [
                (sent.index, sent.tag) for sent in (*self._under_way.values(), *self._again, *self._queue)
            ]
            if self._failure is not None and self._failure.index is not None:
                left.append((self._failure.index, self._failure.tag))
            return min(left, key=lambda each: each[0], default=None)

    def attach(self) -> None:
        connection = self.connection
        name = connection.link_name()
        self._handle = self.link(
            connection.engine.attach(
                self.channel, name, Role.SENDER, Source(name), Target(self.entity), snd_settle_mode=0
            )
        )

    def on_attached(self, event: LinkAttached) -> None:
        self._message_bytes_max = event.max_message_size or 0
        said = event.properties.get(BATCH_SIZE)
        large = self._message_bytes_max >= _BATCH_DEFAULTS[1]
        self._batch_bytes_max = said if isinstance(said, int) and said > 0 else _BATCH_DEFAULTS[large]

    def on_event(self, event: Event) -> None:
        if type(event) is DispositionReceived:
            for delivery_id in ids_in_range(event.first, event.last, self._under_way.keys()):
                if event.settled:
                    self._outcome(self._under_way.pop(delivery_id), event.state)
        elif type(event) is LinkFlow:
            if event.drain:
                self.connection.engine.drained(self.channel, self._handle)
            self._pump()

    def on_lost(self, error: ServiceBusError) -> None:
        if self._under_way and not (self._sends_again and _may_send_again(error)):
            self._failure = self._failure or error
        self._again += self._under_way.values()
        self._under_way.clear()
        self._requeue()

    def _requeue(self) -> None:
        """Put the messages to send again before the rest, in their order."""
        self._again.sort(key=lambda sent: sent.index)
        self._queue.extendleft(reversed(self._again))
        self._again.clear()

    def _offer(self, sent: _Sent) -> None:
        with self.connection.lock:
            self._check()
            size_max = self._message_bytes_max
            if size_max and len(sent.payload) > size_max:
                self._failure = refused(
                    MESSAGE_SIZE_EXCEEDED,
                    f"a transfer of {len(sent.payload)} bytes; the limit is {size_max}",
                    host=self.connection.host,
                    entity=self.entity,
                    index=sent.index,
                    tag=sent.tag,
                )
                raise self._failure
            self._index += sent.count
            self._queue.append(sent)
            self._count += sent.count
            self._bytes += len(sent.payload)
            if self.is_open:
                self._pump()
                if self.connection.engine.pending_bytes >= _WRITE_BYTES:
                    self._exchange()
            if self._count > self._count_max or self._bytes > self._bytes_max or not self.is_open:
                self._wait_for(self._count_max, self._bytes_max)

    def _exchange(self) -> None:
        try:
            self.connection.exchange(0)
        except ServiceBusError as error:
            if not error.retryable:
                raise

    def _pump(self) -> None:
        engine = self.connection.engine
        channel, handle = self.channel, self._handle
        queue, under_way = self._queue, self._under_way
        if self._again and not under_way:
            self._requeue()
        if not queue or self._again or time.monotonic() < self._pauses.until:
            return
        for _ in range(min(len(queue), engine.credit(channel, handle))):
            sent = queue.popleft()
            self._tags = (self._tags + 1) & 0xFFFFFFFF
            delivery_id = engine.send(
                channel,
                handle,
                self._tags.to_bytes(4, "big"),
                sent.payload,
                message_format=sent.message_format,
            )
            under_way[delivery_id] = sent

    def _outcome(self, sent: _Sent, state: DeliveryState | None) -> None:
        if isinstance(state, Rejected) and state.error is not None:
            condition = str(state.error.condition)
            if condition == SERVER_BUSY and self._pauses.begin():
                self._again.append(sent)
                return
            self._fail(sent, condition, state.error.description)
        elif state != ACCEPTED:
            self._fail(sent, "amqp:internal-error", f"the outcome was {state}, not accepted")
        else:
            self._pauses.end()
            if self.on_accepted is not None:
                self.on_accepted(sent.tag)
        self._settled += 1
        self._count -= sent.count
        self._bytes -= len(sent.payload)

    def _fail(self, sent: _Sent, condition: str, description: str) -> None:
        self._failure = self._failure or refused(
            condition,
            description if sent.count == 1 else f"a batch of {sent.count}: {description}",
            host=self.connection.host,
            entity=self.entity,
            index=sent.index,
            tag=sent.tag,
        )

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _wait_for(self, count_max: int, bytes_max: int) -> None:
        """Wait until no more than this is under way; fail after `timeout_s` without any outcome."""
        limit_s = self.connection.settings.timeout_s
        heard, heard_at, waited_for = self._heard, time.monotonic(), "the link to open"
        while (self._count > count_max or self._bytes > bytes_max) or (self._queue and not self.is_open):
            self._check()
            now = time.monotonic()
            if self._heard != heard:
                heard, heard_at = self._heard, now
            left_s = heard_at + limit_s - now
            if left_s <= 0:
                self._failure = self._overdue(waited_for, now - heard_at)
                raise self._failure
            try:
                self.connection.retrying(self.open, left_s)
            except ServiceBusError as error:
                self._failure = error
                raise
            try:
                pause_s = self._pauses.until - time.monotonic()
                if pause_s > 0:
                    self.connection.exchange(pause_s)
                    continue
                self._pump()
                waited_for = "its outcome" if self._under_way else "credit from the broker, so none was sent"
                self.connection.wait(
                    partial(self._moved_on, self._heard),
                    min(heard_at + limit_s, time.monotonic() + PROGRESS_S),
                    self.entity,
                )
            except ServiceBusError as error:
                if not error.retryable:
                    raise

    def _overdue(self, waited_for: str, spent_s: float) -> ServiceBusError:
        text = (
            f"none of {self._count} messages was accepted within {spent_s:.0f} s; waited for {waited_for}. "
            f"Messages that were sent may have been stored; see the broker's log"
        )
        return refused(TIMEOUT, text, host=self.connection.host, entity=self.entity)

    @property
    def _heard(self) -> tuple[int, float]:
        """A value that changes with each outcome."""
        return self._settled, self._pauses.until

    def _moved_on(self, before: tuple[int, float]) -> bool:
        return self._heard != before or not self.is_open


def _may_send_again(error: ServiceBusError) -> bool:
    """Return False if it would fail again, and later messages would arrive each time."""
    return error.retryable or error.condition == UNAUTHORIZED  # a token can be renewed


def encode_batch(payloads: list[bytes]) -> bytes:
    """Return a message of the batch format: each encoded message is a data section.

    The annotations and properties of the first are repeated before them, as a hint for routing (wire contract
    3.7).
    """
    sections = scan(payloads[0])
    pieces: list[bytes] = []
    for span in (sections.message_annotations, sections.properties):
        if span is not None:
            pieces.append(payloads[0][span[0] : span[1]])
    for payload in payloads:
        size = len(payload)
        head = bytes((0xA0, size)) if size < 256 else b"\xb0" + size.to_bytes(4, "big")
        pieces += (b"\x00\x53\x75" + head, payload)
    return b"".join(pieces)
