"""The judge of growth, and what it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.conductor import Mark, Outcome
from tests.soak.growth import BOUNDS, compare
from tests.soak.picture import draw
from tests.soak.plan import Kind
from tests.soak.summary import markdown, verdict
from tests.soak.watch import Sample, quantile, read_metrics

RUN_S = 3600.0
LIFE_S = 300.0


def samples_of(memory_mb: object, span_s: float = RUN_S) -> list[Sample]:
    """Return samples of lives of five minutes; `memory_mb(at_s, age_s)`."""
    assert callable(memory_mb)
    found = []
    for second in range(0, round(span_s), 5):
        life, age_s = divmod(second, LIFE_S)
        values = {"memory, MB": memory_mb(float(second), age_s), "open files": 80.0}
        found.append(Sample(float(second), int(life), age_s, values))
    return found


def grown(samples: list[Sample], span_s: float = RUN_S) -> set[tuple[str, str]]:
    return {(one.figure, one.where) for one in compare(samples, span_s) if one.grows}


def test_fresh_processes_that_fill_their_caches_do_not_grow() -> None:
    assert not grown(samples_of(lambda at_s, age_s: 60 + min(age_s, 60) / 3))


def test_a_leak_within_a_life_grows_though_each_life_begins_anew() -> None:
    assert grown(samples_of(lambda at_s, age_s: 60 + age_s / 3)) == {("memory, MB", "within a life")}


def test_what_a_store_keeps_for_ever_grows_across_lives() -> None:
    assert grown(samples_of(lambda at_s, age_s: 60 + at_s / 30)) == {("memory, MB", "across lives")}


def test_a_short_run_is_not_judged() -> None:
    found = compare(samples_of(lambda at_s, age_s: at_s, 60.0), 60.0)
    assert not any(one.grows for one in found)
    assert {one.earlier for one in found} == {None}


def test_a_figure_that_is_missing_is_not_judged() -> None:
    found = {one.figure: one for one in compare(samples_of(lambda at_s, age_s: 60.0), RUN_S)}
    assert found.keys() == BOUNDS.keys()
    assert found["send p99, ms"].earlier is None


PAGE = """# HELP peeklock_send_seconds x
peeklock_send_seconds_bucket{namespace="a",le="0.01"} 50
peeklock_send_seconds_bucket{namespace="a",le="0.1"} 100
peeklock_send_seconds_bucket{namespace="a",le="+Inf"} 100
peeklock_send_seconds_bucket{namespace="b",le="0.01"} 50
peeklock_send_seconds_bucket{namespace="b",le="0.1"} 50
peeklock_send_seconds_bucket{namespace="b",le="+Inf"} 50
peeklock_sessions{namespace="a"} 3
peeklock_sessions{namespace="b"} 4
peeklock_loop_lag_seconds 0.002
"""


def test_series_are_added_up_over_namespaces() -> None:
    counts, sends = read_metrics(PAGE)
    assert counts["peeklock_sessions"] == 7
    assert counts["peeklock_loop_lag_seconds"] == 0.002
    assert sends == {0.01: 100, 0.1: 150, float("inf"): 150}


@pytest.mark.parametrize(("share", "wanted"), [(0.5, 0.0075), (5 / 6, 0.055), (1.0, 0.1)])
def test_a_quantile_lies_between_the_bounds_of_its_bucket(share: float, wanted: float) -> None:
    assert quantile(read_metrics(PAGE)[1], share) == pytest.approx(wanted)


def test_there_is_no_quantile_of_nothing() -> None:
    assert quantile({0.1: 0, float("inf"): 0}, 0.5) is None


def test_page_and_picture_show_what_grows(tmp_path: Path) -> None:
    samples = samples_of(lambda at_s, age_s: 60 + at_s / 30)
    marks = [Mark(place * 60.0, kind, 1.0) for place, kind in enumerate(Kind)]
    outcome = Outcome(7, 60, RUN_S, marks=marks, samples=samples, figures={"messages": {"accepted": 1234}})
    comparisons = compare(samples, RUN_S)
    assert verdict(outcome, comparisons) == ["memory, MB grows across lives: from 116.1 to 156.1"]
    page = markdown(outcome, comparisons, "soak.svg")
    assert "**FAILED** after 60.0 minutes" in page
    assert "| kill | 1 |" in page
    assert "| 116.1 → 156.1 **grows** |" in page
    draw(outcome, tmp_path / "soak.svg")
    drawn = (tmp_path / "soak.svg").read_text()
    assert all(text in drawn for text in (">memory, MB<", ">key rotation<"))
