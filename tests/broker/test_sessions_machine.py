"""Random histories of a queue with sessions, against a model that knows only the promises.

The model: every accepted message is in one place; whoever receives holds the session; what is delivered is
the lowest number of the session that is neither out nor set aside; a session that could be had is given to
whoever waits. Several spellings are one session. Indexes are compared after each step by the playbook.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from peeklock.broker.vocabulary.commands import (
    Abandon,
    Address,
    ClaimMessages,
    CloseLink,
    CommitClaims,
    Complete,
    DeadLetter,
    Defer,
    LinkId,
    ReadClaim,
    Release,
    ReleaseCursor,
    RenewSessionLock,
    Send,
    SetCredit,
    TakeCursor,
)
from peeklock.broker.vocabulary.effects import (
    Accepted,
    Claimed,
    ClaimsLeft,
    Deliver,
    DetachLink,
    Drained,
    Effect,
    Failed,
    LinkRefused,
    MessagesFound,
    ReceiverOpened,
    SessionLockLapsed,
    Settled,
)
from peeklock.broker.vocabulary.message import MessageState, MessageView
from tests.broker.harness import EMPTY, LOTS, Broker, arriving, token

SPELLINGS = {"a": "a", "A": "a", "b": "b", "ß": "ß", "ç": "ç", "Ç": "ç"}
"""Session ids, and which session each means."""
SESSIONS = sorted(set(SPELLINGS.values()))
LOCK_MS = 5_000


@dataclass
class Known:
    """What the model knows of one message."""

    session_id: str
    spelling: str
    out: bytes | None = None  # lock token while somebody has it
    deferred: bool = False
    claim: tuple[str, int] | None = None  # cursor and number


class SessionMachine(RuleBasedStateMachine):
    """A queue with sessions, up to three connections, and the messages that should be there."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker()
        self.known: dict[int, Known] = {}
        self.holders: dict[str, LinkId] = {}
        self.waiting: dict[LinkId, str | None] = {}  # and the spelling that was asked for
        self.links: dict[LinkId, str | None] = {}
        self.lapsed: dict[str, LinkId] = {}  # whose lock has lapsed, and which are not detached yet
        self.credit_given: dict[LinkId, int] = {}
        self.last_no: dict[str, int] = {}  # by cursor
        self.owners: dict[str, str] = {}

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
                session_id = SPELLINGS[effect.session_id]
                assert session_id not in self.holders
                assert self.reader(session_id) is None
                assert session_id not in self.lapsed
                self.holders[session_id] = effect.link
                self.links[effect.link] = session_id
                wanted = self.waiting.pop(effect.link)
                # The first message's, in the order of arrival.
                texts = (each.spelling for each in self.known.values() if each.session_id == session_id)
                assert effect.session_id == (next(texts) if wanted is None else wanted)
            elif isinstance(effect, SessionLockLapsed):
                lapsed_id = self.links[effect.link]
                assert lapsed_id is not None
                self.gone(effect.link)
                self.lapsed[lapsed_id] = effect.link
            elif isinstance(effect, DetachLink):
                self.gone(effect.link)
            elif isinstance(effect, LinkRefused):
                self.waiting.pop(effect.link, None)
            elif isinstance(effect, Deliver):
                self.delivered(effect)

    def delivered(self, effect: Deliver) -> None:
        session_id = self.links[effect.link]
        assert session_id is not None
        number = effect.message.sequence_number
        message = self.known[number]
        assert message.session_id == session_id
        assert message.spelling == effect.message.session_id
        assert message.out is None
        assert not message.deferred
        assert number == min(self.available(session_id))
        message.out = token(effect)

    def available(self, session_id: str) -> list[int]:
        return [
            number
            for number, message in self.known.items()
            if message.session_id == session_id
            and message.out is None
            and not message.deferred
            and message.claim is None
        ]

    def reader(self, session_id: str) -> str | None:
        """Name the cursor that holds a session."""
        readers = {
            message.claim[0]
            for message in self.known.values()
            if message.session_id == session_id and message.claim is not None
        }
        assert len(readers) <= 1
        return readers.pop() if readers else None

    def gone(self, link: LinkId) -> None:
        self.lapsed = {session_id: lapsed for session_id, lapsed in self.lapsed.items() if lapsed != link}
        session_id = self.links.pop(link, None)
        if session_id is not None:
            del self.holders[session_id]
            for message in self.known.values():
                if message.session_id == session_id:
                    message.out = None

    # What is asked

    @rule(spelling=st.sampled_from(sorted(SPELLINGS)), count=st.integers(1, 3))
    def send(self, spelling: str, count: int) -> None:
        for _ in range(count):
            message = arriving(session_id=spelling)
            reply_to = self.broker.reply_to()
            effects = self.broker.do(Send(4, message, EMPTY, reply_to))
            assert effects[0] == Accepted(reply_to)
            self.known[message.sequence_number] = Known(SPELLINGS[spelling], spelling)
            self.take(effects)

    @rule(
        spelling=st.sampled_from([None, *sorted(SPELLINGS)]),
        connection=st.integers(1, 3),
        credit=st.integers(0, 3),
    )
    def accept(self, spelling: str | None, connection: int, credit: int) -> None:
        session_id = None if spelling is None else SPELLINGS[spelling]
        wish = self.broker.wish(spelling, connection=connection, wait_ms=7_000)
        self.waiting[wish.link] = spelling
        held = session_id is not None and (session_id in self.holders or self.reader(session_id) is not None)
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

    @precondition(lambda self: self.lapsed)
    @rule(data=st.data(), more=st.integers(0, 3), drain=st.booleans())
    def give_credit_in_vain(self, data: st.DataObject, more: int, drain: bool) -> None:
        link = data.draw(st.sampled_from(sorted(self.lapsed.values())))
        effects = self.broker.do(SetCredit(link, self.credit_given.get(link, 0) + more, LOTS, drain))
        assert effects == ([Drained(link)] if drain else [])

    @precondition(lambda self: self.lapsed)
    @rule(data=st.data(), connection=st.integers(1, 3))
    def use_in_vain(self, data: st.DataObject, connection: int) -> None:
        session_id = data.draw(st.sampled_from(sorted(self.lapsed)))
        link = self.lapsed[session_id]
        holder = self.holders.get(session_id)
        assert holder is None
        spelling = data.draw(st.sampled_from([each for each in SPELLINGS if SPELLINGS[each] == session_id]))
        refused, *effects = self.broker.do(
            RenewSessionLock(Address("orders"), spelling, self.broker.reply_to(connection))
        )
        assert isinstance(refused, Failed)
        assert [effect.link for effect in effects if isinstance(effect, DetachLink)] == (
            [link] if connection == link.connection_id else []
        )
        self.take(effects)

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
        spelling = data.draw(
            st.sampled_from([each for each in SPELLINGS if SPELLINGS[each] == message.session_id])
        )
        (view,) = self.broker.receive_deferred(number, session_id=spelling, connection=connection)
        message.out = token(view)

    def asks_claim(self, cursor: str, count: int) -> ClaimMessages:
        owner = self.owners.get(cursor)
        return ClaimMessages(Address("orders"), cursor, count, LOTS, self.broker.reply_to(), owner=owner)

    def take_cursor(self, cursor: str, owner: str, *, take_over: bool) -> list[Effect]:
        self.last_no.setdefault(cursor, 0)
        self.owners[cursor] = owner
        return self.broker.do(TakeCursor(Address("orders"), cursor, owner, take_over, self.broker.reply_to()))

    @rule(cursor=st.sampled_from("xy"), counts=st.lists(st.integers(1, 4), max_size=3))
    def claim_and_die_before_a_read(self, cursor: str, counts: list[int]) -> None:
        """What was claimed is free again with the next owner, in its order."""
        self.take(self.take_cursor(cursor, "dead", take_over=True))
        for count in counts:
            self.broker.do(self.asks_claim(cursor, count))
        self.take(self.take_cursor(cursor, "alive", take_over=False))

    @rule(cursor=st.sampled_from("xy"), count=st.integers(1, 4))
    def claim(self, cursor: str, count: int) -> None:
        can = [
            session_id
            for session_id in SESSIONS
            if session_id not in self.holders
            and self.reader(session_id) in (None, cursor)
            and self.available(session_id)
        ]
        before = {session_id: self.available(session_id) for session_id in can}
        command = self.asks_claim(cursor, count)
        found = self.broker.one(command, Claimed)
        assert found.count == min(count, sum(map(len, before.values())))
        self.last_no.setdefault(cursor, 0)
        if not found.count:
            assert found.no == 0
            return
        self.last_no[cursor] += 1
        assert found.no == self.last_no[cursor]
        taken: dict[str, list[int]] = {}
        for number in self.read(cursor, found.no):
            taken.setdefault(self.known[number].session_id, []).append(number)
            self.known[number].claim = (cursor, found.no)
        for session_id, numbers in taken.items():
            assert numbers == before[session_id][: len(numbers)]
        whole = [session_id for session_id in taken if taken[session_id] == before[session_id]]
        assert len(whole) >= len(taken) - 1, "the limit cuts one session"

    def read(self, cursor: str, no: int) -> list[int]:
        owner = self.owners.get(cursor)
        command = ReadClaim(Address("orders"), cursor, no, 0, 99, LOTS, self.broker.reply_to(), owner)
        return [view.message.sequence_number for view in self.broker.one(command, MessagesFound).messages]

    @rule()
    def read_claims(self) -> None:
        claims: dict[tuple[str, int], list[int]] = {}
        for number, message in self.known.items():
            if message.claim is not None:
                claims.setdefault(message.claim, []).append(number)
        for (cursor, no), numbers in claims.items():
            found = self.read(cursor, no)
            assert sorted(found) == sorted(numbers)
            for session_id in SESSIONS:
                own = [number for number in found if self.known[number].session_id == session_id]
                assert own == sorted(own)

    @precondition(lambda self: self.last_no)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        cursor = data.draw(st.sampled_from(sorted(self.last_no)))
        no = data.draw(st.integers(0, self.last_no[cursor]))
        owner = self.owners.get(cursor)
        command = CommitClaims(Address("orders"), cursor, no, self.broker.reply_to(), owner)
        effects = self.broker.do(command)
        assert ClaimsLeft(command.reply_to, 0) in effects
        for number, message in list(self.known.items()):
            if message.claim is not None and message.claim[0] == cursor and message.claim[1] <= no:
                del self.known[number]
        self.take(effects)

    @precondition(lambda self: self.last_no)
    @rule(data=st.data())
    def release_cursor(self, data: st.DataObject) -> None:
        cursor = data.draw(st.sampled_from(sorted(self.last_no)))
        del self.last_no[cursor]
        self.owners.pop(cursor, None)
        effects = self.broker.do(ReleaseCursor(Address("orders"), cursor, self.broker.reply_to()))
        for message in self.known.values():
            if message.claim is not None and message.claim[0] == cursor:
                message.claim = None
        self.take(effects)

    @precondition(lambda self: self.links or self.waiting or self.lapsed)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        link = data.draw(st.sampled_from(sorted([*self.links, *self.waiting, *self.lapsed.values()])))
        self.waiting.pop(link, None)
        self.gone(link)
        self.take(self.broker.do(CloseLink(link)))

    @rule(connection=st.integers(1, 3), broken=st.booleans())
    def drop(self, connection: int, broken: bool) -> None:
        for link in [*self.links, *self.lapsed.values()]:
            if link.connection_id == connection:
                self.gone(link)
        self.waiting = {
            link: asked for link, asked in self.waiting.items() if link.connection_id != connection
        }
        self.take(self.broker.drop(connection, broken=broken))

    @rule(ms=st.sampled_from([1, 1_000, LOCK_MS - 1, LOCK_MS, 8_000]))
    def advance(self, ms: int) -> None:
        self.take(self.broker.advance(ms))

    @rule()
    def restart(self) -> None:
        self.broker.restart()
        self.links.clear()
        self.lapsed.clear()
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
        shown: dict[int, MessageView] = {view.message.sequence_number: view for view in self.broker.peek()}
        assert set(shown) == set(self.known)
        for number, message in self.known.items():
            state = MessageState.DEFERRED if message.deferred else MessageState.ACTIVE
            assert shown[number].state is state
            held = message.out is not None or message.claim is not None
            assert (shown[number].message.lock is not None) == held
            assert shown[number].cursor == (message.claim and message.claim[0])

    @invariant()
    def nobody_waits_for_a_session_that_could_be_had(self) -> None:
        if self.waiting:
            for session_id in SESSIONS:
                held = session_id in self.holders or self.reader(session_id) is not None
                assert held or not self.available(session_id)


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
