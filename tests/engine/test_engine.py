"""The three rules of the engine, and recovery."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from peeklock.broker.vocabulary.changes import MessageStored, NumbersIssued
from peeklock.broker.vocabulary.commands import Command
from peeklock.broker.vocabulary.effects import Deliver, Done, Effect
from peeklock.engine import engine as engine_module
from peeklock.engine.bodies import BodyCache
from peeklock.engine.engine import RECORD_BYTES, WAITING_A_TURN, Engine
from peeklock.engine.reclaim import DROP_TOGETHER_BYTES, DROP_TOGETHER_ROWS
from peeklock.store.sqlite.pace import DROPPED_BYTES_MAX, DROPPED_ROWS_MAX
from peeklock.store.sqlite.store import SqliteStore
from tests.engine.rig import Rig
from tests.engine.tiny import (
    DEAD_LETTER_QUEUE_ID,
    QUEUE_ID,
    Create,
    Delete,
    Fan,
    Look,
    Many,
    Move,
    Put,
    Skip,
    Take,
    TinyNamespace,
    Touch,
)


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.commit(Create())
    return rig


def numbers(effects: list[Effect]) -> list[int]:
    return [effect.reply_to.number for effect in effects if isinstance(effect, Done)]


def test_effects_leave_in_order_and_only_with_their_batch(rig: Rig) -> None:
    """Req: R-01."""
    rig.offer(Put(b"a"), Look(), Put(b"b"))
    assert rig.engine.release() == []
    assert rig.begin() is not None
    assert rig.engine.release() == []
    rig.offer(Look(), Put(b"c"))
    assert rig.engine.release() == []
    assert numbers(rig.finish()) == [2, 3, 4]
    assert rig.engine.release() == []  # the second batch has a change
    assert numbers(rig.commit()) == [5, 6]


def test_an_effect_without_changes_waits_for_the_batch_in_flight(rig: Rig) -> None:
    """It may tell of what that batch makes true. Req: R-01."""
    rig.offer(Put(b"a"))
    rig.begin()
    rig.offer(Look())
    assert rig.engine.release() == []
    assert rig.engine.take_batch(0) is None
    assert numbers(rig.finish()) == [2]
    assert rig.engine.take_batch(0) is None
    assert numbers(rig.engine.release()) == [3]
    assert rig.engine.release() == []


def test_one_batch_flies_while_the_next_one_fills(rig: Rig) -> None:
    rig.offer(Put(b"a"))
    first = rig.begin()
    rig.offer(Put(b"b"), Put(b"c"))
    assert rig.engine.in_flight
    assert rig.engine.take_batch(0) is None
    rig.finish()
    second = rig.begin()
    assert first is not None
    assert second is not None
    assert (first.no, second.no) == (2, 3)
    assert [type(change) for change in first.changes] == [MessageStored, NumbersIssued]
    assert [type(change) for change in second.changes] == [MessageStored, MessageStored, NumbersIssued]
    with pytest.raises(AssertionError, match="batch 2 is not in flight, 3 is"):
        rig.engine.committed(2, 0, 0)


def test_nothing_is_committed_when_nothing_changed(rig: Rig) -> None:
    assert bool(rig.engine.idle)  # bool(): else mypy takes the later one for impossible
    assert rig.engine.take_batch(0) is None
    rig.offer(Look())
    assert not rig.engine.idle
    assert rig.engine.take_batch(0) is None


def test_a_number_that_was_used_for_nothing_is_not_used_again(rig: Rig) -> None:
    """A client may already know it. Req: R-02."""
    rig.offer(Skip())
    assert rig.begin() is not None
    assert numbers(rig.finish()) == [2]
    assert rig.begin() is None
    assert Rig(rig.store).namespace.next[QUEUE_ID] == 2


def test_a_failed_commit_releases_nothing_ever(rig: Rig) -> None:
    """The owner ends the process: no call gives effects before `committed`. Req: R-01, R-06."""
    rig.offer(Put(b"a"))
    rig.begin()
    rig.offer(Look(), Put(b"b"), Look())
    assert rig.engine.release() == []
    assert rig.engine.take_batch(1000) is None
    assert rig.engine.in_flight


def test_a_command_in_steps_is_one_batch(rig: Rig) -> None:
    """No batch is taken between its steps, nor an effect given out. Req: T-07, R-01"""
    rig.offer(Put(b"before"), Many([b"a", b"b", b"c"]))
    for _ in range(2):
        assert rig.engine.under_way
        assert not rig.engine.idle
        assert rig.begin() is None
        assert rig.engine.release() == []
        rig.engine.go_on(0)
    assert not rig.engine.under_way
    batch = rig.begin()
    assert batch is not None
    assert [change.payload for change in batch.changes if isinstance(change, MessageStored)] == [
        b"before", b"a", b"b", b"c"
    ]  # fmt: skip
    assert numbers(rig.finish()) == [2, 3]
    assert rig.engine.idle
    assert Rig(rig.store).state() == rig.state()


@pytest.mark.parametrize("steps", range(4))
def test_a_crash_between_steps_leaves_nothing_of_the_command(rig: Rig, steps: int) -> None:
    """Req: T-07, R-01"""
    rig.commit(Put(b"before"))
    rig.offer(Put(b"in the same batch"), Many([b"a", b"b", b"c", b"d"]))
    for _ in range(steps):
        rig.begin()
        rig.engine.go_on(0)
    assert [message.size_bytes for message in Rig(rig.store).messages()] == [len(b"before")]


def test_commands_wait_in_order_for_one_that_is_under_way(rig: Rig) -> None:
    """Req: T-07"""
    rig.offer(Many([b"a", b"b", b"c"]), Put(b"d"), Look(), Many([b"e", b"f"]), Put(b"g"))
    batches = []
    for _ in range(20):
        batch = rig.begin()
        if batch is not None:
            batches.append([change.payload for change in batch.changes if isinstance(change, MessageStored)])
            rig.finish()
        if rig.engine.under_way:
            rig.engine.go_on(0)
    # A batch can be taken when a command is done, before those that wait begin.
    assert batches == [[b"a", b"b", b"c"], [b"d", b"e", b"f"], [b"g"]]
    assert rig.engine.idle


def test_commands_that_waited_are_applied_a_bounded_number_a_call(rig: Rig) -> None:
    """Req: R-05"""
    rig.offer(Many([b"a", b"b"]), *[Put(b"x") for _ in range(2 * WAITING_A_TURN + 1)])
    rig.engine.go_on(0)
    sizes = []
    while rig.engine.under_way:
        rig.engine.go_on(0)
        sizes.append(len(rig.messages()))
    assert sizes == [2 + WAITING_A_TURN, 2 + 2 * WAITING_A_TURN, 2 + 2 * WAITING_A_TURN + 1]


def test_what_is_due_waits_for_a_command_under_way(rig: Rig) -> None:
    rig.offer(Many([b"a", b"b"]))
    rig.engine.advance(5)
    assert rig.engine.ledger.now_ms == 0
    rig.engine.go_on(5)
    rig.engine.advance(5)
    assert rig.engine.ledger.now_ms == 5


def test_uncommitted_bytes_are_counted_and_tiny_messages_are_not_free(rig: Rig) -> None:
    """Reading from connections pauses on this figure. Req: T-08"""
    rig.offer(Put(b"12345"))
    rig.begin()
    rig.offer(Put(b"123"), Touch(1))
    assert rig.engine.open_bytes == 8 + 2 * RECORD_BYTES
    rig.finish()
    assert rig.engine.open_bytes == 3 + RECORD_BYTES
    rig.commit()
    assert rig.engine.open_bytes == 0


def test_a_new_message_is_given_its_queue_its_frame_and_its_place(rig: Rig) -> None:
    rig.commit(Put(b"a"), Put(b"b"))
    rig.commit(Put(b"c"))
    first, second, third = rig.messages()
    assert [(m.queue_id, m.journal_no, m.body_row, m.body_slot) for m in (first, second, third)] == [
        (QUEUE_ID, 2, 1, 0),
        (QUEUE_ID, 2, 1, 1),
        (QUEUE_ID, 3, 2, 0),
    ]
    rig.commit(Touch(1))
    assert (first.journal_no, first.body_row) == (4, 1)


def test_rows_are_closed_at_their_size(rig: Rig) -> None:
    """At the limit they are whole; one byte past it a new row begins."""
    limit = engine_module.ROW_BYTES_MAX
    rig.offer(Put(bytes(limit - 10)), Put(bytes(10)), Put(bytes(1)), Put(bytes(limit + 1)), Put(b""))
    batch = rig.begin()
    assert batch is not None
    assert {row: list(map(len, payloads)) for row, payloads in batch.body_rows.items()} == {
        1: [limit - 10, 10],
        2: [1],
        3: [limit + 1],
        4: [0],
    }


def test_a_copy_shares_the_body(rig: Rig) -> None:
    rig.commit(Put(b"a"), Put(b"b"))
    rig.commit(Move(2))
    [copy] = rig.namespace.queues[DEAD_LETTER_QUEUE_ID].values()
    assert (copy.queue_id, copy.body_row, copy.body_slot, copy.journal_no) == (DEAD_LETTER_QUEUE_ID, 1, 1, 3)
    assert rig.body(copy) == b"b"


SUBSCRIPTIONS = [4 * n for n in range(2, 102)]  # 100 entities beside the first one


def with_subscriptions() -> Rig:
    rig = Rig()
    rig.commit(Create(), *(Create(queue_id // 4) for queue_id in SUBSCRIPTIONS))
    return rig


def test_copies_of_one_new_body_share_it() -> None:
    """A hundred copies take the bytes of one, in memory and in the batch. Req: P-01."""
    rig = with_subscriptions()
    body, other = b"x" * 1000, b"y" * 1000
    rig.offer(Put(b"before"), Fan(body, SUBSCRIPTIONS), Fan(other, SUBSCRIPTIONS))
    assert rig.engine.open_bytes == 6 + 2 * 1000 + 201 * RECORD_BYTES
    batch = rig.begin()
    assert batch is not None
    assert batch.body_rows == {1: [b"before", body, other]}
    rig.finish()
    for slot, payload in ((1, body), (2, other)):
        copies = [rig.namespace.queues[queue_id][slot] for queue_id in SUBSCRIPTIONS]
        assert {(m.body_row, m.body_slot) for m in copies} == {(1, slot)}
        assert [m.queue_id for m in copies] == SUBSCRIPTIONS
        assert all(rig.body(m) == payload for m in copies)
    rig.engine.ledger.check(rig.messages())


def test_a_hundred_copies_take_one_body_on_the_disk(tmp_path: Path) -> None:
    """A body of a megabyte: what is written with it is little. Req: P-01."""
    body = bytes(1_000_000)

    async def fan_out() -> None:
        store = SqliteStore(tmp_path)
        await store.open()
        engine = Engine(TinyNamespace(), BodyCache())
        await engine.recover(store, 0)
        for command in (*(Create(queue_id // 4) for queue_id in SUBSCRIPTIONS), Fan(body, SUBSCRIPTIONS)):
            engine.offer(cast("Command", command), 0)
        batch = engine.take_batch(0)
        assert batch is not None
        await store.commit(batch)
        assert [row for row, _ in await store.list_body_rows(0, 10)] == [1]
        assert await store.read_body_rows([1]) == {1: [body]}
        await store.close()

    asyncio.run(fan_out())
    assert (tmp_path / "peeklock.db").stat().st_size < 1.2 * len(body)


def test_a_body_that_is_sent_again_is_placed_again() -> None:
    """Only the copies that one command makes are known to be of one body."""
    rig = with_subscriptions()
    body = b"x" * 1000
    rig.offer(Fan(body, [8, 12]), Fan(body, [8, 12]))
    batch = rig.begin()
    assert batch is not None
    assert batch.body_rows == {1: [body, body]}
    assert [(m.queue_id, m.body_slot) for m in rig.messages()] == [(8, 0), (8, 1), (12, 0), (12, 1)]


def test_copies_of_a_body_that_fills_a_row_share_it() -> None:
    """The row of the body before it is closed for them, their own one is not."""
    rig = with_subscriptions()
    body = bytes(engine_module.ROW_BYTES_MAX)
    rig.offer(Put(b"before"), Fan(body, SUBSCRIPTIONS), Put(b"after"))
    batch = rig.begin()
    assert batch is not None
    assert batch.body_rows == {1: [b"before"], 2: [body], 3: [b"after"]}
    rig.finish()
    assert {m.body_row for m in rig.messages() if m.size_bytes == len(body)} == {2}
    rig.engine.ledger.check(rig.messages())


def test_a_body_delivered_by_its_removal_can_still_be_read_back(rig: Rig) -> None:
    """The row dies in the batch that delivers it; it is dropped with a later one. Req: R-02."""
    rig.engine.bodies._budget_bytes = 1
    rig.commit(Put(b"a"))
    rig.commit(Put(b"b"))
    [deliver] = rig.commit(Take(1))
    assert isinstance(deliver, Deliver)
    assert rig.body(deliver.message) == b"a"


def test_a_row_that_is_waited_for_is_not_dropped(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peeklock.engine.reclaim.DROP_TOGETHER_ROWS", 1)
    rig.commit(Put(b"a"))
    rig.engine.bodies.want(1)
    rig.commit(Take(1))
    for _ in range(3):
        rig.commit(Put(b"x"))
    assert at_rows(rig)[0] == 1
    rig.engine.bodies.put(1, [b"a"])
    rig.commit(Put(b"x"))
    assert at_rows(rig)[0] == 2
    assert rig.engine.bodies.get(1, 0) is None


def at_rows(rig: Rig) -> list[int]:
    return rig.store._bodies.numbers()


def test_a_single_dead_row_does_not_cause_a_commit_of_its_own(rig: Rig) -> None:
    """It would delay the next client's commit by a whole fsync."""
    rig.commit(Put(b"a"))
    rig.commit(Take(1))
    assert rig.engine.take_batch(0) is None
    batch = None
    rig.offer(Put(b"b"))
    batch = rig.begin()
    assert batch is not None
    assert batch.dropped_rows == [1]


