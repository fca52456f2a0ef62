"""Space: whatever the workload, live bodies stay readable, what is dead goes, and a restart finds the same
state."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY, SESSION_STATES, MessageStored, NumbersIssued
from peeklock.broker.vocabulary.message import Message
from peeklock.engine import engine as engine_module
from peeklock.engine import journal, reclaim
from peeklock.engine.reclaim import ReclaimFound, ReclaimRead
from peeklock.store.base import Batch
from peeklock.store.encoding import frames
from tests.engine.rig import Rig, at_once
from tests.engine.tiny import QUEUE_ID, STATES_QUEUE_ID, Create, Delete, Fan, Move, Put, Take, Touch

LIMITS = {
    "JOURNAL_BYTES_MIN": 720,
    "HEAD_READ_BYTES": 600,
    "COPY_READ_BYTES": 300,
    "TRUNCATE_BYTES_MAX": 1500,
    "DROP_BYTES_MAX": 400,
    "DROP_ROWS_MAX": 3,
    "DROP_ALONE_BYTES": 1,
    "DROP_TOGETHER_ROWS": 2,
    "RELEASE_MAX": 5,
    "LIST_ROWS_MAX": 4,
    "COPY_RECORDS_MAX": 7,
    "SHARERS_LISTED_MAX": 4,
}
ROW_BYTES_MAX = 200


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scale all limits down, so that few messages reach them."""
    for name, value in LIMITS.items():
        monkeypatch.setattr(journal if hasattr(journal, name) else reclaim, name, value)
    monkeypatch.setattr(engine_module, "ROW_BYTES_MAX", ROW_BYTES_MAX)


