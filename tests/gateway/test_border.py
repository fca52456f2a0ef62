"""A defect in any function of the gateway and the AMQP engine ends the connection that meets it alone.

Each function that a history calls fails once in a replay of its own, at its first call, and in another at
its last. The failure is raised where the function begins, by the interpreter's trace function, so that it
does not matter by which name others know the function.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import cache
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest

import peeklock.amqp
import peeklock.gateway
from peeklock.amqp.handshake import ConnectionState
from peeklock.amqp.performatives import ACCEPTED
from peeklock.broker.vocabulary.commands import Command, DropConnection
from peeklock.gateway import inspection
from peeklock.gateway.annotations import _LAYOUTS, _own_pairs
from peeklock.gateway.connection import Gateway
from peeklock.testing.inprocess import InProcessBroker, InProcessConnection
from tests.gateway.harness import LiveHarness
from tests.gateway.history import CHAPTERS, Chapter, broker_for, waits
from tests.gateway.live import message, send

FOLDERS = tuple(str(Path(str(room.__file__)).parent) for room in (peeklock.amqp, peeklock.gateway))

CALLS = ("receive", "eof", "tick", "written", "take_commands")
OTHERS = (
    "next_deadline_ms",
    "data_to_send",
    "shutdown",
    "view",
    "handle",
    "bodies_wanted",
    "bodies_arrived",
    "forget",
)
PROPERTIES = ("closing", "uncommitted_bytes", "known", "unread", "buffered_bytes")
BORDER = frozenset(f"Gateway.{name}" for name in (*CALLS, *OTHERS, *PROPERTIES, "_break", "forget"))
"""What catches the failures, so cannot fail itself: each is its own few lines."""


FORGET = (
    _LAYOUTS.clear,
    _own_pairs.cache_clear,
    inspection._known_annotations.cache_clear,
    inspection._read_ttl_ms.cache_clear,
)
"""Empties what the process remembers, so that each replay makes the same calls."""

UNREACHED = frozenset(
    {
        # Before the border: the connection is not there yet.
        "connection.Gateway.__init__",
        "answers.Answers.__init__",
        "bounds.Buffers.of_memory",
        "bounds._connection_bytes",
        "claims.Claims.__init__",
        "errors.Reporter.__init__",
        "link_table.LinkTable.__init__",
        "link_table.LinkTable._effect_handlers",
        "link_table.LinkTable._event_handlers",
        "management.ManagementNode.__init__",
        "node_links.RequestNodes.__init__",
        "requests.ReplyLinks.__init__",
        "transactions.Transactions.__init__",
        "admission.Admission.__init__",
        "choice.OneNamespace.__init__",
        "choice.Only.__init__",
        "choice.Choice.__init__",
        "context.Backlog.__init__",
        "context.Output.__init__",
        "connection.Gateway._event_handlers",
        "annotations._symbol",
        "connection.raise_defect",
        # Behind it: the connection is over.
        "node_links._called_by_none",
        # A disk has to be damaged for it.
        "receiver_endpoint.ReceiverEndpoint._pass_over",
        # Only with `--trace-frames`: `test_traced` lets them fail.
        "traced.TracedGateway.__init__",
        "traced.TracedGateway.receive",
        "traced.TracedGateway.data_to_send",
        "traced.TracedGateway.forget",
        "traced.TracedGateway._trace",
        # Only with several namespaces: see `test_choice`, and `test_lifecycle` of the server.
        "bounds.Buffers.make_room",
        "choice.Choice._another",
        # These have no body.
        "choice.Hosted.name",
        "choice.Hosted.authority",
        "choice.Namespaces.default",
        "choice.Namespaces.by_host",
        "choice.Namespaces.by_key",
        "choice.Namespaces.by_token",
        # Of a child process, which is known without a token.
        "choice.Only.by_host",
        "choice.Only.by_key",
        "choice.Only.by_token",
        "connection.Gateway.grant",
        "incoming_link.IncomingLink.received",
    }
)
"""Functions of the gateway that no chapter calls, and why."""


class Planted(Exception):
    """The failure."""


class Watch:
    """Counts the calls of each function while it is on, and lets one of them fail, once."""

    def __init__(self, fails: str = "", at_call: int = 0) -> None:
        self._fails = fails
        self._at_call = at_call
        self.calls: dict[str, int] = {}
        self.gateway: Gateway | None = None
        self.raised = False
        self.was_over = False
        """Whether the connection had ended before that call."""
        self.could_say = False
        """Whether the client could be told then: it had said its header, and no `close` had gone out."""

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._entered)
        try:
            yield
        finally:
            sys.settrace(before)

    def _entered(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(FOLDERS) or "<" in code.co_name or code.co_qualname in BORDER:
            return
        name = f"{Path(code.co_filename).stem}.{code.co_qualname}"
        count = self.calls[name] = self.calls.get(name, 0) + 1
        if name == self._fails and count == self._at_call and not self.raised:
            self.raised = True
            assert self.gateway is not None
            engine = self.gateway._connection
            pending = self.gateway._context.commands
            self.was_over = self.gateway._over and not any(
                isinstance(command, DropConnection) for command in pending
            )
            self.could_say = not engine._output.closed and engine._handshake.state in (
                ConnectionState.AWAIT_OPEN,
                ConnectionState.OPEN,
            )
            raise Planted(name)


class Watched:
    """A gateway whose calls are watched, and what it asks of the broker kept."""

    def __init__(self, gateway: Gateway, watch: Watch) -> None:
        self._gateway = gateway
        self._watch = watch
        watch.gateway = gateway
        self.asked: list[list[Command]] = []
        """What each call gave, with those that gave something."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._gateway, name)
        if name in PROPERTIES:
            return found

        def call(*arguments: Any) -> Any:
            with self._watch.on():
                given = found(*arguments)
            if name in CALLS and given:
                self.asked.append(given)
            return given

        return call


