"""Links of a connection: what all have in common, and receivers.

Owns: attaching, credit, what is under way and its outcomes, what becomes of it when a link or the connection
breaks. Must not know: sockets, Spark, what a message holds.
Source: wire contract 2, 3.7, 4.1-4.3.
"""

from __future__ import annotations

import enum
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.events import (
    DeliveryReceived,
    DispositionReceived,
    Event,
    LinkAttached,
    LinkDetached,
    LinkDrained,
)
from peeklock.amqp.performatives import ACCEPTED, RELEASED, DeliveryState, Modified, Rejected, Source, Target
from peeklock.amqp.serial import ids_in_range
from peeklock.amqp.types import Role, Symbol, UInt
from peeklock.client.errors import (
    CONNECTION_LOST,
    MESSAGE_LOCK_LOST,
    TIMEOUT,
    ServiceBusError,
)

if TYPE_CHECKING:
    from peeklock.client.connection import BlockingConnection

SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
LINK_TIMEOUT: Final = Symbol("com.microsoft:timeout")

_TICKS_OF_1970: Final = 621_355_968_000_000_000
"""100 ns units from the year 1 to 1970. Source: wire contract 2.6."""

PROGRESS_S: Final = 30.0
"""How long nothing may be heard of what was sent. As `connection.ANSWER_S`."""


class NextSession(enum.Enum):
    """The wish for whichever session is available next."""

    NEXT = "next"


NEXT: Final = NextSession.NEXT

SessionChoice = NextSession | str | None
"""A session's id, the next one, or None for an entity without sessions."""


class ReceiveMode(enum.Enum):
    """How a receiver takes messages."""

    PEEK_LOCK = "peek-lock"
    RECEIVE_AND_DELETE = "receive-and-delete"


COMPLETE: Final[DeliveryState] = ACCEPTED
ABANDON: Final[DeliveryState] = Modified(delivery_failed=True)
DEFER: Final[DeliveryState] = Modified(delivery_failed=True, undeliverable_here=True)
RELEASE: Final[DeliveryState] = RELEASED
"""Outcomes of a delivery. Source: wire contract 4.2."""


class Link:
    """The links of one session of the connection; opened when needed, and anew after each loss."""

    def __init__(self, connection: BlockingConnection, entity: str) -> None:
        self.connection = connection
        self.entity = entity
        self.channel = -1
        self.is_open = False
        self._error: ServiceBusError | None = None
        self._attached: dict[int, bool] = {}

    def open(self, deadline: float) -> None:
        """Connect, authorise and attach, as far as that is not so already; renew a token that runs out soon.

        Raises:
            ServiceBusError: refused; or the connection broke.
        """
        if self.is_open:
            self.authorise(deadline)
            return
        connection = self.connection
        connection.open(deadline)
        self.authorise(deadline)
        self._error = None
        self._attached = {}
        self.channel = connection.begin(self)
        self.attach()
        connection.wait(lambda: self._error is not None or self.is_open, deadline, self.entity)
        if not self.is_open:
            raise self.lost_error()

    def close(self) -> None:
        """Leave properly."""
        with self.connection.lock:
            if self.is_open:
                self.is_open = False
                self.connection.end(self.channel)
                self.connection.flush()

    def lost_error(self) -> ServiceBusError:
        """Return why the link is not open."""
        return self._error or self.connection.error(CONNECTION_LOST, "the link is closed", self.entity)

    def link(self, handle: int) -> int:
        """Remember a link that was asked for."""
        self._attached[handle] = False
        return handle

    def took(self, event: Event) -> None:
        """Take an event of this session."""
        if isinstance(event, LinkAttached):
            end = event.source if event.role is Role.SENDER else event.target
            if end is not None and event.handle in self._attached:
                self._attached[event.handle] = True
                self.on_attached(event)
                self.is_open = all(self._attached.values())
        elif isinstance(event, LinkDetached):
            error = event.error
            self.connection.end(self.channel)
            if error is None:
                self.lost(self.connection.error(None, "the broker detached the link", self.entity))
            else:
                self.lost(self.connection.error(str(error.condition), error.description, self.entity))
        else:
            self.on_event(event)

    def lost(self, error: ServiceBusError) -> None:
        """Hear that the links are gone."""
        self._error = error
        self.is_open = False
        self.on_lost(error)

    def authorise(self, deadline: float) -> None:
        """Get the right to use the entity."""
        self.connection.authorise(self.entity, deadline)

    def attach(self) -> None:
        """Ask for the links."""
        raise NotImplementedError

    def on_attached(self, event: LinkAttached) -> None:
        """Take what the broker says of a link that stands now."""

    def on_event(self, event: Event) -> None:
        """Take any other event."""

    def on_lost(self, error: ServiceBusError) -> None:
        """Put away what was under way."""


@dataclass(slots=True)
class Delivery:
    """A message from a receiver."""

    payload: bytes
    """The whole message, as on the wire."""
    lock_token: bytes
    """The delivery tag: 16 bytes, a GUID in .NET's order (wire contract 3.4)."""
    delivery_id: int
    opening: int
    """Which opening of its receiver it came from; after the next it cannot be settled."""


