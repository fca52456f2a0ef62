"""Requests to the `$management` and `$cbs` nodes, many of them under way at a time.

Source: wire contract 1.7, 5.1.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.codec import DecodeError
from peeklock.amqp.encoding import encode
from peeklock.amqp.events import DeliveryReceived, Event, LinkFlow
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties, Sections, scan
from peeklock.amqp.performatives import Source, Target
from peeklock.amqp.types import Encoded, Role
from peeklock.auth.authority import SAS_TOKEN_TYPE
from peeklock.client.errors import UNAUTHORIZED, ServiceBusError, condition_of_status
from peeklock.client.found import found_messages
from peeklock.client.links import Link

if TYPE_CHECKING:
    from peeklock.client.connection import BlockingConnection

UNDER_WAY_MAX: Final = 16
"""Requests of a node under way; more wait here. Our choice: their answers, of 256 KiB each, are the 4 MiB
that a broker buffers for a connection before it is busy."""

_CREDIT: Final = 4 * UNDER_WAY_MAX


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a request: a status from 200 to 299, and the body, a map or only messages."""

    status: int
    _body: dict[str, Any] | list[bytes]

    @property
    def body(self) -> dict[str, Any]:
        """The body as it is decoded."""
        if isinstance(self._body, dict):
            return self._body
        return {"messages": [{"message": message} for message in self._body]}

    @property
    def messages(self) -> list[bytes]:
        """The encoded messages of an answer to a peek, or to a read of a claim."""
        if isinstance(self._body, list):
            return self._body
        return [found["message"] for found in self._body.get("messages") or ()]


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
        """It was sent; after a break its outcome is unknown."""

    @property
    def done(self) -> bool:
        return self.answer is not None or self.error is not None


class Node(Link):
    """The pair of links to one request/response node."""

    keys = ("statusCode", "errorCondition", "statusDescription")
    """Application properties of an answer."""

    def __init__(self, connection: BlockingConnection, entity: str, node: str) -> None:
        super().__init__(connection, entity)
        self._node = node
        self._numbers = 0
        self._queue: deque[Ticket] = deque()
        self._waiting: dict[str, Ticket] = {}
        self._requests = self._answers = -1
        self._granted = 0

    def attach(self) -> None:
        """Attach both links, with the node as both addresses, as the official Python client does."""
        engine = self.connection.engine
        name = self.connection.link_name()
        ends = Source(self._node), Target(self._node)
        self._answers = self.link(engine.attach(self.channel, f"{name}-answers", Role.RECEIVER, *ends))
        self._requests = self.link(engine.attach(self.channel, f"{name}-requests", Role.SENDER, *ends))
        self._granted = _CREDIT
        engine.flow(self.channel, self._answers, _CREDIT)

    def on_event(self, event: Event) -> None:
        """Handle an answer, or credit for requests."""
        if type(event) is DeliveryReceived:
            self._answered(event)
        elif type(event) is LinkFlow:
            self._send()

    def on_lost(self, error: ServiceBusError) -> None:
        """Keep requests that may be repeated, fail the others."""
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
            body = _body(sections)
        except DecodeError:
            return  # its request times out
        ticket = self._waiting.pop(number, None) if isinstance(number, str) else None
        if ticket is None:
            return
        self._conclude(ticket, properties, body)
        if self._queue:
            self._send()

    def envelope(self, operation: str) -> dict[str, Any]:
        """Return the application properties of a request."""
        return {"operation": operation}

    def _conclude(
        self, ticket: Ticket, properties: dict[str, Any], body: dict[str, Any] | list[bytes]
    ) -> None:
        status, condition, description = map(properties.get, self.keys)
        known = int(status) if isinstance(status, int) else 500
        if 200 <= known < 300:
            ticket.answer = Response(known, body)
            return
        name = str(condition) if condition is not None else condition_of_status(known)
        ticket.error = self.connection.error(name, f"{ticket.operation}: {description or known}", self.entity)
        ticket.started = False  # the broker did not do it

    def _ask(self, ticket: Ticket) -> None:
        self._queue.append(ticket)
        if self.is_open:
            self._send()
            self.connection.flush()

    def _finish(self, ticket: Ticket, deadline: float) -> None:
        """Wait for the answer, good or bad; open the links first."""
        self.open(deadline)
        self._send()
        self.connection.wait(lambda: ticket.done or not self.is_open, deadline, self.entity)
        if not ticket.done:
            raise self.lost_error()


class Management(Node):
    """The management node of one entity: peek, renew locks, schedule, deferred messages, sessions, rules."""

    def __init__(self, connection: BlockingConnection, path: str) -> None:
        super().__init__(connection, path, f"{path}/$management")

    def request(
        self, operation: str, body: dict[str, Any], *, repeat: bool = True, timeout_s: float | None = None
    ) -> Response:
        """Send a request and wait for its answer; see `start` and `wait`."""
        return self.wait(self.start(operation, body, repeat=repeat), timeout_s)

    def start(self, operation: str, body: dict[str, Any], *, repeat: bool = True) -> Ticket:
        """Send a request without waiting, so that many are under way; they are answered in any order.

        Args:
            operation: such as `com.microsoft:peek-message`.
            body: a map of AMQP values.
            repeat: the request may be sent again after a break. If not, a break is an error: the outcome is
                unknown.
        """
        ticket = Ticket(operation, encode(body), repeat)
        with self.connection.lock:
            self._ask(ticket)
        return ticket

    def wait(self, ticket: Ticket, timeout_s: float | None = None) -> Response:
        """Wait for the answer to a request; retry temporary errors up to `timeout_s` (None: of the settings).

        Raises:
            ServiceBusError: refused, or a temporary error such as server-busy did not pass in time.
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
                # The broker's clock may be ahead of ours, and our token expired there.
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
            ticket.error = error  # it is not sent again
            raise
        if isinstance(answer, ServiceBusError):
            raise answer
        return answer

    def _again(self, ticket: Ticket) -> None:
        ticket.error = None
        self._queue.append(ticket)


class TokenNode(Node):
    """The node that takes tokens; `entity` is that of the last token."""

    keys = ("status-code", "error-condition", "status-description")

    def __init__(self, connection: BlockingConnection) -> None:
        super().__init__(connection, "", "$cbs")
        self._audience = ""
        self._type = SAS_TOKEN_TYPE

    def put(self, audience: str, entity: str, token: str, token_type: str, deadline: float) -> None:
        """Put a token of a type for an audience, a URI of the entity.

        Raises:
            ServiceBusError: refused; or the connection broke.
        """
        self._audience, self.entity, self._type = audience, entity, token_type
        ticket = Ticket("put-token", encode(token), repeat=False)
        self._ask(ticket)
        try:
            self._finish(ticket, deadline)
        except ServiceBusError as error:
            ticket.error = ticket.error or error
        if ticket.error is not None:
            raise ticket.error

    def authorise(self, deadline: float) -> None:
        """Do nothing: the node needs no token."""

    def envelope(self, operation: str) -> dict[str, Any]:
        return {
            "operation": operation,
            "type": self._type,
            "name": self._audience,
        }


def _body(sections: Sections) -> dict[str, Any] | list[bytes]:
    """Return the body of an answer: its messages, or the decoded map; empty if it is neither.

    Raises: DecodeError.
    """
    if sections.body is None:
        return {}
    messages = found_messages(sections.payload, sections.body[0])
    if messages is not None:
        return messages
    value = sections.decode_body()[0][1]
    return value if isinstance(value, dict) else {}
