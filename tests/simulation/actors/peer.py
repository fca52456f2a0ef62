"""A client over one connection, sans-IO: SASL, CBS, links and requests, with the real engine in the client
role.

Owns: the protocol side of a client; its user passes callbacks. Must not know: simulation, sockets, the
meaning of messages. The kill loops use it over real sockets.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from peeklock.amqp.connection import Connection
from peeklock.amqp.events import (
    ConnectionClosed,
    ConnectionOpened,
    DeliveryReceived,
    DispositionReceived,
    Event,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    LinkFlow,
    SessionBegun,
)
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import scan
from peeklock.amqp.performatives import (
    ACCEPTED,
    Coordinator,
    Declared,
    DeliveryState,
    Rejected,
    Source,
    Target,
    TransactionalState,
)
from peeklock.amqp.types import Described, Role, Symbol, UInt, ULong
from peeklock.auth.sas import generate
from tests.simulation.world.accounts import USUAL, Account

TOKEN_MS = 365 * 24 * 3_600_000
"""Tokens outlive every simulation: the gateway's own tests cover their expiry."""

DECLARE = 0x31
DISCHARGE = 0x32
"""Codes of the bodies that go to a coordinator (AMQP 4.5.2, 4.5.3)."""

SESSION_FILTER = Symbol("com.microsoft:session-filter")
TRANSFER_DESTINATION = Symbol("com.microsoft:transfer-destination-address")
TICKS_AT_EPOCH = 621_355_968_000_000_000
"""100 ns units from the year 1 to 1970, as .NET counts."""

Answer = Callable[[int, str | None, Any], None]
"""(status, error condition, body) of a request's answer."""


class PeerLost(Exception):
    """The connection of a link is gone."""


class SendLink:
    """A link for sending. Callbacks: `on_attached()`, `on_credit()`, `on_lost(condition)`."""

    def __init__(self, peer: Peer, channel: int, handle: int) -> None:
        self.peer, self.channel, self.handle = peer, channel, handle
        self.credit = 0
        self.open = False
        self._tags = 0
        self.on_attached: Callable[[], None] = _nothing
        self.on_credit: Callable[[], None] = _nothing
        self.on_lost: Callable[[str | None], None] = _nothing

    def send(
        self,
        payload: bytes,
        on_outcome: Callable[[DeliveryState | None], None] | None,
        *,
        message_format: int = 0,
        txn_id: bytes | None = None,
    ) -> None:
        """Transfer a message, pre-settled without `on_outcome`; with `txn_id` inside that transaction."""
        self.credit -= 1
        self._tags += 1
        delivery_id = self.peer.connection.send(
            self.channel,
            self.handle,
            self._tags.to_bytes(4, "big"),
            payload,
            settled=on_outcome is None,
            message_format=message_format,
            state=None if txn_id is None else TransactionalState(txn_id),
        )
        if on_outcome is not None:
            self.peer.sends[self.channel, delivery_id] = self.handle, on_outcome
        self.peer.flush()

    def detach(self) -> None:
        """Leave properly."""
        self.peer.detach(self)


class CoordinatorLink(SendLink):
    """A link to the coordinator: it declares and discharges transactions."""

    def declare(self, on_declared: Callable[[bytes | None, str | None], None]) -> None:
        """Begin a transaction: `on_declared(id, None)` or `on_declared(None, condition)`."""

        def outcome(state: DeliveryState | None) -> None:
            if isinstance(state, Declared):
                on_declared(state.txn_id, None)
            else:
                on_declared(None, error_condition(state) or str(state))

        self.send(encode_message(value=Described(ULong(DECLARE), [])), outcome)

    def discharge(
        self, txn_id: bytes, fail: bool, on_outcome: Callable[[DeliveryState | None], None]
    ) -> None:
        """Commit a transaction, or with `fail` roll it back."""
        self.send(encode_message(value=Described(ULong(DISCHARGE), [txn_id, fail])), on_outcome)


