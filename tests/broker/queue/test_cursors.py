"""Cursors: claims of messages that last over restarts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from peeklock.broker.queue.cursor import TRANSITIONS, Cursor, CursorState
from peeklock.broker.queue.cursors import SLICE
from peeklock.broker.vocabulary.changes import ClaimRemoved, ClaimStored, CursorRemoved, CursorStored
from peeklock.broker.vocabulary.commands import (
    Address,
    ClaimMessages,
    CloseLink,
    Command,
    CommitClaims,
    DeleteEntity,
    DeleteMessages,
    GetSessionState,
    ListCursors,
    OpenReceiver,
    PurgeMessages,
    ReadClaim,
    ReceiveMode,
    ReleaseCursor,
    SetCredit,
    SetSessionState,
    SubQueue,
    TakeCursor,
)
from peeklock.broker.vocabulary.descriptions import EntityStatus
from peeklock.broker.vocabulary.effects import (
    Claimed,
    ClaimsLeft,
    CursorsFound,
    CursorView,
    Deliver,
    Done,
    Failed,
    MessagesDeleted,
    MessagesFound,
    ReceiverOpened,
)
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    ClaimCommitted,
    ClaimNotFound,
    CursorNotFound,
    CursorOwned,
    EntityDeleted,
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
    ServerBusy,
    SessionCannotBeLocked,
)
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.message import MessageState
from peeklock.broker.vocabulary.quotas import (
    BASIC,
    CLAIM_MESSAGES_MAX,
    CLAIMS_MAX,
    CURSOR_EXPIRES_AFTER_MS,
    CURSOR_NAME_MAX,
    CURSORS_MAX,
    STANDARD,
)
from tests.broker.harness import LOTS, MINUTE_MS, START_MS, Broker, deliveries, numbers

DAY_MS = 24 * 60 * MINUTE_MS


class Reader(Broker):
    """A broker with one queue, and the words of a cursor."""

    def asks_claim(
        self,
        count: int = 1000,
        bytes_max: int = LOTS,
        cursor: str = "lake",
        *,
        name: str = "orders",
        sub_queue: SubQueue = SubQueue.MAIN,
        expires_after_ms: int | None = None,
        up_to_ms: int | None = None,
        owner: str | None = None,
    ) -> ClaimMessages:
        address = Address(name, sub_queue)
        return ClaimMessages(
            address, cursor, count, bytes_max, self.reply_to(), expires_after_ms, up_to_ms, owner
        )

    def claim(self, count: int = 1000, bytes_max: int = LOTS, cursor: str = "lake", **more: Any) -> Claimed:
        return self.one(self.asks_claim(count, bytes_max, cursor, **more), Claimed)

    def asks_read(
        self,
        no: int,
        skip: int = 0,
        count: int = 10_000,
        bytes_max: int = LOTS,
        cursor: str = "lake",
        owner: str | None = None,
    ) -> ReadClaim:
        return ReadClaim(Address("orders"), cursor, no, skip, count, bytes_max, self.reply_to(), owner)

    def read(
        self, no: int, skip: int = 0, count: int = 10_000, bytes_max: int = LOTS, owner: str | None = None
    ) -> list[int]:
        """Return the numbers of the messages of a claim."""
        command = self.asks_read(no, skip, count, bytes_max, owner=owner)
        return numbers(self.one(command, MessagesFound).messages)

    def commit(
        self,
        up_to_no: int,
        cursor: str = "lake",
        sub_queue: SubQueue = SubQueue.MAIN,
        owner: str | None = None,
    ) -> int:
        command = CommitClaims(Address("orders", sub_queue), cursor, up_to_no, self.reply_to(), owner)
        return self.one(command, ClaimsLeft).count

    def asks_take(self, owner: str, take_over: bool = False, cursor: str = "lake") -> TakeCursor:
        return TakeCursor(Address("orders"), cursor, owner, take_over, self.reply_to())

    def take(self, owner: str, *, take_over: bool = False) -> CursorView:
        [view] = self.one(self.asks_take(owner, take_over), CursorsFound).cursors
        return view

    def asks_release(self, cursor: str = "lake") -> ReleaseCursor:
        return ReleaseCursor(Address("orders"), cursor, self.reply_to())

    def free(self, cursor: str = "lake") -> None:
        """Release a cursor that holds at most a slice."""
        command = self.asks_release(cursor)
        assert ClaimsLeft(command.reply_to, 0) in self.do(command)

    def cursors(self) -> list[CursorView]:
        return self.one(ListCursors(Address("orders"), self.reply_to()), CursorsFound).cursors

    def fill(self, count: int = 5, **fields: Any) -> list[int]:
        return [self.send(**fields).sequence_number for _ in range(count)]

    def drained(self) -> list[int]:
        """Receive and delete all that a receiver can have."""
        return numbers(self.receive(10_000, deletes=True))


@pytest.fixture
def broker() -> Reader:
    broker = Reader()
    broker.create()
    return broker


# Claiming


def test_a_claim_takes_the_oldest_messages_and_nobody_else_gets_them(broker: Reader) -> None:
    """Req: X-06."""
    broker.fill(5)
    found = broker.claim(3)
    assert (found.no, found.count, found.size_bytes) == (1, 3, 300)
    assert broker.read(1) == [1, 2, 3]
    assert broker.drained() == [4, 5]
    assert numbers(broker.peek()) == [1, 2, 3]


def test_claims_are_numbered_on_and_go_on_behind_each_other(broker: Reader) -> None:
    broker.fill(5)
    assert [broker.claim(2).no for _ in range(3)] == [1, 2, 3]
    assert [broker.read(no) for no in (1, 2, 3)] == [[1, 2], [3, 4], [5]]


def test_a_claim_with_a_time_leaves_what_was_enqueued_later(broker: Reader) -> None:
    """A reader that stops at what was there when it began. Req: X-06."""
    broker.fill(3)
    began_ms = broker.one(ListCursors(Address("orders"), broker.reply_to()), CursorsFound).now_ms
    broker.advance(1)
    broker.fill(2)
    assert broker.claim(2, up_to_ms=began_ms).count == 2
    assert broker.claim(up_to_ms=began_ms).count == 1
    assert broker.claim(up_to_ms=began_ms).no == 0
    assert broker.drained() == [4, 5]


def test_with_nothing_available_no_claim_is_made_but_a_cursor_is(broker: Reader) -> None:
    found = broker.claim()
    assert (found.no, found.count, found.size_bytes) == (0, 0, 0)
    assert broker.cursors() == [CursorView("lake", 0, 0, START_MS, CURSOR_EXPIRES_AFTER_MS, [])]
    broker.restart()
    assert [view.name for view in broker.cursors()] == ["lake"]


def test_an_empty_queue_that_is_asked_again_and_again_writes_nothing(broker: Reader) -> None:
    broker.claim()
    facts = len(broker.facts)
    for _ in range(10):
        broker.advance(MINUTE_MS)
        broker.claim()
    assert len(broker.facts) == facts
    assert broker.cursors()[0].used_at_ms == broker.now_ms


def test_a_claim_is_two_facts_and_no_record_of_a_message(broker: Reader) -> None:
    broker.fill(5)
    facts = len(broker.facts)
    broker.claim()
    assert broker.facts[facts:] == [
        CursorStored(4, "lake", 1, 0, START_MS, CURSOR_EXPIRES_AFTER_MS),
        ClaimStored(4, "lake", 1, ((1, 5),)),
    ]


def test_a_claim_keeps_to_its_bytes_but_takes_one_message_at_least(broker: Reader) -> None:
    for size in (100, 100, 500, 100):
        broker.send(size=size)
    assert broker.claim(10, bytes_max=250).count == 2
    assert broker.claim(10, bytes_max=250).count == 1  # of 500 bytes
    assert broker.claim(10, bytes_max=250).count == 1
    assert [broker.read(no) for no in (1, 2, 3)] == [[1, 2], [3], [4]]


def test_one_claim_holds_so_many_messages_at_most(broker: Reader) -> None:
    broker.checks = False
    broker.fill(CLAIM_MESSAGES_MAX + 1)
    assert broker.claim(LOTS).count == CLAIM_MESSAGES_MAX
    assert broker.claim(LOTS).count == 1
    broker.namespace.check(broker.now_ms)


def test_locked_deferred_and_scheduled_messages_are_not_claimed(broker: Reader) -> None:
    broker.fill(3)
    first, second = broker.receive(2)
    broker.defer(second)
    broker.schedule(MINUTE_MS)
    assert broker.claim().count == 1
    assert broker.read(1) == [3]
    broker.abandon(first)
    assert broker.claim().count == 1
    assert broker.read(2) == [1]


def test_messages_that_were_given_back_come_first(broker: Reader) -> None:
    broker.fill(4)
    held = broker.receive(2)
    broker.claim(1)
    for view in held:
        broker.abandon(view)
    assert broker.claim().count == 3
    assert broker.read(2) == [1, 2, 4]
    assert broker.facts[-1] == ClaimStored(4, "lake", 2, ((1, 2), (4, 1)))


def test_two_cursors_share_the_messages_of_a_queue(broker: Reader) -> None:
    broker.fill(4)
    broker.claim(2)
    assert broker.claim(2, cursor="copy").no == 1
    command = broker.asks_read(1, cursor="copy")
    assert numbers(broker.one(command, MessagesFound).messages) == [3, 4]
    assert broker.read(1) == [1, 2]


def test_names_of_cursors_are_compared_exactly(broker: Reader) -> None:
    broker.fill(2)
    broker.claim(1, cursor="Lake")
    broker.claim(1, cursor="lake")
    assert [(view.name, view.last_no) for view in broker.cursors()] == [("Lake", 1), ("lake", 1)]


def test_expired_messages_are_passed_over_and_swept(broker: Reader) -> None:
    broker.fill(2, ttl_ms=1_000)
    broker.fill(1)
    broker.jump(1_000)
    assert broker.claim().count == 1
    assert broker.read(1) == [3]
    broker.settle_time()
    assert numbers(broker.peek()) == [3]


def test_the_basic_tier_has_cursors() -> None:
    """They are no feature of the service's (docs/choices.toml)."""
    broker = Reader(BASIC)
    broker.create(default_ttl_ms=DAY_MS)
    broker.fill(1)
    assert broker.claim().count == 1


