"""What the links of one connection share.

Owns: the commands not yet handed out, the requests under way, and the counters that bound a connection. Must
not know: what a link does with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peeklock.amqp.connection import Connection
from peeklock.amqp.performatives import TransactionalState
from peeklock.broker.vocabulary.commands import NO_LINK, Command, Enlist, ReplyTo
from peeklock.broker.vocabulary.effects import Effect
from peeklock.broker.vocabulary.message import Message
from peeklock.gateway.bounds import STRANGER_REPLIES_BYTES_MAX
from peeklock.gateway.claims import Claims
from peeklock.gateway.errors import Reporter
from peeklock.gateway.via import ViaEntities

if TYPE_CHECKING:
    from peeklock.gateway.links.receiver_endpoint import ReceiverEndpoint
    from peeklock.gateway.nodes.requests import ReplyLink

Payloads = Callable[[Message], bytes | None]
"""Gives a message's payload, None while it is not in memory."""

Answered = Callable[[Effect, int], bool]
"""Takes the effect that answers a request, and now_ms; False = a body is not in memory, try again later."""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Bounds of one connection. Each is our choice unless a source is given."""

    idle_timeout_ms: int | None = 240_000
    """Silence after which a peer is given up; None = never. Source: wire contract 1.6."""
    claim_wait_ms: int = 60_000
    """How long a peer may be connected before its first valid claim, whatever it sends meanwhile. Generous:
    clients show it at once, and the service itself waits for 20 s (wire contract 1.6)."""
    inactive_ms: int = 300_000
    """How long a peer may go without a link whose tokens are valid and whose entities are absent. Source:
    wire contract C47 (the service's figure)."""
    refusals_max: int = 20
    """Tokens of one connection that are refused before it is closed. A client that opens many entities with
    one bad key stays below; it opens a new connection after that."""
    link_credit: int = 1000
    """Deliveries a sender link may have under way. Source: wire contract 2.7 (the service's figure)."""
    request_credit: int = 100
    """Requests a management or CBS link may have under way. Source: wire contract 1.7."""
    request_bytes_max: int = 1_048_576 + 65_536
    """Largest request where no larger message is possible, so also the largest set of messages scheduled at
    once: the state of a session in the premium tier, 1 MiB, and room for what comes around it. Source: wire
    contract C25."""
    reply_bytes_max: int = 262_144
    """Most messages a peek answers with, by size; the same as the largest message of the standard tier."""
    reply_count_max: int = 4096
    """Most messages a peek answers with."""
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


@dataclass(slots=True)
class OpenTransaction:
    """What a connection remembers of a transaction; all else is the broker's."""

    channel: int
    """Of the AMQP session over which it was declared."""
    settled: list[tuple[ReceiverEndpoint, int, TransactionalState]] = field(default_factory=list)
    """Deliveries whose settlement is part of it, and their provisional outcomes."""
    refusal: Exception | None = None
    """Why something that wants no answer did not become part of it: so it cannot be committed as a whole."""


@dataclass(slots=True)
class Context:
    """One connection's common state; `payloads` is set for the time of a call that delivers."""

    connection_id: int
    connection: Connection
    reporter: Reporter
    limits: GatewayLimits
    claims: Claims = field(default_factory=Claims)
    commands: list[Command] = field(default_factory=list)
    """Handed out by `Gateway.take_commands`; the list object itself stays, links keep its `append`."""
    requests: dict[int, Answered] = field(default_factory=dict)
    """What to do with the answer to each request under way, by request number."""
    reply_links: list[ReplyLink] = field(default_factory=list)
    """In order of their attachment."""
    waiting_links: dict[int, ReceiverEndpoint] = field(default_factory=dict)
    """Receivers with deliveries that wait for a body, by number."""
    transactions: dict[bytes, OpenTransaction] = field(default_factory=dict)
    """All that are open, by id."""
    via: ViaEntities = field(default_factory=ViaEntities)
    first_uses: set[str] = field(default_factory=set)
    """What was used of that which Azure does otherwise, on all connections."""
    finding: int = 0
    """Requests under way whose answers hold messages or a state."""
    unsent_reply_bytes: int = 0
    """Of replies on all links that wait for the client's credit."""
    sessions: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Path of the entity and id of the session that each open receiver with one holds, by the link's name."""
    receivers: int = 0
    """Receivers that are open: they share the output."""
    uncommitted_bytes: int = 0
    output_bytes: int = 0
    """Unsent output as last told by the transport."""
    payloads: Payloads | None = None
    readings: deque[Iterator[None]] = field(default_factory=deque)
    """Batches and requests that are read in part, in order; see `Gateway.receive`."""
    _request_number: int = 0

    @property
    def unsent_replies_bytes_max(self) -> int:
        """Most bytes of replies that may wait for this peer."""
        return self.limits.unsent_replies_bytes_max if self.claims.shown else STRANGER_REPLIES_BYTES_MAX

    def read(self, reading: Iterator[None]) -> None:
        """Read what may be large: a slice now, or when those before it are read, the next ones in later
        turns. `reading` is a generator that yields between two slices."""
        self.readings.append(reading)
        if len(self.readings) == 1:
            self.read_slice()

    def read_slice(self) -> None:
        """Read the next slice of what is read in part."""
        for _ in self.readings[0]:
            return
        self.readings.popleft()

    def enlist(self, transaction_id: bytes, channel: int, command: Command) -> None:
        """Ask for a command, over a link on this channel, as part of a transaction."""
        transaction = self.transactions.get(transaction_id)
        via = None
        if transaction is not None and transaction.channel == channel:
            via = self.via.of(channel)
        self.commands.append(Enlist(self.connection_id, transaction_id, command, via))  # type: ignore[arg-type]

    def note_first_use(self, what: str, how: str, now_ms: int) -> None:
        """Log, once for all connections, that something is used which Azure does otherwise."""
        if what not in self.first_uses:
            self.first_uses.add(what)
            self.reporter.note("differs from azure", {"what": what, "how": how}, now_ms)

    def spoil(self, transaction_id: bytes, refusal: Exception) -> None:
        """Remember that something was refused in a transaction which nobody is told."""
        transaction = self.transactions.get(transaction_id)
        if transaction is not None:
            transaction.refusal = refusal

    def ask(self, answered: Answered) -> ReplyTo:
        """Make the reply-to of a request to the broker, and remember what to do with its answer."""
        self._request_number += 1
        self.requests[self._request_number] = answered
        return ReplyTo(self.connection_id, NO_LINK, self._request_number)
