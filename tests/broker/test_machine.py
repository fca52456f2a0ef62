"""A state machine over the namespace, held against a model that knows nothing of indexes.

Every accepted message is in exactly one place, numbers have no gaps, locks and claims exclude each other,
counts are right, and a namespace restored from the facts shows the same as the live one, but for its locks:
claims last until they are committed or released.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from peeklock.broker.vocabulary.commands import (
    Abandon,
    Address,
    CancelScheduled,
    ClaimMessages,
    CloseLink,
    CommitClaims,
    Complete,
    DeadLetter,
    Defer,
    DeleteMessages,
    LinkId,
    ListCursors,
    LockToken,
    ReadClaim,
    ReceiveDeferred,
    ReceiveMode,
    Release,
    ReleaseCursor,
    RenewLocks,
    Schedule,
    SendBatch,
    SequenceNumber,
    SetCredit,
    SubQueue,
    TakeCursor,
)
from peeklock.broker.vocabulary.effects import (
    Accepted,
    Claimed,
    ClaimsLeft,
    CursorsFound,
    Deliver,
    Done,
    Effect,
    LocksRenewed,
    MessagesDeleted,
    MessagesFound,
    MessagesScheduled,
    Settled,
    SettlementFailed,
)
from peeklock.broker.vocabulary.errors import CursorOwned
from peeklock.broker.vocabulary.message import Message, MessageState, MessageView
from tests.broker.harness import EMPTY, LOTS, Broker, token

MAIN, DLQ = 4, 5
LOCK_MS = 5_000
ATTEMPTS_MAX = 3


class Known:
    """What the model knows of one message, by the number it was first accepted with."""

    def __init__(self, order: int, now_ms: int, ttl_ms: int | None, scheduled_at_ms: int | None) -> None:
        self.order = order
        self.first_number = order & ((1 << 63) - 1)
        self.ttl_ms = ttl_ms
        self.scheduled_at_ms = (
            scheduled_at_ms if scheduled_at_ms is not None and scheduled_at_ms > now_ms else None
        )
        self.enqueued_at_ms = now_ms
        self.state = "active" if self.scheduled_at_ms is None else "scheduled"
        self.count = 0
        self.token: LockToken | None = None
        self.until_ms = 0
        self.claim: tuple[str, int] | None = None  # cursor and number
        self.holder: tuple[int, ...] = ()  # the link, or (connection,) for a request; () once that is gone

    @property
    def free(self) -> bool:
        return self.token is None and self.claim is None

    def expired(self, now_ms: int, default_ms: int) -> bool:
        ttl_ms = default_ms if self.ttl_ms is None else min(self.ttl_ms, default_ms)
        return self.state == "active" and self.enqueued_at_ms + ttl_ms <= now_ms


class QueueMachine(RuleBasedStateMachine):
    @initialize(
        dead_letters=st.booleans(), default_ttl_ms=st.sampled_from([20_000, 60_000]), near_end=st.booleans()
    )
    def create(self, dead_letters: bool, default_ttl_ms: int, near_end: bool) -> None:
        first = (1 << 63) - 4 if near_end else 1
        self.broker = Broker(first_sequence_number=first)
        self.broker.create(
            lock_duration_ms=LOCK_MS,
            max_delivery_count=ATTEMPTS_MAX,
            dead_lettering_on_expiration=dead_letters,
            default_ttl_ms=default_ttl_ms,
        )
        self.dead_letters, self.default_ttl_ms = dead_letters, default_ttl_ms
        self.known: dict[int, Known] = {}
        self.dead: dict[int, Known] = {}
        self.order = first  # unwrapped
        self.links: dict[LinkId, bool] = {}  # link -> whether it deletes
        self.credit: dict[LinkId, int] = {}
        self.lost: list[LockToken] = []
        self.cursors: dict[str, list[int]] = {}  # last claim and last committed one
        self.owners: dict[
            str, tuple[str | None, int | None]
        ] = {}  # and the last claim before it, till it reads

    # The model's own steps

    def now(self) -> int:
        return self.broker.now_ms

    def next_order(self) -> int:
        self.order += 1
        return self.order - 1

    def unlock(self, found: Known, *, counted: bool) -> None:
        assert found.token is not None
        self.lost.append(found.token)
        found.token, found.holder = None, ()
        if found.first_number in self.dead:
            return
        found.count += counted
        if found.expired(self.now(), self.default_ttl_ms):
            self.expire(found)
        elif counted and found.count >= ATTEMPTS_MAX:
            self.dead_letter(found)

    def expire(self, found: Known) -> None:
        if self.dead_letters:
            self.dead_letter(found)
        else:
            del self.known[found.first_number]

    def dead_letter(self, found: Known) -> None:
        found.state = "active"
        self.dead[found.first_number] = self.known.pop(found.first_number)

    def take(self, effects: list[Effect]) -> None:
        """Believe the deliveries, after checking that they were allowed."""
        for effect in effects:
            if not isinstance(effect, Deliver):
                continue
            number = effect.message.enqueued_sequence_number
            found = self.known.get(number)
            assert found is not None, "delivered what is not there"
            assert found.state == "active"
            assert found.free, "two holds on one message"
            assert not found.expired(self.now(), self.default_ttl_ms)
            assert found.order == min(other.order for other in self.available()), "not the first in order"
            assert effect.delivery_count == found.count
            assert effect.link in self.links, "delivered over a closed link"
            self.credit[effect.link] -= 1
            assert self.credit[effect.link] >= 0, "delivered without credit"
            if self.links[effect.link]:
                del self.known[number]
                self.lost.append(token(effect))
            else:
                found.token, found.until_ms = token(effect), effect.locked_until_ms
                assert effect.locked_until_ms == self.now() + LOCK_MS
                found.holder = effect.link

    def available(self) -> list[Known]:
        active = [found for found in self.known.values() if found.state == "active" and found.free]
        return [found for found in active if not found.expired(self.now(), self.default_ttl_ms)]

    def locked(self) -> list[Known]:
        everything = [*self.known.values(), *self.dead.values()]
        return [found for found in everything if found.token is not None]

    def queue_of(self, found: Known) -> int:
        return DLQ if found.first_number in self.dead else MAIN

    # Steps

    @rule(
        sizes=st.lists(st.sampled_from([None, 0, 900, 7_000, 100_000]), min_size=1, max_size=4),
        data=st.data(),
    )
    def send(self, sizes: list[int | None], data: st.DataObject) -> None:
        delay = data.draw(st.sampled_from([None, None, -5, 2_000, 9_000]))
        at_ms = None if delay is None else self.now() + delay
        messages = [Message(7, ttl_ms=ttl_ms, scheduled_at_ms=at_ms) for ttl_ms in sizes]
        for ttl_ms in sizes:
            found = Known(self.next_order(), self.now(), ttl_ms, at_ms)
            self.known[found.first_number] = found
        reply_to = self.broker.reply_to()
        pairs = [(message, EMPTY) for message in messages]
        if data.draw(st.booleans()):
            effects = self.broker.do(SendBatch(MAIN, pairs, reply_to))
            assert effects[0] == Accepted(reply_to)
        else:
            effects = self.broker.do(Schedule(Address("orders"), pairs, reply_to))
            expected = [message.sequence_number for message in messages]
            assert effects[0] == MessagesScheduled(reply_to, expected)
        self.take(effects)

    @rule(connection=st.integers(1, 3), deletes=st.booleans())
    def attach(self, connection: int, deletes: bool) -> None:
        if len(self.links) < 5:
            link = self.broker.receiver(deletes=deletes, connection=connection)
            self.links[link] = deletes
            self.credit[link] = 0

    @rule(data=st.data(), more=st.integers(1, 4), drain=st.booleans())
    def give_credit(self, data: st.DataObject, more: int, drain: bool) -> None:
        if not self.links:
            return
        link = data.draw(st.sampled_from(sorted(self.links)))
        receiver: Any = self.broker.namespace._shared.links.by_link[link]
        self.credit[link] = more
        effects = self.broker.do(SetCredit(link, receiver.deliveries + more, LOTS, drain))
        self.take(effects)
        if drain:
            self.credit[link] = 0

    @rule(count=st.integers(1, 3))
    def receive(self, count: int) -> None:
        link = self.broker.receiver()
        self.links[link] = False
        self.credit[link] = count
        self.take(self.broker.do(SetCredit(link, count, LOTS)))
        self.broker.do(CloseLink(link))
        del self.links[link]
        for found in self.locked():
            if found.holder == link:
                found.holder = ()

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        if self.links:
            link = data.draw(st.sampled_from(sorted(self.links)))
            self.broker.do(CloseLink(link))
            del self.links[link]
            for found in self.locked():
                if found.holder == link:
                    found.holder = ()

    @rule(connection=st.integers(1, 3), broken=st.booleans())
    def drop(self, connection: int, broken: bool) -> None:
        for link in [link for link in self.links if link.connection_id == connection]:
            del self.links[link]
        effects = self.broker.drop(connection, broken=broken)
        for found in self.locked():
            if found.holder[:1] == (connection,):
                found.holder = ()
                if broken:
                    self.unlock(found, counted=True)
        self.take(effects)

    @rule(data=st.data(), kind=st.sampled_from([Complete, Abandon, Defer, DeadLetter, Release]))
    def settle(self, data: st.DataObject, kind: Any) -> None:
        locked = self.locked()
        if not locked:
            return
        found = data.draw(st.sampled_from(locked))
        in_dlq = found.first_number in self.dead
        assert found.token is not None
        reply_to = self.broker.reply_to()
        effects = self.broker.do(kind(self.queue_of(found), found.token, reply_to))
        if in_dlq and kind is DeadLetter:
            assert isinstance(effects[0], SettlementFailed)
            return
        assert effects[0] == Settled(reply_to)
        if kind is Complete:
            self.lost.append(found.token)
            del (self.dead if in_dlq else self.known)[found.first_number]
        elif kind is Abandon or kind is Release:
            self.unlock(found, counted=kind is Abandon)
        elif kind is Defer:
            found.state = "deferred"
            self.unlock(found, counted=True)
        else:
            self.lost.append(found.token)
            found.token = None
            self.dead_letter(found)
        self.take(effects)

    @rule(data=st.data())
    def settle_with_a_lost_token(self, data: st.DataObject) -> None:
        if self.lost:
            used = data.draw(st.sampled_from(self.lost))
            self.broker.refused(Complete(MAIN, used, self.broker.reply_to()))

    @rule()
    def renew(self) -> None:
        locked = [found for found in self.locked() if found.first_number in self.known]
        tokens = [found.token for found in locked if found.token is not None]
        reply_to = self.broker.reply_to()
        effects = self.broker.do(RenewLocks(Address("orders"), tokens, reply_to))
        until_ms = self.now() + LOCK_MS
        assert effects == [LocksRenewed(reply_to, [until_ms] * len(tokens))]
        for found in locked:
            found.until_ms = until_ms
            found.holder = reply_to[:1]  # a renewal moves a lock to its connection, always: C26

    @rule(deletes=st.booleans(), dead=st.booleans(), connection=st.integers(1, 3))
    def fetch_deferred(self, deletes: bool, dead: bool, connection: int) -> None:
        place = self.dead if dead else self.known
        wanted = [found for found in place.values() if found.state == "deferred" and found.token is None]
        address = Address("orders", SubQueue.DEAD_LETTER if dead else SubQueue.MAIN)
        mode = ReceiveMode.RECEIVE_AND_DELETE if deletes else ReceiveMode.PEEK_LOCK
        shown = self.broker.peek(sub_queue=address.sub_queue)
        current = {view.message.enqueued_sequence_number: view.message.sequence_number for view in shown}
        sequence_numbers = [current[SequenceNumber(found.first_number)] for found in wanted]
        command = ReceiveDeferred(address, sequence_numbers, mode, self.broker.reply_to(connection))
        (effect,) = self.broker.do(command)
        assert isinstance(effect, MessagesFound)
        for found, view in zip(wanted, effect.messages, strict=True):
            assert view.message.enqueued_sequence_number == found.first_number
            if deletes:
                del place[found.first_number]
            else:
                found.token, found.until_ms = token(view), view.locked_until_ms
                found.holder = (connection,)

    @rule()
    def read_dead_letters(self) -> None:
        for delivery in self.broker.receive_dead(2):
            found = self.dead[delivery.message.enqueued_sequence_number]
            assert found.state == "active"
            assert found.token is None
            assert delivery.delivery_count == found.count
            found.token, found.until_ms = token(delivery), delivery.locked_until_ms

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        scheduled = [number for number, found in self.known.items() if found.state == "scheduled"]
        if scheduled:
            number = data.draw(st.sampled_from(scheduled))
            command = CancelScheduled(Address("orders"), [SequenceNumber(number)], self.broker.reply_to())
            assert self.broker.do(command) == [Done(command.reply_to)]
            del self.known[number]
            self.broker.refused(command)

    @rule(count=st.integers(1, 3))
    def delete(self, count: int) -> None:
        command = DeleteMessages(Address("orders"), count, self.now(), self.broker.reply_to())
        before = {view.message.enqueued_sequence_number for view in self.broker.peek()}
        (effect,) = self.broker.do(command)
        assert isinstance(effect, MessagesDeleted)
        gone = before - {view.message.enqueued_sequence_number for view in self.broker.peek()}
        assert effect.count == len(gone)
        for number in gone:
            found = self.known.pop(number)
            assert found.state == "active"
            assert found.free

    # Cursors

    def owner(self, cursor: str) -> str | None:
        return self.owners.get(cursor, (None, None))[0]

    def reads(self, cursor: str) -> None:
        self.owners[cursor] = self.owner(cursor), None

    @rule(cursor=st.sampled_from("xy"), owner=st.sampled_from("ab"), take_over=st.booleans())
    def take_cursor(self, cursor: str, owner: str, take_over: bool) -> None:
        command = TakeCursor(Address("orders"), cursor, owner, take_over, self.broker.reply_to())
        before, unread_from = self.owners.get(cursor, (None, None))
        if before not in (None, owner) and unread_from is None and not take_over:
            assert isinstance(self.broker.refused(command), CursorOwned)
            return
        effects = self.broker.do(command)
        state = self.cursors.setdefault(cursor, [0, 0])
        if owner != before:
            if unread_from is not None:
                state[0] = unread_from
                for found in self.known.values():
                    if found.claim is not None and found.claim[0] == cursor and found.claim[1] > state[0]:
                        found.claim = None
            self.owners[cursor] = owner, state[0]
        self.take(effects)

    @rule(cursor=st.sampled_from("xy"))
    def ask_as_a_stranger(self, cursor: str) -> None:
        if self.owner(cursor) is None:
            return
        for owner in (None, "stranger"):
            claim = ClaimMessages(Address("orders"), cursor, 1, LOTS, self.broker.reply_to(), owner=owner)
            read = ReadClaim(Address("orders"), cursor, 1, 0, 99, LOTS, self.broker.reply_to(), owner)
            commit = CommitClaims(Address("orders"), cursor, 0, self.broker.reply_to(), owner)
            for command in (claim, read, commit):
                assert isinstance(self.broker.refused(command), CursorOwned)

    @rule(cursor=st.sampled_from("xy"), count=st.integers(1, 3))
    def claim(self, cursor: str, count: int) -> None:
        expected = sorted(self.available(), key=lambda found: found.order)[:count]
        command = ClaimMessages(
            Address("orders"), cursor, count, LOTS, self.broker.reply_to(), owner=self.owner(cursor)
        )
        found = self.broker.one(command, Claimed)
        state = self.cursors.setdefault(cursor, [0, 0])
        assert found.count == len(expected)
        assert found.no == (state[0] + 1 if expected else 0)
        if expected:
            state[0] = found.no
        for each in expected:
            each.claim = (cursor, found.no)

    @rule()
    def read_claims(self) -> None:
        for cursor, (last_no, committed_no) in self.cursors.items():
            for no in range(committed_no + 1, last_no + 1):
                owner = self.owner(cursor)
                command = ReadClaim(Address("orders"), cursor, no, 0, 99, LOTS, self.broker.reply_to(), owner)
                self.reads(cursor)
                views = self.broker.one(command, MessagesFound).messages
                held = [each for each in self.known.values() if each.claim == (cursor, no)]
                held.sort(key=lambda each: each.order)
                numbers = [view.message.enqueued_sequence_number for view in views]
                assert numbers == [each.first_number for each in held]

    @rule(data=st.data(), cursor=st.sampled_from("xy"))
    def commit(self, data: st.DataObject, cursor: str) -> None:
        if cursor not in self.cursors:
            return
        state = self.cursors[cursor]
        no = data.draw(st.integers(0, state[0]))
        command = CommitClaims(Address("orders"), cursor, no, self.broker.reply_to(), self.owner(cursor))
        self.reads(cursor)
        assert self.broker.one(command, ClaimsLeft).count == 0
        state[1] = max(state[1], no)
        for number, found in list(self.known.items()):
            if found.claim is not None and found.claim[0] == cursor and found.claim[1] <= no:
                del self.known[number]

    @rule(cursor=st.sampled_from("xy"))
    def release_cursor(self, cursor: str) -> None:
        command = ReleaseCursor(Address("orders"), cursor, self.broker.reply_to())
        self.owners.pop(cursor, None)
        if self.cursors.pop(cursor, None) is None:
            self.broker.refused(command)
            return
        effects = self.broker.do(command)
        assert ClaimsLeft(command.reply_to, 0) in effects
        for found in self.known.values():
            if found.claim is not None and found.claim[0] == cursor:
                found.claim = None
        self.take(effects)

    @rule(ms=st.sampled_from([1, 300, 1_000, 4_999, 5_000, 30_000]))
    def advance(self, ms: int) -> None:
        end_ms = self.now() + ms
        while True:
            due = [found.until_ms for found in self.locked()]
            for found in self.known.values():
                if found.scheduled_at_ms is not None and found.state == "scheduled":
                    due.append(found.scheduled_at_ms)
                if found.state == "active" and found.free:
                    ttl_ms = (
                        self.default_ttl_ms
                        if found.ttl_ms is None
                        else min(found.ttl_ms, self.default_ttl_ms)
                    )
                    due.append(found.enqueued_at_ms + ttl_ms)
            next_ms = min(due, default=end_ms)
            if next_ms > end_ms or not due:
                break
            self.broker.now_ms = max(next_ms, self.now())
            effects = self.broker.settle_time()
            self.pass_time()
            self.take(effects)
        self.broker.now_ms = end_ms

    def pass_time(self) -> None:
        """Do in the model what is due now; deliveries are believed afterwards."""
        for found in self.locked():
            if found.until_ms <= self.now():
                self.unlock(found, counted=True)
        due = [found for found in self.known.values() if found.state == "scheduled"]
        for found in sorted(due, key=lambda found: found.scheduled_at_ms or 0):
            assert found.scheduled_at_ms is not None
            if found.scheduled_at_ms <= self.now():
                found.state, found.enqueued_at_ms = "active", self.now()
                found.order = self.next_order()
        for found in list(self.known.values()):
            if found.free and found.expired(self.now(), self.default_ttl_ms):
                self.expire(found)

    @rule()
    def restart(self) -> None:
        live = self.shown()
        for found in self.locked():
            self.unlock_quietly(found)
        self.broker.restart()
        assert self.shown() == live
        self.links.clear()
        self.broker.settle_time()
        for found in list(self.known.values()):
            if found.free and found.expired(self.now(), self.default_ttl_ms):
                self.expire(found)

    def unlock_quietly(self, found: Known) -> None:
        assert found.token is not None
        self.lost.append(found.token)
        found.token = None

    def shown(self) -> list[Any]:
        """Everything a client can see but locks."""
        views = [*self.broker.peek(), *self.broker.peek_dead()]
        fields = ("position", "sequence_number", "enqueued_sequence_number", "enqueued_at_ms", "overlay")
        messages = [[getattr(view.message, field) for field in fields] for view in views]
        counters = [(view.delivery_count, view.ttl_ms, view.state) for view in views]
        figures = self.broker.view()
        figures.accessed_at_ms = 0
        listed = self.broker.one(ListCursors(Address("orders"), self.broker.reply_to()), CursorsFound).cursors
        for cursor in listed:
            cursor.used_at_ms = 0  # an empty claim is use, and not written
        return [messages, counters, figures, [view.cursor for view in views], listed]

    # What always holds

    @invariant()
    def every_message_is_in_exactly_one_place(self) -> None:
        if not hasattr(self, "broker"):
            return
        self.broker.settle_time()
        self.pass_time_at_zero()
        for place, views in ((self.known, self.broker.peek()), (self.dead, self.broker.peek_dead())):
            shown: dict[int, MessageView] = {view.message.enqueued_sequence_number: view for view in views}
            assert len(shown) == len(views)
            assert set(shown) == set(place)
            for number, found in place.items():
                assert shown[number].delivery_count == found.count
                assert shown[number].state is MessageState[found.state.upper()]
                lock = shown[number].message.lock
                assert (lock and lock.token) == found.token
                assert shown[number].cursor == (found.claim and found.claim[0])

    def pass_time_at_zero(self) -> None:
        """A message that expires on arrival goes in the same instant."""
        for found in list(self.known.values()):
            if found.free and found.expired(self.now(), self.default_ttl_ms):
                self.expire(found)

    @invariant()
    def numbers_have_no_gaps_and_counts_are_right(self) -> None:
        if not hasattr(self, "broker"):
            return
        queue = self.broker.namespace._queues[MAIN]
        assert queue.next_position == self.order
        view = self.broker.view()
        assert view.active_count == sum(found.state != "scheduled" for found in self.known.values())
        assert view.scheduled_count == sum(found.state == "scheduled" for found in self.known.values())
        assert view.dead_letter_count == len(self.dead)
        assert view.size_bytes == 7 * (len(self.known) + len(self.dead))

    @invariant()
    def nobody_with_credit_waits_while_a_message_is_available(self) -> None:
        if not hasattr(self, "broker"):
            return
        if self.available():
            assert not any(self.credit[link] for link in self.links)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