class ReceiveLink:
    """A link for receiving. Callbacks: `on_attached()`, `on_delivery(event)`, `on_drained()`,
    `on_lost(condition)`."""

    def __init__(self, peer: Peer, channel: int, handle: int) -> None:
        self.peer, self.channel, self.handle = peer, channel, handle
        self.open = False
        self.session_id: str | None = None
        """The session that the link holds, and until when, UTC ms."""
        self.locked_until_ms = 0
        self.on_attached: Callable[[], None] = _nothing
        self.on_delivery: Callable[[DeliveryReceived], None] = _nothing
        self.on_drained: Callable[[], None] = _nothing
        self.on_lost: Callable[[str | None], None] = _nothing

    def flow(self, credit: int, *, drain: bool = False) -> None:
        """Allow `credit` deliveries from now on."""
        self.peer.connection.flow(self.channel, self.handle, credit, drain=drain)
        self.peer.flush()

    def settle(
        self,
        delivery_id: int,
        state: DeliveryState,
        on_settled: Callable[[DeliveryState | None], None] | None,
        *,
        txn_id: bytes | None = None,
    ) -> None:
        """Send an outcome; without `on_settled` it is sent settled, and gets no answer."""
        if txn_id is not None:
            state = TransactionalState(txn_id, state)
        if on_settled is not None:
            self.peer.settlements[self.channel, delivery_id] = self.handle, on_settled
        self.peer.connection.disposition(
            self.channel, Role.RECEIVER, delivery_id, delivery_id, state, settled=on_settled is None
        )
        self.peer.flush()

    def detach(self) -> None:
        """Leave properly."""
        self.peer.detach(self)


class RequestLinks:
    """A pair of links to a request/response node: `<entity>/$management` or `$cbs`."""

    def __init__(self, peer: Peer, node: str) -> None:
        self.peer, self.node = peer, node
        self._asked = 0
        self._waiting: list[tuple[bytes, bytes | None]] = []
        self.answers: dict[str, Answer] = {}
        channel = peer.begin()
        self._receiver = peer.attach_receiver(node, channel=channel, name=f"{node}-answers", reply_to=node)
        self._sender = peer.attach_sender(node, channel=channel, name=f"{node}-requests", reply_to=node)
        self._receiver.on_delivery = self._answered
        self._receiver.on_attached = lambda: self._receiver.flow(100)
        self._sender.on_credit = self._go
        self._sender.on_lost = self._receiver.on_lost = self._lost

    def ask(
        self, properties: dict[str, Any], body: Any, answer: Answer, *, txn_id: bytes | None = None
    ) -> None:
        """Send a request; it waits for the links and their credit."""
        self._asked += 1
        message_id = f"{self.node}-{self._asked}"
        payload = encode_message(
            properties=_properties(message_id, self.node), application_properties=properties, value=body
        )
        self.answers[message_id] = answer
        self._waiting.append((payload, txn_id))
        self._go()

    def _go(self) -> None:
        while self._waiting and self._sender.open and self._sender.credit > 0:
            payload, txn_id = self._waiting.pop(0)
            self._sender.send(payload, _ignore, txn_id=txn_id)

    def _answered(self, event: DeliveryReceived) -> None:
        sections = scan(event.payload)
        found = sections.decode_application_properties()
        status: Any = found.get("statusCode", found.get("status-code"))
        condition = found.get("errorCondition", found.get("error-condition"))
        answer = self.answers.pop(sections.decode_properties().correlation_id)
        if not event.settled:
            self._receiver.settle(event.delivery_id, ACCEPTED, None)
        self._receiver.flow(100)
        answer(status, None if condition is None else str(condition), sections.decode_body()[0][1])

    def _lost(self, condition: str | None) -> None:
        self.peer.requests.pop(self.node, None)
        answers, self.answers = self.answers, {}
        for answer in answers.values():
            answer(0, condition, None)


