"""The gateway: one AMQP connection between a socket and the broker, sans-IO.

Owns: SASL, the beginning and end of the connection, how long a peer may be nobody, and what goes in and out.
Must not know: sockets, the engine, how a body is kept; its `Links` know the rest. Events and effects are
dispatched by type tables. Source: wire contract 1.3-1.6; requirement L-13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peeklock.amqp.connection import Connection
from peeklock.amqp.errors import CONNECTION_FORCED, NOT_FOUND, AmqpError
from peeklock.amqp.events import ConnectionClosed, ConnectionOpened, LinkAttached, SaslInit
from peeklock.auth import (
    Authority,
    AuthorizationError,
    ClaimMissing,
    KeyRefused,
    SignatureInvalid,
    TokenExpired,
)
from peeklock.broker.commands import Command, DropConnection
from peeklock.broker.effects import (
    Claimed,
    ClaimsLeft,
    CursorsFound,
    Done,
    Effect,
    EntitiesFound,
    EntityFound,
    Failed,
    LocksRenewed,
    MessagesDeleted,
    MessagesFound,
    MessagesScheduled,
    RulesFound,
    SessionLockRenewed,
    SessionsFound,
)
from peeklock.gateway.answers import Answers
from peeklock.gateway.cbs import TokenNode
from peeklock.gateway.context import Context, GatewayLimits, Payloads
from peeklock.gateway.errors import ClaimOverdue, Log, Reporter, TooManyRefusals
from peeklock.gateway.links import Handlers, Links
from peeklock.gateway.namespaces import Namespaces

SASL_MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
"""The service's set. The Python client refuses to go on without ANONYMOUS. Source: wire contract 1.3."""

_PLAIN_BYTES_MAX = 1024