def test_a_dead_letter_queue_can_be_claimed(broker: Reader) -> None:
    broker.fill(2)
    for view in broker.receive(2):
        broker.dead_letter(view)
    found = broker.claim(sub_queue=SubQueue.DEAD_LETTER)
    assert (found.no, found.count) == (1, 2)
    broker.restart()
    assert [view.cursor for view in broker.peek_dead()] == ["lake", "lake"]
    assert broker.receive_dead(2) == []
    assert broker.commit(1, sub_queue=SubQueue.DEAD_LETTER) == 0
    assert broker.peek_dead() == []
    assert broker.cursors() == []  # of the main queue


def test_the_claims_of_a_transfer_dead_letter_queue_last_over_a_restart(broker: Reader) -> None:
    assert broker.claim(sub_queue=SubQueue.TRANSFER_DEAD_LETTER).no == 0
    broker.restart()
    address = Address("orders", SubQueue.TRANSFER_DEAD_LETTER)
    assert len(broker.one(ListCursors(address, broker.reply_to()), CursorsFound).cursors) == 1


def test_a_partitioned_queue_is_claimed_in_the_order_of_arrival() -> None:
    broker = Reader()
    broker.create(enable_partitioning=True)
    sent = broker.fill(20)
    assert len({number >> 48 for number in sent}) > 1
    assert broker.claim().count == 20
    broker.restart()
    assert broker.read(1) == sent