class Workload:
    """Random commands, commits that take their time, reclaim reads answered late, crashes, restarts."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.rig = Rig(cache_bytes=300)
        self.queue_id = 0
        self.entity_id = 0
        self.payloads: dict[Message, bytes] = {}
        self.create()
        self.rig.commit()
        self.committed = self.rig.state()
        self.flying: object = None
        self.wanted: ReclaimRead | None = None
        self.found: ReclaimFound | None = None
        self.made = 0
        self.seen: Counter[str] = Counter()

    def step(self) -> None:
        action = self.random.choices(
            (self.put, self.take, self.touch, self.move, self.commit, self.read, self.crash, self.replace),
            (10, 9, 6, 4, 25, 12, 1, 0.3),
        )[0]
        action()

    # What clients do

    def create(self) -> None:
        self.entity_id += 1
        self.queue_id = QUEUES_PER_ENTITY * self.entity_id
        self.rig.offer(Create(self.entity_id))

    def replace(self) -> None:
        """The entity goes, with all that is in it; another one comes."""
        self.rig.offer(Delete(self.entity_id))
        self.create()

    def put(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            self.made += 1
            payload = b"%d " % self.made + b"x" * self.random.randint(0, 120)
            message_id = b"%d" % self.made if self.random.random() < 0.2 else None
            session_id = self.random.choice((None, None, "a", "b" * 40, f"{self.made} ☃"))
            queue_id = self.queue_id + (SESSION_STATES if self.random.random() < 0.1 else 0)
            self.rig.offer(Put(payload, message_id, queue_id, session_id))
            self.payloads[next(reversed(self.rig.namespace.queues[queue_id].values()))] = payload

    def pick(self, queue_id: int) -> int | None:
        """Mostly the oldest, as receivers do."""
        positions = list(self.rig.namespace.queues[queue_id])
        if not positions:
            return None
        return positions[0] if self.random.random() < 0.7 else self.random.choice(positions)

    def take(self) -> None:
        queue_id = self.queue_id + self.random.choices((0, 1, SESSION_STATES), (6, 3, 1))[0]
        for _ in range(self.random.randint(1, 6)):
            position = self.pick(queue_id)
            if position is not None:
                self.rig.offer(Take(position, queue_id))

    def touch(self) -> None:
        position = self.pick(self.queue_id)
        if position is not None:
            for _ in range(self.random.randint(1, 12)):
                self.rig.offer(Touch(position, self.random.choice((None, b"overlay")), self.queue_id))

    def move(self) -> None:
        position = self.pick(self.queue_id)
        if position is not None:
            payload = self.payloads[self.rig.namespace.queues[self.queue_id][position]]
            self.rig.offer(Move(position, self.random.random() < 0.5, self.queue_id))
            copy = next(reversed(self.rig.namespace.queues[self.queue_id + 1].values()))
            self.payloads[copy] = payload

    # What the server does

    def commit(self) -> None:
        """Finish the commit on its way, else begin one."""
        if self.rig.flying is not None:
            self.rig.finish()
            self.committed = self.flying
        else:
            batch = self.rig.begin()
            if batch is not None:
                self.flying = self.rig.state()
                self.seen["truncated"] += bool(batch.truncate_before)
                self.seen["dropped"] += len(batch.dropped_rows)

    def read(self) -> None:
        """Take one of three steps: ask what is wanted, read it, answer it."""
        self.rig.now_ms += self.random.randint(0, 700)
        self.rig.engine.advance(self.rig.now_ms)
        if self.found is not None:
            self.rig.engine.reclaim_offer(self.found, self.rig.now_ms)
            self.found = None
            return
        if self.wanted is None:
            self.wanted = self.rig.engine.reclaim_wanted(self.rig.now_ms)
        else:
            self.seen["copied"] += len(self.wanted.rows)
            self.found = at_once(self.wanted.read_from(self.rig.store))
            self.wanted = None
            self.seen["heads"] += len(self.found.head)
            self.seen["listed"] += len(self.found.listed or ())

    def crash(self) -> None:
        """The batch in flight is whole on the disk, or not there at all."""
        if self.rig.flying is not None and self.random.random() < 0.5:
            self.rig.store.flush()
            self.committed = self.flying
        self.restart()
        assert self.rig.state() == self.committed
        # The last entity may be one that was never durable.
        self.entity_id = max(self.rig.namespace.entities)
        self.queue_id = QUEUES_PER_ENTITY * self.entity_id

    def restart(self) -> None:
        by_key = {(m.queue_id, m.position): payload for m, payload in self.payloads.items()}
        self.rig.store.crash()
        now_ms = self.rig.now_ms
        self.rig = Rig(self.rig.store, cache_bytes=300, now_ms=now_ms)
        self.wanted = self.found = None
        self.payloads = {m: by_key[m.queue_id, m.position] for m in self.rig.messages()}

    # What must hold

    def every_live_body_is_readable(self) -> None:
        for message in self.rig.messages():
            assert self.rig.body(message) == self.payloads[message]

    def finish(self) -> None:
        """At rest nothing is wasted beyond the bounds, and a restart gives the same state."""
        while self.wanted is not None or self.found is not None:
            self.read()
        self.rig.settle()
        self.bounded()
        self.every_live_body_is_readable()
        state = self.rig.state()
        self.restart()
        assert self.rig.state() == state
        self.rig.settle()
        self.every_live_body_is_readable()
        self.bounded()

    def bounded(self) -> None:
        rig = self.rig
        ledger = rig.engine.ledger
        ledger.check(rig.messages())
        assert ledger.journal.size_bytes == sum(len(meta) for _, meta in rig.store._journal.above(0))
        assert ledger.journal.size_bytes <= max(LIMITS["JOURNAL_BYTES_MIN"], 3 * ledger.journal.live_bytes)
        assert set(rig.store._bodies.numbers()) == {message.body_row for message in rig.messages()}
        for row in rig.store._bodies.numbers():
            total = sum(map(len, at_once(rig.store.read_body_rows([row]))[row]))
            alive = {m.body_slot: m.size_bytes for m in rig.messages() if m.body_row == row}
            assert 2 * sum(alive.values()) >= total - reclaim.BODY_ROW_OVERHEAD_BYTES


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", [*range(12), 1081, 1083, 1089, 1251])  # the last four found errors once
def test_space_is_bounded_and_nothing_live_is_lost(seed: int) -> None:
    """Req: R-02, R-06."""
    workload = Workload(seed)
    for _ in range(600):
        workload.step()
        workload.every_live_body_is_readable()
    workload.finish()
    missed = {"truncated", "dropped", "copied", "heads", "listed"} - {
        k for k, n in workload.seen.items() if n
    }
    assert not missed  # whatever the seed, all of it took place


class FanOut(Workload):
    """Several entities, as the subscriptions of a topic are: they come and go, and share bodies."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.newest_id = self.entity_id

    def step(self) -> None:
        """Do what clients of some one entity do, or of all."""
        there = list(self.rig.namespace.entities)
        self.newest_id = max(self.newest_id, *there)
        self.look_at(self.random.choice(there))
        chance = self.random.random()
        if chance < 0.15:
            self.fan(self.random.sample(there, self.random.randint(1, len(there))))
        elif chance < 0.15 + 0.01 * (12 - len(there)):
            self.look_at(self.newest_id)
            self.create()
        elif chance > 0.98 and len(there) > 1:
            self.rig.offer(Delete(self.entity_id))
        else:
            super().step()

    def look_at(self, entity_id: int) -> None:
        self.entity_id = entity_id
        self.queue_id = QUEUES_PER_ENTITY * entity_id

    def replace(self) -> None:
        """Entities go and come by themselves."""

    def fan(self, entity_ids: list[int]) -> None:
        self.made += 1
        payload = b"%d " % self.made + b"x" * self.random.randint(0, 120)
        queue_ids = [QUEUES_PER_ENTITY * entity_id for entity_id in entity_ids]
        self.rig.offer(Fan(payload, queue_ids))
        for queue_id in queue_ids:
            self.payloads[next(reversed(self.rig.namespace.queues[queue_id].values()))] = payload
        self.seen["shared by many"] += len(entity_ids) > LIMITS["SHARERS_LISTED_MAX"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(12))