class Gateway:
    """One AMQP connection; see the module."""

    def __init__(
        self,
        connection_id: int,
        *,
        namespaces: Namespaces,
        tracking: Callable[[], str],
        log: Log,
        now_ms: int,
        container_id: str = "peeklock",
        limits: GatewayLimits | None = None,
        bears_refusal: Callable[[], bool] = lambda: True,
        peer: Callable[[], str] = str,
    ) -> None:
        """Make the server's end of a connection.

        Args:
            connection_id: names this connection towards the broker; never used twice while the broker runs.
            namespaces: where the namespace is looked up once the client has named its host.
            tracking: gives a fresh GUID text a call, for errors.
            log: takes structured events.
            now_ms: UTC ms.
            container_id: told to the client in `open`.
            limits: bounds of this connection.
            bears_refusal: told of each token or key that is refused; whether its peer may go on.
            peer: gives the other end's address and port for the log; empty = not known.
        """
        limits = limits if limits is not None else GatewayLimits()
        self._connection = Connection(
            "server",
            container_id=container_id,
            now_ms=now_ms,
            idle_timeout_ms=limits.idle_timeout_ms,
            sasl_mechanisms=SASL_MECHANISMS,
        )
        self._context = Context(
            connection_id, self._connection, Reporter(connection_id, tracking, log, peer), limits
        )
        self._namespaces = namespaces
        self._bears_refusal = bears_refusal
        self._refusals_left = limits.refusals_max
        self._authority: Authority | None = None
        self._authority_version = 0
        self._claim_overdue_ms = now_ms + limits.claim_wait_ms
        self._answers = Answers(self._context)
        self._links = Links(self._context, self._answers)
        self._over = False
        self._stopping = False
        self._expelled = False
        """Nothing that this peer still sends is looked at: 50 bad tokens may come in one read."""
        self._on_event: Handlers = {
            **self._links.on_event,
            LinkAttached: self._on_attached,
            SaslInit: self._on_sasl,
            ConnectionOpened: self._on_opened,
            ConnectionClosed: self._on_closed,
        }
        self._on_effect: Handlers = {
            **self._links.on_effect,
            LocksRenewed: self._answers.take,
            MessagesFound: self._answers.take,
            Claimed: self._answers.take,
            ClaimsLeft: self._answers.take,
            CursorsFound: self._answers.take,
            MessagesScheduled: self._answers.take,
            MessagesDeleted: self._answers.take,
            SessionLockRenewed: self._answers.take,
            SessionsFound: self._answers.take,
            RulesFound: self._answers.take,
            Done: self._answers.take,
            Failed: self._answers.take,
            EntityFound: self._answers.take,
            EntitiesFound: self._answers.take,
        }

    # From and to the socket

    def receive(self, data: bytes | bytearray | memoryview, now_ms: int) -> list[Command]:
        """Take bytes from the client; give what it asks of the broker."""
        connection = self._connection
        handlers = self._on_event
        while True:
            for event in connection.receive(data, now_ms):
                handler = handlers.get(type(event))
                if handler is not None and (not self._expelled or handler == self._on_closed):
                    handler(event, now_ms)
            if not connection.stalled or self._over:
                return self.take_commands()
            data = b""

    def eof(self, now_ms: int) -> list[Command]:
        """Take the end of the stream; may be called again, and then gives nothing new."""
        return self._handle_events(self._connection.eof(now_ms), now_ms)

    def tick(self, now_ms: int) -> list[Command]:
        """Let time pass: idle time-out, empty frames, tokens that run out or never came."""
        self._context.reporter.tick(now_ms)
        claims, authority = self._context.claims, self._authority
        if claims.expire(now_ms):
            self._links.detach_unauthorized(TokenExpired("ExpiredToken: The token is expired."), now_ms)
        if authority is not None and authority.version != self._authority_version:
            self._authority_version = authority.version
            if claims.revoke(authority.upholds):
                revoked = SignatureInvalid("InvalidSignature: The rule or its key is no longer valid.")
                self._links.detach_unauthorized(revoked, now_ms)
        if self._awaits_claim and now_ms >= self._claim_overdue_ms:
            self._end_unclaimed(now_ms)
        return self._handle_events(self._connection.tick(now_ms), now_ms)

    def next_deadline_ms(self) -> int | None:
        """Give when `tick` has to be called next, UTC ms."""
        if self._authority is not None and self._authority.version != self._authority_version:
            return 0  # at once
        context = self._context
        deadlines = (
            self._connection.next_deadline_ms(),
            context.claims.next_expiry_ms(),
            context.reporter.next_deadline_ms(),
            self._claim_overdue_ms if self._awaits_claim else None,
        )
        return min((at for at in deadlines if at is not None), default=None)

    def data_to_send(self) -> bytes:
        """Give the bytes to write, once."""
        return self._connection.data_to_send()

    def written(self, pending_bytes: int, now_ms: int) -> list[Command]:
        """Take how many bytes still wait in the transport; give what this lets us ask of the broker.

        To be called after each turn of `handle` and `data_to_send`, also when there was nothing to write:
        effects too can lead to commands (a delivery that came too late for its link is given back).
        """
        self._context.output_bytes = pending_bytes + self._connection.pending_bytes
        self._links.allow_bytes()
        return self.take_commands()

    def take_commands(self) -> list[Command]:
        """Give the commands that have come up since the last call."""
        commands = self._context.commands
        taken = commands[:]
        commands.clear()
        return taken

    @property
    def closing(self) -> bool:
        """Say whether the socket is to be closed once everything is written."""
        return self._over or self._stopping

    @property
    def uncommitted_bytes(self) -> int:
        """Payload bytes offered to the broker and not answered yet."""
        return self._context.uncommitted_bytes

    @property
    def known(self) -> bool:
        """Whether the peer has ever shown a valid claim."""
        return self._context.claims.shown

    def shutdown(self, now_ms: int) -> None:
        """Close the connection because the broker stops; clients come back with a back-off."""
        if not self._over and not self._stopping:
            self._stopping = True
            self._connection.close(AmqpError(CONNECTION_FORCED, "The broker is shutting down."))

    # From the broker

    def handle(self, effect: Effect, payloads: Payloads, now_ms: int) -> None:
        """Turn an effect into frames."""
        self._context.payloads = payloads
        self._on_effect[type(effect)](effect, now_ms)

    def bodies_wanted(self) -> set[int]:
        """Name the body rows that deliveries and answers wait for."""
        return self._answers.body_rows_wanted() | self._links.bodies_wanted()

    def bodies_arrived(self, payloads: Payloads, now_ms: int) -> None:
        """Try again what waited for a body."""
        self._context.payloads = payloads
        self._links.bodies_arrived()
        self._answers.retry(now_ms)

    def _handle_events(self, events: list[Any], now_ms: int) -> list[Command]:
        for event in events:
            handler = self._on_event.get(type(event))
            if handler is not None:
                handler(event, now_ms)
        if self._connection.stalled and not self._over:
            return self.receive(b"", now_ms)
        return self.take_commands()

    # Connection

    def _on_sasl(self, event: SaslInit, now_ms: int) -> None:
        if event.mechanism != "PLAIN":
            # MSSBCBS and EXTERNAL too say nothing here: the claims follow on $cbs.
            self._connection.sasl_outcome(event.mechanism in SASL_MECHANISMS)
            if event.mechanism not in SASL_MECHANISMS:
                self._over = True
            return
        try:
            self._authorize_plain(event)
        except AuthorizationError as error:
            self._context.reporter.report(error, "$sasl", now_ms)
            self._connection.sasl_outcome(False)
            self._over = True
            self._bears_refusal()
        else:
            self._connection.sasl_outcome(True)

    def _authorize_plain(self, event: SaslInit) -> None:
        fields = event.response.split(b"\0")
        if len(fields) != 3 or len(event.response) > _PLAIN_BYTES_MAX:
            raise KeyRefused("The PLAIN response does not hold a key name and a key.")
        entry = self._namespaces.find(event.hostname)
        if entry is None:
            raise KeyRefused("No namespace answers to this host name.")
        try:
            name, key = fields[1].decode(), fields[2].decode()
        except UnicodeDecodeError:
            raise KeyRefused("The PLAIN response is not valid UTF-8.") from None
        self._hold_to(entry.authority)
        self._context.claims.add(entry.authority.authorize_key(name, key))

    def _hold_to(self, authority: Authority) -> None:
        """Take back from now on what this authority upholds no more."""
        if self._authority is not authority:
            self._authority = authority
            self._authority_version = authority.version

    def _on_token_refused(self, error: AuthorizationError, now_ms: int) -> bool:
        """End the connection of a peer that goes on with bad tokens: each costs as much as a send.

        Answers whether the peer may go on.
        """
        self._refusals_left -= 1
        if self._bears_refusal() and self._refusals_left:
            return True
        text = f"Too many tokens were refused, the last one because of: {error} Wait before you try again."
        self._stopping = self._expelled = True
        self._connection.close(self._context.reporter.report(TooManyRefusals(text), "$cbs", now_ms))
        return False

    def _on_token_replaced(self, now_ms: int) -> None:
        """Detach what only the token before allowed: with it goes what takes its links back later."""
        less = ClaimMissing("Unauthorized access. The token was replaced by one with other rights.")
        self._links.detach_unauthorized(less, now_ms)

    @property
    def _awaits_claim(self) -> bool:
        return not (self._context.claims.shown or self.closing)

    def _end_unclaimed(self, now_ms: int) -> None:
        """Close the connection of a peer that has not said who it is."""
        overdue = ClaimOverdue(
            f"There was no valid token or key within {self._context.limits.claim_wait_ms // 1000} s of "
            "connecting: put a token on '$cbs', or log in with SASL PLAIN."
        )
        self._stopping = True
        self._connection.close(self._context.reporter.report(overdue, "$cbs", now_ms))

    def _on_opened(self, event: ConnectionOpened, now_ms: int) -> None:
        entry = self._namespaces.find(event.hostname)
        self._connection.open()
        if entry is None:
            self._stopping = True
            self._connection.close(AmqpError(NOT_FOUND, "No namespace answers to this host name."))
            return
        if event.hostname:
            self._context.reporter.host_name = event.hostname.lower()
        authority = entry.authority
        self._hold_to(authority)
        if authority.anybody is not None:
            self._context.claims.add(authority.anybody)
        self._links.nodes.tokens = TokenNode(
            self._context, authority, self._on_token_refused, self._on_token_replaced
        )

    def _on_closed(self, event: ConnectionClosed, now_ms: int) -> None:
        self._context.reporter.finish()
        if event.error is not None:
            self._context.reporter.note(
                "connection closed",
                {"condition": str(event.error.condition), "text": event.error.description},
                now_ms,
            )
        broken = not event.clean and not self._stopping
        self._links.end(broken=broken)
        self._answers.clear()
        self._over = True
        self._context.commands.append(DropConnection(self._context.connection_id, broken))

    def _on_attached(self, event: LinkAttached, now_ms: int) -> None:
        if not self._stopping:  # else it came in one read with what made us close
            self._links.attached(event, now_ms)
