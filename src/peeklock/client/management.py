"""Requests to the `$management` and `$cbs` nodes, many of them under way at a time.

Owns: the pair of links of a node, the envelope of requests and answers, and asking again after a break. Must
not know: what an operation means. Source: wire contract 1.7, 5.1.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.codec import DecodeError
from peeklock.amqp.encoding import encode
from peeklock.amqp.events import DeliveryReceived, Event, LinkFlow
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties, scan
from peeklock.amqp.performatives import Source, Target
from peeklock.amqp.types import Encoded, Role
from peeklock.client.errors import UNAUTHORIZED, ServiceBusError, condition_of_status
from peeklock.client.links import Link

if TYPE_CHECKING:
    from peeklock.client.connection import BlockingConnection

UNDER_WAY_MAX: Final = 16
"""Requests of a node under way; more wait here. Our choice: their answers, of 256 KiB each, are the 4 MiB
that a broker has ready for a connection before it says that it is busy."""

_CREDIT: Final = 4 * UNDER_WAY_MAX


@dataclass(frozen=True, slots=True)
class Response:
    """What a node answered: a status from 200 to 299 and the body, a map."""

    status: int
    body: dict[str, Any]


class Ticket:
    """A request under way."""

    __slots__ = ("answer", "body", "error", "operation", "repeat", "started")

    def __init__(self, operation: str, body: bytes, repeat: bool) -> None:
        self.operation = operation
        self.body = body
        self.repeat = repeat
        self.answer: Response | None = None
        self.error: ServiceBusError | None = None
        self.started = False
        """It was handed to the connection; after a break nobody knows what became of it."""

    @property
    def done(self) -> bool:
        return self.answer is not None or self.error is not None


class Node(Link):
    """The pair of links to one request/response node."""

    def __init__(self, connection: BlockingConnection, entity: str, node: str) -> None:
        super().__init__(connection, entity)
        self._node = node
        self._numbers = 0
        self._queue: deque[Ticket] = deque()
        self._waiting: dict[str, Ticket] = {}
        self._requests = self._answers = -1
        self._granted = 0

    def attach(self) -> None:
        """Ask for both links; their addresses are the node's, as the official Python client has them."""
        engine = self.connection.engine
        name = self.connection.link_name()
        ends = Source(self._node), Target(self._node)
        self._answers = self.link(engine.attach(self.channel, f"{name}-answers", Role.RECEIVER, *ends))
        self._requests = self.link(engine.attach(self.channel, f"{name}-requests", Role.SENDER, *ends))
        self._granted = _CREDIT
        engine.flow(self.channel, self._answers, _CREDIT)

    def on_event(self, event: Event) -> None:
        """Take an answer, or credit for requests."""
        if type(event) is DeliveryReceived:
            self._answered(event)
        elif type(event) is LinkFlow:
            self._send()

    def on_lost(self, error: ServiceBusError) -> None:
        """Keep what may be asked again, fail the rest."""
        waiting, self._waiting = self._waiting, {}
        for ticket in waiting.values():
            if ticket.repeat:
                self._queue.append(ticket)
            else:
                ticket.error = error

    def _send(self) -> None:
        engine = self.connection.engine
        while (
            self._queue
            and len(self._waiting) < UNDER_WAY_MAX
            and engine.credit(self.channel, self._requests) > 0
        ):
            ticket = self._queue.popleft()
            if ticket.done:
                continue
            self._numbers += 1
            number = str(self._numbers)
            ticket.started = True
            self._waiting[number] = ticket
            payload = encode_message(
                properties=Properties(message_id=number, reply_to=self._node),
                application_properties=self.envelope(ticket.operation),
                value=Encoded(ticket.body),
            )
            engine.send(self.channel, self._requests, number.encode(), payload, settled=True)

    def _answered(self, event: DeliveryReceived) -> None:
        self._granted -= 1
        if self._granted <= UNDER_WAY_MAX:
            self._granted = _CREDIT
            self.connection.engine.flow(self.channel, self._answers, _CREDIT)
        try:
            sections = scan(event.payload)
            properties = sections.decode_application_properties()
            number = sections.decode_properties().correlation_id
            bodies = sections.decode_body() if sections.body is not None else []
        except DecodeError:
            return  # an answer that cannot be read answers nothing; its request runs out of time
        ticket = self._waiting.pop(number, None) if isinstance(number, str) else None
        if ticket is None:
            return
        body = bodies[0][1] if bodies and isinstance(bodies[0][1], dict) else {}
        self.conclude(ticket, properties, body)
        if self._queue:
            self._send()

    def envelope(self, operation: str) -> dict[str, Any]:
        """Return the application properties of a request."""
        raise NotImplementedError

    def conclude(self, ticket: Ticket, properties: dict[str, Any], body: dict[str, Any]) -> None:
        """Take the answer to a request."""
        raise NotImplementedError

    def _ask(self, ticket: Ticket) -> None:
        self._queue.append(ticket)
        if self.is_open:
            self._send()
            self.connection.flush()

    def _finish(self, ticket: Ticket, deadline: float) -> None:
        """Wait for an answer, whatever it is; the links are opened first."""
        self.open(deadline)
        self._send()
        self.connection.wait(lambda: ticket.done or not self.is_open, deadline, self.entity)
        if not ticket.done:
            raise self.lost_error()


