"""A soak of half a minute: each kind of event, all clients, and the judgement at the end."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.soak.conductor import Conductor
from tests.soak.plan import Kind


@pytest.mark.soak
def test_nothing_is_lost_in_a_short_soak(tmp_path: Path) -> None:
    """Req: R-01, R-02, R-03"""
    said: list[str] = []
    outcome = asyncio.run(Conductor(tmp_path, seed=1, minutes=0.4, say=said.append).run())
    assert not outcome.failures
    there = set(Kind) - ({Kind.CLOCK} if outcome.without_clock else set())
    assert {mark.kind for mark in outcome.marks} == there
    assert outcome.figures["messages"]["completed"] > 500
    assert outcome.figures["event log"]["events"] > 5_000
    assert outcome.samples
    assert any("left" in line for line in said)


@pytest.mark.soak
def test_an_interrupted_soak_is_judged(tmp_path: Path) -> None:
    """Ctrl-C at a terminal reaches the broker, too."""

    async def interrupted() -> None:
        conductor = Conductor(tmp_path, seed=2, minutes=30)

        def interrupt() -> None:
            conductor.interrupt.set()
            if conductor.site.broker.pid is not None:
                os.kill(conductor.site.broker.pid, signal.SIGINT)

        asyncio.get_running_loop().call_later(8, interrupt)
        outcome = await conductor.run()
        assert not outcome.failures
        assert outcome.interrupted
        assert outcome.figures["messages"]["completed"] > 100

    asyncio.run(interrupted())