def test_dead_rows_of_a_backlog_are_dropped_together(rig: Rig) -> None:
    """Req: R-06."""
    for _ in range(3 * DROP_TOGETHER_ROWS):
        rig.commit(Put(b"x"))
    dropped = []
    for position in range(1, 2 * DROP_TOGETHER_ROWS + 2):
        rig.offer(Take(position))
        batch = rig.begin()
        assert batch is not None
        dropped.append(batch.dropped_rows)
        rig.finish()
    together = [*range(1, DROP_TOGETHER_ROWS + 1)]
    nothing: list[list[int]] = [[]] * (DROP_TOGETHER_ROWS - 1)
    assert dropped == [[], *nothing, together, *nothing, [row + DROP_TOGETHER_ROWS for row in together]]


def test_large_dead_rows_of_a_backlog_do_not_wait_for_others(rig: Rig) -> None:
    for _ in range(DROP_TOGETHER_ROWS):
        rig.commit(Put(bytes(DROP_TOGETHER_BYTES)))
    rig.commit(Take(1))
    rig.commit(Take(2))
    assert at_rows(rig)[0] == 2


def test_what_waits_to_be_dropped_together_leaves_the_next_batch_small() -> None:
    assert 2 * DROP_TOGETHER_ROWS <= DROPPED_ROWS_MAX
    assert 2 * DROP_TOGETHER_BYTES <= DROPPED_BYTES_MAX


