"""The figures by stage come from a whole exchange. Two commits are compared by medians of ratios."""

from __future__ import annotations

from typing import Any

import pytest

from bench.against import medians
from bench.calls import count
from bench.machine import interpreter
from bench.stages import STAGES, measure


def test_each_stage_of_each_operation_has_a_figure() -> None:
    figures = measure(200, 1)
    assert set(figures) == {
        f"{name}, {stage}" for name in ("send", "receive", "complete") for stage in STAGES
    }
    assert figures.pop("receive, batch") == 0  # locks are not on the disk
    assert all(value > 0 for value in figures.values())


def test_ratios_are_of_the_same_round() -> None:
    rounds = [({"a": 1.0, "gone": 1.0}, {"a": 2.0}), ({"a": 10.0, "gone": 1.0}, {"a": 11.0, "new": 1.0})]
    rounds.append(({"a": 4.0}, {"a": 2.0}))
    rounds = [(before | {"none": 0.0}, after | {"none": 0.0}) for before, after in rounds]
    expected: dict[str, Any] = {"a": (4.0, 2.0, pytest.approx(1.1))}
    assert medians(rounds) == expected


def test_the_interpreter_is_named_with_its_build() -> None:
    assert "CPython" in interpreter()


def test_calls_are_those_of_the_broker_from_frame_to_answer() -> None:
    for calls in count().values():
        assert calls[0] == ("gateway/connection.py", "Gateway.receive")
        assert ("engine/engine.py", "Engine.offer") in calls
        assert ("amqp/connection.py", "Connection.data_to_send") in calls
        assert not [module for module, _ in calls if module.startswith("testing/")]