class Receiver(Link):
    """Receives from a queue, subscription or sub-queue; nothing is locked but what `receive` gives.

    After a break the link is opened anew by the next `receive`. Deliveries of before cannot be settled then:
    their locks are lost, or will lapse.
    """

    def __init__(
        self, connection: BlockingConnection, path: str, mode: ReceiveMode, session: SessionChoice
    ) -> None:
        super().__init__(connection, path)
        self._mode = mode
        self._session = session
        self._handle = -1
        self._opening = 0
        self._arrived: deque[Delivery] = deque()
        self._drained = False
        self._settling: dict[int, Delivery] = {}
        self._failures: list[ServiceBusError] = []
        self.session_wait_ms = 1000
        """How long the broker may look for the next session."""
        self.session_id: str | None = None
        """The session that the link holds."""
        self.locked_until_ms = 0
        """Until when it holds it, UTC ms, as of its opening."""

    def receive(self, max_count: int, timeout_s: float) -> list[Delivery]:
        """Return what is available now, up to `max_count`; if nothing is, wait for it up to `timeout_s`.

        Raises:
            ServiceBusError: refused; with NEXT and the condition `com.microsoft:timeout`: no session is
            available.
        """
        with self.connection.lock:
            self._open()
            try:
                return self._receive(max_count, timeout_s)
            except ServiceBusError as error:
                if not error.retryable or self._session is not None:
                    raise
            # What came before the break is lost to us: it was not given out, so nobody has worked with it.
            self._open()
            return self._receive(max_count, timeout_s)

    def settle(self, delivery: Delivery, outcome: DeliveryState) -> None:
        """Settle a delivery, and do not wait for the answer: `flush` does.

        Raises:
            ServiceBusError: its link was lost, and with it the lock.
        """
        with self.connection.lock:
            if not self.is_open or delivery.opening != self._opening:
                raise self.connection.error(
                    MESSAGE_LOCK_LOST, "the link that the message came on is lost", self.entity
                )
            self._settling[delivery.delivery_id] = delivery
            self.connection.engine.disposition(
                self.channel,
                Role.RECEIVER,
                delivery.delivery_id,
                delivery.delivery_id,
                outcome,
                settled=False,
            )

    def flush(self) -> None:
        """Wait until the broker has answered every `settle`.

        Raises:
            ServiceBusError: the first settlement that was refused, or whose answer was lost with the link.
        """
        with self.connection.lock:
            if self._settling:
                deadline = time.monotonic() + PROGRESS_S
                self.connection.wait(lambda: not self._settling or not self.is_open, deadline, self.entity)
            if self._failures:
                failures, self._failures = self._failures, []
                raise failures[0]

    def attach(self) -> None:
        """See `Link`."""
        connection = self.connection
        name = connection.link_name()
        peek_lock = self._mode is ReceiveMode.PEEK_LOCK
        wished: dict[Any, Any] | None = None
        properties: dict[Any, Any] = {Symbol("com.microsoft:receiver-name"): name}
        if self._session is not None:
            wished = {SESSION_FILTER: None if self._session is NEXT else self._session}
            properties[LINK_TIMEOUT] = UInt(self.session_wait_ms)
        self._handle = self.link(
            connection.engine.attach(
                self.channel,
                name,
                Role.RECEIVER,
                Source(self.entity, filter=wished),
                Target(name),
                snd_settle_mode=0 if peek_lock else 1,
                rcv_settle_mode=1 if peek_lock else 0,
                properties=properties,
            )
        )

    def on_attached(self, event: LinkAttached) -> None:
        """See `Link`."""
        self._opening += 1
        if self._session is not None and isinstance(event.source, Source) and event.source.filter:
            found = event.source.filter.get(SESSION_FILTER)
            self.session_id = str(found) if found is not None else None
            ticks = event.properties.get("com.microsoft:locked-until-utc", _TICKS_OF_1970)
            self.locked_until_ms = (int(ticks) - _TICKS_OF_1970) // 10_000

    def on_event(self, event: Event) -> None:
        """See `Link`."""
        if type(event) is DeliveryReceived:
            self._arrived.append(
                Delivery(event.payload, event.delivery_tag, event.delivery_id, self._opening)
            )
        elif type(event) is LinkDrained:
            self._drained = True
        elif type(event) is DispositionReceived:
            for delivery_id in ids_in_range(event.first, event.last, self._settling.keys()):
                del self._settling[delivery_id]
                state = event.state
                if isinstance(state, Rejected) and state.error is not None:
                    self._failures.append(
                        self.connection.error(
                            str(state.error.condition), state.error.description, self.entity
                        )
                    )

    def on_lost(self, error: ServiceBusError) -> None:
        """See `Link`."""
        self._arrived.clear()
        if self._settling:
            self._settling.clear()
            self._failures.append(error)

    def _open(self) -> None:
        if self._session is NEXT:

            def attempt(deadline: float) -> ServiceBusError | None:
                try:
                    self.open(deadline)
                except ServiceBusError as error:
                    if error.condition == TIMEOUT:
                        return error  # an answer: no session is available
                    raise
                return None

            none_there = self.connection.retrying(attempt)
            if none_there is not None:
                raise none_there
        else:
            self.connection.retrying(self.open)

    def _receive(self, max_count: int, timeout_s: float) -> list[Delivery]:
        connection = self.connection
        self._grant(max_count, drain=True)
        if not self._arrived and timeout_s > 0:
            deadline = time.monotonic() + timeout_s
            self._grant(max_count, drain=False)
            while not self._arrived and self.is_open and (left_s := deadline - time.monotonic()) > 0:
                connection.exchange(left_s)
            if self.is_open:
                self._grant(max_count - len(self._arrived), drain=True)
        if not self.is_open:
            raise self.lost_error()
        arrived = [*self._arrived]
        self._arrived.clear()
        return arrived

    def _grant(self, credit: int, *, drain: bool) -> None:
        """Ask for messages; with `drain` until all that are available now are here."""
        connection = self.connection
        self._drained = False
        connection.engine.flow(self.channel, self._handle, credit, drain=drain)
        if drain:
            wanted = len(self._arrived) + credit
            connection.wait(
                lambda: self._drained or len(self._arrived) >= wanted or not self.is_open,
                time.monotonic() + PROGRESS_S,
                self.entity,
            )
            if not self.is_open:
                raise self.lost_error()
        else:
            connection.flush()