def test_space_is_bounded_and_nothing_live_is_lost_where_entities_share_bodies(seed: int) -> None:
    """Req: P-01, R-02, R-06."""
    workload = FanOut(seed)
    for _ in range(600):
        workload.step()
        workload.every_live_body_is_readable()
    workload.finish()
    kinds = {"truncated", "dropped", "copied", "heads", "listed", "shared by many"}
    assert not kinds - {kind for kind, count in workload.seen.items() if count}


def rig_with(count: int, payload: bytes = b"x" * 40) -> Rig:
    """Give a rig with so many messages, each its own batch when they are large, five to a row when small."""
    rig = Rig(cache_bytes=1)
    rig.commit(Create())
    for first in range(0, count, 5):
        rig.commit(*(Put(payload + b"%d" % n) for n in range(first, first + 5)))
    return rig


def frame_numbers(rig: Rig) -> list[int]:
    return rig.store._journal.numbers()


@pytest.mark.usefixtures("small")
def test_the_head_of_the_journal_goes_when_what_lives_in_it_was_recorded_anew() -> None:
    """Old untouched messages hold the head; others make the journal long. Req: R-06."""
    rig = rig_with(10)
    for _ in range(40):
        rig.commit(*[Touch(9)] * 5)
    assert bool(rig.engine.ledger.journal.is_long)  # bool(): else mypy takes the later one for impossible
    assert frame_numbers(rig)[0] == 2  # in the first one nothing lived
    rig.settle()
    assert not rig.engine.ledger.journal.is_long
    assert frame_numbers(rig)[0] > 10
    assert {m.position: m.delivery_count for m in rig.messages()} == {n: 200 * (n == 9) for n in range(1, 11)}
    again = Rig(rig.store)
    assert again.state() == rig.state()


@pytest.mark.usefixtures("small")
def test_records_made_anew_and_the_truncation_are_one_batch() -> None:
    """A crash between the two would lose messages. Req: R-02."""
    rig = rig_with(10)
    for _ in range(40):
        rig.commit(*[Touch(9)] * 5)
    while not rig.reclaim():
        rig.commit(Touch(9))
    assert rig.begin() is not None
    rig.store.crash()
    assert [m.position for m in Rig(rig.store).messages()] == list(range(1, 11))
    assert frame_numbers(rig)[0] == 2


