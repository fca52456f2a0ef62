"""`Timers` against the obvious: the least instant of all who wait, whatever was set, moved and cancelled."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.timers import FAR_MS, Timers


@dataclass(eq=False)
class Waiter:
    timer_key: int
    timer_ms: int = FAR_MS

    def advance(self, count_max: int, out: Outcome) -> int:
        raise NotImplementedError


WAITERS = 5
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, WAITERS - 1), st.integers(0, 8)),
        st.tuples(st.just("cancel"), st.integers(0, WAITERS - 1), st.just(0)),
        st.tuples(st.just("take"), st.just(0), st.integers(0, 2)),
    ),
    max_size=200,
)


@given(steps)
def test_the_next_instant_is_the_least_of_those_who_wait(steps: list[tuple[str, int, int]]) -> None:
    timers = Timers()
    waiters = [Waiter(key) for key in range(WAITERS)]
    wanted: dict[int, int] = {}
    now_ms = 0
    for step, key, ms in steps:
        if step == "set":
            wanted[key] = now_ms + ms
            timers.set(waiters[key], now_ms + ms)
        elif step == "cancel":
            wanted.pop(key, None)
            timers.cancel(waiters[key])
        else:
            now_ms += ms
            due = timers.take_due(now_ms)
            if due is None:
                assert all(at_ms > now_ms for at_ms in wanted.values())
            else:
                assert wanted.pop(due.timer_key) <= now_ms
                assert due.timer_ms == FAR_MS
        assert timers.next_ms == min(wanted.values(), default=None)


def test_who_is_due_again_waits_for_the_others() -> None:
    timers = Timers()
    waiters = [Waiter(key) for key in range(3)]
    for waiter in waiters:
        timers.set(waiter, 1)
    called = []
    for _ in range(6):
        due = timers.take_due(1)
        assert due is not None
        called.append(due.timer_key)
        timers.set(due, 1)
    assert called == [0, 1, 2, 0, 1, 2]


def test_of_two_at_one_instant_one_may_be_cancelled() -> None:
    timers = Timers()
    first, second = Waiter(1), Waiter(2)
    timers.set(first, 5)
    timers.set(second, 5)
    timers.cancel(first)
    assert timers.next_ms == 5
    assert timers.take_due(5) is second
    assert timers.next_ms is None