# What is refused


def test_cursors_of_a_topic_and_of_nothing_are_refused(broker: Reader) -> None:
    broker.create_topic()
    assert isinstance(broker.refused(broker.asks_claim(name="news")), InvalidOperation)
    assert isinstance(broker.refused(broker.asks_claim(name="none")), EntityNotFound)
    for command in (
        ReadClaim(Address("news"), "lake", 1, 0, 1, 1, broker.reply_to()),
        CommitClaims(Address("news"), "lake", 1, broker.reply_to()),
        ReleaseCursor(Address("news"), "lake", broker.reply_to()),
        ListCursors(Address("news"), broker.reply_to()),
    ):
        assert isinstance(broker.refused(command), InvalidOperation)


def test_nothing_is_claimed_where_messages_are_forwarded(broker: Reader) -> None:
    broker.create("copies", forward_to="orders")
    error = broker.refused(broker.asks_claim(name="copies"))
    assert "forwards to 'orders'" in str(error)


def test_malformed_claims_are_refused(broker: Reader) -> None:
    for cursor in ("", "x" * (CURSOR_NAME_MAX + 1), "\ud800"):
        assert isinstance(broker.refused(broker.asks_claim(cursor=cursor)), ArgumentInvalid)
    for command in (
        broker.asks_claim(0),
        broker.asks_claim(1, 0),
        broker.asks_claim(expires_after_ms=59_999),
        broker.asks_claim(expires_after_ms=367 * DAY_MS),
    ):
        assert isinstance(broker.refused(command), ArgumentOutOfRange)
    broker.claim(cursor="x" * CURSOR_NAME_MAX, expires_after_ms=60_000)


def test_a_cursor_that_is_not_there_is_named(broker: Reader) -> None:
    broker.claim(cursor="other")
    for command in (
        broker.asks_read(1),
        CommitClaims(Address("orders"), "lake", 1, broker.reply_to()),
        broker.asks_release(),
    ):
        error = broker.refused(command)
        assert isinstance(error, CursorNotFound)
        assert "'orders' has no cursor 'lake'" in str(error)


def test_claims_that_were_never_made_or_are_committed_are_refused(broker: Reader) -> None:
    broker.fill(2)
    broker.claim(1)
    broker.claim(1)
    assert "no claim 3: the last one is 2" in str(broker.refused(broker.asks_read(3)))
    assert isinstance(broker.refused(broker.asks_read(-1)), ClaimNotFound)
    for up_to_no in (3, -1):
        command = CommitClaims(Address("orders"), "lake", up_to_no, broker.reply_to())
        assert isinstance(broker.refused(command), ClaimNotFound)
    broker.commit(1)
    error = broker.refused(broker.asks_read(1))
    assert isinstance(error, ClaimCommitted)
    assert "claim 1 of cursor 'lake' of 'orders' is committed" in str(error)
    assert isinstance(broker.refused(broker.asks_read(2, skip=-1)), ArgumentOutOfRange)
    assert broker.read(2) == [2]


def test_cursors_of_a_queue_and_claims_of_a_cursor_are_bounded(broker: Reader) -> None:
    broker.checks = False
    broker.fill(CLAIMS_MAX + 2)
    for _ in range(CLAIMS_MAX):
        assert broker.claim(1).count == 1
    error = broker.refused(broker.asks_claim(1))
    assert isinstance(error, QuotaExceeded)
    assert "commit some" in str(error)
    broker.commit(1)
    assert broker.claim(1).no == CLAIMS_MAX + 1
    for at in range(CURSORS_MAX - 1):
        broker.claim(1, cursor=f"c{at}")
    assert isinstance(broker.refused(broker.asks_claim(1, cursor="one more")), QuotaExceeded)
    broker.claim(1, cursor="c5")
    broker.namespace.check(broker.now_ms)


def test_a_disabled_queue_gives_nothing_away_but_lets_it_be_settled(broker: Reader) -> None:
    broker.fill(2)
    broker.claim(1)
    broker.claim(1)
    broker.update(status=EntityStatus.RECEIVE_DISABLED)
    assert isinstance(broker.refused(broker.asks_claim()), EntityDisabled)
    assert isinstance(broker.refused(broker.asks_read(1)), EntityDisabled)
    assert broker.commit(1) == 0
    assert broker.cursors()[0].committed_no == 1
    broker.free()


# Reading


def test_a_claim_is_read_in_parts_which_are_always_the_same(broker: Reader) -> None:
    broker.fill(5)
    broker.claim()
    for _ in range(2):
        assert [broker.read(1, skip, 2) for skip in (0, 2, 4, 5, 99)] == [[1, 2], [3, 4], [5], [], []]
        assert broker.read(1, 1, 99, 250) == [2, 3]
        assert broker.read(1, 1, 99, 1) == [2]
        broker.restart()


def test_what_is_read_is_shown_as_a_peek_shows_it(broker: Reader) -> None:
    broker.send(ttl_ms=5_000)
    broker.claim()
    [view] = broker.one(broker.asks_read(1), MessagesFound).messages
    assert (view.state, view.cursor, view.lock_token) == (MessageState.ACTIVE, "lake", None)
    assert (view.delivery_count, view.ttl_ms) == (0, 5_000)
    assert broker.peek() == [view]


def test_a_locked_message_that_is_peeked_names_no_cursor(broker: Reader) -> None:
    broker.fill(2)
    broker.receive(1)
    assert [view.cursor for view in broker.peek()] == [None, None]


