"""One gateway and one AMQP client on a wire in memory: frames in -> commands out, effects in -> frames out.

The broker is the test itself: it reads `rig.commands` and answers with `rig.effect(...)`.
"""

from __future__ import annotations

import uuid
from typing import Any, TypeVar

from peeklock.amqp.codec import decode
from peeklock.amqp.connection import Connection
from peeklock.amqp.encoding import encode
from peeklock.amqp.events import DeliveryReceived, DispositionReceived, Event, LinkAttached, LinkDetached
from peeklock.amqp.messaging import Sections, scan
from peeklock.amqp.performatives import ACCEPTED, Coordinator, DeliveryState, Rejected, Source, Target
from peeklock.amqp.types import Encoded, Role, Symbol, Timestamp
from peeklock.auth import Authority, SasRule, generate
from peeklock.broker.vocabulary.commands import (
    Command,
    LinkId,
    LockToken,
    LookUp,
    OpenCoordinator,
    OpenReceiver,
    OpenSender,
    SequenceNumber,
)
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.broker.vocabulary.effects import (
    CoordinatorOpened,
    Deliver,
    Effect,
    EntityFound,
    EntityView,
    ReceiverOpened,
    SenderOpened,
)
from peeklock.broker.vocabulary.message import Message, MessageState, MessageView
from peeklock.gateway.bounds import Buffers
from peeklock.gateway.choice import OneNamespace
from peeklock.gateway.connection import Gateway
from peeklock.gateway.context import GatewayLimits
from peeklock.testing.clock import ManualClock
from peeklock.testing.inprocess import InProcessBroker

KEY_NAME = "RootManageSharedAccessKey"
KEY = "SAS_KEY_VALUE"
QUEUE_ID = 28
SIZE_MAX = 262_144
CONNECTION_ID = 7
TOKEN = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")

C = TypeVar("C")


def view_of_queue(name: str = "orders") -> EntityView:
    return EntityView(7, QueueDescription(name), 0, 0, 0, 0, 0, 0, 0, 0)


def everything(sections: Sections) -> list[Any]:
    """Return all that a scan has found of a message."""
    return [getattr(sections, name) for name in Sections.__dataclass_fields__]


def section(code: int, value: Any) -> bytes:
    """Encode one section of a message."""
    return bytes((0x00, 0x53, code)) + encode(value)


def message_bytes(
    body: Any = b"hello",
    *,
    header: list[Any] | None = None,
    delivery_annotations: dict[Any, Any] | None = None,
    annotations: dict[Any, Any] | None = None,
    properties: list[Any] | None = None,
    application_properties: dict[Any, Any] | None = None,
) -> bytes:
    """Encode a message; a bytes body is a data section, anything else an amqp-value."""
    parts = [(0x70, header), (0x71, delivery_annotations), (0x72, annotations), (0x73, properties)]
    parts.append((0x74, application_properties))
    out = b"".join(section(code, value) for code, value in parts if value is not None)
    return out + section(0x75 if isinstance(body, bytes) else 0x77, body)


def stored(payload: bytes, *, number: int = 1, bare_offset: int | None = None) -> Message:
    """Make the record of a stored message, as the broker keeps it."""
    offset = scan(payload).bare_offset if bare_offset is None else bare_offset
    message = Message(len(payload), bare_offset=offset)
    message.position = number
    message.sequence_number = message.enqueued_sequence_number = SequenceNumber(number)
    message.enqueued_at_ms = 1_700_000_000_123
    message.body_row = number
    return message


