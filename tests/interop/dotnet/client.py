"""The .NET client's side of one connection: names, numbers, links, and the broker's frames on them.

Owns: what the client counts (connections, sessions, links, requests, tags, deliveries) and which of the
broker's frames belongs to what. A frame that the client cannot interpret is an error here. Must not know
scenarios, sockets, time. Source: client 7.19.0, whose rules the functions name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from peeklock.amqp.codec import decode_typed
from tests.interop.dotnet import frames

HEADER_SASL, HEADER_AMQP = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"

_FIELDS = {
    0x10: "open container-id hostname max-frame-size channel-max idle-time-out",
    0x11: "begin remote-channel next-outgoing-id incoming-window outgoing-window handle-max",
    0x12: "attach name handle role snd-settle-mode rcv-settle-mode source target unsettled "
    "incomplete-unsettled initial-delivery-count max-message-size offered-capabilities "
    "desired-capabilities properties",
    0x13: "flow next-incoming-id incoming-window next-outgoing-id outgoing-window handle delivery-count "
    "link-credit available drain echo properties",
    0x14: "transfer handle delivery-id delivery-tag message-format settled more rcv-settle-mode state resume "
    "aborted batchable",
    0x15: "disposition role first last settled state batchable",
    0x16: "detach handle closed error",
    0x17: "end error",
    0x18: "close error",
    0x1D: "error condition description info",
    0x24: "accepted",
    0x25: "rejected error",
    0x26: "released",
    0x27: "modified delivery-failed undeliverable-here message-annotations",
    0x28: "source address durable expiry-policy timeout dynamic dynamic-node-properties distribution-mode "
    "filter default-outcome outcomes capabilities",
    0x29: "target address",
    0x30: "coordinator capabilities",
    0x33: "declared txn-id",
    0x34: "transactional txn-id outcome",
    0x40: "sasl-mechanisms mechanisms",
    0x44: "sasl-outcome code",
    0x70: "header durable priority ttl first-acquirer delivery-count",
    0x73: f"properties {' '.join(frames.PROPERTIES)}",
}


class Unreadable(Exception):
    """The broker sent something that the client cannot interpret."""


class Composite(dict[str, Any]):
    """A composite's fields by name; those that were left out are null."""

    def __init__(self, described: Any) -> None:
        names = _FIELDS.get(described.descriptor)
        if names is None or not isinstance(described.value, list):
            raise Unreadable(f"no composite: {described!r}")
        self.kind, *fields = names.split()
        values = [*described.value, *[None] * len(fields)]
        super().__init__(zip(fields, values, strict=False))

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.items() if value is not None)
        return f"{self.kind}({shown})"


def composite(value: Any) -> Composite | None:
    """Return a terminus, a state or an error by its fields; null stays null."""
    return None if value is None else Composite(value)


def condition(value: Any) -> str | None:
    """Return the condition of an error, of a rejected state or of what carries one."""
    found = composite(value)
    if found is not None and found.kind == "rejected":
        return condition(found["error"])
    return None if found is None else str(found.get("condition"))


@dataclass(slots=True)
class Delivery:
    """A delivery that came over a link."""

    delivery_id: int
    tag: bytes
    settled: bool
    message_format: int
    payload: bytearray = field(default_factory=bytearray)

    def sections(self) -> dict[int, list[Any]]:
        """Return the message's sections by code."""
        return read_message(bytes(self.payload))


def read_message(payload: bytes) -> dict[int, list[Any]]:
    """Return the sections of an encoded message."""
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(payload):
        section, at = decode_typed(payload, at)
        found.setdefault(section.descriptor, []).append(section.value)
    return found