def test_a_claimed_message_that_is_peeked_shows_no_lock(broker: Reader) -> None:
    broker.fill(1)
    broker.claim()
    assert [(view.cursor, view.locked_until_ms) for view in broker.peek()] == [("lake", 0)]


# What passes over claimed messages


def test_a_claimed_message_does_not_expire_until_it_is_given_back(broker: Reader) -> None:
    broker.fill(2, ttl_ms=1_000)
    broker.claim(1)
    broker.advance(5_000)
    assert broker.read(1) == [1]
    assert numbers(broker.peek()) == [1]
    broker.restart()
    broker.advance(5_000)
    assert broker.read(1) == [1]
    broker.free()
    broker.settle_time()
    assert broker.peek() == []


def test_purge_and_batch_deletion_leave_claimed_messages(broker: Reader) -> None:
    broker.fill(3)
    broker.claim(1)
    delete = DeleteMessages(Address("orders"), 1, broker.now_ms, broker.reply_to())
    assert broker.one(delete, MessagesDeleted).count == 1
    broker.do(PurgeMessages(Address("orders"), broker.now_ms, broker.reply_to()))
    [purged] = broker.settle_time()
    assert isinstance(purged, MessagesDeleted)
    assert purged.count == 1
    assert broker.read(1) == [1]


def test_a_change_of_the_entity_leaves_claims(broker: Reader) -> None:
    """Locks end with it (L-12); claims are no locks."""
    broker.fill(3)
    broker.claim(2)
    broker.update(default_ttl_ms=DAY_MS, lock_duration_ms=5_000)
    assert broker.read(1) == [1, 2]
    assert broker.drained() == [3]
    broker.free()
    assert broker.drained() == [1, 2]


def test_an_entity_that_begins_to_forward_passes_on_what_is_given_back(broker: Reader) -> None:
    broker.create("target")
    broker.fill(3)
    broker.claim(2)
    broker.update(forward_to="target")
    broker.settle_time()
    assert len(broker.peek(name="target")) == 1
    assert broker.read(1) == [1, 2]
    assert broker.commit(1) == 0
    broker.update(forward_to=None)
    broker.fill(1)
    broker.claim(1)
    broker.update(forward_to="target")
    broker.free()
    broker.settle_time()
    assert len(broker.peek(name="target")) == 2
    assert broker.peek() == []


def test_a_deleted_entity_forgets_its_cursors(broker: Reader) -> None:
    broker.checks = False
    broker.fill(SLICE + 1)
    broker.claim(SLICE)
    broker.claim(1)
    release = broker.asks_release()
    assert not [effect for effect in broker.do(release) if isinstance(effect, ClaimsLeft)]
    effects = broker.do(DeleteEntity("orders", broker.reply_to()))
    [failed] = [effect for effect in effects if isinstance(effect, Failed)]
    assert failed.reply_to == release.reply_to
    assert isinstance(failed.error, EntityDeleted)
    broker.create()
    assert broker.cursors() == []
    broker.restart()
    assert broker.cursors() == []


# Committing


def test_a_commit_removes_all_claims_up_to_its_number(broker: Reader) -> None:
    broker.fill(6)
    for _ in range(3):
        broker.claim(2)
    assert broker.commit(2) == 0
    assert numbers(broker.peek()) == [5, 6]
    assert broker.cursors()[0].claims == [(3, 2, 200)]
    facts = len(broker.facts)
    assert broker.commit(2) == broker.commit(1) == broker.commit(0) == 0
    assert len(broker.facts) == facts
    broker.restart()
    assert numbers(broker.peek()) == [5, 6]
    assert broker.commit(1) == 0
    assert broker.claim().no == 0
    assert broker.read(3) == [5, 6]


def test_a_commit_of_a_large_claim_is_done_in_slices_also_over_a_restart(broker: Reader) -> None:
    """What was decided holds as a whole from the first slice on."""
    broker.checks = False
    broker.fill(2 * SLICE + 10)
    assert [broker.claim(SLICE).count for _ in range(3)] == [SLICE, SLICE, 10]
    assert broker.commit(2) == SLICE
    assert isinstance(broker.refused(broker.asks_read(2)), ClaimCommitted)
    assert broker.cursors()[0].claims == [(3, 10, 1_000)]
    broker.restart()
    broker.settle_time()
    assert len(broker.peek(count=LOTS)) == 10
    assert broker.commit(2) == 0
    assert broker.read(3)[0] == 2 * SLICE + 1
    broker.namespace.check(broker.now_ms)


def test_a_commit_that_is_asked_again_goes_on(broker: Reader) -> None:
    broker.checks = False
    broker.fill(2 * SLICE)
    broker.claim(SLICE)
    broker.claim(SLICE)
    assert broker.commit(2) == SLICE
    assert broker.commit(1) == 0
    assert broker.commit(2) == 0
    assert broker.peek() == []


# Giving back


def test_released_messages_come_back_once_in_their_old_order_and_not_counted(broker: Reader) -> None:
    broker.fill(4)
    broker.claim(1)
    broker.claim(2)
    broker.free()
    assert broker.cursors() == []
    found = broker.receive(10)
    assert numbers(found) == [1, 2, 3, 4]
    assert {view.delivery_count for view in found} == {0}


def test_released_messages_are_delivered_to_who_waits(broker: Reader) -> None:
    broker.fill(2)
    broker.claim()
    link = broker.receiver()
    assert broker.credit(link, 10) == []
    effects = broker.do(broker.asks_release())
    assert numbers(deliveries(effects)) == [1, 2]


def test_after_a_restart_released_messages_are_not_delivered_twice(broker: Reader) -> None:
    """The line then begins before them."""
    broker.fill(3)
    broker.claim(2)
    broker.restart()
    broker.free()
    first = broker.receive(1)
    assert numbers(first) == [1]
    broker.abandon(first[0])
    assert numbers(broker.receive(10)) == [1, 2, 3]


