"""The gateway: one AMQP connection between a socket and the broker, sans-IO.

Owns: SASL, the beginning and end of the connection, how long a peer may be nobody, and what goes in and out.
Must not know: sockets, the engine, how a body is kept; its `LinkTable` know the rest. Events and effects are
dispatched by type tables. Source: wire contract 1.3-1.6; requirement L-13.

The public methods are the border: no exception of the gateway or of the AMQP engine leaves them, because a
defect that a peer meets is to end that peer's connection and no other. The commands of the call that met it
are dropped, so that those of a read are offered all or not at all. `DropConnection` takes their place: the
broker gives back what was locked or under way, as for any broken connection (L-13, L-16). The client is told
`amqp:internal-error` if that can still be said. What comes for the connection later is ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from peeklock.amqp.connection import UNLIMITED_UNITS, Connection
from peeklock.amqp.errors import CONNECTION_FORCED, INTERNAL_ERROR, NOT_FOUND, AmqpError
from peeklock.amqp.events import ConnectionClosed, ConnectionOpened, LinkAttached, SaslInit
from peeklock.amqp.frames import Limits
from peeklock.auth import (
    Authority,
    AuthorizationError,
    ClaimMissing,
    KeyRefused,
    SignatureInvalid,
    TokenExpired,
)
from peeklock.broker.vocabulary.commands import Command, DropConnection
from peeklock.broker.vocabulary.effects import (
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
from peeklock.broker.vocabulary.quotas import PREMIUM
from peeklock.gateway.answers import Answers
from peeklock.gateway.bounds import STRANGER_LIMITS, Buffers
from peeklock.gateway.claims import Claims
from peeklock.gateway.context import Context, GatewayLimits, Payloads
from peeklock.gateway.errors import ClaimOverdue, Inactive, Log, Reporter, TooManyRefusals
from peeklock.gateway.link_table import Handlers, LinkTable
from peeklock.gateway.namespaces import Namespaces
from peeklock.gateway.nodes.cbs import TokenNode

SASL_MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
"""The service's set. The Python client refuses to go on without ANONYMOUS. Source: wire contract 1.3."""

_PLAIN_BYTES_MAX = 1024

OnDefect = Callable[[Exception, str], None]
"""Takes a defect and the tracking id that the client was told. What it raises leaves the gateway."""


