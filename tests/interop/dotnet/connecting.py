"""Steps that connect and authorise, and that begin and end sessions and links."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from peeklock.amqp.types import Long, Symbol, Timestamp, UInt
from peeklock.auth import generate
from tests.interop.dotnet import frames
from tests.interop.dotnet.client import (
    HEADER_AMQP,
    HEADER_SASL,
    Link,
    Node,
    Session,
    composite,
    condition,
)
from tests.interop.dotnet.scenario import Step
from tests.interop.dotnet.stage import NODE_CREDIT, Action, Connect, Stage, Waits

TOKEN_MS = 30 * 60_000
"""Lifetime of the client's tokens."""
SIZE_BYTES_MAX = 262_144
"""Size of a batch: the client takes it from the attach of a sender's link, on Standard."""
SPENT_MS = 12
"""Remaining time of a try, which an attach states. Our choice: what it mostly was."""
TIMEOUT = Symbol("com.microsoft:timeout")
SESSION_FILTER = Symbol("com.microsoft:session-filter")


class Connecting(Stage):
    """Steps of connections, sessions and links."""

    # The connection

    def client_connect(self, step: Step) -> Waits:
        """Play SASL, open, and unless `bare` the pair to $cbs on channel 0."""
        client = self.client
        self._nothing_left()
        client.restart()
        self.links, self.nodes, self.cbs = {}, {}, None
        self.transactions = {}
        yield Connect()
        client.write("header of SASL", HEADER_SASL)
        yield from self.until(lambda: client.header == HEADER_SASL and client.sasl, "SASL mechanisms")
        mechanisms = client.sasl[0]["mechanisms"]
        self._check("MSSBCBS" in mechanisms, f"expected MSSBCBS among {mechanisms}")
        client.write("sasl-init", frames.sasl_init())
        yield from self.until(lambda: len(client.sasl) == 2, "a SASL outcome")
        self._check(client.sasl[1]["code"] == 0, "expected a SASL outcome of 0")
        client.write("header, open", HEADER_AMQP + frames.open_(client.container, self.account.host))
        yield from self.until(lambda: client.header == HEADER_AMQP and client.opened, "open")
        assert client.opened is not None
        size_max = client.opened["max-frame-size"]
        right = size_max is None or size_max >= frames.FRAME_BYTES_MAX
        self._check(right, f"expected frames of 64 KiB, as the client's own, not of {size_max}")
        if "bare" not in step.words:
            yield from self._cbs(0)

    def client_cbs(self, step: Step) -> Waits:
        """Attach the pair to $cbs on its own channel."""
        return self._cbs(int(step.words[0]))

    def _cbs(self, channel: int) -> Waits:
        yield from self._begin(channel, frames.WINDOW)
        self.cbs = yield from self._pair("CBS", self.client.sessions[channel], "$cbs", {})

    def client_put_token(self, step: Step) -> Waits:
        """Put a token for an address, and check the answer; `key=` replaces the right key."""
        assert self.cbs is not None
        node, host = self.cbs, self.account.host
        expires = Timestamp(self.now_ms() + TOKEN_MS)
        key = self.option("key", self.account.key)
        properties = {
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": f"amqp://{host}/{self.path(step.words[0])}",
            "expiration": expires,
        }
        yield from self._credit(node.sender)
        token = generate(f"amqps://{host}/", self.account.key_name, key, expires)
        self.client.ask(node, properties, token)
        status = int(step.words[1]) if len(step.words) > 1 else 202
        yield from self._read(node)
        found = node.last[0x74][0]
        self._check(found["status-code"] == status, f"expected status-code {status}, not {found}")
        self._check("status-description" in found, f"expected a status-description in {found}")

    def client_begin(self, step: Step) -> Waits:
        """Begin a session; the lowest free channel, which the step names."""
        for channel in step.words:
            yield from self._begin(int(channel), self.option("window", frames.WINDOW_UNBOUNDED))

    def _begin(self, channel: int, window: int) -> Waits:
        before = self.client.sessions.get(channel)
        if before is not None:
            yield from self.until(lambda: before.ended, f"the end of channel {channel}")
        session = self.client.begin(channel, window)
        yield from self.until(lambda: session.begun, f"a begin for channel {channel}")

    # Links

    def client_attach(self, step: Step) -> Waits:
        """Attach a link: LABEL CHANNEL sender|receiver|management|coordinator [ADDRESS]."""
        label, channel, kind, *rest = step.words
        session = self.client.sessions[int(channel)]
        if kind == "management":
            node = f"{self.path(rest[0])}/$management"
            properties = {Symbol("com.microsoft:entity-type"): "entity-mgmt"}
            self.nodes[label] = yield from self._pair(label, session, node, properties)
            return
        make = {"sender": self._sender, "receiver": self._receiver, "coordinator": self._coordinator}[kind]
        link = self.links[label] = make(label, session, rest)
        if "later" not in rest:
            yield from self._answered(link)

    def _name(self, session: Session) -> str:
        client = self.client
        return f"{client.container};{client.connection_number}:{session.number}:{client.number()}"

    def _sender(self, label: str, session: Session, rest: list[str]) -> Link:
        address = self.path(rest[0])
        link = self.client.attach(
            label,
            session,
            self._name(session),
            receives=False,
            counted=True,
            source=frames.source(f"{address}-{self.client.guid()}"),
            target=frames.target(f"/{address}"),
            properties={TIMEOUT: UInt(self.option("timeout", self.scenario.try_ms - SPENT_MS))},
        )
        link.tags = self.option("tags", 0)
        return link

    def _receiver(self, label: str, session: Session, rest: list[str]) -> Link:
        address = self.path(rest[0])
        filters: dict[Any, Any] = {}
        shown = ""
        if "session" in self._step.options:
            filters = {SESSION_FILTER: self.option("session")}
            shown = f"{SESSION_FILTER}:{filters[SESSION_FILTER] or ''}"
        deletes, timeout = "delete" in rest, self.option("timeout")
        entity = address.removesuffix("/$DeadLetterQueue").removesuffix("/$Transfer")
        limit = self.option("limit")
        return self.client.attach(
            label,
            session,
            f"{self._name(session)}:source(address:/{address},filter:[{shown}])",
            receives=True,
            snd=1 if deletes else None,
            rcv=None if deletes else 1,
            source=frames.source(f"/{address}", filter=filters),
            target=frames.target(f"{entity}-{self.client.guid()}{'-Receiver' * ('processor' in rest)}"),
            size_max=limit,
            properties=None if timeout is None else {TIMEOUT: UInt(timeout)},
        )

    def _coordinator(self, label: str, session: Session, rest: list[str]) -> Link:
        self.client.number(), self.client.number()  # the link's and its controller's
        name = self.client.hex32()
        return self.client.attach(
            label,
            session,
            name,
            receives=False,
            source=frames.source(name, moves=True),
            target=frames.coordinator(),
        )

    def broker_attached(self, step: Step) -> Waits:
        """Wait for the answer to an earlier attach; `session=` is the granted one."""
        link = self.links[step.words[0]]
        yield from self._answered(link)
        assert link.attached is not None
        if "session" in step.options:
            source = composite(link.attached["source"])
            assert source is not None
            given, wanted = (source["filter"] or {}).get(SESSION_FILTER), self.option("session")
            self._check(given == wanted and type(given) is str, f"expected session {wanted!r}, not {given!r}")
            until = (link.attached["properties"] or {}).get("com.microsoft:locked-until-utc")
            self._check(type(until) is Long, f"expected locked-until-utc as a long, not {until!r}")
        if "limit" in step.options:
            found = link.attached["max-message-size"]
            limit = self.option("limit")
            self._check(found == limit, f"expected max-message-size {limit}, not {found}")

    def broker_refused(self, step: Step) -> Waits:
        """Wait for an attach without the broker's terminus, and a detach with a condition."""
        link = self.links[step.words[0]]
        yield from self.until(lambda: link.detached, f"a detach of {link.label}")
        if link.attached is None or link.attached["source" if link.receives else "target"] is not None:
            raise self._failed(f"expected an attach without the broker's terminus, not {link.attached}")
        yield from self.broker_detached(step)

    def broker_detached(self, step: Step) -> Waits:
        """Wait for a detach (closed) with a condition."""
        link = self.links[step.words[0]]
        yield from self.until(lambda: link.detached, f"a detach of {link.label}")
        link.awaited = True
        found = link.detached
        assert found is not None
        right = found["closed"] and condition(found["error"]) == step.words[1]
        self._check(right, f"expected {step.words[1]}, not {found}")

    def client_detach(self, step: Step) -> None:
        """Leave links; both of a management pair."""
        for label in step.words:
            node = self.nodes.get(label)
            for link in (self.links[label],) if node is None else (node.sender, node.receiver):
                self.client.detach(link)

    def client_end(self, step: Step) -> None:
        for channel in step.words:
            self.client.end(self.client.sessions[int(channel)])

    def client_close(self, step: Step) -> Waits:
        """Send close alone; `condition=` is the error."""
        named = self.option("condition")
        error = None if named is None else frames.error(named, "injected by the proxy")
        self.client.write("close", frames.close(error))
        yield from self._over()

    def client_dispose(self, step: Step) -> Waits:
        """Detach and end what is left in one write, $cbs first; then close, and wait for all answers."""
        client = self.client
        assert self.cbs is not None
        client.detach(self.cbs.sender)
        client.detach(self.cbs.receiver)
        sessions = [self.cbs.sender.session]
        sessions += [session for session in client.sessions.values() if session not in sessions]
        for session in sessions:
            if not session.left:
                for link in session.links.values():
                    if not link.left:
                        client.detach(link)
                client.end(session)
        client.write("close", frames.close())
        yield from self._over()
        owed = ", ".join(client.unanswered())
        self._check(not owed, f"expected {owed}")

    def _over(self) -> Waits:
        yield from self.until(lambda: self.client.closed, "close")
        found = self.client.closed
        right = found is not None and found["error"] is None
        self._check(right, f"expected a close without an error, not {found}")
        yield from self.until(lambda: self.client.ended, "the end of the stream")

    def _pair(
        self, label: str, session: Session, node: str, properties: dict[Any, Any]
    ) -> Generator[Action, None, Node]:
        client = self.client
        name = f"duplex{client.connection_number}:{session.number}:{client.number()}"
        client.number(), client.number()  # each of its links has one too
        reply_to = client.hex32()
        properties = {TIMEOUT: UInt(self.scenario.try_ms - SPENT_MS), **properties}
        ends: list[Link] = []
        for end, receives in (("sender", False), ("receiver", True)):
            link = client.attach(
                f"{label}-{end}",
                session,
                f"{name}:{end}",
                receives=receives,
                snd=1,
                source=frames.source(node if receives else None),
                target=frames.target(reply_to if receives else node),
                properties=properties,
            )
            self.links[link.label] = link
            ends.append(link)
            yield from self._answered(link)
        client.flow(ends[1], NODE_CREDIT)
        sender, receiver = ends
        return Node(sender, receiver, reply_to)

    def _answered(self, link: Link) -> Waits:
        """Wait for an attach, and check what the client reads of it."""
        yield from self.until(lambda: link.attached or link.detached, f"an attach for {link.label}")
        found = link.attached
        if found is None or found["source"] is None or found["target"] is None:
            raise self._failed(f"expected that {link.label} is attached")
        for name, asked in (("snd-settle-mode", link.snd), ("rcv-settle-mode", link.rcv)):
            right = asked is None or found[name] == asked
            self._check(right, f"expected {name} {asked} on {link.label}, not {found[name]}")
        to_entity = not link.receives and not link.answers and found["target"].descriptor == frames.TARGET
        if to_entity:
            size_max = found["max-message-size"]
            self._check(size_max == SIZE_BYTES_MAX, f"expected batches of {SIZE_BYTES_MAX}, not {size_max}")