def test_claims_behind_available_messages_are_passed_over_after_a_restart(broker: Reader) -> None:
    broker.fill(5)
    [held] = broker.receive(1)
    broker.claim(2)
    broker.abandon(held)
    broker.restart()
    assert numbers(broker.receive(10)) == [1, 4, 5]
    broker.free()
    assert numbers(broker.receive(10)) == [2, 3]


def test_a_large_release_is_done_in_slices_and_answered_at_its_end(broker: Reader) -> None:
    broker.checks = False
    broker.fill(3 * SLICE)
    for _ in range(3):
        broker.claim(LOTS)
    release = broker.asks_release()
    assert broker.do(release) == []
    assert broker.cursors() == []
    assert isinstance(broker.refused(broker.asks_read(3)), CursorNotFound)
    assert broker.settle_time()[-1] == ClaimsLeft(release.reply_to, 0)
    assert len(broker.drained()) == 3 * SLICE


def test_a_release_is_whole_over_a_restart(broker: Reader) -> None:
    broker.checks = False
    broker.fill(2 * SLICE)
    broker.claim(LOTS)
    broker.claim(LOTS)
    broker.do(broker.asks_release())
    broker.restart()
    assert broker.cursors() == []
    assert len(broker.drained()) == 2 * SLICE


def test_a_release_waits_until_what_was_committed_is_removed(broker: Reader) -> None:
    broker.checks = False
    broker.fill(3 * SLICE + 1)
    for _ in range(4):
        broker.claim(SLICE)
    assert broker.commit(3) == 2 * SLICE
    release = broker.asks_release()
    assert broker.do(release) == []
    broker.restart()  # nobody was told of the release
    assert [view.claims for view in broker.cursors()] == [[(4, 1, 100)]]
    broker.settle_time()
    broker.free()
    assert broker.drained() == [3 * SLICE + 1]


def test_a_name_can_be_used_anew(broker: Reader) -> None:
    broker.fill(2)
    broker.claim(1)
    broker.commit(1)
    broker.free()
    assert broker.claim().no == 1
    assert broker.read(1) == [2]
    broker.restart()
    assert broker.read(1) == [2]


# Restarts


def test_claims_are_the_same_after_a_restart(broker: Reader) -> None:
    """Req: X-06."""
    broker.fill(6)
    broker.claim(2)
    broker.claim(2)
    before = broker.cursors()
    broker.restart(DAY_MS)
    assert broker.cursors() == before
    assert [broker.read(1), broker.read(2)] == [[1, 2], [3, 4]]
    assert broker.drained() == [5, 6]
    assert broker.claim().no == 0
    broker.fill(1)
    assert broker.claim().no == 3


def test_events_tell_what_became_of_claimed_messages(broker: Reader) -> None:
    broker.fill(3)
    broker.claim(2)
    broker.commit(1)
    broker.claim()
    broker.free()
    told = [
        (EventType(event.type), event.sequence_number, event.reason, event.related_number)
        for event in broker.events
        if event.type not in (EventType.ENQUEUED, EventType.ENTITY_CREATED)
    ]
    assert told == [
        (EventType.CLAIMED, 1, "lake", 1),
        (EventType.CLAIMED, 2, "lake", 1),
        (EventType.COMPLETED, 1, "cursor", 0),
        (EventType.COMPLETED, 2, "cursor", 0),
        (EventType.CLAIMED, 3, "lake", 2),
        (EventType.CLAIM_RELEASED, 3, "lake", 2),
    ]


def test_totals_tell_of_cursors(broker: Reader) -> None:
    broker.fill(3)
    broker.claim(2)
    totals = broker.namespace.totals()
    assert (totals.cursors, totals.claimed_messages, totals.locks) == (1, 2, 0)
    broker.restart()
    totals = broker.namespace.totals()
    assert (totals.cursors, totals.claimed_messages) == (1, 2)
    [reader] = totals.readers
    assert (reader.entity, reader.cursor, reader.owner, reader.has_read) == ("orders", "lake", None, True)
    assert (reader.claims, reader.claimed_messages, reader.backlog) == (1, 2, 3)
    assert reader.oldest_enqueued_at_ms == START_MS
    broker.commit(1)
    assert broker.namespace.totals().claimed_messages == 0


# Unused cursors


def test_an_unused_cursor_gives_back_what_it_holds(broker: Reader) -> None:
    broker.fill(2)
    broker.claim(1)
    broker.advance(CURSOR_EXPIRES_AFTER_MS - 1)
    assert broker.read(1) == [1]  # which is use
    broker.advance(CURSOR_EXPIRES_AFTER_MS - 1)
    assert len(broker.cursors()) == 1
    broker.advance(1)
    assert broker.cursors() == []
    assert broker.drained() == [1, 2]
    assert [type(fact) for fact in broker.facts if isinstance(fact, ClaimRemoved | CursorRemoved)] == [
        ClaimRemoved,
        CursorRemoved,
    ]


def test_a_cursor_expires_when_it_was_told(broker: Reader) -> None:
    broker.claim(expires_after_ms=60_000)
    broker.claim(cursor="other")
    broker.advance(59_999)
    broker.claim()
    broker.advance(59_999)
    broker.claim(expires_after_ms=120_000)
    broker.advance(119_999)
    assert len(broker.cursors()) == 2
    broker.advance(1)
    assert [view.name for view in broker.cursors()] == ["other"]


def test_a_shorter_time_counts_at_once(broker: Reader) -> None:
    broker.claim()
    broker.claim(expires_after_ms=60_000)
    broker.restart()
    broker.advance(60_000)
    assert broker.cursors() == []


