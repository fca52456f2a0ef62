"""Random histories of a queue with sessions, against a model that knows only the promises.

The model: every accepted message is in one place; whoever receives holds the session; what is delivered is
the lowest number of the session that is neither out nor set aside; a session that could be had is given to
whoever waits. Indexes are compared after each step by the playbook.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from peeklock.broker.commands import (
    Abandon,
    CloseLink,
    Complete,
    DeadLetter,
    Defer,
    Link,
    Release,
    Send,
    SetCredit,
)
from peeklock.broker.effects import (
    Accepted,
    Deliver,
    DetachLink,
    Effect,
    LinkRefused,
    ReceiverOpened,
    Settled,
)
from peeklock.broker.message import MessageState
from tests.broker.playbook import LOTS, Broker, arriving, token

SESSIONS = "abc"
LOCK_MS = 5_000


@dataclass
class Known:
    """What the model knows of one message."""

    session_id: str
    out: bytes | None = None  # lock token while somebody has it
    deferred: bool = False


class SessionMachine(RuleBasedStateMachine):
    """A queue with sessions, up to three connections, and the messages that should be there."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker()
        self.known: dict[int, Known] = {}
        self.holders: dict[str, Link] = {}
        self.waiting: list[Link] = []
        self.links: dict[Link, str | None] = {}
        self.credit_given: dict[Link, int] = {}

    @initialize(partitioned=st.booleans())
    def create(self, partitioned: bool) -> None:
        self.broker.create(
            requires_session=True,
            enable_partitioning=partitioned,
            lock_duration_ms=LOCK_MS,
            max_delivery_count=1_000,
        )

    # What happened

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ReceiverOpened):
                assert effect.session_id is not None
                assert effect.session_id not in self.holders
                self.holders[effect.session_id] = effect.link
                self.links[effect.link] = effect.session_id
                if effect.link in self.waiting:
                    self.waiting.remove(effect.link)
            elif isinstance(effect, DetachLink):
                self.gone(effect.link)
            elif isinstance(effect, LinkRefused):
                if effect.link in self.waiting:
                    self.waiting.remove(effect.link)
            elif isinstance(effect, Deliver):
                self.delivered(effect)

    def delivered(self, effect: Deliver) -> None:
        session_id = self.links[effect.link]
        assert session_id is not None
        number = effect.message.sequence_number
        message = self.known[number]
        assert message.session_id == session_id
        assert message.out is None
        assert not message.deferred
        assert number == min(self.available(session_id))
        message.out = token(effect)

    def available(self, session_id: str) -> list[int]:
        return [
            number
            for number, message in self.known.items()
            if message.session_id == session_id and message.out is None and not message.deferred
        ]

    def gone(self, link: Link) -> None:
        session_id = self.links.pop(link, None)
        if session_id is not None:
            del self.holders[session_id]
            for message in self.known.values():
                if message.session_id == session_id:
                    message.out = None

    # What is asked

    @rule(session_id=st.sampled_from(SESSIONS), count=st.integers(1, 3))
    def send(self, session_id: str, count: int) -> None:
        for _ in range(count):
            message = arriving(session_id=session_id)
            reply_to = self.broker.reply_to()
            effects = self.broker.do(Send(4, message, b"", reply_to))
            assert effects[0] == Accepted(reply_to)
            self.known[message.sequence_number] = Known(session_id)
            self.take(effects)

    @rule(
        session_id=st.sampled_from([None, *SESSIONS]),
        connection=st.integers(1, 3),
        credit=st.integers(0, 3),
    )
    def accept(self, session_id: str | None, connection: int, credit: int) -> None:
        wish = self.broker.wish(session_id, connection=connection, wait_ms=7_000)
        self.waiting.append(wish.link)
        held = session_id in self.holders
        effects = self.broker.do(wish)
        self.take(effects)
        if session_id is not None:
            assert wish.link not in self.waiting
            assert held == any(isinstance(effect, LinkRefused) for effect in effects)
        if wish.link in self.links and credit:
            self.take(self.broker.do(SetCredit(wish.link, credit, LOTS)))
            self.credit_given[wish.link] = credit

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), more=st.integers(1, 3))
    def give_credit(self, data: st.DataObject, more: int) -> None:
        link = data.draw(st.sampled_from(sorted(self.holders.values())))
        total = self.credit_given.get(link, 0) + more
        self.credit_given[link] = total
        self.take(self.broker.do(SetCredit(link, total, LOTS)))

    @precondition(lambda self: any(message.out for message in self.known.values()))
    @rule(data=st.data(), how=st.sampled_from([Complete, Abandon, Defer, DeadLetter, Release]))
    def settle(self, data: st.DataObject, how: Any) -> None:
        number = data.draw(st.sampled_from(sorted(n for n, message in self.known.items() if message.out)))
        message = self.known[number]
        command = how(4, message.out, self.broker.reply_to())
        message.out = None
        if how is Defer:
            message.deferred = True
        elif how in (Complete, DeadLetter):
            del self.known[number]
        effects = self.broker.do(command)
        assert Settled(command.reply_to) in effects
        self.take(effects)

    @precondition(lambda self: any(message.deferred for message in self.known.values()))
    @rule(data=st.data())
    def fetch_deferred(self, data: st.DataObject) -> None:
        candidates = sorted(
            number
            for number, message in self.known.items()
            if message.deferred and message.out is None and message.session_id in self.holders
        )
        if not candidates:
            return
        number = data.draw(st.sampled_from(candidates))
        message = self.known[number]
        connection = self.holders[message.session_id][0]
        (view,) = self.broker.receive_deferred(number, session_id=message.session_id, connection=connection)
        message.out = token(view)

    @precondition(lambda self: self.links or self.waiting)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        link = data.draw(st.sampled_from(sorted([*self.links, *self.waiting])))
        if link in self.waiting:
            self.waiting.remove(link)
        self.gone(link)
        self.take(self.broker.do(CloseLink(link)))

    @rule(connection=st.integers(1, 3), broken=st.booleans())
    def drop(self, connection: int, broken: bool) -> None:
        for link in [*self.links]:
            if link[0] == connection:
                self.gone(link)
        self.waiting = [link for link in self.waiting if link[0] != connection]
        self.take(self.broker.drop(connection, broken=broken))

    @rule(ms=st.sampled_from([1, 1_000, LOCK_MS - 1, LOCK_MS, 8_000]))
    def advance(self, ms: int) -> None:
        self.take(self.broker.advance(ms))

    @rule()
    def restart(self) -> None:
        self.broker.restart()
        self.links.clear()
        self.holders.clear()
        self.waiting.clear()
        self.credit_given.clear()
        for message in self.known.values():
            message.out = None

    @rule(duration_ms=st.sampled_from([LOCK_MS, LOCK_MS + 1_000]))
    def update(self, duration_ms: int) -> None:
        self.take(self.broker.update(lock_duration_ms=duration_ms))

    # What must hold

    @invariant()
    def every_message_is_in_its_place(self) -> None:
        if not self.broker.facts:
            return
        shown = {view.message.sequence_number: view for view in self.broker.peek()}
        assert set(shown) == set(self.known)
        for number, message in self.known.items():
            state = MessageState.DEFERRED if message.deferred else MessageState.ACTIVE
            assert shown[number].state is state
            assert (shown[number].message.lock is not None) == (message.out is not None)

    @invariant()
    def nobody_waits_for_a_session_that_could_be_had(self) -> None:
        if self.waiting:
            for session_id in SESSIONS:
                assert session_id in self.holders or not self.available(session_id)


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