class WatchedBroker(InProcessBroker):
    """A broker that watches the connections made while `watch` is set."""

    def __init__(self, **options: Any) -> None:
        self.watch: Watch | None = None
        self.watched: Watched | None = None
        self.met: list[Exception] = []
        super().__init__(on_defect=lambda defect, tracking_id: self.met.append(defect), **options)

    def connect(self) -> InProcessConnection:
        connection = super().connect()
        if self.watch is not None:
            self.watched = Watched(connection.gateway, self.watch)
            connection.gateway = self.watched  # type: ignore[assignment]  # it looks on
            self.watch = None
        return connection


def play(chapter: Chapter, watch: Watch) -> tuple[WatchedBroker, Watched, LiveHarness | None]:
    """Play a chapter as the victim; what the client makes of its end does not count."""
    for forget in FORGET:
        forget()
    broker = broker_for(WatchedBroker)
    assert isinstance(broker, WatchedBroker)
    broker.watch = watch
    rig: list[LiveHarness] = []

    class Victim(LiveHarness):
        def __init__(self, **options: Any) -> None:
            rig.append(self)
            super().__init__(broker, **options)

    try:
        chapter(Victim(**CHAPTERS[chapter]))
    except Exception:
        if not watch.raised:
            raise
    watched = broker.watched
    assert watched is not None
    return broker, watched, rig[0]


@cache
def recorded() -> dict[Chapter, dict[str, int]]:
    """Return the functions that each chapter is the first to call, and how often it does."""
    known: set[str] = set()
    found = {}
    for chapter in CHAPTERS:
        watch = Watch()
        play(chapter, watch)
        found[chapter] = {name: count for name, count in watch.calls.items() if name not in known}
        known |= watch.calls.keys()
    return found


def check(chapter: Chapter, name: str, at_call: int) -> None:
    """Let one call fail, and look at everybody."""
    watch = Watch(name, at_call)
    broker, watched, victim = play(chapter, watch)
    assert watch.raised
    # It was told of, once, and nothing came of the call but the end of the connection.
    [defect] = broker.met
    assert isinstance(defect, Planted)
    assert watched.closing
    if victim is not None:
        victim.pump()
        victim.cut()
    drops = [command for given in watched.asked for command in given if isinstance(command, DropConnection)]
    if watch.was_over:
        assert len(drops) <= 1  # none where nothing was begun
    else:
        [drop] = drops
        assert watched.asked[-1] == drops
        assert drop.broken
    assert watched.uncommitted_bytes == 0
    assert watched.take_commands() == []
    if victim is not None:
        assert (b"amqp:internal-error" in victim.sent) is watch.could_say
    # The broker has nothing of it left, and serves others: all that is stored is received by another.
    broker.namespace.check(broker.clock.now_ms)
    totals = broker.namespace.totals()
    assert (totals.connections, totals.links) == (0, 0)
    broker.advance(61_000)  # the grace; a link that was closed as it should left its locks to lapse
    assert broker.namespace.totals().locks == 0
    assert not broker.engine.open_bytes
    other = LiveHarness(broker)
    send(other, message("next"))
    totals = broker.namespace.totals()  # deferred and claimed ones are of this queue, and count as active
    aside = totals.deferred_messages + totals.claimed_messages
    waiting = broker.queue("orders").active_count - aside
    other.listen(credit=100)
    got = other.deliveries()
    assert len(got) == waiting > 0
    other.settle(got[0].delivery_id, got[-1].delivery_id, ACCEPTED)
    assert broker.queue("orders").active_count == aside
    broker.namespace.check(broker.clock.now_ms)
    assert len(broker.met) == 1


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.__name__)
def test_a_defect_in_any_function_ends_its_connection_and_no_other(chapter: Chapter) -> None:
    """Req: R-05, L-13, L-16."""
    for name, count in recorded()[chapter].items():
        for at_call in {1, count}:
            try:
                check(chapter, name, at_call)
            except BaseException as failure:
                failure.add_note(f"call {at_call} of {name}")
                raise


def test_a_gap_in_the_border_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(gateway: Gateway, effects: Any, payloads: Any, now_ms: int) -> None:
        gateway._output.payloads = payloads
        for effect in effects:
            gateway._on_effect[type(effect)](effect, now_ms)

    monkeypatch.setattr(Gateway, "handle", handle)
    with pytest.raises(ValueError, match="not enough values"):  # no defect was told of
        check(waits, "link_table.LinkTable._deliver", 1)


def test_the_histories_call_all_of_the_gateway() -> None:
    called = {name for names in recorded().values() for name in names}
    assert functions(peeklock.gateway) - called == UNREACHED


def functions(package: ModuleType) -> set[str]:
    """Return the functions of a package, by module and qualified name, but for the border's."""
    found = set()
    for source in Path(package.__path__[0]).rglob("*.py"):
        codes = [compile(source.read_text(), str(source), "exec")]
        while codes:
            code = codes.pop()
            codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
            name = code.co_qualname
            if "<" not in code.co_name and code.co_flags & CO_NEWLOCALS and name not in BORDER:
                found.add(f"{source.stem}.{name}")
    return found