def test_time_in_which_the_broker_is_down_does_not_count(broker: Reader) -> None:
    broker.fill(1)
    broker.claim()
    broker.restart(2 * CURSOR_EXPIRES_AFTER_MS)
    broker.advance(CURSOR_EXPIRES_AFTER_MS - 1)
    assert broker.cursors()[0].used_at_ms == START_MS
    broker.advance(1)
    assert broker.cursors() == []


# Sessions


@pytest.fixture
def sessions() -> Reader:
    broker = Reader(STANDARD)
    broker.create(requires_session=True)
    return broker


def send_to(broker: Reader, *session_ids: str) -> None:
    for session_id in session_ids:
        broker.send(session_id=session_id)


def test_a_claim_with_a_time_passes_over_sessions_that_are_newer(sessions: Reader) -> None:
    """Req: X-06."""
    send_to(sessions, "a", "b")
    began_ms = sessions.now_ms
    sessions.advance(1)
    sessions.commit(sessions.claim(1).no)  # of "a", which stands behind "b" with what comes now
    send_to(sessions, "c", "a", "b")
    sessions.claim(1, up_to_ms=began_ms)
    assert sessions.read(2) == [2]
    assert sessions.claim(up_to_ms=began_ms).no == 0
    assert sessions.claim().count == 3


def test_a_claim_takes_whole_sessions_that_nobody_holds(sessions: Reader) -> None:
    send_to(sessions, "a", "b", "c", "a", "b", "c")
    sessions.accept("b")
    assert sessions.claim().count == 4
    assert sessions.read(1) == [1, 3, 4, 6]


def test_a_claimed_session_is_held_until_its_last_message_is_committed(sessions: Reader) -> None:
    send_to(sessions, "a", "a", "b")
    sessions.claim(1)
    sessions.claim(1)
    error = sessions.refused(sessions.wish("a"))
    assert isinstance(error, SessionCannotBeLocked)
    assert "The cursor 'lake' holds messages of it" in str(error)
    assert sessions.claim(cursor="other").count == 1  # of "b"
    sessions.commit(1)
    assert isinstance(sessions.refused(sessions.wish("a")), SessionCannotBeLocked)
    sessions.commit(2)
    sessions.restart()
    send_to(sessions, "a")
    assert sessions.accept("a").session_id == "a"


def test_nobody_else_gets_later_messages_of_a_claimed_session(sessions: Reader) -> None:
    send_to(sessions, "a")
    sessions.claim()
    send_to(sessions, "a")
    assert sessions.claim(cursor="other").count == 0
    sessions.restart()
    assert sessions.claim(cursor="other").count == 0
    assert sessions.claim().count == 1
    assert [sessions.read(1), sessions.read(2)] == [[1], [2]]


def test_a_receiver_that_waits_gets_a_session_that_is_free_again(sessions: Reader) -> None:
    for end in ("commit", "release"):
        send_to(sessions, "a", "a")
        sessions.claim(1)
        sessions.do(sessions.wish(None))
        effects = (
            sessions.do(CommitClaims(Address("orders"), "lake", 1, sessions.reply_to()))
            if end == "commit"
            else sessions.do(sessions.asks_release())
        )
        [opened] = [effect for effect in effects if isinstance(effect, ReceiverOpened)]
        assert opened.session_id == "a"
        found = deliveries(sessions.do(SetCredit(opened.link, LOTS, LOTS)))
        assert numbers(found) == ([2] if end == "commit" else [3, 4])
        for view in found:
            sessions.complete(view)
        sessions.do(CloseLink(opened.link))
        if end == "commit":
            sessions.free()


def test_sessions_are_claimed_in_turn_with_those_that_are_held(sessions: Reader) -> None:
    """A session that never ends does not keep out the others, nor the other way round."""
    send_to(sessions, "long")
    sessions.claim()
    taken: list[str | None] = []
    for _ in range(4):
        send_to(sessions, "long", f"new {len(taken)}", f"more {len(taken)}")
        no = sessions.claim(1).no
        [view] = sessions.one(sessions.asks_read(no), MessagesFound).messages
        taken.append(view.message.session_id)
    assert taken.count("long") == 2


def test_order_in_a_session_is_kept_over_claims_and_restarts(sessions: Reader) -> None:
    """Req: X-06."""
    send_to(sessions, *"abcabcabc")
    sessions.claim(2)
    sessions.restart()
    send_to(sessions, *"abc")
    seen: dict[str, list[int]] = {}
    no = 1
    while no:
        for view in sessions.one(sessions.asks_read(no), MessagesFound).messages:
            assert view.message.session_id is not None
            seen.setdefault(view.message.session_id, []).append(view.message.sequence_number)
        sessions.restart()
        no = sessions.claim(2).no
    assert sorted(seen) == ["a", "b", "c"]
    for found in seen.values():
        assert len(found) == 4
        assert all(before < after for before, after in pairwise(found))


def test_released_sessions_keep_their_order(sessions: Reader) -> None:
    send_to(sessions, "a", "a", "b", "a")
    sessions.claim(2)
    sessions.restart()
    sessions.free()
    opened = sessions.accept("a")
    assert numbers(sessions.credit(opened.link)) == [1, 2, 4]


def test_a_session_of_which_all_has_expired_is_left_to_the_sweep(sessions: Reader) -> None:
    sessions.send(session_id="a", ttl_ms=1_000)
    send_to(sessions, "b")
    sessions.jump(1_000)
    assert sessions.claim().count == 1
    assert sessions.read(1) == [2]
    sessions.settle_time()
    assert sessions.accept("a").session_id == "a"


def test_what_does_not_fit_stays_first_in_its_session(sessions: Reader) -> None:
    sessions.send(session_id="a", size=100)
    sessions.send(session_id="a", size=500)
    assert sessions.claim(bytes_max=300).count == 1
    assert sessions.claim(bytes_max=300).count == 1
    assert [sessions.read(1), sessions.read(2)] == [[1], [2]]


