"""What the parts of one connection share: what never changes, the peer's backlog, and our output."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from peeklock.amqp.connection import Connection
from peeklock.broker.vocabulary.commands import Command
from peeklock.broker.vocabulary.message import Message
from peeklock.gateway.errors import Reporter

Payloads = Callable[[Message], bytes | None]
"""Returns a message's payload; None while it is not in memory."""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Bounds of one connection. Each is our choice unless a source is given."""

    idle_timeout_ms: int | None = 240_000
    """Silence after which a peer is given up; None = never. Source: wire contract 1.6."""
    claim_wait_ms: int = 60_000
    """Time from connecting to the first valid claim, whatever the peer sends meanwhile. Generous: clients
    show it at once, and the service itself waits for 20 s (wire contract 1.6)."""
    inactive_ms: int = 300_000
    """How long a peer may go without a link whose tokens are valid and whose entities are absent. Source:
    wire contract C47 (the service's figure)."""
    refusals_max: int = 20
    """Refused tokens after which a connection is closed. A client that opens many entities with one bad key
    stays below; it opens a new connection after that."""
    link_credit: int = 1000
    """Deliveries a sender link may have under way. Source: wire contract 2.7 (the service's figure)."""
    request_credit: int = 100
    """Requests a management or CBS link may have under way. Source: wire contract 1.7."""
    request_bytes_max: int = 1_048_576 + 65_536
    """Largest request where no larger message is possible, so also the largest set of messages scheduled at
    once: the state of a session in the premium tier, 1 MiB, and its envelope. Source: wire contract C25."""
    reply_bytes_max: int = 262_144
    """Bytes of messages in the answer to a peek; the same as the largest message of the standard tier."""
    reply_count_max: int = 4096
    """Messages in the answer to a peek."""
    finding_max: int = 64
    """Requests under way whose answers hold messages or a session's state: 16 MiB of answers at once, at
    most, or 64 MiB of states in the premium tier."""
    slice_messages: int = 64
    """Messages of a batch or schedule that are read before others may have a turn, each a unit of
    `Gateway.receive`: at 5 to 10 us each, 0.6 ms."""
    unsent_replies_bytes_max: int = 4_194_304
    """Replies of a connection that wait for credit or for the session's window. A link whose reply would go
    beyond it is detached; one reply of any size may wait."""
    output_bytes_max: int = 1_048_576
    """Unsent output above which no receiver is given more bytes. Source: architecture, back-pressure."""


@dataclass(frozen=True, slots=True)
class Context:
    """What every link and node of a connection uses."""

    connection_id: int
    connection: Connection
    reporter: Reporter
    limits: GatewayLimits
    commands: list[Command] = field(default_factory=list)
    """Emptied by `Gateway.take_commands`. The list object stays: links keep its `append`."""


class Backlog:
    """What the peer has sent that has no outcome yet, or is read in part."""

    __slots__ = ("readings", "uncommitted_bytes")

    def __init__(self) -> None:
        self.uncommitted_bytes = 0
        self.readings: deque[Iterator[None]] = deque()
        """Batches and requests that are read in part, in order; see `Gateway.receive`."""

    def read(self, reading: Iterator[None]) -> None:
        """Read something large: a slice now, or behind those before it, the next slices in later turns.

        `reading` is a generator that yields between two slices.
        """
        self.readings.append(reading)
        if len(self.readings) == 1:
            self.read_slice()

    def read_slice(self) -> None:
        """Read the next slice."""
        for _ in self.readings[0]:
            return
        self.readings.popleft()


class Output:
    """What is on its way to the peer, and how far its receivers have to share it."""

    __slots__ = ("payloads", "pending_bytes", "receivers", "waiting_links")

    def __init__(self) -> None:
        self.payloads: Payloads | None = None
        """Of the call that delivers."""
        self.pending_bytes = 0
        """Unsent output when the transport last reported."""
        self.receivers = 0
        """Open receivers."""
        self.waiting_links: set[int] = set()
        """Numbers of receivers with deliveries that wait for a body."""