@pytest.mark.usefixtures("small")
def test_a_message_that_went_while_its_frame_was_read_is_not_recorded_anew() -> None:
    """Req: R-02."""
    rig = rig_with(10)
    for _ in range(40):
        rig.commit(*[Touch(9)] * 5)
    wanted = None
    while wanted is None or not wanted.head_bytes:
        rig.commit(Touch(9))
        wanted = rig.engine.reclaim_wanted(rig.now_ms)
    found = at_once(wanted.read_from(rig.store))
    rig.commit(Take(1), Touch(2), Move(3))
    rig.engine.reclaim_offer(found, rig.now_ms)
    rig.settle()
    assert Rig(rig.store).state() == rig.state()
    assert sorted(rig.namespace.queues[QUEUE_ID]) == [2, *range(4, 11)]


@pytest.mark.usefixtures("small")
def test_counters_outlive_the_frames_they_were_recorded_in() -> None:
    """A number is never issued twice. Req: R-02."""
    rig = rig_with(10)
    rig.commit(*(Take(n) for n in range(1, 11)))
    for n in range(60):
        rig.commit(Create(10 + n), Put(b"y", queue_id=4 * (10 + n)))
        rig.commit(Take(1, 4 * (10 + n)), Delete(10 + n))
    rig.settle()
    assert frame_numbers(rig)[0] > 20
    assert Rig(rig.store).namespace.next[QUEUE_ID] == 11


@pytest.mark.usefixtures("small")
def test_message_ids_outlive_the_frames_they_were_recorded_in_until_their_window_ends() -> None:
    rig = Rig()
    rig.namespace.id_window_ms = 10**6
    rig.commit(Create())
    for n in range(20):
        rig.commit(Put(b"x", b"%d" % n))
        rig.commit(Take(n + 1))
    rig.commit(Put(b"x"))
    for _ in range(60):
        rig.commit(*[Touch(21)] * 5)
    rig.settle()
    assert frame_numbers(rig)[0] > 40
    assert len(Rig(rig.store).namespace.ids) == 20
    rig.now_ms += 10**6
    for _ in range(60):
        rig.commit(*[Touch(21)] * 5)
    rig.settle()
    assert len(Rig(rig.store).namespace.ids) == 0
    assert rig.engine.ledger.journal.ids_recorded == 0


@pytest.mark.usefixtures("small")
def test_a_row_under_half_alive_is_copied_forward_after_a_second() -> None:
    """Not before: a queue that is drained takes every row through that state. Req: R-06."""
    rig = rig_with(5, b"x" * 30)
    rig.settle()
    rig.commit(Take(1), Take(3))
    assert rig.engine.reclaim_wanted(rig.now_ms) is None
    rig.commit(Take(5), Move(4))
    for ms in (0, 999):
        rig.now_ms += ms
        rig.engine.advance(rig.now_ms)
        assert rig.engine.reclaim_wanted(rig.now_ms) is None
    rig.now_ms += 1
    rig.engine.advance(rig.now_ms)
    wanted = rig.engine.reclaim_wanted(rig.now_ms)
    assert wanted == ReclaimRead([1], 0, None)
    assert rig.engine.reclaim_wanted(rig.now_ms) is None  # one answer is awaited
    rig.engine.reclaim_offer(at_once(wanted.read_from(rig.store)), rig.now_ms)
    rig.settle()
    assert rows(rig) == [2]
    assert {m.position: rig.body(m) for m in rig.namespace.queues[QUEUE_ID].values()} == {2: b"x" * 30 + b"1"}
    [copy] = rig.namespace.queues[QUEUE_ID + 1].values()
    assert rig.body(copy) == b"x" * 30 + b"3"
    assert Rig(rig.store).state() == rig.state()


