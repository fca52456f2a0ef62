"""Links of a connection: attaching and breaks, common to all, and receivers.

Source: wire contract 2, 3.7, 4.1-4.3.
"""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.errors import AmqpError
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
    UNAUTHORIZED,
    ServiceBusError,
)

if TYPE_CHECKING:
    from peeklock.client.connection import BlockingConnection

SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
LINK_TIMEOUT: Final = Symbol("com.microsoft:timeout")

_DEAD_LETTER: Final = Symbol("com.microsoft:dead-letter")

_TICKS_OF_1970: Final = 621_355_968_000_000_000
"""100 ns units from the year 1 to 1970. Source: wire contract 2.6."""

PROGRESS_S: Final = 30.0
"""Longest wait for progress, seconds. As `connection.ANSWER_S`."""

STOP_S: Final = 0.2
"""How often a wait asks whether to stop. Our choice: at once, to a person."""


class NextSession(enum.Enum):
    """Asks for the next available session."""

    NEXT = "next"


NEXT: Final = NextSession.NEXT

SessionChoice = NextSession | str | None
"""A session id, the next session, or None for an entity without sessions."""


class ReceiveMode(enum.Enum):
    """How a receiver takes messages: locked until settled, or deleted at once."""

    PEEK_LOCK = "peek-lock"
    RECEIVE_AND_DELETE = "receive-and-delete"


Outcome = DeliveryState
"""What `Receiver.settle` takes."""

COMPLETE: Final[DeliveryState] = ACCEPTED
ABANDON: Final[DeliveryState] = Modified(delivery_failed=True)
DEFER: Final[DeliveryState] = Modified(delivery_failed=True, undeliverable_here=True)
RELEASE: Final[DeliveryState] = RELEASED
"""Outcomes of a delivery, for `Receiver.settle`. Source: wire contract 4.2."""


def dead_letter(reason: str | None = None, description: str | None = None) -> DeliveryState:
    """Return the outcome that moves a message to the dead-letter queue, for `Receiver.settle`.

    The message there has the application properties `DeadLetterReason` and `DeadLetterErrorDescription`.
    """
    given = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    info = {Symbol(key): text for key, text in given.items() if text is not None}
    return Rejected(AmqpError(_DEAD_LETTER, description or "", info))


class Link:
    """The links of one session of the connection; opened when needed, and again after each loss."""

    def __init__(self, connection: BlockingConnection, entity: str) -> None:
        self.connection = connection
        self.entity = entity
        self.channel = -1
        self.is_open = False
        self._error: ServiceBusError | None = None
        self._attached: dict[int, bool] = {}

    def open(self, deadline: float) -> None:
        """Connect, authorise and attach, if not done already; renew a token that expires soon.

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
        """Close the link in order; a later call opens it again."""
        with self.connection.lock:
            if self.is_open:
                self.is_open = False
                self.connection.end(self.channel)
                self.connection.flush()

    def lost_error(self) -> ServiceBusError:
        """Return the reason why the link is not open."""
        return self._error or self.connection.error(CONNECTION_LOST, "the link is closed", self.entity)

    def link(self, handle: int) -> int:
        """Record a link that is being attached; return its handle."""
        self._attached[handle] = False
        return handle

    def took(self, event: Event) -> None:
        """Handle an event of this session."""
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
                lost = self.connection.error(str(error.condition), error.description, self.entity)
                if self.is_open and lost.condition == UNAUTHORIZED:
                    # The token expired while this process paused. The next one may be good.
                    lost.retryable = self.connection.forget_token(self.entity)
                self.lost(lost)
        else:
            self.on_event(event)

    def lost(self, error: ServiceBusError) -> None:
        """Handle the loss of the links."""
        self._error = error
        self.is_open = False
        self.on_lost(error)

    def authorise(self, deadline: float) -> None:
        """Put a token for the entity, if needed."""
        self.connection.authorise(self.entity, deadline)

    def attach(self) -> None:
        """Attach the links."""
        raise NotImplementedError

    def on_attached(self, event: LinkAttached) -> None:
        """Handle the broker's answer to an attach."""

    def on_event(self, event: Event) -> None:
        """Handle any other event."""

    def on_lost(self, error: ServiceBusError) -> None:
        """Handle what was under way."""


class BusyPauses:
    """How long to wait before what a busy broker refused is tried again."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s`: for how long a broker may be busy."""
        self._limit_s = limit_s
        self._since: float | None = None
        self.until = 0.0
        """End of the pause, as of `time.monotonic`."""

    def begin(self) -> bool:
        """Pause; return False if the broker has been busy for too long."""
        now = time.monotonic()
        self._since = self._since or now
        busy_s = now - self._since
        self.until = now + min(2.0, 0.05 + busy_s)
        return busy_s <= self._limit_s

    def end(self) -> None:
        """Note that the broker is not busy."""
        self._since = None


@dataclass(slots=True)
class Delivery:
    """A received message."""

    payload: bytes
    """The encoded message; `scan` takes it apart."""
    lock_token: bytes
    """The delivery tag: 16 bytes, a GUID in .NET's byte order (wire contract 3.4)."""
    delivery_id: int
    opening: int
    """The opening of the receiver that it came from; after the next one it cannot be settled."""