class Peer:
    """One connection. Callbacks: `on_ready()`, `on_lost(condition)`."""

    def __init__(
        self,
        name: str,
        write: Callable[[bytes], None],
        now_ms: Callable[[], int],
        *,
        cbs: bool = False,
        account: Account = USUAL,
    ) -> None:
        """Begin with a hello. `cbs`: authorise by a token on `$cbs`, as the official clients do; else by SASL
        PLAIN, which is cheaper."""
        self.name = name
        self._write = write
        self._now_ms = now_ms
        self._cbs = cbs
        self._account = account
        self.on_ready: Callable[[], None] = _nothing
        self.on_lost: Callable[[str | None], None] = _nothing
        self.lost = False
        self.ready = False
        self.links: dict[tuple[int, int], SendLink | ReceiveLink] = {}
        self.sends: dict[tuple[int, int], tuple[int, Callable[[DeliveryState | None], None]]] = {}
        self.settlements: dict[tuple[int, int], tuple[int, Callable[[DeliveryState | None], None]]] = {}
        self.requests: dict[str, RequestLinks] = {}
        self.provisional: set[tuple[int, int]] = set()
        """(channel, delivery id) of what is settled in transactions, until the broker settles it."""
        self.begun: set[int] = set()
        """Channels of sessions whose `begin` was answered: others cannot be ended yet."""
        self._names = 0
        self.connection = Connection(
            "client",
            container_id=name,
            now_ms=now_ms(),
            hostname=account.host,
            sasl_mechanisms=("ANONYMOUS",) if cbs else ("PLAIN",),
            sasl_response=b"" if cbs else f"\0{account.key_name}\0{account.key}".encode(),
        )

    def start(self) -> None:
        """Send the hello."""
        self.connection.open()
        self.flush()

    # From the transport

    def received(self, data: bytes) -> None:
        self._dispatch(self.connection.receive(data, self._now_ms()))

    def ended(self) -> None:
        if not self.lost:
            self._dispatch(self.connection.eof(self._now_ms()))
            self._over(None)

    def tick(self) -> None:
        if not self.lost:
            self._dispatch(self.connection.tick(self._now_ms()))

    def next_deadline_ms(self) -> int | None:
        return None if self.lost else self.connection.next_deadline_ms()

    def flush(self) -> None:
        data = self.connection.data_to_send()
        if data:
            self._write(data)

    # From the user

    def begin(self) -> int:
        """Begin a session."""
        return self.connection.begin()

    def attach_sender(
        self,
        address: str,
        *,
        channel: int | None = None,
        name: str | None = None,
        reply_to: str | None = None,
        destination: str | None = None,
    ) -> SendLink:
        """Open a sender; with `destination` it sends via the entity at `address`."""
        if channel is None:
            channel = self.begin()
        handle = self._attach(
            channel,
            name,
            Role.SENDER,
            Source(reply_to or self.name),
            Target(address),
            properties=None if destination is None else {TRANSFER_DESTINATION: destination},
        )
        link = SendLink(self, channel, handle)
        self.links[channel, handle] = link
        self.flush()
        return link

    def attach_coordinator(self, *, channel: int | None = None) -> CoordinatorLink:
        if channel is None:
            channel = self.begin()
        handle = self._attach(channel, None, Role.SENDER, Source(self.name), Coordinator())
        link = CoordinatorLink(self, channel, handle)
        self.links[channel, handle] = link
        self.flush()
        return link

    def attach_receiver(
        self,
        address: str,
        *,
        channel: int | None = None,
        name: str | None = None,
        reply_to: str | None = None,
        delete: bool | None = None,
        session: tuple[str | None] | None = None,
        wait_ms: int | None = None,
    ) -> ReceiveLink:
        """Open a receiver.

        Args:
            delete: receive-and-delete; False: peek-lock; None: neither (request/response).
            session: one element: the id of the session wanted, None for the next that is available.
            wait_ms: how long the broker shall wait for the next.
        """
        if channel is None:
            channel = self.begin()
        handle = self._attach(
            channel,
            name,
            Role.RECEIVER,
            Source(address, filter=None if session is None else {SESSION_FILTER: session[0]}),
            Target(reply_to or self.name),
            snd_settle_mode=1 if delete else 0,
            rcv_settle_mode=1 if delete is False else 0,
            properties=None if wait_ms is None else {Symbol("com.microsoft:timeout"): UInt(wait_ms)},
        )
        link = ReceiveLink(self, channel, handle)
        self.links[channel, handle] = link
        self.flush()
        return link

    def _attach(
        self, channel: int, name: str | None, role: Role, source: Any, target: Any, **fields: Any
    ) -> int:
        self._names += 1
        return self.connection.attach(
            channel, name or f"{self.name}-{self._names}", role, source, target, **fields
        )

    def ask(
        self, entity: str, operation: str, body: Any, answer: Answer, *, txn_id: bytes | None = None
    ) -> None:
        """Send a management request; status 0 in the answer means that the links were lost."""
        node = f"{entity}/$management"
        links = self.requests.get(node)
        if links is None:
            links = self.requests[node] = RequestLinks(self, node)
        links.ask({"operation": operation}, body, answer, txn_id=txn_id)

    def detach(self, link: SendLink | ReceiveLink) -> None:
        if self.links.pop((link.channel, link.handle), None) is not None:
            link.open = False
            self.connection.detach(link.channel, link.handle)
            self._forget(link)
            self.flush()

    def end(self, channel: int) -> None:
        """End a session properly, with all its links."""
        self.begun.discard(channel)
        gone = [link for key, link in self.links.items() if key[0] == channel]
        self.connection.end(channel)
        for link in gone:
            del self.links[link.channel, link.handle]
            link.open = False
            self._forget(link)
        self.flush()

    def close(self) -> None:
        """Close the connection properly."""
        self.ready = False
        self.connection.close()
        self.flush()

    # Inside

    def _dispatch(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, DeliveryReceived):
                link = self.links.get((event.channel, event.handle))
                if isinstance(link, ReceiveLink):
                    link.on_delivery(event)
            elif isinstance(event, DispositionReceived):
                self._disposed(event)
            elif isinstance(event, LinkFlow):
                link = self.links.get((event.channel, event.handle))
                if isinstance(link, SendLink):
                    link.credit = event.credit
                    link.on_credit()
            elif isinstance(event, LinkDrained):
                link = self.links.get((event.channel, event.handle))
                if isinstance(link, ReceiveLink):
                    link.on_drained()
            elif isinstance(event, LinkAttached):
                self._attached(event)
            elif isinstance(event, LinkDetached):
                link = self.links.pop((event.channel, event.handle), None)
                if link is not None:
                    link.open = False
                    self._forget(link)
                    link.on_lost(None if event.error is None else str(event.error.condition))
            elif isinstance(event, SessionBegun):
                self.begun.add(event.channel)
            elif isinstance(event, ConnectionOpened):
                self._opened()
            elif isinstance(event, ConnectionClosed):
                self.flush()
                self._over(None if event.error is None else str(event.error.condition))
        if not self.lost:
            self.flush()

    def _attached(self, event: LinkAttached) -> None:
        link = self.links.get((event.channel, event.handle))
        refused = event.source is None if event.role is Role.SENDER else event.target is None
        if link is None or refused:
            return
        link.open = True
        if isinstance(link, ReceiveLink) and isinstance(event.source, Source) and event.source.filter:
            link.session_id = event.source.filter.get(SESSION_FILTER)
            ticks = event.properties.get("com.microsoft:locked-until-utc", TICKS_AT_EPOCH)
            link.locked_until_ms = (int(ticks) - TICKS_AT_EPOCH) // 10_000
        link.on_attached()

    def _disposed(self, event: DispositionReceived) -> None:
        waiting = self.sends if event.role is Role.RECEIVER else self.settlements
        for delivery_id in range(event.first, event.last + 1):
            at = event.channel, delivery_id
            if event.role is Role.SENDER and isinstance(event.state, TransactionalState):
                if not event.settled:
                    self.provisional.add(at)
                else:
                    assert at in self.provisional, f"a provisional outcome has settled delivery {delivery_id}"
                    self.provisional.remove(at)
            found = waiting.pop(at, None)
            if found is not None:
                found[1](event.state)

    def _forget(self, link: SendLink | ReceiveLink) -> None:
        """Drop the callbacks of a link that is gone: its outcomes will not come any more."""
        waiting = self.sends if isinstance(link, SendLink) else self.settlements
        for key in [
            k for k, (handle, _) in waiting.items() if k[0] == link.channel and handle == link.handle
        ]:
            del waiting[key]

    def _opened(self) -> None:
        if not self._cbs:
            self.ready = True
            self.on_ready()
            return
        links = RequestLinks(self, "$cbs")
        self.requests["$cbs"] = links
        account = self._account
        token = generate(account.resource, account.key_name, account.key, self._now_ms() + TOKEN_MS)
        links.ask(
            {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": account.resource},
            token,
            self._authorised,
        )

    def _authorised(self, status: int, condition: str | None, body: Any) -> None:
        if 200 <= status < 300:
            self.ready = True
            self.on_ready()
        elif status:
            raise AssertionError(f"{self.name}: token refused with {status} {condition}")

    def _over(self, condition: str | None) -> None:
        if self.lost:
            return
        self.lost = True
        self.ready = False
        links, self.links = self.links, {}
        self.sends.clear()
        self.settlements.clear()
        for link in links.values():
            link.open = False
        for requests in list(self.requests.values()):
            requests._lost(condition)
        self.on_lost(condition)


def error_condition(state: DeliveryState | None) -> str | None:
    """Return the condition of a rejection that reports a failure, also inside a transaction; None =
    success."""
    if isinstance(state, TransactionalState):
        state = state.outcome
    if isinstance(state, Rejected) and state.error is not None:
        return str(state.error.condition)
    return None


def lock_uuid(tag: bytes) -> uuid.UUID:
    """Return the lock token that management requests carry for a delivery tag (wire contract 3.4)."""
    return uuid.UUID(bytes_le=tag)


def symbols(values: dict[str, Any]) -> dict[Symbol, Any]:
    return {Symbol(key): value for key, value in values.items()}


def _properties(message_id: str, reply_to: str) -> Any:
    from peeklock.amqp.messaging import Properties

    return Properties(message_id=message_id, reply_to=reply_to)


def _nothing(*_: Any) -> None:
    return None


def _ignore(_: DeliveryState | None) -> None:
    return None
