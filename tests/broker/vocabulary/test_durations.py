"""ISO 8601 durations as the service and its clients write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS
from peeklock.broker.vocabulary.durations import (
    UNLIMITED_TEXT,
    format_duration,
    format_span,
    parse_duration,
    parse_span,
)


@pytest.mark.parametrize(
    ("text", "ms", "written"),
    [
        ("PT1M", 60_000, "PT1M"),
        ("PT60S", 60_000, "PT1M"),
        ("PT300S", 300_000, "PT5M"),
        ("PT1.5S", 1_500, "PT1.5S"),
        ("PT0.05S", 50, "PT0.05S"),
        ("PT0.0009S", 0, "PT0S"),
        ("PT10M30S", 630_000, "PT10M30S"),
        ("P14D", 1_209_600_000, "P14D"),
        ("P1DT2H", 93_600_000, "P1DT2H"),
        ("PT36H", 129_600_000, "P1DT12H"),
        ("P0D", 0, "PT0S"),
        (" PT5S ", 5_000, "PT5S"),
        ("P10675199DT2H48M5.4775807S", UNLIMITED_MS, UNLIMITED_TEXT),
        ("P10675199DT2H48M5.477581S", UNLIMITED_MS, UNLIMITED_TEXT),
        ("P10675199DT2H48M5.477S", UNLIMITED_MS, UNLIMITED_TEXT),
        ("P20000000D", UNLIMITED_MS, UNLIMITED_TEXT),
    ],
)
def test_durations_are_read_and_written_back_in_the_service_s_form(text: str, ms: int, written: str) -> None:
    """Req: A-01. Source: wire contract 7.3; the largest span is rounded by Python's timedelta."""
    assert parse_duration(text) == ms
    assert format_duration(ms) == written


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1DT", "1M", "PT1", "P1X", "P1M", "P1Y", "P1W", "-PT1S", "PT-1S", "PT1S1M", "pt1m",
     "PT1,5S", "P٣D", "PT.5S", "PT1.S", "00:01:00", "P" + "9" * 19 + "D", "PT1M\x00"],
)  # fmt: skip
def test_what_is_no_duration_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_duration(text)
    assert repr(text) in str(refused.value)


@given(st.integers(0, UNLIMITED_MS))
def test_every_length_survives_writing_and_reading(ms: int) -> None:
    assert parse_duration(format_duration(ms)) == ms


@given(st.text(max_size=40))
def test_garbage_gives_a_length_or_a_value_error(text: str) -> None:
    try:
        ms = parse_duration(text)
    except ValueError:
        return
    assert 0 <= ms <= UNLIMITED_MS


@given(st.timedeltas())
def test_a_value_s_duration_is_kept_to_the_microsecond(span: timedelta) -> None:
    assert parse_span(format_span(span)) == span


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("-P1DT2H", timedelta(days=-1, hours=-2)),
        (" PT0.0000019S ", timedelta(microseconds=1)),
        ("-PT0S", timedelta(0)),
    ],
)
def test_a_value_s_duration_may_be_negative(text: str, span: timedelta) -> None:
    assert parse_span(text) == span


@pytest.mark.parametrize("text", ["", "-", "--PT1S", "P1M", "PT-1S", "P1000000000D"])
def test_what_is_no_duration_of_a_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_span(text)