@pytest.mark.parametrize("again", [True, False])
def test_what_a_longer_time_to_live_brings_back_keeps_its_place(again: bool) -> None:
    """The first message has expired when the second is claimed, and then not any more (E-04)."""
    broker = Reader()
    broker.create(requires_session=True, default_ttl_ms=1_000)
    broker.send(session_id="a")
    broker.jump(1_000)
    broker.send(session_id="a")
    assert broker.claim().count == 1
    assert broker.read(1) == [2]
    broker.update(default_ttl_ms=DAY_MS)
    if again:
        assert broker.claim().count == 1
        assert broker.read(2) == [1]
    broker.free()
    assert numbers(broker.credit(broker.accept("a").link)) == [1, 2]


def test_the_state_of_a_claimed_session_is_untouched(sessions: Reader) -> None:
    opened = sessions.accept("a")
    state = SetSessionState(Address("orders"), "a", b"state", sessions.reply_to())
    sessions.one(state, Done)
    sessions.do(CloseLink(opened.link))
    send_to(sessions, "a")
    sessions.claim()
    sessions.commit(1)
    sessions.accept("a")
    found = sessions.one(GetSessionState(Address("orders"), "a", sessions.reply_to()), MessagesFound)
    assert len(found.messages) == 1


def test_commands_about_cursors_are_use_of_the_entity(broker: Reader) -> None:
    """The entity is not idle then (A-03)."""
    broker.fill(1)
    broker.claim()
    commands: list[Command] = [
        broker.asks_claim(),
        broker.asks_read(1),
        CommitClaims(Address("orders"), "lake", 0, broker.reply_to()),
        broker.asks_release(),
    ]
    for command in commands:
        broker.advance(MINUTE_MS)
        broker.do(command)
        assert broker.view().accessed_at_ms == broker.now_ms


def test_a_receiver_that_was_attached_before_gets_no_claimed_message(broker: Reader) -> None:
    broker.fill(2)
    broker.claim(1)
    mode = ReceiveMode.PEEK_LOCK
    link = broker.one(OpenReceiver(broker.link(), Address("orders"), mode), ReceiverOpened).link
    found = [effect for effect in broker.do(SetCredit(link, 5, LOTS)) if isinstance(effect, Deliver)]
    assert numbers(found) == [2]


# The life of a cursor


class Watched(Reader):
    """A reader that notes what each call makes of the state of each cursor."""

    def __init__(self) -> None:
        super().__init__()
        self.moves: set[tuple[CursorState | None, CursorState | None]] = set()
        self.create()

    def states(self) -> dict[Cursor, CursorState]:
        return {
            cursor: state
            for queue in self.namespace._queues.values()
            if queue.cursors is not None
            for cursor, state in queue.cursors.states().items()
        }

    def watch(self, command: Command | None) -> None:
        """Do a command, or one slice of what is due."""
        before = self.states()
        if command is not None:
            self.do(command)
        else:
            self._keep(self.namespace.advance(self.now_ms)[0])
        after = self.states()
        for cursor in before.keys() | after.keys():
            old, new = before.get(cursor), after.get(cursor)
            if old is not new:
                assert new in TRANSITIONS[old]
                self.moves.add((old, new))

    def step(self, random: Random) -> None:
        cursor = random.choice(["lake", "sea"])
        views = {view.name: view for view in self.cursors()}
        owner = views[cursor].owner if cursor in views else None
        match random.randrange(10):
            case 0 | 1:
                self.fill(random.randint(1, 6))
            case 2 | 3:
                self.watch(self.asks_claim(random.randint(1, 4), cursor=cursor, owner=owner))
            case 8 | 9:
                self.watch(self.asks_take(random.choice("ab"), random.random() < 0.5, cursor))
            case 4:
                up_to_no = random.randint(1, 4) + max((view.last_no for view in self.cursors()), default=0)
                command = CommitClaims(
                    Address("orders"), cursor, random.randint(0, up_to_no), self.reply_to(), owner
                )
                self.watch(command)
            case 5 | 6:
                self.watch(None)
            case _ if random.random() < 0.5:
                self.watch(self.asks_release(cursor))