@pytest.mark.usefixtures("small")
def test_several_records_of_a_message_in_one_frame_become_one() -> None:
    """Else the same records would be rewritten endlessly. Found by seed 1089."""
    rig = rig_with(5)
    rig.commit(*[Touch(1)] * 40)
    rig.commit(*(Take(n) for n in range(2, 6)))
    rig.settle()
    assert rig.engine.ledger.journal.size_bytes < LIMITS["JOURNAL_BYTES_MIN"]


@pytest.mark.usefixtures("small")
def test_large_overlays_do_not_keep_the_journal_in_motion() -> None:
    """What lives may be many times the records of fixed width; rewriting it wins nothing. Req: R-06."""
    rig = rig_with(10)
    for n in range(1, 11):
        for _ in range(4):
            rig.commit(Touch(n, b"a long reason" * 40))
    rig.settle()
    size_bytes = rig.engine.ledger.journal.size_bytes
    assert size_bytes > 5000 > 3 * 10 * journal.STORED_RECORD_BYTES
    again = Rig(rig.store)
    again.settle()
    assert again.engine.ledger.journal.size_bytes == size_bytes
    rig.commit(*(Take(n) for n in range(1, 11)))
    rig.settle()
    assert rig.engine.ledger.journal.size_bytes < LIMITS["JOURNAL_BYTES_MIN"]


@pytest.mark.usefixtures("small")
def test_large_overlays_in_one_frame_do_not_keep_the_journal_in_motion() -> None:
    """All that lives is recorded again at once, before the first frame can be forgotten. Req: R-06."""
    rig = Rig()
    overlay = b"a long reason" * 40
    rig.commit(Create(), *(Put(b"x") for _ in range(10)), *(Touch(n, overlay) for n in range(1, 11)))
    rig.settle()
    assert rig.engine.ledger.journal.size_bytes > 5000


def encoded_bytes(rig: Rig) -> int:
    """Return what all that lives takes in one frame."""
    return len(frames.encode(Batch(1, [MessageStored(m.queue_id, m) for m in rig.messages()])))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kinds", [1, 30])
def test_texts_do_not_keep_the_journal_in_motion_and_do_not_make_it_longer(kinds: int) -> None:
    """Long session ids are most of what lives when each is another one; they are next to nothing when all are
    equal. Req: R-06."""
    rig = Rig()
    rig.commit(Create())
    rig.commit(*(Put(b"x", session_id=f"{n % kinds:0128}") for n in range(30)))
    for _ in range(20):
        for n in range(1, 31):
            rig.commit(Touch(n))
    rig.settle()
    size_bytes = rig.engine.ledger.journal.size_bytes
    overhead_bytes = 40 * len(frame_numbers(rig))  # each frame's head, run heads and its part of the counters
    assert size_bytes <= 3 * encoded_bytes(rig) + overhead_bytes + LIMITS["JOURNAL_BYTES_MIN"]
    again = Rig(rig.store)
    for _ in range(2):
        again.settle()
        at_rest = frame_numbers(again)
    again.settle()
    assert frame_numbers(again) == at_rest
    assert {m.position: m.session_id for m in again.messages()} == {
        n + 1: f"{n % kinds:0128}" for n in range(30)
    }
    again.commit(*(Take(n) for n in range(1, 31)))
    again.settle()
    assert again.engine.ledger.journal.size_bytes < LIMITS["JOURNAL_BYTES_MIN"]
    # Recorded with each truncation of the last pass.
    counters = NumbersIssued(QUEUE_ID, 1, SequenceNumber(1), 0, (1,) * 16)
    assert again.engine.ledger.journal.live_bytes <= journal.numbers_bytes(counters)


