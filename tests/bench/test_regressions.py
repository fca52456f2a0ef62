"""CPU figures are compared with those of the last committed run by their ratio to the calibration loop."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bench import report
from bench.machine import KEPT_S, Calibration, calibration_s
from bench.regressions import committed, compare
from bench.results import Results

SAME = "CPython"


def _results(figure: float, loop_s: float, unit: str = "us/msg", system: str = "peeklock") -> Results:
    results = Results(calibrate=lambda: loop_s)
    for sample in (figure, figure, 10 * figure):
        results.add("send", "broker CPU", unit, system, sample)
    return results


def _compared(before: Results, after: Results, python: str = SAME) -> list[str]:
    then = {"machine": {"python": SAME}, "rows": report.plain(before.rows.values())}
    return compare(after.rows.values(), json.loads(json.dumps(then)), python)


def test_a_figure_that_grew_beside_the_loop_is_named() -> None:
    found = _compared(_results(10.0, 0.2), _results(11.5, 0.2))
    assert found == [
        "1 of 1 CPU figures are over 10% higher than in the last committed run:",
        "  send, broker CPU: 1.15 times as much",
    ]


def test_a_slower_machine_is_no_regression() -> None:
    found = _compared(_results(10.0, 0.2), _results(20.0, 0.4))
    assert found == ["none of 1 CPU figures is over 10% higher than in the last committed run"]


def test_a_faster_machine_hides_none() -> None:
    assert len(_compared(_results(10.0, 0.2), _results(10.0, 0.1))) == 2


def test_another_interpreter_is_named() -> None:
    found = _compared(_results(10.0, 0.2), _results(10.0, 0.2), "CPython with LTO")
    assert found[0].endswith("than in the last committed run (CPython)")


@pytest.mark.parametrize(("unit", "system"), [("msg/s", "peeklock"), ("us/msg", "Artemis")])
def test_rates_and_other_brokers_are_not_compared(unit: str, system: str) -> None:
    found = _compared(_results(10.0, 0.2, unit, system), _results(20.0, 0.2, unit, system))
    assert "nothing to compare with" in found[0]


def test_results_without_calibration_are_not_compared() -> None:
    before = Results()
    before.add("send", "broker CPU", "us/msg", "peeklock", 10.0)
    assert "nothing to compare with" in _compared(before, _results(20.0, 0.2))[0]
    assert "nothing to compare with" in compare(before.rows.values(), None, SAME)[0]


def test_the_committed_results_are_those_of_git(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert committed(path) is None
    path.write_text('{"rows": []}')
    git = ("git", "-c", "user.name=bench", "-c", "user.email=bench@localhost")
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "results")):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    path.write_text("not yet committed")
    assert committed(path) == {"rows": []}


def test_the_loop_is_run_again_when_its_time_is_old() -> None:
    assert 0 < calibration_s(100) < calibration_s(10_000)
    calibration = Calibration()
    first = calibration()
    assert calibration() == first
    calibration.taken_at -= KEPT_S
    calibration.seconds = 0
    assert calibration() > 0