def test_random_commands_take_each_row_of_the_life_of_a_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that nothing takes does not belong there; what is not in the table fails at once."""
    monkeypatch.setattr("peeklock.broker.queue.cursors.SLICE", 2)
    monkeypatch.setattr("peeklock.broker.namespace.SLICE", 2)
    rows = {(old, new) for old, states in TRANSITIONS.items() for new in states}
    moves: set[tuple[CursorState | None, CursorState | None]] = set()
    for seed in range(20):
        broker = Watched()
        random = Random(seed)
        for _ in range(150):
            broker.step(random)
        moves |= broker.moves
    broker = Watched()
    broker.fill(30)
    broker.take("a")
    broker.claim(12, owner="a")
    broker.watch(CommitClaims(Address("orders"), "lake", 1, broker.reply_to(), "a"))
    broker.watch(broker.asks_take("b", take_over=True))
    broker.watch(broker.asks_claim(12, owner="b"))
    broker.watch(broker.asks_take("c"))  # while messages are removed that the first one committed
    assert moves | broker.moves == rows


# Owners


def test_a_newcomer_is_refused_with_the_owner_its_age_and_the_option_and_changes_nothing(
    broker: Reader,
) -> None:
    """Req: X-06."""
    broker.fill(5)
    broker.take("first")
    assert broker.claim(2, owner="first").no == 1
    assert broker.read(1, owner="first") == [1, 2]
    broker.advance(90_000)
    before = broker.cursors()
    asked = (
        broker.asks_take("second"),
        broker.asks_claim(owner="second"),
        broker.asks_claim(),
        broker.asks_read(1, owner="second"),
        CommitClaims(Address("orders"), "lake", 1, broker.reply_to(), "second"),
    )
    for command in asked:
        error = broker.refused(command)
        assert isinstance(error, CursorOwned)
        assert str(error).startswith(
            "cursor 'lake' of 'orders' belongs to the reader 'first', which used it 90 s"
        )
        assert "consumerName" in str(error)
        assert "takeOver=true" in str(error)
    assert broker.cursors() == before
    assert broker.commit(1, owner="first") == 0
    assert broker.claim(2, owner="first").no == 2


def test_what_an_owner_claimed_and_never_read_goes_back_when_another_takes_the_cursor(
    broker: Reader,
) -> None:
    """Req: X-06."""
    broker.fill(5)
    broker.take("first")
    broker.claim(2, owner="first")
    broker.claim(2, owner="first")
    view = broker.take("second")
    assert (view.owner, view.has_read, view.last_no, view.claims) == ("second", False, 0, [])
    assert isinstance(broker.refused(broker.asks_read(1, owner="first")), CursorOwned)
    assert broker.claim(3, owner="second").no == 1
    assert broker.read(1, owner="second") == [1, 2, 3]
    assert [message.delivery_count for message in broker.peek()] == [0] * 5
    assert isinstance(broker.refused(broker.asks_take("third")), CursorOwned)


def test_a_claim_that_a_restore_has_undone_is_refused_by_name(broker: Reader) -> None:
    """The fact is what a restore writes; it stays when the cursor changes. Req: X-06."""
    broker.fill(5)
    assert broker.claim(2).no == 1
    stored = next(fact for fact in reversed(broker.facts) if isinstance(fact, CursorStored))
    broker.facts.append(replace(stored, last_no=100, undone=(2, 99)))
    for _ in range(2):
        broker.restart()
        for command in (broker.asks_read(2), CommitClaims(Address("orders"), "lake", 99, broker.reply_to())):
            error = broker.refused(command)
            assert isinstance(error, ClaimNotFound)
            assert "the store was restored from an older back-up" in str(error)
        assert broker.claim(1).no in (101, 102)
    assert broker.commit(100) == 0
    assert broker.commit(101) == 0
    assert [view.undone for view in broker.cursors()] == [(2, 99)]


def test_a_read_of_no_claim_makes_an_owner_sure_before_there_are_messages(broker: Reader) -> None:
    """Req: X-06."""
    broker.take("first")
    assert broker.read(0, owner="first") == []
    assert isinstance(broker.refused(broker.asks_take("second")), CursorOwned)
    broker.restart()
    assert isinstance(broker.refused(broker.asks_take("second")), CursorOwned)
    assert broker.take("first").has_read


def test_taking_over_gives_the_claims_of_the_reader_before_and_refuses_it(broker: Reader) -> None:
    """Req: X-06."""
    broker.fill(6)
    broker.take("first")
    broker.claim(2, owner="first")
    broker.read(1, owner="first")
    assert broker.take("second", take_over=True).claims == [(1, 2, 200)]
    assert isinstance(broker.refused(broker.asks_claim(owner="first")), CursorOwned)
    assert broker.claim(2, owner="second").no == 2
    # It dies before it reads; the first one comes back, and has what it had.
    assert broker.take("first").claims == [(1, 2, 200)]
    assert broker.read(1, owner="first") == [1, 2]
    assert broker.claim(2, owner="first").no == 2
    assert broker.read(2, owner="first") == [3, 4]


def test_a_cursor_without_an_owner_belongs_to_the_next_reader_that_reads(broker: Reader) -> None:
    """As an older store has it. Req: X-06."""
    broker.fill(6)
    broker.claim(2)
    view = broker.take("first")
    assert (view.owner, view.claims) == ("first", [(1, 2, 200)])
    broker.claim(2, owner="first")
    assert broker.take("second").claims == [(1, 2, 200)]
    assert broker.read(1, owner="second") == [1, 2]
    assert isinstance(broker.refused(broker.asks_claim()), CursorOwned)


@pytest.mark.parametrize("owner", ["", "x" * (CURSOR_NAME_MAX + 1), "\ud800"])
def test_an_owner_that_cannot_be_written_is_refused(broker: Reader, owner: str) -> None:
    assert isinstance(broker.refused(broker.asks_take(owner)), ArgumentInvalid)
    assert isinstance(broker.refused(broker.asks_claim(owner=owner)), ArgumentInvalid)


def test_many_messages_of_an_owner_that_never_read_go_back_in_slices(broker: Reader) -> None:
    """Req: X-06."""
    broker.fill(3 * SLICE)
    broker.take("first")
    broker.claim(owner="first")
    broker.take("second")
    assert isinstance(broker.refused(broker.asks_claim(owner="second")), ServerBusy)
    broker.settle_time()
    assert broker.claim(3 * SLICE, owner="second").count == 3 * SLICE
    broker.take("third")
    broker.restart()  # what is decided stays so
    assert broker.claim(3 * SLICE, owner="third").count == 3 * SLICE
    assert broker.read(1, owner="third")[0] == 1


def test_backlog_and_oldest_message_are_those_that_a_cursor_may_still_have(broker: Reader) -> None:
    """Req: X-06."""
    broker.fill(4)
    broker.claim(2)
    broker.claim(1, cursor="mart")
    [lake, mart] = broker.cursors()
    assert (lake.backlog, mart.backlog) == (3, 2)
    assert lake.oldest_enqueued_at_ms == START_MS
    broker.commit(1)
    [lake, _] = broker.cursors()
    assert lake.backlog == 1
    broker.claim(5)
    broker.commit(2)
    [lake, _] = broker.cursors()
    assert (lake.backlog, lake.oldest_enqueued_at_ms) == (0, None)
