"""Valid performatives with boundary values in every field and order: none makes the broker's code fail.

A seed is a broker and `CONNECTIONS` connections to it, one after the other, each with its own sequence. The
seed fails on an exception that leaves the broker, on indexes that disagree, and on anything that a connection
leaves behind. The same seed writes the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, TypeVar

from peeklock.amqp import composites
from peeklock.amqp.composites import composite
from peeklock.amqp.coordination import Declare, Discharge, encode_coordination
from peeklock.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, frame
from peeklock.amqp.types import (
    Array,
    Described,
    Int,
    Long,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from peeklock.auth import generate
from peeklock.gateway.nodes.management import OPERATIONS
from peeklock.testing.inprocess import InProcessBroker, InProcessConnection
from tests.amqp.pair import frames_of
from tests.gateway.harness import KEY, KEY_NAME, LiveHarness, message_bytes, section
from tests.gateway.history import AUDIENCE, BATCH_FORMAT, broker_for
from tests.gateway.live import FILTER, message, send

T = TypeVar("T")

CONNECTIONS = 20
"""Sequences of a seed. A broker costs as much as one of them."""

HALF = 2**31
EDGES = (0, 1, HALF - 1, HALF, HALF + 1, 2**32 - 2, 2**32 - 1)
LONG_EDGES = (
    0,
    1,
    -1,
    HALF - 1,
    HALF,
    2**32 - 1,
    2**63 - 1,
    -(2**63),
    253_402_300_799_999,
    1_700_000_000_000,
)
SIZES = (0, 1, 511, 512, 65_536, 2**63, 2**64 - 1)
FRAME_SIZES = (512, 513, 65_536, HALF, 2**32 - 1)

NODES = (
    "$cbs",
    "orders",
    "orders/$management",
    "orders/$DeadLetterQueue",
    "sessions",
    "sessions/$management",
)
TOPIC_NODES = ("news", "news/Subscriptions/all", "news/Subscriptions/all/$management", "nowhere")
ADDRESSES = (*NODES, *NODES, *TOPIC_NODES, "orders", "orders", "orders")
FILTERS = (None, "one", "two", "new")

_DECLARED = re.compile(rb"\x00\x53\x33\xc0..\xa0(.)", re.DOTALL)
"""A declared state in the broker's output, up to the size of its txn-id."""


@dataclass
class Link:
    """One end of a link, as the client numbers it."""

    channel: int
    handle: int
    receives: bool
    address: str | None
    """None = the coordinator."""
    sent: int = 0