@pytest.mark.usefixtures("small")
def test_session_states_are_copied_forward_and_their_space_comes_back() -> None:
    """They are stored as messages of a hidden queue; an old state goes when a new one comes. Req: R-06."""
    rig = Rig(cache_bytes=1)
    rig.commit(Create())
    rig.commit(*(Put(b"state %d" % n * 4, None, STATES_QUEUE_ID, f"session {n}") for n in range(5)))
    for n in range(1, 5):
        rig.commit(
            Take(n, STATES_QUEUE_ID), Put(b"state of %d" % n, None, STATES_QUEUE_ID, f"session {n - 1}")
        )
    rig.settle()
    assert 1 not in rows(rig)
    states = {m.session_id: rig.body(m) for m in rig.namespace.queues[STATES_QUEUE_ID].values()}
    assert states == {
        "session 4": b"state 4" * 4,
        **{f"session {n - 1}": b"state of %d" % n for n in range(1, 5)},
    }
    again = Rig(rig.store)
    assert again.state() == rig.state()
    again.commit(Delete())
    again.settle()
    assert rows(again) == []


def rows(rig: Rig) -> list[int]:
    return rig.store._bodies.numbers()


@pytest.mark.usefixtures("small")
def test_a_body_that_several_share_is_copied_once() -> None:
    """Req: R-06."""
    rig = rig_with(5, b"x" * 30)
    rig.settle()
    original = rig.namespace.queues[QUEUE_ID][2]
    shared = Message(original.size_bytes)
    shared.body_row, shared.body_slot = original.body_row, original.body_slot
    shared.position = 1
    rig.namespace.queues[QUEUE_ID + 1][1] = shared
    rig.engine._record([MessageStored(QUEUE_ID + 1, shared)])
    rig.commit(Take(1), Take(3), Take(4), Take(5))
    rig.settle()
    assert rows(rig) == [2]
    assert (shared.body_row, shared.body_slot) == (original.body_row, original.body_slot) == (2, 0)
    rig.commit(Take(2))
    assert rig.body(shared) == b"x" * 30 + b"1"
    rig.commit(Take(1, QUEUE_ID + 1))
    rig.settle()
    assert rows(rig) == []


@pytest.mark.usefixtures("small")
def test_a_start_finds_what_the_last_process_left_behind() -> None:
    """Dead rows go, sparse ones are copied forward, though nothing in the journal says how large they were.
    Req: R-06."""
    rig = rig_with(40, b"x" * 30)
    rig.commit(*(Take(n) for n in range(1, 31)), *(Take(n) for n in range(32, 36)))
    assert rows(rig) == list(range(1, 9))
    again = Rig(rig.store)
    assert again.engine.ledger.journal.live_messages == 6
    again.settle()
    assert rows(again) == [8, 9]
    assert [again.body(m) for m in again.messages()] == [
        b"x" * 30 + b"%d" % n for n in (30, 35, 36, 37, 38, 39)
    ]


SUBSCRIPTIONS = [QUEUES_PER_ENTITY * n for n in range(2, 102)]