def raise_defect(defect: Exception, tracking_id: str) -> None:
    """Raise a defect: users in the same process and tests are to see it."""
    raise defect


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
        on_defect: OnDefect = raise_defect,
        buffers: Buffers | None = None,
        first_uses: set[str] | None = None,
        ahead_ms: Callable[[], int] = int,
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
            on_defect: takes a defect of ours that has ended this connection; raises it unless given.
            buffers: what unfinished deliveries may take, of this and all connections; None = of this alone,
                with the largest messages of any tier.
            first_uses: what was logged already as different from Azure, of all connections; None = of this
                alone.
            ahead_ms: how far the wall clock, by which tokens are judged, is ahead of `now_ms`.
        """
        limits = limits if limits is not None else GatewayLimits()
        self._buffers = buffers if buffers is not None else Buffers.of_memory(sys.maxsize, PREMIUM)
        self._connection = Connection(
            "server",
            container_id=container_id,
            now_ms=now_ms,
            idle_timeout_ms=limits.idle_timeout_ms,
            sasl_mechanisms=SASL_MECHANISMS,
            limits=STRANGER_LIMITS,
            reassembly=self._buffers.strangers,
        )
        self._stranger = True
        """The peer has shown no valid claim yet, so it is held to `STRANGER_LIMITS`."""
        self._context = Context(
            connection_id,
            self._connection,
            Reporter(connection_id, tracking, log, peer),
            limits,
            Claims(ahead_ms),
        )
        if first_uses is not None:
            self._context.first_uses = first_uses
        self._namespaces = namespaces
        self._bears_refusal = bears_refusal
        self._refusals_left = limits.refusals_max
        self._authority: Authority | None = None
        self._authority_version = 0
        self._claim_overdue_ms = now_ms + limits.claim_wait_ms
        self._answers = Answers(self._context)
        self._links = LinkTable(self._context, self._answers)
        self._on_defect = on_defect
        self._held: list[Any] = []
        """Events behind what is read in part."""
        self._over = False
        self._stopping = False
        self._broken = False
        """A defect of ours has ended the connection."""
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

    def receive(
        self, data: bytes | bytearray | memoryview, now_ms: int, units: int = UNLIMITED_UNITS
    ) -> list[Command]:
        """Take bytes from the client; return what it asks of the broker.

        Reading stops after frames of `units` (`amqp.connection.FRAME_UNITS`), also within a large batch:
        `unread` is true then, and `receive(b"", now_ms, units)` goes on.
        """
        if not self._broken:
            try:
                self._read(data, now_ms, units)
            except Exception as defect:
                self._break(defect)
        return self.take_commands()

    def _read(self, data: bytes | bytearray | memoryview, now_ms: int, units: int) -> None:
        connection, context = self._connection, self._context
        if self._held or context.readings:
            connection.receive(data, now_ms, 0)  # it is behind them
            data = b""
            units = self._read_held(now_ms, units)
            if units <= 0:
                return
        while True:
            if self._stranger and context.claims.shown:
                self._welcome()
            self._handle_events(connection.receive(data, now_ms, units), now_ms)
            units = connection.units_left
            if context.readings:
                units = self._read_held(now_ms, units)
            if not connection.unread or self._over or units <= 0:
                return
            data = b""

    def _read_held(self, now_ms: int, units: int) -> int:
        """Go on with what is read in part, then with the events behind it; return the units that are left."""
        context = self._context
        while units > 0 and not self._over:
            if context.readings:
                context.read_slice()
                units -= context.limits.slice_messages
            elif self._held:
                held, self._held = self._held, []
                self._handle_events(held, now_ms)
            else:
                break
        return units

    def _handle_events(self, events: list[Any], now_ms: int) -> None:
        """Handle events up to one that is read in part; the others wait for it."""
        handlers, readings = self._on_event, self._context.readings
        for count, event in enumerate(events, 1):
            handler = handlers.get(type(event))
            if handler is not None and (not self._expelled or handler == self._on_closed):
                handler(event, now_ms)
                if readings:
                    self._held = events[count:]
                    return

    @property
    def unread(self) -> bool:
        """Whether reading stopped within the bytes that have come."""
        waits = self._held or self._context.readings or self._connection.unread
        return bool(waits) and not (self._over or self._broken)

    def _welcome(self) -> None:
        """Hold a peer that has shown a valid claim to the limits of one."""
        self._stranger = False
        limits = Limits(reassembly_bytes=self._buffers.connection_bytes_max)
        self._connection.set_limits(limits, self._buffers.known)

    def eof(self, now_ms: int) -> list[Command]:
        """Take the end of the stream; may be called again, and then gives nothing new."""
        if not self._broken:
            try:
                self._handle_events(self._connection.eof(now_ms), now_ms)
            except Exception as defect:
                self._break(defect)
        return self.take_commands()

    def tick(self, now_ms: int) -> list[Command]:
        """Let time pass: idle time-out, empty frames, tokens that run out or never came."""
        if not self._broken:
            try:
                self._let_pass(now_ms)
            except Exception as defect:
                self._break(defect)
        return self.take_commands()

    def _let_pass(self, now_ms: int) -> None:
        self._context.reporter.tick(now_ms)
        claims, authority = self._context.claims, self._authority
        expired_at_ms = claims.expire(now_ms)
        if expired_at_ms is not None:
            self._links.detach_unauthorized(TokenExpired.at(expired_at_ms), now_ms)
        if authority is not None and authority.version != self._authority_version:
            self._authority_version = authority.version
            if claims.revoke(authority.upholds):
                revoked = SignatureInvalid("InvalidSignature: The rule or its key is no longer valid.")
                self._links.detach_unauthorized(revoked, now_ms)
        if self._awaits_claim and now_ms >= self._claim_overdue_ms:
            self._end_unclaimed(now_ms)
        due_ms = self._inactive_due_ms
        if due_ms is not None and now_ms >= due_ms:
            self._end_inactive(now_ms)
        self._handle_events(self._connection.tick(now_ms), now_ms)

    def next_deadline_ms(self) -> int | None:
        """Give when `tick` has to be called next, UTC ms."""
        if not self._broken:
            try:
                return self._next_deadline_ms()
            except Exception as defect:
                self._break(defect)
        return 0 if self._context.commands else None

    def _next_deadline_ms(self) -> int | None:
        if self._authority is not None and self._authority.version != self._authority_version:
            return 0  # at once
        context = self._context
        deadlines = (
            self._connection.next_deadline_ms(),
            context.claims.next_expiry_ms(),
            context.reporter.next_deadline_ms(),
            self._claim_overdue_ms if self._awaits_claim else None,
            self._inactive_due_ms,
        )
        return min((at for at in deadlines if at is not None), default=None)

    def data_to_send(self) -> bytes:
        """Give the bytes to write, once."""
        try:
            return self._connection.data_to_send()
        except Exception as defect:
            self._break(defect)
        with suppress(Exception):
            return self._connection.data_to_send()  # why it ends, if that can be said
        return b""

    def written(self, pending_bytes: int, now_ms: int) -> list[Command]:
        """Take how many bytes still wait in the transport; give what this lets us ask of the broker.

        To be called after each turn of `handle` and `data_to_send`, also when there was nothing to write:
        effects too can lead to commands (a delivery that came too late for its link is given back).
        """
        if not self._broken:
            try:
                self._context.output_bytes = pending_bytes + self._connection.pending_bytes
                if self._links.starved:
                    self._links.allow_bytes()
            except Exception as defect:
                self._break(defect)
        return self.take_commands() if self._context.commands else []

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
    def buffered_bytes(self) -> int:
        """Bytes from the peer that wait for the rest of them, and bytes for it that are not written yet."""
        return self._connection.buffered_bytes + self._context.unsent_reply_bytes

    @property
    def known(self) -> bool:
        """Whether the peer has ever shown a valid claim."""
        return self._context.claims.shown

    def shutdown(self, now_ms: int) -> None:
        """Close the connection because the broker stops; clients come back with a back-off."""
        if not self._over and not self._stopping:
            self._stopping = True
            try:
                self._connection.close(AmqpError(CONNECTION_FORCED, "The broker is shutting down."))
            except Exception as defect:
                self._break(defect)

    def forget(self) -> None:
        """Drop what refers back to this object: reference counting alone frees the connection then.

        To be called last, when neither bytes nor effects come any more.
        """
        try:
            self._on_event.clear()
            self._on_effect.clear()
            self._links.forget()
        except Exception as defect:
            self._on_defect(defect, "")

    # From the broker

    def handle(self, effects: Iterable[Effect], payloads: Payloads, now_ms: int) -> None:
        """Turn effects into frames, in order."""
        if self._broken:
            return
        try:
            self._context.payloads = payloads
            handlers = self._on_effect
            for effect in effects:
                handlers[type(effect)](effect, now_ms)
        except Exception as defect:
            self._break(defect)

    def bodies_wanted(self) -> set[int]:
        """Name the body rows that deliveries and answers wait for."""
        if self._broken or not (self._context.waiting_links or self._answers.waiting):
            return set()
        try:
            return self._answers.body_rows_wanted() | self._links.bodies_wanted()
        except Exception as defect:
            self._break(defect)
        return set()

    def bodies_arrived(self, payloads: Payloads, now_ms: int) -> None:
        """Try again what waited for a body."""
        if self._broken:
            return
        try:
            self._context.payloads = payloads
            self._links.bodies_arrived()
            self._answers.retry(now_ms)
        except Exception as defect:
            self._break(defect)

    # Defects

    def _break(self, defect: Exception) -> None:
        """End this connection because of a defect of ours; see the module.

        What failed may fail again: each step is on its own, and the end itself needs none of them.
        """
        if self._broken:
            return
        context = self._context
        commands = context.commands
        ended_before = self._over and not any(type(command) is DropConnection for command in commands)
        self._broken = self._over = True
        commands.clear()
        tracking_id = ""
        with suppress(Exception):
            tracking_id = context.reporter.track()
        with suppress(Exception):
            self._connection.close(
                AmqpError(
                    INTERNAL_ERROR,
                    "The service was unable to process the request; please retry the operation. "
                    f"TrackingId:{tracking_id}",
                )
            )
        undelivered: list[tuple[int, bytes]] = []
        with suppress(Exception):
            undelivered = self._links.end()
        for forget in (commands.clear, self._answers.clear, context.reporter.finish):
            with suppress(Exception):
                forget()
        if not ended_before:
            commands.append(DropConnection(context.connection_id, True, undelivered))
        context.uncommitted_bytes = 0
        self._on_defect(defect, tracking_id)

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

    @property
    def _inactive_due_ms(self) -> int | None:
        token_checked_at_ms = self._context.claims.token_checked_at_ms
        if token_checked_at_ms is None or self.closing:
            return None
        return token_checked_at_ms + self._context.limits.inactive_ms

    def _end_inactive(self, now_ms: int) -> None:
        """Close the connection of a peer that may use the namespace and finds nothing there.

        It has no link but to `$cbs`, and perhaps to the coordinator: others want a grant.
        """
        inactive = Inactive(
            f"The connection was inactive for {self._context.limits.inactive_ms} ms: it has no links, since "
            "the entities of its tokens could not be found."
        )
        self._stopping = True
        self._connection.close(self._context.reporter.report(inactive, "$cbs", now_ms))

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
        undelivered = self._links.end(event.unsent)
        self._answers.clear()
        self._over = True
        self._context.commands.append(DropConnection(self._context.connection_id, broken, undelivered))

    def _on_attached(self, event: LinkAttached, now_ms: int) -> None:
        if not self._stopping:  # else it came in one read with what made us close
            self._links.attached(event, now_ms)