@dataclass
class Author:
    """Writes the sequence of one connection."""

    random: Random
    tokens: tuple[Any, ...]
    """The token for `$cbs`."""
    claimed: bool
    links: list[Link] = field(default_factory=list)
    channels: list[int] = field(default_factory=list)
    next_id: int = 0
    """The next delivery-id in order."""
    transactions: list[bytes] = field(default_factory=lambda: [b"", b"unknown"])

    # Values

    def pick(self, *values: T) -> T:
        return self.random.choice(values)

    def edge(self, *near: int) -> int:
        """Return a boundary value, or one beside a current counter."""
        if near and self.random.random() < 0.6:
            return (self.random.choice(near) + self.pick(-1, 0, 0, 0, 1, HALF)) % 2**32
        return self.random.choice(EDGES)

    def maybe(self, value: Any, chance: float = 0.8) -> Any:
        """Return a value, or null."""
        return value if self.random.random() < chance else None

    def flag(self) -> bool | None:
        return self.pick(None, False, False, True)

    def handle(self) -> UInt:
        """Return the handle of a link, or any number, rarely: that ends the session."""
        if self.links and self.random.random() < 0.9:
            return UInt(self.random.choice(self.links).handle)
        return UInt(self.pick(0, 1, 255, 1023, 1024, 2**32 - 1))

    def link(self, wanted: Callable[[Link], bool] = lambda link: True) -> Link | None:
        found = [link for link in self.links if wanted(link)]
        return self.random.choice(found) if found else None

    def channel(self) -> int:
        if self.channels and self.random.random() < 0.995:
            return self.random.choice(self.channels)
        return self.pick(0, 1, 4999, 5000, 65535)

    def outcome(self) -> Any:
        """Return an outcome, or received, which is none."""
        modified = [self.flag(), self.flag(), self.maybe({Symbol("k"): self.number(), "s": "v"}, 0.5)]
        info = {Symbol("DeadLetterReason"): self.random.choice(["r", self.number()])}
        error = Described(
            ULong(0x1D), [Symbol("com.microsoft:dead-letter"), self.maybe("why"), self.maybe(info)]
        )
        return self.random.choice(
            (
                Described(ULong(0x24), []),
                Described(ULong(0x25), self.pick([], [None], [error])),
                Described(ULong(0x26), []),
                Described(ULong(0x27), modified[: self.random.randrange(4)]),
                Described(ULong(0x23), [UInt(self.edge()), ULong(self.random.choice(SIZES))]),
                Described(ULong(0x33), [self.random.choice(self.transactions)]),
                Described(Symbol("amqp:accepted:list"), []),
            )
        )

    def state(self) -> Any:
        """Return a delivery state of any kind, in a transaction or not."""
        if self.random.random() < 0.3:
            return None
        outcome = self.outcome()
        if self.random.random() < 0.4:
            fields = [self.random.choice(self.transactions), self.maybe(outcome)]
            return Described(ULong(0x34), fields)
        return outcome

    def number(self) -> Any:
        """Return a boundary number of any AMQP type that it fits."""
        value = self.random.choice(LONG_EDGES)
        kinds: list[Any] = [Long, Timestamp]
        if value >= 0:
            kinds.append(ULong)
        if 0 <= value < 2**32:
            kinds.append(UInt)
        if -HALF <= value < HALF:
            kinds.append(Int)
        return self.random.choice(kinds)(value)

    # The beginning

    def beginning(self) -> bytes:
        """Write the hand-shake, and open."""
        mechanism = "PLAIN" if self.claimed else self.pick("ANONYMOUS", "MSSBCBS", "EXTERNAL")
        response = f"\0{KEY_NAME}\0{KEY}".encode() if self.claimed else self.maybe(b"")
        sasl = composite(composites.SASL_INIT, [Symbol(mechanism), response, self.maybe("localhost")])
        fields = [
            self.pick("", "client", "c" * 300),
            self.maybe("localhost"),
            self.maybe(UInt(self.random.choice(FRAME_SIZES))),
            self.maybe(UShort(self.pick(0, 1, 65534, 65535))),
            self.maybe(UInt(self.pick(0, 100, *EDGES[2:]))),
        ]
        opened = composite(composites.OPEN, fields[: self.random.randint(2, 5)])
        return SASL_HEADER + frame(0, sasl, 1) + AMQP_HEADER + frame(0, opened)

    # Performatives

    def begin(self) -> bytes:
        channel = self.pick(0, 0, 1, 2, 4999)
        if channel in self.channels and self.random.random() < 0.95:
            return self.flow()
        self.channels.append(channel)
        fields = [
            None,
            UInt(self.edge()),
            UInt(self.pick(*EDGES, 5000, 5000, 5000)),
            UInt(self.edge()),
            self.maybe(UInt(self.edge())),
        ]
        return frame(channel, composite(composites.BEGIN, fields))

    def attach(self) -> bytes:
        if not self.channels:
            return self.begin()
        channel = self.channel()
        used = {link.handle for link in self.links if link.channel == channel}
        free = [handle for handle in (0, 1, 2, 3, 254, 1022, 1023) if handle not in used]
        if not free:
            return self.detach()
        handle = self.random.choice(free)
        receives = self.random.random() < 0.5
        address: str | None = self.random.choice(ADDRESSES)
        if not self.claimed and self.random.random() < 0.8:
            address = "$cbs"
        if not receives and self.random.random() < 0.15:
            address = None
        self.links.append(Link(channel, handle, receives, address))
        filters = {FILTER: self.random.choice(FILTERS)} if address == "sessions" and receives else None
        near = "client" if address is None or "$" not in address else address
        source: list[Any] = [
            near if not receives else address,
            UInt(self.pick(0, 1, 2)),
            None,
            UInt(self.edge()),
        ]
        source += [self.flag(), None, None, filters]
        target: Any = Described(ULong(0x29), [address if not receives else near, *source[1:5]])
        if address is None:
            target = Described(ULong(0x30), [self.maybe(Array.of(Symbol, ["amqp:local-transactions"]))])
        wait_ms = {Symbol("com.microsoft:timeout"): UInt(self.edge())}
        fields = [
            f"link-{self.random.randrange(4)}",
            UInt(handle),
            receives,
            self.maybe(UByte(self.pick(0, 1, 2, 2, 255))),
            self.maybe(UByte(self.pick(0, 1, 1, 255))),
            self.maybe(Described(ULong(0x28), source), 0.97),
            self.maybe(target, 0.97),
            self.maybe({b"tag": None}, 0.2),
            self.flag(),
            self.maybe(UInt(self.edge()), 0.5 if receives else 0.95),
            self.maybe(ULong(self.random.choice(SIZES))),
            None,
            None,
            self.maybe(wait_ms, 0.3),
        ]
        return frame(channel, composite(composites.ATTACH, fields))

    def flow(self) -> bytes:
        link = self.link()
        if link is None and not self.channels:
            return self.begin()
        channel = self.channel() if link is None else link.channel
        window = self.pick(*EDGES, 5000, 5000, 5000, 5000)
        fields = [self.maybe(UInt(self.edge(0, self.next_id))), UInt(window)]
        fields += [UInt(self.edge(self.next_id)), UInt(self.edge())]
        if link is not None and self.random.random() < 0.9:
            fields += [
                UInt(link.handle) if self.random.random() < 0.98 else self.handle(),
                self.maybe(UInt(self.edge(0, link.sent))),
                self.maybe(UInt(self.pick(*EDGES[1:], 5, 100))),
                self.maybe(UInt(self.edge())),
                self.flag(),
                self.flag(),
                self.maybe({Symbol("k"): self.number()}, 0.1),
            ]
        elif self.random.random() < 0.5:
            fields += [None, None, None, None, self.flag(), self.flag()]
        return frame(channel, composite(composites.FLOW, fields))

    def transfer(self) -> bytes:
        link = self.link(lambda link: not link.receives) if self.random.random() < 0.99 else self.link()
        if link is None:
            return self.attach()
        delivery_id = self.next_id if self.random.random() < 0.7 else self.edge(self.next_id)
        link.sent += 1
        self.next_id = (delivery_id + 1) % 2**32
        message_format = self.pick(0, 0, 0, 0, BATCH_FORMAT, self.edge())
        tag = self.random.choice(
            (b"", b"t", b"0123456789abcdef", b"t" * 32, b"t" * 33 if self.random.random() < 0.05 else b"u")
        )
        more = self.random.random() < 0.1
        fields = [
            UInt(link.handle),
            self.maybe(UInt(delivery_id), 0.99),
            self.maybe(tag, 0.99),
            self.maybe(UInt(message_format)),
            self.flag(),
            self.pick(None, more),
            self.maybe(UByte(self.pick(0, 1, 255)), 0.1),
            self.state() if self.random.random() < 0.3 else None,
            self.maybe(self.flag(), 0.1),
            self.maybe(self.flag(), 0.1),
            self.flag(),
        ]
        return frame(
            link.channel, composite(composites.TRANSFER, fields) + self.payload(link, message_format)
        )

    def disposition(self) -> bytes:
        if not self.channels:
            return self.begin()
        first = self.pick(0, 1, 2, self.edge(0, self.next_id))
        last = self.pick(first, first + 1, first + 3, self.edge(first, self.next_id)) % 2**32
        fields = [self.random.random() < 0.9, UInt(first), self.maybe(UInt(last))]
        fields += [self.flag(), self.state(), self.flag()]
        return frame(self.channel(), composite(composites.DISPOSITION, fields))

    def detach(self) -> bytes:
        link = self.link()
        if link is None:
            return self.begin()
        self.links.remove(link)
        error = Described(
            ULong(0x1D), [Symbol("amqp:internal-error"), self.maybe("why"), self.maybe({}, 0.2)]
        )
        fields = [UInt(link.handle), self.flag(), self.maybe(error, 0.2)]
        return frame(link.channel, composite(composites.DETACH, fields))

    def end(self) -> bytes:
        if not self.channels:
            return self.begin()
        channel = self.channel()
        self.channels = [begun for begun in self.channels if begun != channel]
        self.links = [link for link in self.links if link.channel != channel]
        return frame(channel, composite(composites.END, []))

    def close(self) -> bytes:
        error = Described(ULong(0x1D), [Symbol("amqp:internal-error")])
        return frame(self.pick(0, 7), composite(composites.CLOSE, self.pick([], [error])))

    def empty(self) -> bytes:
        return EMPTY_FRAME

    # Messages

    def payload(self, link: Link, message_format: int) -> bytes:
        """Write a message that suits a link, mostly."""
        if self.random.random() < 0.05:
            return b""
        if link.address is None:
            return encode_coordination(
                self.random.choice(
                    (
                        Declare(),
                        Declare(),
                        Discharge(self.random.choice(self.transactions), self.random.random() < 0.5),
                    )
                )
            )
        if link.address == "$cbs":
            properties = {
                "operation": "put-token",
                "type": "servicebus.windows.net:sastoken",
                "name": AUDIENCE,
            }
            return self.request(properties, self.pick(*self.tokens))
        if link.address.endswith("$management"):
            return self.request({"operation": self.random.choice(list(OPERATIONS))}, self.body())
        if message_format == BATCH_FORMAT:
            return b"".join(section(0x75, self.message()) for _ in range(self.random.randrange(4)))
        return self.message()

    def request(self, properties: dict[str, Any], body: Any) -> bytes:
        fields = [self.pick(None, "id", ULong(2**64 - 1)), None, None, None, self.maybe("client")]
        return section(0x73, fields) + section(0x74, properties) + section(0x77, body)

    def body(self) -> dict[Any, Any]:
        """Write the body of a request: any of the existing keys, with boundary numbers."""
        random = self.random
        choices: dict[str, Callable[[], Any]] = {
            "sequence-numbers": lambda: Array.of(Long, [random.choice(LONG_EDGES), random.randrange(9)]),
            "from-sequence-number": self.number,
            "message-count": lambda: random.choice((Int(5), self.number())),
            "last-updated-time": self.number,
            "skip": lambda: random.choice((Int(0), self.number())),
            "top": lambda: random.choice((Int(5), self.number())),
            "enqueued-time-utc": self.number,
            "receiver-settle-mode": self.number,
            "session-id": lambda: random.choice(("one", "two", "", "s" * 128, "s" * 129)),
            "session-state": lambda: random.choice((None, b"", b"s")),
            "disposition-status": lambda: random.choice(("completed", "abandoned", "defered", "suspended")),
            "lock-tokens": list,
            "messages": lambda: [{"message": self.message(), "message-id": "m"}],
            "rule-name": lambda: random.choice(("r", "$Default")),
            "rule-description": lambda: {"sql-filter": {"expression": "1=1"}},
            "cursor": lambda: "lake",
            "claim": lambda: random.choice((Int(1), self.number())),
            "max-messages": lambda: random.choice((Int(5), self.number())),
            "max-bytes": lambda: random.choice((Int(HALF - 1), self.number())),
            "expires-after": lambda: random.choice((Int(60_000), self.number())),
        }
        body = {name: make() for name, make in choices.items() if random.random() < 0.9}
        if random.random() < 0.1:  # a purge takes no other
            body = {"enqueued-time-utc": self.number()}
        return body

    def message(self) -> bytes:
        """Write a message with boundary values in its header, annotations and properties."""
        random = self.random
        header = [
            self.flag(),
            self.maybe(UByte(random.choice((0, 4, 255)))),
            self.maybe(UInt(self.edge()), 0.4),
        ]
        header += [self.flag(), self.maybe(UInt(self.edge()))]
        annotations = {
            Symbol("x-opt-scheduled-enqueue-time"): Timestamp(random.choice(LONG_EDGES)),
            Symbol("x-opt-partition-key"): random.choice(("p", "p" * 128)),
        }
        times = [Timestamp(random.choice(LONG_EDGES)), Timestamp(random.choice(LONG_EDGES))]
        properties = [self.maybe(random.choice(("m", ULong(2**64 - 1), b"m"))), *[None] * 7, *times]
        properties += [random.choice((None, "one", "two")), UInt(self.edge())]
        return message_bytes(
            b"body",
            header=self.maybe(header, 0.5),
            annotations=self.maybe(annotations, 0.1),
            properties=self.maybe(properties, 0.6),
            application_properties=self.maybe({"n": self.number()}, 0.5),
        )

    # Sequences

    def steps(self) -> Iterator[bytes]:
        """Write frames one after the other."""
        yield self.begin()
        for _ in range(self.random.randint(1, 4)):
            yield self.attach()
        makers: tuple[tuple[Callable[[], bytes], int], ...] = (
            (self.flow, 30),
            (self.transfer, 30),
            (self.disposition, 15),
            (self.attach, 10),
            (self.detach, 5),
            (self.begin, 3),
            (self.end, 1),
            (self.empty, 2),
            (self.close, 1),
        )
        for _ in range(self.random.randint(5, 40)):
            [make] = self.random.choices([maker for maker, _ in makers], [weight for _, weight in makers])
            yield make()

    def reads(self) -> Iterator[bytes]:
        """Yield the sequence as it is read: frames of one read are together, and some are cut."""
        pending = self.beginning()
        for step in self.steps():
            pending += step
            if self.random.random() < 0.6:
                cut = len(pending) if self.random.random() < 0.8 else self.random.randrange(len(pending))
                yield pending[:cut]
                pending = pending[cut:]
        yield pending

    def learn(self, answer: bytes) -> None:
        """Take the declared transactions from the broker's output."""
        for found in _DECLARED.finditer(answer):
            size = found[1][0]
            self.transactions.append(answer[found.end() : found.end() + size])