@dataclass(slots=True)
class Link:
    label: str
    session: Session
    handle: int
    name: str
    receives: bool
    size_max: int | None = None
    snd: int | None = None
    rcv: int | None = None
    """Settle modes that the client asked for."""
    attached: Composite | None = None
    detached: Composite | None = None
    left: bool = False
    """The client has sent its detach."""
    awaited: bool = False
    """A step has waited for the broker's detach."""
    credit: int = 0
    delivery_count: int = 0
    available: int = 0
    drains: int = 0
    """Unanswered drains."""
    tags: int = 0
    sends: list[int] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    taken: int = 0
    """Deliveries that a step has waited for."""
    partial: Delivery | None = None

    @property
    def answers(self) -> bool:
        """One link of a pair to a node."""
        return self.name.startswith("duplex")

    @property
    def left_over(self) -> bool:
        """Whether deliveries have come that no step waited for; those of nodes are read as answers."""
        return not self.answers and len(self.deliveries) > self.taken

    @property
    def settled(self) -> bool:
        """Whether deliveries come settled: receive-and-delete, and answers."""
        return self.snd == 1

    @property
    def receives_up_to(self) -> int | None:
        """The smaller of the sizes in both attaches, the client's limit for what it receives."""
        named = [self.size_max, self.attached and self.attached["max-message-size"]]
        return min((int(size) for size in named if size), default=None)


@dataclass(slots=True)
class Session:
    channel: int
    number: int
    window: int
    begun: bool = False
    left: bool = False
    ended: Composite | None = None
    next_outgoing: int = 1
    next_incoming: int = 0
    next_delivery: int = 0
    links: dict[int, Link] = field(default_factory=dict)
    """By the client's handle; a link leaves with its detach and the broker's."""
    by_broker: dict[int, Link] = field(default_factory=dict)
    outcomes: dict[int, Composite] = field(default_factory=dict)
    """The broker's dispositions of what was sent."""
    settlements: dict[int, Composite] = field(default_factory=dict)
    """The broker's dispositions of what was received."""

    def free_handle(self) -> int:
        return next(handle for handle in range(len(self.links) + 1) if handle not in self.links)


@dataclass(slots=True)
class Node:
    """A pair of links to $cbs or a $management: requests out, answers in."""

    sender: Link
    receiver: Link
    reply_to: str
    asked: int = 0
    read: int = 0
    last: dict[int, list[Any]] = field(default_factory=dict)
    """The sections of the answer that was read last."""