class Harness:
    """See the module."""

    def __init__(
        self,
        *,
        mechanism: str | None = "PLAIN",
        response: bytes | None = None,
        authority: Authority | None = None,
        limits: GatewayLimits | None = None,
        hostname: str = "localhost",
        opened: bool = True,
        buffers: Buffers | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.ahead_ms = 0
        """How far the wall clock is ahead of `clock`: it was set by so much."""
        self.buffers = buffers
        self.logged: list[tuple[str, dict[str, object]]] = []
        self._tracked = 0
        self.authority = authority or Authority([SasRule(KEY_NAME, KEY)])
        self.gateway = self.make_gateway(limits)
        if response is None:
            response = f"\0{KEY_NAME}\0{KEY}".encode() if mechanism == "PLAIN" else b""
        self.client = Connection(
            "client",
            container_id="test",
            hostname=hostname,
            now_ms=self.clock.now_ms,
            sasl_mechanisms=() if mechanism is None else (mechanism,),
            sasl_response=response,
            idle_timeout_ms=None,
        )
        self.commands: list[Command] = []
        self.events: list[Event] = []
        self.sent = b""
        """Everything the gateway has written."""
        self.payloads: dict[int, bytes] = {}
        """By body row: what is in memory."""
        self.client.open()
        self.pump()
        if opened:
            self.channel = self.client.begin()
            self.pump()

    def make_gateway(self, limits: GatewayLimits | None) -> Gateway:
        return Gateway(
            CONNECTION_ID,
            namespaces=OneNamespace(self.authority),
            tracking=self._track,
            log=lambda event, fields: self.logged.append((event, fields)),
            now_ms=self.clock.now_ms,
            limits=limits,
            buffers=self.buffers,
            ahead_ms=lambda: self.ahead_ms,
        )

    def _track(self) -> str:
        self._tracked += 1
        return str(uuid.UUID(int=self._tracked))

    def pump(self) -> None:
        """Carry bytes both ways until both ends are silent."""
        now = self.clock.now_ms
        while True:
            up = self.client.data_to_send()
            if up:
                self.commands += self.gateway.receive(up, now)
            while self.gateway.unread:
                self.commands += self.gateway.receive(b"", now)
            down = self.gateway.data_to_send()
            self.commands += self.gateway.written(0, now)
            if down:
                self.sent += down
                self.events += self.client.receive(down, now)
            elif not up:
                return

    def effect(self, *effects: Effect) -> None:
        """Let the gateway handle effects, and the client read what follows."""
        self.gateway.handle(effects, lambda message: self.payloads.get(message.body_row), self.clock.now_ms)
        self.pump()

    def take(self, kind: type[C]) -> C:
        """Take the next command of a kind; fails if there is none."""
        for command in self.commands:
            if isinstance(command, kind):
                self.commands.remove(command)
                return command
        raise AssertionError(f"no {kind.__name__} in {self.commands}")

    def take_event(self, kind: type[C]) -> C:
        """Take the client's next event of a kind; fails if there is none."""
        for event in self.events:
            if isinstance(event, kind):
                self.events.remove(event)
                return event
        raise AssertionError(f"no {kind.__name__} in {self.events}")

    # Links

    def attach(self, role: Role, address: Any, *, channel: int | None = None, **options: Any) -> int:
        """Attach a link of the client's whose far end is `address`; the near end is named "client"."""
        name = options.pop("name", f"link-{role.name}-{uuid.uuid4()}")
        near = options.pop("near", "client")
        wishes = {name: options.pop(name, None) for name in ("filter", "distribution_mode", "capabilities")}
        source: Any = Source(near if role is Role.SENDER else address, **wishes)
        target: Any = Target(address if role is Role.SENDER else near)
        if not isinstance(address, (str, type(None))):
            target = address
        handle = self.client.attach(channel or self.channel, name, role, source, target, **options)
        self.pump()
        return handle

    def sender(
        self, address: str = "orders", *, routed: bool = False, takes_runs: bool = False, **options: Any
    ) -> int:
        """Attach a sender that the broker accepts."""
        handle = self.attach(Role.SENDER, address, **options)
        command = self.take(OpenSender)
        self.effect(SenderOpened(command.link, QUEUE_ID, SIZE_MAX, routed, takes_runs))
        return handle

    def receiver(
        self,
        address: str = "orders",
        *,
        credit: int = 0,
        opened: dict[str, Any] | None = None,
        **options: Any,
    ) -> tuple[int, OpenReceiver]:
        """Attach a receiver that the broker accepts; `opened` are further fields of its answer."""
        handle = self.attach(Role.RECEIVER, address, **{"rcv_settle_mode": 1, **options})
        command = self.take(OpenReceiver)
        self.effect(ReceiverOpened(command.link, QUEUE_ID, **(opened or {})))
        if credit:
            self.client.flow(self.channel, handle, credit)
            self.pump()
        return handle, command

    def controller(self, **options: Any) -> int:
        """Attach a link to the coordinator that the broker accepts."""
        handle = self.attach(Role.SENDER, Coordinator(), **options)
        self.effect(CoordinatorOpened(self.take(OpenCoordinator).link))
        return handle

    def pair(self, address: str, *, found: bool = True) -> tuple[int, int]:
        """Attach both halves of a request node."""
        handles = (
            self.attach(Role.SENDER, address, near=address),
            self.attach(Role.RECEIVER, address, near=address),
        )
        if found and not address.endswith("$cbs"):
            for _ in handles:
                self.effect(EntityFound(self.take(LookUp).reply_to, view_of_queue()))
        self.client.flow(self.channel, handles[1], 100)
        self.pump()
        return handles

    def transfer(self, handle: int, payload: bytes, **options: Any) -> int:
        """Send a delivery from the client."""
        tag = options.pop("tag", b"tag")
        delivery_id = self.client.send(options.pop("channel", self.channel), handle, tag, payload, **options)
        self.pump()
        return delivery_id

    def deliver(
        self,
        link: LinkId,
        payload: bytes,
        *,
        number: int = 1,
        token: uuid.UUID | None = None,
        locked: bool = True,
    ) -> Deliver:
        """Make the effect that delivers a message; its body is in memory, its token `TOKEN` for number 1."""
        message = stored(payload, number=number)
        self.payloads[message.body_row] = payload
        if token is None:
            token = uuid.UUID(int=TOKEN.int + number - 1)
        until = self.clock.now_ms + 60_000 if locked else 0
        return Deliver(message, LockToken(token.bytes_le), until, 0, None, MessageState.ACTIVE, None, link)

    def settle(self, first: int, last: int, state: DeliveryState | None, *, settled: bool = False) -> None:
        """Send the client's disposition for deliveries it received."""
        self.client.disposition(self.channel, Role.RECEIVER, first, last, state, settled=settled)
        self.pump()

    # Requests

    def request(
        self,
        sender: int,
        operation: str | None,
        body: Any,
        *,
        message_id: Any = None,
        reply_to: Any = None,
        state: DeliveryState | None = None,
        settled: bool = False,
        **properties: Any,
    ) -> None:
        """Send a request over the sending half of a node."""
        application_properties = {
            key.replace("__", ":").replace("_", "-"): value for key, value in properties.items()
        }
        if operation is not None:
            application_properties["operation"] = operation
        fields = [uuid.UUID(int=1) if message_id is None else message_id, None, None, None, reply_to]
        self.transfer(
            sender,
            section(0x73, fields) + section(0x74, application_properties) + section(0x77, body),
            state=state,
            settled=settled,
        )

    def response(self) -> Response:
        """Take the next response."""
        return Response(self.take_event(DeliveryReceived))

    def put_token(self, sender: int, audience: str, token: str | None = None, **properties: Any) -> None:
        """Put a token, a good one unless given."""
        if token is None:
            token = generate(audience, KEY_NAME, KEY, self.clock.now_ms + 3_600_000)
        fields = {"type": "servicebus.windows.net:sastoken", "name": audience, "expiration": Timestamp(1)}
        self.request(sender, "put-token", token, **{**fields, **properties})

    def rejection(self, delivery_id: int) -> Any:
        """Take the client's next disposition and give its error."""
        event = self.take_event(DispositionReceived)
        assert (event.first, event.last, event.settled) == (delivery_id, delivery_id, True)
        assert isinstance(event.state, Rejected)
        assert event.state.error is not None
        return event.state.error

    def refusal(self) -> Any:
        """Take the null terminus and the detach that refuse a link, and give the error."""
        detached = self.take_event(LinkDetached)
        assert detached.closed
        [attached] = [
            event
            for event in self.events
            if isinstance(event, LinkAttached)
            and (event.channel, event.handle) == (detached.channel, detached.handle)
            and (event.source if event.role is Role.SENDER else event.target) is None
        ]
        self.events.remove(attached)
        assert detached.error is not None
        return detached.error


class LiveHarness(Harness):
    """A desk whose broker is real: nothing of it stands in for anything."""

    def __init__(self, broker: InProcessBroker, **options: Any) -> None:
        self.broker = broker
        self._wire = broker.connect()
        super().__init__(**options)

    def make_gateway(self, limits: GatewayLimits | None) -> Gateway:
        return self._wire.gateway

    def pump(self) -> None:
        while True:
            self.clock.now_ms = self.broker.clock.now_ms
            self._wire.write(self.client.data_to_send())
            down = self._wire.read()
            if not down:
                return
            self.sent += down
            self.events += self.client.receive(down, self.clock.now_ms)

    def write(self, data: bytes) -> None:
        """Send bytes that the client's own engine would not."""
        self._wire.write(data)
        self.pump()

    def sender(
        self, address: str = "orders", *, routed: bool = False, takes_runs: bool = False, **options: Any
    ) -> int:
        return self.attach(Role.SENDER, address, **options)

    def receiver(
        self,
        address: str = "orders",
        *,
        credit: int = 0,
        opened: dict[str, Any] | None = None,
        **options: Any,
    ) -> tuple[int, OpenReceiver]:
        raise NotImplementedError("a real broker takes no commands from the test; see `listen`")

    def listen(self, address: str = "orders", *, credit: int = 0, **options: Any) -> int:
        """Attach a receiver and give it credit."""
        handle = self.attach(Role.RECEIVER, address, **{"rcv_settle_mode": 1, **options})
        if credit:
            self.client.flow(self.channel, handle, credit)
            self.pump()
        return handle

    def controller(self, **options: Any) -> int:
        return self.attach(Role.SENDER, Coordinator(), **options)

    def pair(self, address: str, *, found: bool = True) -> tuple[int, int]:
        return super().pair(address, found=False)

    def deliveries(self) -> list[DeliveryReceived]:
        """Take all that was delivered."""
        found = [event for event in self.events if isinstance(event, DeliveryReceived)]
        self.events = [event for event in self.events if not isinstance(event, DeliveryReceived)]
        return found

    def cut(self) -> None:
        """Break the connection."""
        self._wire.end()


class Response:
    """A response, taken apart."""

    def __init__(self, event: DeliveryReceived) -> None:
        self.event = event
        self.raw = event.payload
        sections = scan(event.payload)
        raw = sections.property_raw(5)
        self.correlation_id = decode(raw)[0] if raw else None
        self.properties = sections.decode_application_properties()
        self.status: Any = self.properties.get("statusCode", self.properties.get("status-code"))
        self.condition: Any = self.properties.get("errorCondition", self.properties.get("error-condition"))
        self.description: Any = self.properties.get(
            "statusDescription", self.properties.get("status-description")
        )
        assert sections.body is not None
        self.body = decode(event.payload, sections.body[0] + 3)[0]


def ask(rig: Harness, sender: int, operation: str, body: Any, **options: Any) -> None:
    name = operation if ":" in operation else f"com.microsoft:{operation}"
    rig.request(sender, name, body, **options)


def refused(rig: Harness, status: int, condition: str) -> Response:
    """Take a response that refuses."""
    response = rig.response()
    assert (response.status, response.condition, response.body) == (status, condition, {})
    assert "TrackingId:" in response.description
    return response


def view(payload: bytes, number: int, *, bare_offset: int | None = None, **fields: Any) -> MessageView:
    defaults: dict[str, Any] = {
        "lock_token": None,
        "locked_until_ms": 0,
        "delivery_count": 0,
        "ttl_ms": None,
        "state": MessageState.ACTIVE,
        "overlay": None,
    }
    message = stored(payload, number=number, bare_offset=bare_offset)
    return MessageView(message, **{**defaults, **fields})


__all__ = ["ACCEPTED", "Encoded", "MessageView", "Symbol"]