class Failed(Exception):
    """A seed found a defect; the notes of the exception locate it."""


def run_seed(seed: int, connections: int = CONNECTIONS) -> None:
    """Play the sequences of a seed. Raises: Failed, from what went wrong, with the reads up to it."""
    random = Random(seed)
    broker = broker_for()
    expires_ms = broker.clock.now_ms + 3_600_000_000
    token = generate(AUDIENCE, KEY_NAME, KEY, expires_ms)
    tokens = (token, token, token, "bad", UInt(0))
    for number in range(connections):
        author = Author(random, tokens, claimed=random.random() < 0.7)
        reads: list[bytes] = []
        try:
            play(broker, author, reads)
        except Exception as failure:
            failed = Failed(f"connection {number} of: python -m tests.fuzz --seed {seed}")
            failed.add_note("\n".join(shown(read) for read in reads))
            raise failed from failure
    check(broker)


class Writer(Protocol):
    """Writes one connection."""

    random: Random

    def reads(self) -> Iterator[bytes]:
        """Yield the sequence as it is read."""

    def learn(self, answer: bytes) -> None:
        """Take the broker's output."""


def play(broker: InProcessBroker, author: Writer, reads: list[bytes]) -> None:
    """Play one connection, and check what it leaves."""
    random = author.random
    wire: InProcessConnection = broker.connect()
    for data in author.reads():
        reads.append(data)
        wire.write(data)
        answer = wire.read()
        author.learn(answer)
        frames_of(answer)  # each frame is whole and can be decoded
        if random.random() < 0.05:
            broker.advance(random.choice((1, 1000, 31_000, 61_000, 300_000)))
    wire.end()
    broker.namespace.check(broker.clock.now_ms)
    totals = broker.namespace.totals()
    assert (totals.connections, totals.links) == (0, 0)


def check(broker: InProcessBroker) -> None:
    """Check that other connections are served."""
    rig = LiveHarness(broker)
    send(rig, message("last"))
    rig.listen(credit=1000)
    assert rig.deliveries()
    broker.namespace.check(broker.clock.now_ms)


def shown(read: bytes) -> str:
    """Return the frames of a read, or its bytes where it is cut."""
    try:
        return " ".join(
            f"{channel}:{composites.NAMES.get(code, code)}{fields!r}{payload!r}"
            for channel, code, fields, payload in frames_of(read)
        )
    except Exception:
        return read.hex()