def test_a_deleted_entity_gives_its_space_back_in_slices(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch releases more than a slice, however many messages go. Req: R-06."""
    monkeypatch.setattr("peeklock.engine.reclaim.RELEASE_MAX", 10)
    monkeypatch.setattr("peeklock.engine.reclaim.DROP_ALONE_BYTES", 0)
    for n in range(45):
        rig.commit(Put(b"%d" % n))
    assert numbers(rig.commit(Delete()))
    left = []
    while rig.begin() is not None:
        rig.finish()
        left.append(rig.engine.ledger.journal.live_messages)
    assert left == [25, 15, 5, 0, 0]
    assert at_rows(rig) == []


def test_what_was_committed_is_recovered_and_nothing_else(rig: Rig) -> None:
    """Req: R-02."""
    rig.commit(Put(b"a"), Put(b"b"), Put(b"c"), Put(b"d"))
    rig.commit(Touch(1, b"overlay"), Take(2), Move(3))
    committed = rig.state()
    rig.offer(Put(b"lost"), Take(1))
    rig.begin()
    rig.store.crash()
    again = Rig(rig.store)
    assert again.state() == committed
    assert [again.body(message) for message in again.messages()] == [b"a", b"d", b"c"]
    again.commit(Put(b"e"))
    assert max(again.namespace.queues[QUEUE_ID]) == 5


def test_a_deleted_entity_stays_deleted_and_its_id_is_not_reused(rig: Rig) -> None:
    """Its records are still in the journal and mean nothing. Req: R-02."""
    rig.commit(Put(b"a"))
    rig.commit(Create(2))
    rig.commit(Delete())
    again = Rig(rig.store)
    assert list(again.namespace.entities) == [2]
    assert again.messages() == []
    assert again.namespace.next_entity_id == 3
    assert again.engine.ledger.journal.live_messages == 0
    again.settle()
    again.commit(Put(b"x", queue_id=8))
    again.commit(Put(b"x", queue_id=8))
    assert 1 not in at_rows(again) or again.engine.ledger.holds_row(1)