class Client:
    """One connection of the client. Bytes to send are in `output`."""

    def __init__(self, host: str, random: Random) -> None:
        self.host = host
        self.random = random
        self.output = bytearray()
        self.log: list[str] = []
        """Log of both directions, for the report of a failure."""
        self._count = 0
        self._forget()

    def restart(self) -> None:
        """Begin another connection; names go on counting."""
        self._forget()
        self.container = f"amqp://{self.host}/-{self.random.randbytes(4).hex()}"
        self.connection_number = self.number()

    def _forget(self) -> None:
        self.container = ""
        self.connection_number = 0
        self.header = b""
        self.opened: Composite | None = None
        self.closed: Composite | None = None
        self.sasl: list[Composite] = []
        self.ended = False
        self.empty_frames = 0
        self.sessions: dict[int, Session] = {}
        self._by_broker: dict[int, Session] = {}
        self.finished: list[Session] = []
        self._input = b""

    def number(self) -> int:
        """Count an object of the client: connections, sessions, pairs, links and controllers share one
        counter."""
        self._count += 1
        return self._count - 1

    def hex32(self) -> str:
        return self.random.randbytes(16).hex()

    def guid(self) -> str:
        made = self.hex32()
        return "-".join((made[:8], made[8:12], made[12:16], made[16:20], made[20:]))

    def write(self, text: str, data: bytes, *, dropped: bool = False) -> None:
        """Send bytes; `dropped`: they are lost on the way."""
        self.log.append(f"-> {text}{' (lost)' * dropped}")
        if not dropped:
            self.output += data

    def take(self) -> bytes:
        """Return and clear the bytes to send."""
        data = bytes(self.output)
        self.output.clear()
        return data

    # From the broker

    def received(self, data: bytes) -> None:
        """Read bytes of the broker. Raises: Unreadable."""
        self._input += data
        while len(self._input) >= 8:
            if self._input[:4] == b"AMQP":
                self.header, self._input = self._input[:8], self._input[8:]
                self.log.append(f"<- header {self.header.hex()}")
                continue
            size = int.from_bytes(self._input[:4], "big")
            if size > frames.FRAME_BYTES_MAX or size < 8:
                raise Unreadable(f"a frame of {size} bytes")
            if len(self._input) < size:
                return
            read, self._input = self._input[:size], self._input[size:]
            self._frame(int.from_bytes(read[6:8], "big"), read[4 * read[4] :])

    def _frame(self, channel: int, body: bytes) -> None:
        if not body:
            self.empty_frames += 1
            self.log.append("<- empty frame")
            return
        described, at = decode_typed(body)
        found = Composite(described)
        payload = body[at:]
        shown = f" with {len(payload)} bytes" if payload else ""
        self.log.append(f"<- ch{channel} {found}{shown}")
        if found.kind.startswith("sasl"):
            self.sasl.append(found)
        elif found.kind == "open":
            self.opened = found
        elif found.kind == "close":
            self.closed = found
        elif found.kind == "begin":
            self._begun(channel, found)
        elif channel not in self._by_broker:
            raise Unreadable(f"{found} on channel {channel}, which is not begun")
        else:
            self._of_session(self._by_broker[channel], channel, found, payload)

    def _begun(self, channel: int, found: Composite) -> None:
        session = self.sessions.get(found["remote-channel"])
        if session is None or session.begun:
            raise Unreadable(f"{found} answers no begin")
        session.begun = True
        session.next_incoming = found["next-outgoing-id"]
        self._by_broker[channel] = session

    def _of_session(self, session: Session, channel: int, found: Composite, payload: bytes) -> None:
        if found.kind == "end":
            session.ended = found
            del self._by_broker[channel]
        elif found.kind == "attach":
            self._attached(session, found)
        elif found.kind == "disposition":
            of = session.outcomes if found["role"] else session.settlements
            last = found["first"] if found["last"] is None else found["last"]
            if last >= (session.next_delivery if found["role"] else 2**32):
                raise Unreadable(f"{found} is about deliveries that were not sent")
            of.update(dict.fromkeys(range(found["first"], last + 1), found))
        elif found["handle"] is None:
            pass  # a flow of the session
        elif found["handle"] not in session.by_broker:
            raise Unreadable(f"{found} for a handle that is not attached")
        else:
            link = session.by_broker[found["handle"]]
            if found.kind == "detach":
                link.detached = found
                del session.by_broker[found["handle"]]
            elif found.kind == "flow":
                self._flow(link, found)
            else:
                self._transfer(link, found, payload)

    def _attached(self, session: Session, found: Composite) -> None:
        link = next((link for link in session.links.values() if link.name == found["name"]), None)
        if link is None or link.attached is not None:
            raise Unreadable(f"{found} answers no attach")
        if found["role"] is link.receives:
            raise Unreadable(f"{found} has the client's role")
        if link.receives and found["initial-delivery-count"] is None:
            raise Unreadable(f"{found} has no initial-delivery-count, and its role is sender")
        link.attached = found
        session.by_broker[found["handle"]] = link

    def _flow(self, link: Link, found: Composite) -> None:
        if not link.receives:
            link.credit = (found["delivery-count"] or 0) + found["link-credit"] - len(link.sends)
            return
        link.delivery_count = found["delivery-count"]
        link.available = 2**32 - 1 if found["available"] is None else found["available"]
        if found["drain"]:
            link.drains -= 1
            link.credit = found["link-credit"]

    def _transfer(self, link: Link, found: Composite, payload: bytes) -> None:
        link.session.next_incoming += 1
        if link.partial is None:
            if found["delivery-id"] is None or found["delivery-tag"] is None:
                raise Unreadable(f"{found} begins a delivery without id or tag")
            message_format = found["message-format"] or 0
            link.partial = Delivery(
                found["delivery-id"], found["delivery-tag"], bool(found["settled"]), message_format
            )
            link.delivery_count += 1
            link.credit -= 1
        link.partial.payload += payload
        limit = link.receives_up_to
        if limit is not None and len(link.partial.payload) > limit:
            raise Unreadable(
                f"a message of {len(link.partial.payload)} bytes or more exceeds the {limit} of the link"
            )
        if not found["more"]:
            if link.credit < 0:
                raise Unreadable(f"a delivery on {link.label} without credit")
            link.deliveries.append(link.partial)
            link.partial = None

    # From the client

    def begin(self, channel: int, window: int) -> Session:
        session = Session(channel, self.number(), window)
        if channel in self.sessions:
            self.finished.append(self.sessions[channel])
        self.sessions[channel] = session
        self.write(f"ch{channel} begin", frames.begin(channel, window))
        return session

    def attach(self, label: str, session: Session, name: str, *, receives: bool, **fields: Any) -> Link:
        handle = session.free_handle()
        link = Link(
            label,
            session,
            handle,
            name,
            receives,
            fields.get("size_max"),
            fields.get("snd"),
            fields.get("rcv"),
        )
        session.links[handle] = link
        data = frames.attach(session.channel, name, handle, receives=receives, **fields)
        self.write(f"ch{session.channel} attach {label} {name!r}", data)
        return link

    def flow(self, link: Link, credit: int, *, drain: bool = False, dropped: bool = False) -> None:
        session = link.session
        link.credit = credit
        link.drains += drain
        data = frames.flow(
            session.channel,
            (session.next_incoming, session.window),
            session.next_outgoing,
            link.handle,
            link.delivery_count,
            credit,
            available=link.available,
            drain=drain,
        )
        self.write(f"flow {link.label} {credit}{' drain' * drain}", data, dropped=dropped)

    def send(
        self, link: Link, payload: bytes, *, tag: bytes | None = None, dropped: bool = False, **fields: Any
    ) -> None:
        """Send a delivery. Tags count on over the links of one sender object."""
        session = link.session
        if tag is None:
            link.tags += 1
            tag = link.tags.to_bytes(8 if fields.get("batchable") is False else 4, "little")
        made = frames.transfer(session.channel, link.handle, session.next_delivery, tag, payload, **fields)
        link.sends.append(session.next_delivery)
        link.credit -= 1
        session.next_delivery += 1
        session.next_outgoing += len(made)
        self.write(f"transfer {link.label} {len(payload)} bytes", b"".join(made), dropped=dropped)

    def ask(self, node: Node, properties: dict[str, Any], body: Any, *, state: bytes | None = None) -> None:
        """Send a request: settled, with an empty tag."""
        node.asked += 1
        payload = frames.request(node.asked, node.reply_to, properties, body)
        self.send(node.sender, payload, tag=b"", settled=True, batchable=False, state=state)

    def detach(self, link: Link) -> None:
        link.left = not link.session.left  # behind an end nothing is answered
        self.write(f"detach {link.label}", frames.detach(link.session.channel, link.handle))

    def end(self, session: Session) -> None:
        session.left = True
        self.write(f"ch{session.channel} end", frames.end(session.channel))

    def surprises(self) -> Iterator[str]:
        """Return the errors of the broker that no step has waited for."""
        for session in (*self.finished, *self.sessions.values()):
            if session.ended is not None and session.ended["error"] is not None:
                yield str(session.ended)
            for link in session.links.values():
                if link.detached is not None and link.detached["error"] is not None and not link.awaited:
                    yield f"{link.detached} of {link.label}"

    def unanswered(self) -> Iterator[str]:
        """Return the detaches and ends that the broker still owes."""
        for session in (*self.finished, *self.sessions.values()):
            if session.left and session.ended is None:
                yield f"the end of channel {session.channel}"
            for link in session.links.values():
                if link.left and (link.detached is None or not link.detached["closed"]):
                    yield f"a detach (closed) of {link.label}"
