"""The report says what was measured, and whether peeklock reached its aims."""

from __future__ import annotations

from bench.report import markdown
from bench.results import Results

ABOUT = {"date": "2026-01-01", "cores": "2", "processor": "some", "system": "Linux 6", "python": "CPython"}


def _table(results: Results, systems: list[str]) -> list[str]:
    page = markdown(list(results.rows.values()), systems, results.left_out, ABOUT, quick=False)
    return [line for line in page.splitlines() if line.startswith("| send |")]


def _results(better: str, aim: float, *samples: float) -> Results:
    results = Results()
    for sample in samples:
        results.add("send", "figure", "msg/s", "peeklock", sample, better=better, aim=aim)
    return results


def test_the_median_and_the_range_of_the_samples_are_quoted() -> None:
    results = _results("higher", 15_000, 10_000.0, 30_000.0, 20_000.0)
    assert _table(results, ["peeklock"]) == [
        "| send | figure (msg/s) | 20,000 (10,000-30,000) | >= 15,000: reached |"
    ]


def test_an_aim_is_reached_at_its_limit_and_missed_one_past() -> None:
    for better, aim, reached, missed in (("higher", 100, 100.0, 99.0), ("lower", 100, 100.0, 101.0)):
        assert _table(_results(better, aim, reached), ["peeklock"])[0].endswith("100: reached |")
        assert _table(_results(better, aim, missed), ["peeklock"])[0].endswith("100: MISSED |")


def test_beside_the_quorum_queue_the_ratio_of_the_medians_stands() -> None:
    results = _results("higher", 100, 300.0)
    results.add("send", "figure", "msg/s", "RabbitMQ quorum", 200.0)
    assert "| 300 | 200 | 1.50 |" in _table(results, ["peeklock", "RabbitMQ quorum"])[0]


def test_beside_artemis_there_is_a_ratio_too() -> None:
    results = _results("higher", 100, 300.0)
    results.add("send", "figure", "msg/s", "Artemis", 150.0)
    assert "| 300 | 150 |  | 2.00 |  |" in _table(results, ["peeklock", "Artemis", "RabbitMQ quorum"])[0]


def test_cpu_time_beside_the_others_comes_first() -> None:
    results = Results()
    for system in ("peeklock", "Artemis"):
        results.add("send", "rate", "msg/s", system, 100.0)
        results.add("send", "broker CPU", "us/msg", system, 10.0)
    results.add("topic", "broker CPU", "us/msg", "peeklock", 20.0)
    page = markdown(list(results.rows.values()), ["peeklock", "Artemis"], [], ABOUT, quick=False)
    cells = [line.split(" | ")[:2] for line in page.splitlines() if line.startswith(("| send", "| topic"))]
    assert cells == [
        ["| send", "broker CPU (us/msg)"],
        ["| send", "rate (msg/s)"],
        ["| send", "broker CPU (us/msg)"],
        ["| topic", "broker CPU (us/msg)"],
    ]


def test_a_system_without_samples_has_an_empty_cell() -> None:
    assert "| 300 |  |  |" in _table(_results("higher", 100, 300.0), ["peeklock", "RabbitMQ quorum"])[0]


def test_what_was_left_out_is_named() -> None:
    results = _results("lower", 1, 1.0)
    results.left_out.append("backlog: not done after 200 s")
    page = markdown(list(results.rows.values()), ["peeklock"], results.left_out, ABOUT, quick=True)
    assert "- backlog: not done after 200 s" in page
    assert "A quick run" in page


def test_an_aim_beside_the_quorum_queue_is_judged_by_the_ratio() -> None:
    for ours, verdict in ((120.0, "reached"), (119.0, "MISSED")):
        results = Results()
        results.add("send", "figure", "msg", "peeklock", ours, better="higher", aim_ratio=1.2)
        results.add("send", "figure", "msg", "RabbitMQ quorum", 100.0, better="higher", aim_ratio=1.2)
        assert _table(results, ["peeklock", "RabbitMQ quorum"])[0].endswith(f">= 1.2 x quorum: {verdict} |")
