"""The gateway: one AMQP connection between a socket and the broker, sans-IO.

Bytes go in and commands come out of `receive`. Effects go in by `handle`, and bytes come out
of `data_to_send`. Events and effects are dispatched by type tables. Source: wire contract
1.3-1.6; requirement L-13.

The public methods are the border: no exception of the gateway or of the AMQP engine leaves them, since a
defect must end the connection that meets it and no other. The commands of that call are dropped, so that
those of a read are offered all or not at all. `DropConnection` takes their place: the broker gives back what
was locked or under way, as for any broken connection (L-13, L-16). The client gets `amqp:internal-error` if
that can still be sent. Later input of the connection is ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from peeklock.amqp.connection import UNLIMITED_UNITS, Connection
from peeklock.amqp.errors import CONNECTION_FORCED, INTERNAL_ERROR, AmqpError
from peeklock.amqp.events import ConnectionClosed, ConnectionOpened, LinkAttached, SaslInit
from peeklock.amqp.frames import Limits
from peeklock.auth import Grant
from peeklock.broker.vocabulary.commands import Command, DropConnection, LockToken
from peeklock.broker.vocabulary.effects import Effect
from peeklock.broker.vocabulary.quotas import PREMIUM
from peeklock.gateway.admission import SASL_MECHANISMS, Admission
from peeklock.gateway.answers import EFFECTS, Answers
from peeklock.gateway.bounds import STRANGER_LIMITS, Buffers
from peeklock.gateway.choice import Choice, Namespaces
from peeklock.gateway.claims import Claims
from peeklock.gateway.context import Backlog, Context, GatewayLimits, Output, Payloads
from peeklock.gateway.errors import Log, Reporter
from peeklock.gateway.link_table import Handlers, LinkTable
from peeklock.gateway.showing import client_of, link_views
from peeklock.gateway.transactions import Transactions
from peeklock.gateway.views import Client, ConnectionView, LinkView

OnDefect = Callable[[Exception, str], None]
"""Takes a defect and the tracking id that the client got. What it raises leaves the gateway."""


def raise_defect(defect: Exception, tracking_id: str) -> None:
    """Raise a defect, for users in the same process and tests."""
    raise defect


class Gateway:
    """See the module."""

    _stranger = True
    """The peer has shown no valid claim yet: `STRANGER_LIMITS` hold."""
    _over = False
    _forced = False
    """This end has closed it without a fault of the peer: the broker stops, or an operator said so."""
    _client = Client()
    _broken = False
    """A defect of ours has ended the connection."""

    def __init__(
        self,
        connection_id: int,
        *,
        namespaces: Namespaces,
        tracking: Callable[[], str],
        log: Log,
        now_ms: int,
        limits: GatewayLimits | None = None,
        bears_refusal: Callable[[], bool] = lambda: True,
        peer: Callable[[], str] = str,
        on_defect: OnDefect = raise_defect,
        buffers: Buffers | None = None,
        first_uses: set[str] | None = None,
        ahead_ms: Callable[[], int] = int,
        on_chosen: Callable[[Any], None] = lambda hosted: None,
    ) -> None:
        """Make the server's end of a connection.

        Args:
            connection_id: never used twice while the broker runs.
            tracking: returns a fresh GUID text a call, for errors.
            bears_refusal: counts a refused token or key, and returns whether its peer may go on.
            peer: returns the other end's address and port for the log; empty = not known.
            on_defect: takes a defect of ours that has ended this connection.
            buffers: what unfinished deliveries may take, of all connections; None = of this alone.
            first_uses: what was logged already as different from Azure, of all connections; None = of this.
            ahead_ms: how far the wall clock, by which tokens are judged, is ahead of `now_ms`.
            on_chosen: is called with the namespace that the peer has chosen; see `Choice`.
        """
        limits = limits if limits is not None else GatewayLimits()
        self._buffers = buffers if buffers is not None else Buffers.of_memory(sys.maxsize, PREMIUM)
        self._connection = Connection(
            "server",
            container_id="peeklock",
            now_ms=now_ms,
            idle_timeout_ms=limits.idle_timeout_ms,
            sasl_mechanisms=SASL_MECHANISMS,
            limits=STRANGER_LIMITS,
            reassembly=self._buffers.strangers,
        )
        reporter = Reporter(connection_id, tracking, log, peer, first_uses)
        self._context = Context(connection_id, self._connection, reporter, limits)
        self._claims = Claims(ahead_ms)
        self._choice = Choice(namespaces, on_chosen)
        self._admission = Admission(
            self._connection, reporter, self._claims, limits, self._choice, bears_refusal, now_ms
        )
        self._backlog = Backlog()
        self._output = Output()
        self._transactions = Transactions(connection_id, self._context.commands)
        self._answers = Answers(connection_id, self._output)
        self._links = LinkTable(
            self._context, self._claims, self._backlog, self._output, self._transactions, self._answers
        )
        self._on_defect = on_defect
        self._held: list[Any] = []
        """Events behind one that is read in part."""
        self._on_event = self._event_handlers()
        self._on_effect: Handlers = {**self._links.on_effect, **dict.fromkeys(EFFECTS, self._answers.take)}

    def _event_handlers(self) -> Handlers:
        return {
            **self._links.on_event,
            LinkAttached: self._on_attached,
            SaslInit: self._on_sasl,
            ConnectionOpened: self._on_opened,
            ConnectionClosed: self._on_closed,
        }

    def grant(self, grants: Iterable[Grant]) -> None:
        """Add the grants of a peer that is known without a token; they count as long as they are upheld."""
        for grant in grants:
            self._claims.add(grant)

    # From and to the socket

    def receive(
        self, data: bytes | bytearray | memoryview, now_ms: int, units: int = UNLIMITED_UNITS
    ) -> list[Command]:
        """Take bytes from the client; return what it asks of the broker.

        Reading stops after frames of `units` (`amqp.connection.FRAME_UNITS`), also within a large batch:
        `unread` is true then, and `receive(b"", now_ms, units)` continues.
        """
        if not self._broken:
            try:
                self._read(data, now_ms, units)
                if self._choice.is_open and self._context.commands and not self._admission.use(now_ms):
                    self._context.commands.clear()
            except Exception as defect:
                self._break(defect)
        return self.take_commands()

    def _read(self, data: bytes | bytearray | memoryview, now_ms: int, units: int) -> None:
        connection, backlog = self._connection, self._backlog
        if self._held or backlog.readings:
            connection.receive(data, now_ms, 0)  # it is behind them
            data = b""
            units = self._read_held(now_ms, units)
            if units <= 0:
                return
        while True:
            if self._stranger and self._claims.shown:
                self._welcome()
            self._handle_events(connection.receive(data, now_ms, units), now_ms)
            units = connection.units_left
            if backlog.readings:
                units = self._read_held(now_ms, units)
            if not connection.unread or self._over or units <= 0:
                return
            data = b""

    def _read_held(self, now_ms: int, units: int) -> int:
        """Continue a read in part, then the events behind it; return the units that are left."""
        backlog = self._backlog
        while units > 0 and not self._over:
            if backlog.readings:
                backlog.read_slice()
                units -= self._context.limits.slice_messages
            elif self._held:
                held, self._held = self._held, []
                self._handle_events(held, now_ms)
            else:
                break
        return units

    def _handle_events(self, events: list[Any], now_ms: int) -> None:
        """Handle events up to one that is read in part; the others wait for it."""
        handlers, readings = self._on_event, self._backlog.readings
        for count, event in enumerate(events, 1):
            handler = handlers.get(type(event))
            if handler is not None and (not self._admission.expelled or handler == self._on_closed):
                handler(event, now_ms)
                if readings:
                    self._held = events[count:]
                    return

    @property
    def unread(self) -> bool:
        """Whether reading stopped within the bytes that have come."""
        waits = self._held or self._backlog.readings or self._connection.unread
        return bool(waits) and not (self._over or self._broken)

    def _welcome(self) -> None:
        """Apply the limits of a peer that has shown a valid claim."""
        self._stranger = False
        limits = Limits(reassembly_bytes=self._buffers.connection_bytes_max)
        self._connection.set_limits(limits, self._buffers.known)

    def eof(self, now_ms: int) -> list[Command]:
        """Take the end of the stream; a second call returns nothing new."""
        if not self._broken:
            try:
                self._handle_events(self._connection.eof(now_ms), now_ms)
            except Exception as defect:
                self._break(defect)
        return self.take_commands()

    def tick(self, now_ms: int) -> list[Command]:
        """Do what is due: idle time-out, empty frames, tokens that expire or never came."""
        if not self._broken:
            try:
                self._let_pass(now_ms)
            except Exception as defect:
                self._break(defect)
        return self.take_commands()

    def _let_pass(self, now_ms: int) -> None:
        self._context.reporter.tick(now_ms)
        for reason in self._admission.lapsed(now_ms):
            self._links.detach_unauthorized(reason, now_ms)
        if not self.closing:
            self._admission.end_overdue(now_ms)
        self._handle_events(self._connection.tick(now_ms), now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when to call `tick` next, UTC ms."""
        if not self._broken:
            try:
                return self._next_deadline_ms()
            except Exception as defect:
                self._break(defect)
        return 0 if self._context.commands else None

    def _next_deadline_ms(self) -> int | None:
        deadlines = (
            self._connection.next_deadline_ms(),
            self._admission.next_deadline_ms(closing=self.closing),
            self._context.reporter.next_deadline_ms(),
        )
        return min((at for at in deadlines if at is not None), default=None)

    def data_to_send(self) -> bytes:
        """Return the bytes to write, once."""
        try:
            return self._connection.data_to_send()
        except Exception as defect:
            self._break(defect)
        with suppress(Exception):
            return self._connection.data_to_send()  # why it ends, if that can be said
        return b""

    def written(self, pending_bytes: int, now_ms: int) -> list[Command]:
        """Take how many bytes still wait in the transport; return the commands that this allows.

        Call it after each turn of `handle` and `data_to_send`, also when there was nothing to write:
        effects too can lead to commands (a delivery that came too late for its link is given back).
        """
        if not self._broken:
            try:
                self._output.pending_bytes = pending_bytes + self._connection.pending_bytes
                if self._links.starved:
                    self._links.allow_bytes()
            except Exception as defect:
                self._break(defect)
        return self.take_commands() if self._context.commands else []

    def take_commands(self) -> list[Command]:
        """Return the commands since the last call."""
        commands = self._context.commands
        taken = commands[:]
        commands.clear()
        return taken

    @property
    def closing(self) -> bool:
        """Whether the socket is to be closed once everything is written."""
        return self._over or self._ours

    @property
    def _ours(self) -> bool:
        """Whether this end has closed the connection."""
        return self._forced or self._admission.closed

    @property
    def uncommitted_bytes(self) -> int:
        """Payload bytes offered to the broker and not answered yet."""
        return self._backlog.uncommitted_bytes

    @property
    def buffered_bytes(self) -> int:
        """Bytes from the peer that wait for the rest of them, and bytes for it that are not written yet."""
        return self._connection.buffered_bytes + self._links.replies.unsent_bytes

    @property
    def known(self) -> bool:
        """Whether the peer has ever shown a valid claim."""
        return self._claims.shown

    def view(self) -> ConnectionView:
        """Return what an operator sees of the connection."""
        names: list[str] = []
        links: list[LinkView] = []
        try:
            names, links = self._claims.names, link_views(self._connection, self._links.links)
        except Exception as defect:
            self._break(defect)
        return ConnectionView(self._client, names, links)

    def shutdown(self, now_ms: int, why: str = "The broker is shutting down.") -> None:
        """Close the connection because the broker stops, or an operator says so; clients reconnect."""
        if not self.closing:
            self._forced = True
            try:
                self._connection.close(AmqpError(CONNECTION_FORCED, why))
            except Exception as defect:
                self._break(defect)

    def forget(self) -> None:
        """Break the reference cycles, so that reference counting alone frees the connection.

        Call it last, when neither bytes nor effects come any more.
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
            self._output.payloads = payloads
            handlers = self._on_effect
            for effect in effects:
                handlers[type(effect)](effect, now_ms)
        except Exception as defect:
            self._break(defect)

    def bodies_wanted(self) -> set[int]:
        """Return the body rows that deliveries and answers wait for."""
        if self._broken or not (self._output.waiting_links or self._answers.waiting):
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
            self._output.payloads = payloads
            self._links.bodies_arrived()
            self._answers.retry(now_ms)
        except Exception as defect:
            self._break(defect)

    # Defects

    def _break(self, defect: Exception) -> None:
        """End this connection because of a defect of ours; see the module.

        What failed may fail again: each step is independent, and the end itself needs none of them.
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
        undelivered: list[tuple[int, LockToken]] = []
        with suppress(Exception):
            undelivered = self._links.end()
        for forget in (commands.clear, self._answers.clear, context.reporter.finish):
            with suppress(Exception):
                forget()
        if not ended_before:
            commands.append(DropConnection(context.connection_id, True, undelivered))
        self._backlog.uncommitted_bytes = 0
        self._on_defect(defect, tracking_id)

    # Connection

    def _on_sasl(self, event: SaslInit, now_ms: int) -> None:
        if not self._admission.authenticate(event, now_ms):
            self._over = True

    def _on_opened(self, event: ConnectionOpened, now_ms: int) -> None:
        self._client = client_of(event)
        if self._admission.opened(event, now_ms):
            self._links.accept_tokens(self._choice, self._admission.token_refused)

    def _on_closed(self, event: ConnectionClosed, now_ms: int) -> None:
        reporter = self._context.reporter
        reporter.finish()
        if event.error is not None:
            fields = {"condition": str(event.error.condition), "text": event.error.description}
            reporter.note("connection closed", fields, now_ms)
        broken = not event.clean and not self._ours
        undelivered = self._links.end(event.unsent)
        self._answers.clear()
        self._over = True
        self._context.commands.append(DropConnection(self._context.connection_id, broken, undelivered))

    def _on_attached(self, event: LinkAttached, now_ms: int) -> None:
        if not self._ours:  # else it came in one read with what made us close
            self._links.attached(event, now_ms)
