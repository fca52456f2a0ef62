"""The checker on sessions: who holds them, in what order their messages come, what their states are."""

from __future__ import annotations

import pytest

from peeklock.broker.vocabulary.message import MessageState
from tests.simulation.oracle.history import Hold, Seen
from tests.simulation.oracle.holds import SLACK_MS, Accept
from tests.simulation.oracle.records import Violation
from tests.simulation.oracle.story import LOCK_MS, QUEUE, STATES, Story, record

pytestmark = pytest.mark.simulation


def story_of_sessions(*uids: int) -> Story:
    """Return a history of stored messages of the session `red`."""
    story = Story({"requires_session": True})
    if uids:
        story.send(*uids, session_id="red")
        story.commit(*(record(uid, session_id="red") for uid in uids))
    return story


def test_two_links_must_not_hold_a_session() -> None:
    story = story_of_sessions()
    story.accept("red")
    story.now_ms += LOCK_MS - 1
    with pytest.raises(Violation, match="two links hold"):
        story.accept("red", connection=2)


def test_a_lapsed_session_can_be_held_by_another() -> None:
    story = story_of_sessions(1)
    first = story.accept("red")
    story.deliver(1, 1, b"first", hold=first)
    story.now_ms += LOCK_MS
    story.commit(record(1, session_id="red", delivery_count=1))
    second = story.accept(None, connection=2, given="red")
    story.deliver(1, 1, b"second", count=1, connection=2, hold=second)
    story.checker.finish()


def test_a_session_s_message_must_say_a_lock_without_end() -> None:
    """Req: C28"""
    story = story_of_sessions(1)
    hold = story.accept("red")
    for until_ms in (None, story.now_ms + LOCK_MS):
        seen = Seen(1, 1, 1, 0, until_ms, MessageState.ACTIVE, "red", None)
        with pytest.raises(Violation, match="locked"):
            story.checker.delivered(seen, "orders", b"first", 1, hold=hold)


LINGER_MS = 3_000


def lapsed(story: Story, *, connection: int = 1) -> tuple[Accept, Hold]:
    """Let the lock of the session `red` lapse whose holder has done nothing."""
    holds = story.checker.holds
    asked = holds.asking(connection, "orders", "red", 0, LOCK_MS)
    hold = holds.granted(asked, "red", story.now_ms + LOCK_MS)
    story.checker.history.wire_ms_max = 40
    story.now_ms += LOCK_MS
    return asked, hold


def test_the_link_of_a_lapsed_session_must_not_be_detached_before_the_time() -> None:
    story = story_of_sessions()
    asked, _ = lapsed(story)
    story.now_ms += LINGER_MS - 1
    with pytest.raises(Violation, match="before the time"):
        story.checker.holds.detached(asked, "com.microsoft:session-lock-lost")
    story.now_ms += 1
    story.checker.holds.detached(asked, "com.microsoft:session-lock-lost")


def test_who_uses_a_lapsed_session_may_lose_the_link() -> None:
    story = story_of_sessions()
    asked, hold = lapsed(story)
    story.checker.holds.using(hold)
    story.checker.holds.detached(asked, "com.microsoft:session-lock-lost")


def test_who_asked_for_the_use_of_a_session_may_lose_the_link_when_the_request_comes() -> None:
    """It waits for its links: an attach there, the answer, and then its own way."""
    story = story_of_sessions()
    asked, hold = lapsed(story)
    story.checker.history.wire_ms_max = 1_000
    story.now_ms -= 4_001
    story.checker.holds.using(hold)
    story.now_ms += 4_001
    with pytest.raises(Violation, match="before the time"):
        story.checker.holds.detached(asked, "com.microsoft:session-lock-lost")
    story.now_ms -= 4_000
    story.checker.holds.using(hold)
    story.now_ms += 4_000
    story.checker.holds.detached(asked, "com.microsoft:session-lock-lost")


def test_who_is_refused_a_renewal_may_lose_the_link_however_long_that_took() -> None:
    """The answer to the attach of its links waited for a slow commit."""
    story = story_of_sessions()
    asked, hold = lapsed(story)
    story.now_ms -= 4_500
    asked_ms = story.now_ms
    story.checker.renewing(hold, 1)
    story.now_ms += 4_500
    story.checker.renew_answered(hold, asked_ms, None, 1)
    story.checker.holds.detached(asked, "com.microsoft:session-lock-lost")