def fanned_out(*payloads: bytes) -> Rig:
    """Return a rig with a hundred entities that all have a copy of each of these, all in one row."""
    rig = Rig(cache_bytes=1)
    rig.commit(*(Create(queue_id // QUEUES_PER_ENTITY) for queue_id in SUBSCRIPTIONS))
    rig.commit(*(Fan(payload, SUBSCRIPTIONS) for payload in payloads))
    return rig


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a dead row go though it is alone."""
    monkeypatch.setattr(reclaim, "DROP_ALONE_BYTES", 1)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("backwards", [False, True])
def test_a_body_lives_as_long_as_one_of_its_copies(backwards: bool) -> None:
    """Whichever is the last one, also over restarts. Req: P-01, R-02, R-06."""
    rig = fanned_out(b"shared")
    order = SUBSCRIPTIONS[::-1] if backwards else SUBSCRIPTIONS
    for gone, queue_id in enumerate(order[:-1], 1):
        rig.commit(Take(1, queue_id))
        if gone in (1, 50, 83, 84, 85, 98):
            rig = Rig(rig.store, cache_bytes=1)
        rig.engine.ledger.check(rig.messages())
        assert rig.body(rig.namespace.queues[order[-1]][1]) == b"shared"
    rig.settle()
    assert rows(rig) == [1]
    rig.commit(Take(1, order[-1]))
    rig.settle()
    assert rows(rig) == []


@pytest.mark.usefixtures("eager")
def test_an_entity_that_goes_takes_no_body_from_those_that_share_it() -> None:
    """A deleted subscription's messages are released in slices; the others' stay. Req: P-01, R-02, R-06."""
    rig = fanned_out(b"first", b"second")
    for queue_id in SUBSCRIPTIONS[:-1]:
        rig.commit(Delete(queue_id // QUEUES_PER_ENTITY))
    [left] = rig.namespace.entities
    assert [rig.body(message) for message in rig.messages()] == [b"first", b"second"]
    rig.settle()
    rig.engine.ledger.check(rig.messages())
    again = Rig(rig.store, cache_bytes=1)
    assert [again.body(message) for message in again.messages()] == [b"first", b"second"]
    again.commit(Delete(left))
    again.settle()
    assert rows(again) == []


@pytest.mark.usefixtures("eager")
def test_many_entities_that_go_at_once_are_released_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic with its subscriptions, also those that have no message. Req: R-06."""
    monkeypatch.setattr(reclaim, "RELEASE_MAX", 30)
    rig = fanned_out(b"first", b"second")
    rig.commit(*(Take(n, queue_id) for queue_id in SUBSCRIPTIONS[:50] for n in (1, 2)))
    rig.offer(*(Delete(queue_id // QUEUES_PER_ENTITY) for queue_id in SUBSCRIPTIONS))
    left = []
    while rig.begin() is not None:
        rig.finish()
        left.append(rig.engine.ledger.journal.live_messages)
    assert left == [100, 93, 73, 53, 33, 13]
    assert rig.engine.ledger.journal.live_messages == 0
    rig.commit(Create(200))
    rig.settle()
    assert rows(rig) == []


@pytest.mark.usefixtures("eager")
def test_bodies_that_many_share_are_copied_forward_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """No slice makes many more records than it should; what it leaves stays where it is. Req: R-06."""
    monkeypatch.setattr(reclaim, "COPY_RECORDS_MAX", 150)
    payloads = [b"%d" % n * 12 for n in range(10)]
    rig = fanned_out(*payloads)
    rig.settle()
    for queue_id in SUBSCRIPTIONS:
        rig.commit(*(Take(n, queue_id) for n in range(1, 7)))
    rig.now_ms += 1001
    rig.engine.advance(rig.now_ms)
    places = []
    while (wanted := rig.engine.reclaim_wanted(rig.now_ms)) is not None:
        assert wanted.rows == [1]
        rig.engine.reclaim_offer(at_once(wanted.read_from(rig.store)), rig.now_ms)
        rig.begin()
        rig.finish()
        places.append(Counter(message.body_row for message in rig.messages()))
        rig.engine.ledger.check(rig.messages())
        assert Rig(rig.store).state() == rig.state()
    assert places == [{1: 200, 2: 200}, {2: 200, 3: 200}]
    rig.settle()
    assert rows(rig) == [2, 3]
    assert [rig.body(message) for message in rig.messages()] == payloads[6:] * 100


@pytest.mark.usefixtures("eager")
def test_a_start_with_many_copies_finds_who_shares_what() -> None:
    """Some of the copies are gone or were moved; all have one body, none has another. Req: P-01, R-02."""
    rig = fanned_out(*(b"%d" % n for n in range(1, 21)))
    for n, queue_id in enumerate(SUBSCRIPTIONS):
        rig.commit(*(Take(number, queue_id) for number in range(1, 19) if (n + number) % 7 or number == 3))
        rig.commit(Move(20, False, queue_id))
    again = Rig(rig.store)
    assert again.state() == rig.state()
    again.engine.ledger.check(again.messages())
    copies = Counter(again.body(message) for message in again.messages())
    assert copies[b"3"] == 0
    assert copies[b"19"] == copies[b"20"] == 100
    again.commit(*(Take(message.position, message.queue_id) for message in again.messages()))
    again.settle()
    assert rows(again) == []
