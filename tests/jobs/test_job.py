"""Jobs against a model of a broker, killed and disturbed at any instant."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.jobs import job as job_module
from peeklock.jobs.checkpoint import Checkpoint
from peeklock.jobs.job import Job
from peeklock.jobs.operations import (
    Close,
    Done,
    Forward,
    Look,
    Message,
    Open,
    Receive,
    Renew,
    Save,
    Settled,
    Wait,
)
from peeklock.jobs.plan import Guarantee, Plan, sends_to
from peeklock.jobs.survey import Snapshot
from peeklock.search import Criteria, MessageState, Peeked
from tests.jobs.model import Model, body_of, message

INSTANTS = st.sets(st.integers(1, 120), max_size=6)


def plan(**given: Any) -> Plan:
    values: dict[str, Any] = {"work": "move", "namespace": "here", "source": "a", "target": "b"}
    return Plan(**(values | {"target_namespace": "here"} | given))


def filled(count: int, *, session_count: int = 0) -> dict[int, bytes]:
    return {
        number: message(
            number,
            f"{'good' if number % 3 else 'other'}-{number}",
            session=f"s{number % session_count}" if session_count else None,
        )
        for number in range(1, count + 1)
    }


def bodies(payloads: Any) -> list[str]:
    return sorted(map(body_of, payloads))


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "SLICE", 5)


@given(
    count=st.integers(0, 24),
    dies_at=INSTANTS,
    lapses_at=INSTANTS,
    guarantee=st.sampled_from([each for each in Guarantee if each is not Guarantee.RESCHEDULED]),
    limit=st.none() | st.integers(1, 12),
    session_count=st.sampled_from([0, 3]),
)
@settings(max_examples=400, deadline=None)
def test_nothing_is_lost_and_what_is_promised_once_arrives_once(
    count: int,
    dies_at: set[int],
    lapses_at: set[int],
    guarantee: Guarantee,
    limit: int | None,
    session_count: int,
) -> None:
    """Req: R-02. A job killed at any instants, whose locks lapse at any others, goes on until it is done.

    A job that reschedules receives nothing: see tests/server/workers/test_jobs.py.
    """
    start = filled(count, session_count=session_count)
    detects = guarantee is Guarantee.DUPLICATE_DETECTION
    wanted = plan(
        criteria=Criteria(text="good"),
        limit=limit,
        work="deadLetter" if guarantee is Guarantee.DEAD_LETTERED else "move",
        target=None if guarantee in (Guarantee.REMOVED, Guarantee.DEAD_LETTERED) else "b",
        by_transactions=guarantee is Guarantee.TRANSACTIONS,
        detects_duplicates=detects,
        has_new_ids=detects,
    )
    assert wanted.guarantee is guarantee
    model = Model(dict(start), detects_duplicates=detects, dies_at=dies_at, lapses_at=lapses_at)
    model.run(wanted, by_session=bool(session_count))
    good = {body for body in map(body_of, start.values()) if body.startswith("good")}
    arrived = Counter(map(body_of, model.target))
    left = {*map(body_of, model.source.values())}
    if wanted.target is None:
        assert not arrived
    else:
        assert good - left <= arrived.keys(), "lost"
        assert arrived.keys() <= good
    if guarantee in (Guarantee.TRANSACTIONS, Guarantee.DUPLICATE_DETECTION):
        assert all(times == 1 for times in arrived.values()), "arrived twice"
    if guarantee is Guarantee.TRANSACTIONS:
        assert not arrived.keys() & left
    if limit is None and not lapses_at:
        assert not good & left
    if limit is not None:
        assert len(good - left) <= limit
        assert len(arrived) <= limit


def test_all_that_match_are_moved_and_the_rest_is_released() -> None:
    model = Model(filled(20))
    job = model.run(plan(criteria=Criteria(text="good")))
    assert (job.done, job.left, len(model.target)) == (14, 0, 14)
    assert bodies(model.source.values()) == sorted(f"other-{n}" for n in range(3, 21, 3))
    close = model.operations[-2]
    assert isinstance(close, Close)
    assert len(close.tokens) == 6
    assert len(model.receive(100)) == 6, "released"


def test_a_message_that_fails_again_is_not_sent_in_a_loop() -> None:
    model = Model(filled(12), comes_back=True)
    job = model.run(plan(work="resubmit"))
    assert (job.done, len(model.target)) == (12, 12)
    assert len(model.source) == 12


def test_what_came_later_does_not_stand_in_for_what_others_hold() -> None:
    model = Model(filled(12), comes_back=True, held_by_others={2})
    job = model.run(plan(work="resubmit"))
    assert (job.done, job.left, len(model.target)) == (11, 1, 11)
    assert 2 in model.source


def test_what_others_hold_is_left() -> None:
    model = Model(filled(12), held_by_others={2, 7})
    job = model.run(plan())
    assert (job.done, job.left, sorted(model.source)) == (10, 2, [2, 7])


def test_the_limit_counts_what_may_have_been_sent_before_a_kill() -> None:
    for instant in range(1, 40):
        model = Model(filled(12), dies_at={instant})
        model.run(plan(limit=4))
        assert len({*bodies(model.target)}) <= 4
        assert len(model.source) >= 8


def test_a_session_that_another_has_is_left() -> None:
    model = Model(filled(9, session_count=3))
    survey = model.survey(plan(), Snapshot(model.highest()), by_session=True)
    assert survey.sessions == {"s1": 3, "s2": 3, "s0": 3}
    job = Job(Checkpoint(plan(), model.highest()), due=9, sessions=survey.sessions)
    operation = job.start(0)
    opened = []
    while not isinstance(operation, Done):
        if isinstance(operation, Open):
            opened.append(operation.session_id)
        is_refused = operation == Open("s2")
        operation = job.step(False if is_refused else model.outcome(operation, plan()), 0)
    assert (opened, job.done, job.left) == (["s1", "s2", "s0"], 6, 3)


def test_a_rate_spreads_the_messages_and_locks_none_while_it_waits() -> None:
    model = Model(filled(20))
    model.run(plan(rate=10.0))
    assert len(model.target) == 20
    assert 1000 <= model.now_ms <= 2500
    for operation, before in zip(model.operations[1:], model.operations, strict=False):
        if isinstance(operation, Wait):
            assert isinstance(before, (Forward, Wait, Save, Renew))
        if isinstance(operation, Receive):
            assert operation.count_max == 5


def test_a_slow_rate_takes_one_at_a_time() -> None:
    model = Model(filled(3))
    model.run(plan(rate=0.5))
    assert [each.count_max for each in model.operations if isinstance(each, Receive)] == [1, 1, 1]
    assert 4000 <= model.now_ms <= 5000


def test_held_locks_are_renewed() -> None:
    model = Model(filled(40))
    model.now_ms = 50_000
    model.run(plan(criteria=Criteria(text="good"), rate=1.0))
    renewals = [each for each in model.operations if isinstance(each, Renew)]
    assert len(renewals) >= 5
    assert all(each.tokens for each in renewals)


def test_it_stops_in_order() -> None:
    model = Model(filled(20))
    wanted = plan(criteria=Criteria(text="good"))
    job = Job(Checkpoint(wanted, model.highest()), due=14, sessions=None)
    operation = job.start(0)
    while not isinstance(operation, Forward):
        operation = job.step(model.outcome(operation, wanted), 0)
    job.stop()
    rest = []
    while not isinstance(operation, Done):
        operation = job.step(model.outcome(operation, wanted), 0)
        rest.append(type(operation))
    assert rest == [Close, Save, Done]
    assert model.saved is not None
    assert (model.saved.done, model.saved.taken, job.left) == (4, 4, 10)


def test_what_was_sent_is_completed_and_not_sent_again() -> None:
    wanted = plan()
    job = Job(Checkpoint(wanted, {0: 2}), due=2, sessions=None)
    one, two = message(1, "1"), message(2, "2")
    assert isinstance(job.start(0), Save)
    assert job.step(None, 0) == Open(None)
    assert job.step(True, 0) == Receive(5)
    sent = job.step((Message(b"x", one), Message(b"y", two)), 0)
    assert isinstance(sent, Forward)
    assert job.step(Settled(sent=frozenset({b"y"})), 0) == Receive(5)
    assert (job.done, job.left) == (1, 1)
    again = job.step((Message(b"z", two),), 0)
    assert not isinstance(again, Forward)
    assert isinstance(job.step(Settled(), 0), Close)
    assert (job.done, job.left, job.taken) == (2, 0, 2)


def test_an_unknown_outcome_is_looked_up() -> None:
    job = Job(Checkpoint(plan(), {0: 2}), due=2, sessions=None)
    job.start(0)
    job.step(None, 0)
    job.step(True, 0)
    job.step((Message(b"x", message(1, "1")), Message(b"y", message(2, "2"))), 0)
    job.step(Settled(unknown=frozenset({b"x", b"y"})), 0)
    assert job.step((), 0) == Look(frozenset({1, 2}))
    assert job.step(frozenset({2}), 0) == Wait(1000), "its lock may have been lost with a connection"
    assert isinstance(job.step(None, 1000), Receive)
    assert job.step((), 9000) == Look(frozenset({2}))
    assert job.step(frozenset({2}), 10_000) == Close(()), "no longer"
    assert (job.done, job.left) == (1, 1)


def test_a_job_that_goes_on_waits_for_the_locks_of_the_run_before() -> None:
    job = Job(Checkpoint(plan(), {0: 2}), due=1, sessions=None, is_resumed=True)
    job.start(0)
    job.step(None, 0)
    job.step(True, 0)
    assert job.step((), 0) == Wait(1000)
    assert isinstance(job.step(None, 1000), Receive)
    assert isinstance(job.step((Message(b"x", message(1, "1")),), 1000), Forward)
    job.step(Settled(), 1000)
    assert (job.done, job.left) == (1, 0)


def test_only_active_messages_are_surveyed_for_a_job() -> None:
    source = filled(3) | {4: message(4, "good-4", state=1), 5: message(5, "good-5", state=2)}
    survey = Model(source).survey(plan(), Snapshot({0: 5}))
    assert survey.states == {"active": 3, "deferred": 1, "scheduled": 1}
    only = Model(source).survey(plan(criteria=Criteria(state=MessageState.DEFERRED)), Snapshot({0: 5}))
    assert only.states == {"deferred": 1}


def test_a_survey_ends_at_its_limit_and_at_the_snapshot() -> None:
    model = Model(filled(9))
    assert model.survey(plan(limit=4), Snapshot({0: 9})).states["active"] == 4
    assert model.survey(plan(), Snapshot({0: 6})).states["active"] == 6
    partitions = {(2 << 48) + 1: message((2 << 48) + 1, "x"), 1: message(1, "y")}
    assert Model(partitions).survey(plan(), Snapshot({0: 1})).states["active"] == 1


def test_a_resubmission_is_marked() -> None:
    source = "news/Subscriptions/sport/$DeadLetterQueue"
    wanted = plan(work="resubmit", source=source, is_marked=True, has_new_ids=True)
    once = Peeked(wanted.outgoing(Peeked(message(7, "x"))))
    assert once.application_properties == {
        "body": "x",
        "peeklock-resubmits": 1,
        "peeklock-resubmitted-from": "news/Subscriptions/sport",
    }
    assert once.properties.message_id == "id-x+resubmitted-7"
    assert once.sequence_number is None
    twice = Peeked(wanted.outgoing(_numbered(once.payload, 9)))
    assert twice.application_properties["peeklock-resubmits"] == 2
    assert twice.properties.message_id == "id-x+resubmitted-7+resubmitted-9"
    assert sends_to(source) == "news"
    assert sends_to("orders/$Transfer/$DeadLetterQueue") == "orders"


def _numbered(payload: bytes, number: int) -> Peeked:
    peeked = Peeked(payload)
    peeked._broker = (None, number, None, None, None, None, None, None)
    return peeked


def test_a_checkpoint_is_json_and_says_what_the_job_is() -> None:
    wanted = plan(
        criteria=Criteria(state=MessageState.ACTIVE, text="x", ignore_case=True),
        numbers=frozenset({3, 1}),
        limit=3,
        rate=2.5,
    )
    checkpoint = Checkpoint(wanted, {0: 3, 2: 1 << 50}, 2, 1)
    found = checkpoint.to_json()
    assert found["version"] == 1
    assert Checkpoint.from_json(json.loads(json.dumps(found))) == checkpoint