def test_who_lost_a_lapsed_session_to_another_may_lose_the_link() -> None:
    story = story_of_sessions()
    asked, _ = lapsed(story)
    story.accept("blue", connection=2)
    with pytest.raises(Violation, match="before the time"):
        story.checker.holds.detached(asked, "com.microsoft:session-lock-lost")
    story.accept("red", connection=2)
    story.checker.holds.detached(asked, "com.microsoft:session-lock-lost")


def test_the_link_of_a_lapsed_session_must_be_detached_in_the_end() -> None:
    story = story_of_sessions()
    asked, _ = lapsed(story)
    story.now_ms += LINGER_MS + SLACK_MS
    story.checker.holds.check_detached(asked)
    story.now_ms += 1
    with pytest.raises(Violation, match="was not detached"):
        story.checker.holds.check_detached(asked)


def test_nothing_must_come_over_the_link_of_a_lapsed_session() -> None:
    story = story_of_sessions()
    _, hold = lapsed(story)
    story.send(1, session_id="red")
    story.commit(record(1, session_id="red"))
    with pytest.raises(Violation, match="the link of a lapsed session"):
        story.deliver(1, 1, b"first", hold=hold)


def test_a_session_that_was_left_is_free_at_once() -> None:
    story = story_of_sessions()
    holds = story.checker.holds
    asked = holds.asking(1, "orders", "red", 0, LOCK_MS)
    holds.granted(asked, "red", story.now_ms + LOCK_MS)
    story.now_ms += 10
    holds.left(asked, "detach")
    story.now_ms += 10
    story.accept("red", connection=2)


def test_a_session_must_not_be_refused_for_nothing() -> None:
    story = story_of_sessions()
    holds = story.checker.holds
    waiting = holds.asking(1, "orders", None, 60_000, LOCK_MS)
    story.now_ms += 10
    asked = holds.asking(1, "orders", "red", 0, LOCK_MS)
    holds.refused(asked, "com.microsoft:session-cannot-be-locked")  # the first may have got it
    holds.left(waiting, "detach")
    story.now_ms += 10
    with pytest.raises(Violation, match="though it is free"):
        holds.refused(holds.asking(1, "orders", "red", 0, LOCK_MS), "com.microsoft:session-cannot-be-locked")


def test_a_wait_must_last_as_long_as_was_asked() -> None:
    story = story_of_sessions()
    asked = story.checker.holds.asking(1, "orders", None, 300, LOCK_MS)
    story.now_ms += 299
    with pytest.raises(Violation, match="before the time"):
        story.checker.holds.refused(asked, "com.microsoft:timeout")


def test_a_holder_must_not_be_detached_for_nothing() -> None:
    story = story_of_sessions()
    asked = story.checker.holds.asking(1, "orders", "red", 0, LOCK_MS)
    story.checker.holds.granted(asked, "red", story.now_ms + LOCK_MS)
    with pytest.raises(Violation, match="yet the session is held"):
        story.checker.holds.detached(asked, "com.microsoft:session-lock-lost")


def test_no_message_of_a_session_may_be_skipped() -> None:
    story = story_of_sessions(1, 2)
    hold = story.accept("red")
    with pytest.raises(Violation, match="came before"):
        story.deliver(2, 2, b"second", hold=hold)


def test_a_message_of_another_session_must_not_come() -> None:
    story = story_of_sessions(1)
    hold = story.accept("blue")
    with pytest.raises(Violation, match="another session"):
        story.deliver(1, 1, b"first", hold=hold)


def test_a_message_must_not_come_again_that_was_not_given_back() -> None:
    story = story_of_sessions(1)
    hold = story.accept("red")
    story.deliver(1, 1, b"first", hold=hold)
    with pytest.raises(Violation, match="was not given back"):
        story.deliver(1, 1, b"again", hold=hold)


def give_back(story: Story, hold: Hold, *, under_way: int) -> None:
    lock = story.deliver(1, 1, b"first", hold=hold)
    story.checker.settling(lock, "abandon")
    story.checker.holds.giving_back(lock, under_way)
    story.commit(record(1, session_id="red", delivery_count=1))