class Receiver(Link):
    """Receives from a queue, subscription or sub-queue; only messages that `receive` returned are locked.

    The next `receive` after a break opens the link again. Earlier deliveries cannot be settled then: their
    locks are lost, or will expire.
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
        self.settled_count = 0
        """Deliveries whose settlement the broker has confirmed."""
        self.session_wait_ms = 1000
        """How long the broker waits for the next session to become available."""
        self.session_id: str | None = None
        """The session that the link has locked."""
        self.locked_until_ms = 0
        """When the session lock expires, UTC ms, as of the attach."""

    def start(self) -> None:
        """Open the link, if it is not open; with a session choice, lock the session.

        Raises:
            ServiceBusError: refused; with `NEXT` and the condition `com.microsoft:timeout`: no session is
                available.
        """
        with self.connection.lock:
            self._open()

    def receive(
        self, max_count: int, timeout_s: float, stop: Callable[[], bool] | None = None
    ) -> list[Delivery]:
        """Return up to `max_count` available messages; if there are none, wait up to `timeout_s` for some.

        `stop`: asked a few times a second; once it returns true the wait ends. It starts the link as `start`
        does, and raises the same errors.
        """
        with self.connection.lock:
            if self._arrived:  # before a break, and deleted at the broker: no connection is needed
                return self._take(max_count)
            self._open()
            try:
                return self._receive(max_count, timeout_s, stop)
            except ServiceBusError as error:
                if self._arrived:
                    return self._take(max_count)
                if not error.retryable or self._session is not None:
                    raise
            # Messages that arrived before the break were not returned, so no work on them is lost.
            self._open()
            return self._receive(max_count, timeout_s, stop)

    def settle(self, delivery: Delivery, outcome: DeliveryState) -> None:
        """Settle a delivery without waiting for the answer; `flush` waits.

        Args:
            delivery: from `receive`, in peek-lock mode.
            outcome: `COMPLETE`, `ABANDON`, `DEFER`, `RELEASE`, or one that `dead_letter` returned.

        Raises:
            ServiceBusError: `com.microsoft:message-lock-lost`: the link was lost.
        """
        with self.connection.lock:
            if not self.is_open or delivery.opening != self._opening:
                raise self.connection.error(MESSAGE_LOCK_LOST, "the link of the message is lost", self.entity)
            # Without two phases, AMQP 2.6.12, the receiver settles, and there is no answer.
            settled = self.connection.settings.generic
            if settled:
                self.settled_count += 1
            else:
                self._settling[delivery.delivery_id] = delivery
            self.connection.engine.disposition(
                self.channel,
                Role.RECEIVER,
                delivery.delivery_id,
                delivery.delivery_id,
                outcome,
                settled=settled,
            )

    def flush(self) -> None:
        """Wait for the answers to all `settle` calls; a broker that is not Service Bus gives none.

        Raises:
            ServiceBusError: of the first one that was refused, or whose answer was lost with the link.
        """
        with self.connection.lock:
            if self._settling:
                deadline = time.monotonic() + PROGRESS_S
                self.connection.wait(lambda: not self._settling or not self.is_open, deadline, self.entity)
            if self._failures:
                failures, self._failures = self._failures, []
                raise failures[0]

    def attach(self) -> None:
        connection = self.connection
        name = connection.link_name()
        peek_lock = self._mode is ReceiveMode.PEEK_LOCK
        filters: dict[Any, Any] | None = None
        properties: dict[Any, Any] = {Symbol("com.microsoft:receiver-name"): name}
        if self._session is not None:
            filters = {SESSION_FILTER: None if self._session is NEXT else self._session}
            properties[LINK_TIMEOUT] = UInt(self.session_wait_ms)
        self._handle = self.link(
            connection.engine.attach(
                self.channel,
                name,
                Role.RECEIVER,
                Source(self.entity, filter=filters),
                Target(name),
                snd_settle_mode=0 if peek_lock else 1,
                rcv_settle_mode=1 if peek_lock and not connection.settings.generic else 0,
                properties=properties,
            )
        )

    def on_attached(self, event: LinkAttached) -> None:
        self._opening += 1
        if self._session is not None and isinstance(event.source, Source) and event.source.filter:
            found = event.source.filter.get(SESSION_FILTER)
            self.session_id = str(found) if found is not None else None
            ticks = event.properties.get("com.microsoft:locked-until-utc", _TICKS_OF_1970)
            self.locked_until_ms = (int(ticks) - _TICKS_OF_1970) // 10_000

    def on_event(self, event: Event) -> None:
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
                else:
                    self.settled_count += 1

    def on_lost(self, error: ServiceBusError) -> None:
        if self._mode is ReceiveMode.PEEK_LOCK:
            self._arrived.clear()  # else the broker has deleted them
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
                        return error  # no session is available: do not retry
                    raise
                return None

            timeout = self.connection.retrying(attempt)
            if timeout is not None:
                raise timeout
        else:
            self.connection.retrying(self.open)

    def _receive(self, max_count: int, timeout_s: float, stop: Callable[[], bool] | None) -> list[Delivery]:
        connection = self.connection
        self._grant(max_count, drain=True)
        if not self._arrived and timeout_s > 0:
            deadline = time.monotonic() + timeout_s
            self._grant(max_count, drain=False)
            slice_s = timeout_s if stop is None else STOP_S
            while not self._arrived and self.is_open and (left_s := deadline - time.monotonic()) > 0:
                connection.exchange(min(left_s, slice_s))
                if stop is not None and stop():
                    break
            if self.is_open:
                self._grant(max_count - len(self._arrived), drain=True)
        if not self.is_open:
            raise self.lost_error()
        return self._take(max_count)

    def _take(self, count_max: int) -> list[Delivery]:
        return [self._arrived.popleft() for _ in range(min(count_max, len(self._arrived)))]

    def _grant(self, credit: int, *, drain: bool) -> None:
        """Ask for messages; with `drain` wait until all that are available have arrived."""
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