class Management(Node):
    """The management node of one entity."""

    def __init__(self, connection: BlockingConnection, path: str) -> None:
        super().__init__(connection, path, f"{path}/$management")

    def request(
        self, operation: str, body: dict[str, Any], *, repeat: bool = True, timeout_s: float | None = None
    ) -> Response:
        """Ask and wait for the answer; see `start` and `wait`."""
        return self.wait(self.start(operation, body, repeat=repeat), timeout_s)

    def start(self, operation: str, body: dict[str, Any], *, repeat: bool = True) -> Ticket:
        """Ask, and do not wait: so many requests are under way at a time, answered in any order.

        `repeat`: asking again after a break does no harm. Without it the break is the error, since nobody
        knows whether the broker did what was asked.
        """
        ticket = Ticket(operation, encode(body), repeat)
        with self.connection.lock:
            self._ask(ticket)
        return ticket

    def wait(self, ticket: Ticket, timeout_s: float | None = None) -> Response:
        """Wait for the answer to a request.

        Raises:
            ServiceBusError: the broker refused; or what can pass, such as server-busy, did not pass in time.
        """
        renewed = False

        def attempt(deadline: float) -> Response | ServiceBusError:
            nonlocal renewed
            if not ticket.done:
                self._finish(ticket, deadline)
            if ticket.answer is not None:
                return ticket.answer
            error = ticket.error
            assert error is not None, "a request is done by an answer or an error"
            if error.condition == UNAUTHORIZED and not renewed and self.connection.forget_token(self.entity):
                # The broker's clock may be ahead of ours: a token that we hold for good has run out there.
                renewed = True
                self.close()
                self._again(ticket)
                return attempt(deadline)
            if not error.retryable or (ticket.started and not ticket.repeat):
                return error
            self._again(ticket)
            raise error

        try:
            answer = self.connection.retrying(attempt, timeout_s)
        except ServiceBusError as error:
            ticket.error = error  # so that it is not asked any more behind the caller's back
            raise
        if isinstance(answer, ServiceBusError):
            raise answer
        return answer

    def envelope(self, operation: str) -> dict[str, Any]:
        """See `Node`."""
        return {"operation": operation}

    def conclude(self, ticket: Ticket, properties: dict[str, Any], body: dict[str, Any]) -> None:
        """See `Node`."""
        status = properties.get("statusCode")
        if isinstance(status, int) and 200 <= status < 300:
            ticket.answer = Response(int(status), body)
            return
        known = int(status) if isinstance(status, int) else 500
        condition = properties.get("errorCondition")
        name = str(condition) if condition is not None else condition_of_status(known)
        ticket.error = self.connection.error(
            name, f"{ticket.operation}: {properties.get('statusDescription') or known}", self.entity
        )
        ticket.started = False  # what was refused did not happen

    def _again(self, ticket: Ticket) -> None:
        ticket.error = None
        self._queue.append(ticket)


class TokenNode(Node):
    """The node that takes tokens."""

    def __init__(self, connection: BlockingConnection) -> None:
        super().__init__(connection, "", "$cbs")
        self._audience = ""
        self._about = ""

    def put(self, audience: str, entity: str, token: str, deadline: float) -> None:
        """Put a token for an audience, a URI of the entity.

        Raises:
            ServiceBusError: refused; or the connection broke.
        """
        self._audience, self._about = audience, entity
        ticket = Ticket("put-token", encode(token), repeat=False)
        self._ask(ticket)
        try:
            self._finish(ticket, deadline)
        except ServiceBusError as error:
            ticket.error = ticket.error or error
        if ticket.error is not None:
            raise ticket.error

    def authorise(self, deadline: float) -> None:
        """Do nothing: whoever brings a token needs none."""

    def envelope(self, operation: str) -> dict[str, Any]:
        """See `Node`."""
        return {
            "operation": operation,
            "type": "servicebus.windows.net:sastoken",
            "name": self._audience,
        }

    def conclude(self, ticket: Ticket, properties: dict[str, Any], body: dict[str, Any]) -> None:
        """See `Node`."""
        status = properties.get("status-code")
        if isinstance(status, int) and 200 <= status < 300:
            ticket.answer = Response(int(status), {})
            return
        known = int(status) if isinstance(status, int) else 500
        condition = properties.get("error-condition")
        name = str(condition) if condition is not None else condition_of_status(known)
        said = properties.get("status-description") or "the token was refused"
        ticket.error = self.connection.error(name, str(said), self._about)
