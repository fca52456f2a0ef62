"""`python -m tests` adds up what its steps say: no failure is lost, and slowness is none."""

from __future__ import annotations

import asyncio
import fcntl
import re
import sys
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests.__main__ import FOLDERS, PYTHON, SUITES, Result, Screen, Step, closing_table, count_outcomes
from tests.__main__ import run_lanes as run_lanes_async
from tests.failing import failed_line
from tests.kill.__main__ import main as kill


def run_lanes(*lanes: tuple[Step, ...], silence_s_max: float = 60.0) -> list[Result]:
    return asyncio.run(run_lanes_async(lanes, silence_s_max))


def python_step(name: str, code: str, aim_s: int = 60) -> Step:
    return Step(name, (PYTHON, "-X", "faulthandler", "-c", code), aim_s)


@pytest.mark.parametrize(
    ("line", "status", "outcome"),
    [
        ("12 passed in 1.52s", 0, (12, 0)),
        ("2 failed, 10 passed, 3 deselected in 1.52s", 1, (10, 2)),
        ("1 failed, 10 passed, 1 error in 62.10s (0:01:02)", 1, (10, 2)),
        ("12 passed in 1.52s", 3, (12, 1)),  # pytest itself failed after its tests
        ("no tests ran in 0.01s", 5, (0, 1)),  # a marker that selects nothing
    ],
)
def test_outcomes_are_read_from_the_closing_line(line: str, status: int, outcome: tuple[int, int]) -> None:
    assert count_outcomes(["....", "5 failed and more of that", line + "\n"], status) == outcome


def test_a_run_without_a_closing_line_is_a_failure() -> None:
    assert count_outcomes(["Segmentation fault"], -11) == (0, 1)


def test_a_step_over_its_aim_is_marked_and_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    (result,) = run_lanes((python_step("slow", "print('done')", aim_s=0),))
    assert (result.passed, result.failed) == (1, 0)
    assert re.search(r"== slow: ok in [\d.]+ s, over its aim of 0 s\n", capsys.readouterr().out)
    line, closing_line = closing_table([result])
    assert re.fullmatch(r" +[\d.]+ s  aim    0 s  over  CPU +[\d.]+ s  ok      slow", line)
    assert closing_line == "1 passed, 0 failed"


def test_a_step_within_its_aim_is_not_marked() -> None:
    line, _ = closing_table([Result(python_step("quick", ""), 5, 0, 59.9, 102.3)])
    assert line == "    59.9 s  aim   60 s        CPU  102.3 s  ok      quick"


ORPHAN = """
import subprocess, sys
child = "import time; t = time.process_time()\\nwhile time.process_time() < t + 0.5: pass"
subprocess.Popen([sys.executable, "-c", child])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody counts what outlives its parent")
def test_the_cpu_time_of_a_step_is_that_of_all_that_it_started() -> None:
    (result,) = run_lanes((python_step("leaves a child behind", ORPHAN),))
    assert result.cpu_s >= 0.5


def test_a_step_that_fails_is_a_failure_and_the_next_one_runs() -> None:
    results = run_lanes((python_step("bad", "raise SystemExit(3)"), python_step("good", "")))
    assert [(result.passed, result.failed) for result in results] == [(0, 1), (1, 0)]
    assert closing_table(results)[-1] == "1 passed, 1 failed"


HANGS = """
import subprocess, sys
child = '''
import fcntl, time
lock = open({path!r})
fcntl.flock(lock, fcntl.LOCK_EX)
print('locked', flush=True)
time.sleep(600)
'''
def wait_for_ever():
    subprocess.run([sys.executable, "-c", child])
wait_for_ever()
"""
GOES_ON = "import time\nfor _ in range(40): print('.', end='', flush=True); time.sleep(0.1)"


def test_a_step_that_hangs_ends_with_all_it_started_and_one_that_goes_on_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second takes longer than the silence that ends the first, and is never silent for that long."""
    path = tmp_path / "lock"
    path.touch()
    hung = python_step("hung", HANGS.format(path=str(path)))
    after, slow = python_step("after", ""), python_step("slow", GOES_ON)
    results = run_lanes((hung, after), (slow,), silence_s_max=3)
    assert [(result.passed, result.failed) for result in results] == [(0, 1), (1, 0), (1, 0)]
    said = capsys.readouterr().out
    assert "locked\n" in said
    assert "in wait_for_ever" in said
    assert re.search(r"== hung: FAILED in [\d.]+ s, ended: no output for 3 s\n", said)
    with path.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # free as soon as the child is gone