def test_what_is_given_back_comes_before_what_had_not_left() -> None:
    story = story_of_sessions(1, 2)
    hold = story.accept("red")
    give_back(story, hold, under_way=0)
    with pytest.raises(Violation, match="which was given back"):
        story.deliver(2, 2, b"second", hold=hold)


def test_what_is_given_back_comes_after_what_was_under_way() -> None:
    story = story_of_sessions(1, 2, 3)
    hold = story.accept("red")
    give_back(story, hold, under_way=1)
    story.deliver(2, 2, b"second", hold=hold)
    story.deliver(1, 1, b"again", count=1, hold=hold)
    story.deliver(3, 3, b"third", hold=hold)


def test_a_message_of_a_session_must_not_be_settled_once_the_session_was_left() -> None:
    story = story_of_sessions(1)
    holds = story.checker.holds
    asked = holds.asking(1, "orders", "red", 0, LOCK_MS)
    hold = holds.granted(asked, "red", story.now_ms + LOCK_MS)
    lock = story.deliver(1, 1, b"first", hold=hold)
    story.now_ms += 10
    holds.left(asked, "detach")
    story.checker.history.wire_ms_max = 9
    story.now_ms += 10
    story.checker.settling(lock, "complete")
    story.commit(((QUEUE, 1),))
    with pytest.raises(Violation, match="that was left"):
        story.checker.settle_answered(lock, "complete", story.now_ms, None)


def test_a_graceful_end_must_not_count() -> None:
    story = story_of_sessions(1)
    holds = story.checker.holds
    asked = holds.asking(1, "orders", "red", 0, 2 * LOCK_MS)
    hold = holds.granted(asked, "red", story.now_ms + 2 * LOCK_MS)
    story.deliver(1, 1, b"first", hold=hold)
    holds.left(asked, "detach")
    story.commit(record(1, session_id="red", delivery_count=1))
    story.now_ms += 20_000
    second = story.accept("red", connection=2)
    story.deliver(1, 1, b"second", count=1, connection=2, hold=second)
    with pytest.raises(Violation, match="went up"):
        story.checker.finish()


def state(position: int, uid: int) -> object:
    return record(position, queue_id=STATES, slot=uid - 1, session_id="red")


def test_a_state_is_what_was_set_last() -> None:
    story = story_of_sessions()
    states, session = story.checker.states, (1, "red")
    first = states.setting(session, 1)
    story.commit(state(1, 1))
    states.answered(session, first, done=True)
    story.now_ms += 10
    second = states.setting(session, 2)
    states.read(session, story.now_ms, 1)  # it may be on its way
    story.commit(((STATES, 1),), state(2, 2))
    states.answered(session, second, done=True)
    story.now_ms += 10
    states.read(session, story.now_ms, 2)
    with pytest.raises(Violation, match="reads uid 1"):
        states.read(session, story.now_ms, 1)


def test_a_state_must_be_durable_when_acknowledged() -> None:
    story = story_of_sessions()
    write = story.checker.states.setting((1, "red"), 1)
    story.now_ms += 10
    with pytest.raises(Violation, match="reads uid None"):
        story.checker.states.answered((1, "red"), write, done=True)


def test_a_state_must_not_go_by_itself() -> None:
    story = story_of_sessions()
    story.checker.states.setting((1, "red"), 1)
    story.commit(state(1, 1))
    with pytest.raises(Violation, match="without a request"):
        story.commit(((STATES, 1),))


def test_a_session_with_a_message_must_be_listed() -> None:
    story = story_of_sessions(1)
    story.now_ms += 10
    holds = story.checker.holds
    holds.listed(1, story.now_ms, {"red"}, ["red"])
    with pytest.raises(Violation, match="not listed"):
        holds.listed(1, story.now_ms, {"red"}, [])
    with pytest.raises(Violation, match="has nothing"):
        holds.listed(1, story.now_ms, {"red"}, ["blue", "RED"])
    with pytest.raises(Violation, match="twice"):
        holds.listed(1, story.now_ms, {"red"}, ["RED", "red"])
    with pytest.raises(Violation, match="out of order"):
        holds.listed(1, story.now_ms, {"red"}, ["red", "blue"])
