"""The timer of a namespace: which alarms the loop gets, and what they lead to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from peeklock.server.loop.timers import LATE_MS, WakeTimer


class Alarms:
    """The loop's `call_later`, kept instead of waited for."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, delay_s: float, call: Callable[[], None], *args: Any) -> asyncio.TimerHandle:
        self.set.append((delay_s, call))
        return asyncio.TimerHandle(0, lambda: None, (), asyncio.get_running_loop())


def run(monkeypatch: pytest.MonkeyPatch, test: Callable[[WakeTimer, Alarms, list[str]], None]) -> None:
    async def main() -> None:
        alarms, woken = Alarms(), list[str]()
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", alarms)
        test(WakeTimer(lambda: woken.append("woken")), alarms, woken)

    asyncio.run(main())


def test_a_time_that_is_put_off_takes_no_new_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    def test(timer: WakeTimer, alarms: Alarms, woken: list[str]) -> None:
        for at_ms in (5_000, 6_000, None, 7_000):
            timer.set(at_ms, 0)
        assert [delay_s for delay_s, _ in alarms.set] == [5.0]
        alarms.set[0][1]()  # too early: whoever is called sets it anew
        assert woken == ["woken"]
        timer.set(7_000, 5_000)
        assert alarms.set[1][0] == 2.0

    run(monkeypatch, test)


def test_a_time_that_is_put_forward_takes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def test(timer: WakeTimer, alarms: Alarms, woken: list[str]) -> None:
        timer.set(5_000, 0)
        timer.set(1_000, 0)
        assert [delay_s for delay_s, _ in alarms.set] == [5.0, 1.0]

    run(monkeypatch, test)


def test_nobody_is_called_when_there_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def test(timer: WakeTimer, alarms: Alarms, woken: list[str]) -> None:
        timer.set(5_000, 0)
        timer.set(None, 1_000)
        alarms.set[0][1]()
        timer.tick(5_000 + LATE_MS)
        assert not woken

    run(monkeypatch, test)


def test_what_fell_due_while_the_machine_slept_is_done_at_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    def test(timer: WakeTimer, alarms: Alarms, woken: list[str]) -> None:
        timer.set(5_000, 0)
        timer.set(6_000, 0)
        timer.tick(5_999 + LATE_MS)
        assert not woken
        timer.tick(6_000 + LATE_MS)
        assert woken == ["woken"]

    run(monkeypatch, test)