def test_the_output_of_steps_side_by_side_is_not_mixed(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    first, second, third = (python_step(name, "") for name in ("first", "second", "third"))
    screen = Screen()

    def shown() -> bytes:
        return capsysbinary.readouterr().out

    screen.begin(first)
    screen.begin(second)
    screen.show(second, b"b1 ")
    screen.show(first, b"a1 ")
    assert shown() == b"== first\na1 "
    screen.end(second, "second: ok")
    screen.begin(third)
    screen.show(third, b"c1 ")
    assert shown() == b""
    screen.end(first, "first: ok")
    assert shown() == b"== first: ok\n\n== second\nb1 == second: ok\n\n== third\nc1 "
    screen.show(third, b"c2\n")
    assert shown() == b"c2\n"


OF_CI = [step for suite in ("test", "rest") for lane in SUITES[suite] for step in lane]


def test_no_step_is_there_twice_in_ci() -> None:
    assert len({step.name for step in OF_CI}) == len({step.command for step in OF_CI}) == len(OF_CI)


@pytest.mark.parametrize(
    ("markers", "steps"),
    [
        ("", ["core tests", "core tests of decisions", "core tests of processes"]),  # each of other folders
        ("simulation", ["simulation tests"]),
        ("kill", ["kill loops"]),
        ("interop", ["official client"]),
        ("interop long", ["long tests of clients"]),
        ("interop soak", []),
        ("interop clients", ["every client"]),
        ("spark", ["spark"]),
        ("spark long", ["long tests of Spark"]),
        ("spark soak", []),
    ],
)
def test_each_test_is_in_one_step_of_ci(markers: str, steps: list[str]) -> None:
    """In none only if it is for the soak; those over the compiled core are there again."""

    def is_marked(marker: str, /, **_: str | int | bool | None) -> bool:
        return marker in markers.split()

    conditions = {
        step.name: step.command[step.command.index("-m", 4) + 1]
        for step in OF_CI
        if "pytest" in step.command and "tests.compiled" not in step.command
    }
    chosen = [
        name for name, condition in conditions.items() if Expression.compile(condition).evaluate(is_marked)
    ]
    assert chosen == steps


@pytest.mark.parametrize("marker", FOLDERS)
def test_marked_tests_are_where_their_step_looks_for_them(marker: str) -> None:
    root = Path(__file__).parents[2]
    looked_at = [root / folder for folder in FOLDERS[marker]]
    assert all(folder.is_dir() for folder in looked_at)
    marked = [file for file in (root / "tests").rglob("*.py") if f"mark.{marker}\n" in _lines(file)]
    assert marked
    elsewhere = [file for file in marked if not any(folder in file.parents for folder in looked_at)]
    if marker == "long":
        others = [f"mark.{other}\n" for other in FOLDERS if other != "long"]
        elsewhere = [file for file in elsewhere if not any(other in _lines(file) for other in others)]
        elsewhere = [file for file in elsewhere if file.parent.name != "interop"]  # its conftest marks them
    assert elsewhere == []


def _lines(file: Path) -> str:
    """Return a file's text with an end of line behind each marker."""
    return re.sub(r"\b(mark\.\w+)", "\\1\n", file.read_text(encoding="utf-8"))


def test_what_failed_is_one_line_that_the_whole_run_repeats() -> None:
    assert failed_line("loop", ValueError("one\ntwo")) == "FAILED loop: ValueError: one | two"
    assert failed_line("loop", "a" * 9000) == f"FAILED loop: {'a' * 1500} ... {'a' * 1500}"


def test_a_kill_loop_names_what_it_did_not_expect(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its failure is repeated at the end of the whole run, an unexpected one too."""
    monkeypatch.setattr("peeklock.demo.broker.program", lambda: "/dev/null")
    assert kill(["messages", "--rounds", "1"]) == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert re.match(r"FAILED messages, fsync, seed 0, 1 rounds, after [\d.]+ s: PermissionError: ", line)
