"""Offsets of streams: their form in a checkpoint, whose they are, and what a batch is made of."""

from __future__ import annotations

import json
import logging
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.client.claims import READ_BYTES, Claim, Slice, cut, divide
from peeklock.client.errors import OptionError
from peeklock.spark.source.offsets import (
    Budget,
    CheckpointMismatch,
    CursorOffset,
    Origin,
    PeekLockOffset,
    Position,
    Rate,
    ReaderName,
    numbers_of,
    to_ranges,
    without,
)
from peeklock.spark.source.reader_names import new_reader, require_name

ORIGIN = Origin("cursor", "broker.example", "lake")
PEEK_LOCK = Origin("peekLock", "broker.example")
READER = ReaderName("lake", "host:1")
CLAIMS = st.lists(st.integers(1, 3000), min_size=1, max_size=20)


def test_cursor_offset_is_the_same_text_after_a_restart() -> None:
    """Req: X-01. Spark compares offsets as text."""
    offset = CursorOffset(READER, {"orders": Position(7), "events/subscriptions/audit": Position(3, 1)}, 2)
    written = json.dumps(offset.to_json(ORIGIN))
    read = CursorOffset.parse(
        json.loads(written), ORIGIN, ["Orders", "events/Subscriptions/audit"], strict=True
    )
    assert read == offset
    assert json.dumps(read.to_json(ORIGIN)) == written


def test_checkpoint_of_another_mode_consumer_entity_or_namespace_is_refused_by_name() -> None:
    """Req: X-01."""
    offset = CursorOffset(READER, {"orders": Position(7)}).to_json(ORIGIN)
    others = [
        (
            Origin("peekLock", "broker.example"),
            ["orders"],
            r"mode=cursor.*mode=peekLock .entities orders, at.*claims",
        ),
        (Origin("cursor", "broker.example", "shop"), ["orders"], r"consumerName=lake.*consumerName=shop"),
        (ORIGIN, ["invoices"], r"entities orders; option entity has invoices.*'orders': \[7, 0\]"),
        (Origin("cursor", "other.example", "lake"), ["orders"], r"broker\.example.*other\.example"),
    ]
    for origin, paths, text in others:
        with pytest.raises(CheckpointMismatch, match=text):
            CursorOffset.parse(offset, origin, paths, strict=True)


def test_moved_namespace_and_dropped_entity_are_accepted_without_fail_on_data_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    offset = CursorOffset(READER, {"orders": Position(7), "old": Position(1)}).to_json(ORIGIN)
    with caplog.at_level(logging.WARNING, "peeklock.spark"):
        read = CursorOffset.parse(offset, Origin("cursor", "new.example", "lake"), ["orders"], strict=False)
    assert read.positions["orders"] == Position(7)
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    "value", [{"claims": {"orders": 5}}, {"claims": {"orders": ["x", 0]}}, {"claims": {"orders": [1]}}]
)
def test_offset_that_cannot_be_read_is_shown(value: dict[str, object]) -> None:
    with pytest.raises(
        CheckpointMismatch, match=r"entities orders holds .* cannot be read.*checkpointLocation"
    ):
        CursorOffset.parse(
            {**ORIGIN.to_json(), "consumerName": "lake", **value}, ORIGIN, ["orders"], strict=True
        )


def test_offset_of_a_release_without_owners_is_read_and_has_none() -> None:
    """Req: X-01."""
    value = {**ORIGIN.to_json(), "consumerName": "lake", "idle": 3, "claims": {"orders": [2, 0]}}
    read = CursorOffset.parse(value, ORIGIN, ["orders"], strict=True)
    assert read == CursorOffset(ReaderName("lake", None), {"orders": Position(2)}, 3)


@pytest.mark.parametrize("version", [3, "next"])
def test_offset_of_a_newer_release_is_refused_and_says_what_to_do(version: object) -> None:
    """Req: X-01."""
    text = rf"entities orders is of a newer release .*'version': {version!r}.*Install.*checkpointLocation"
    newer = {"mode": "cursor", "version": version, "claims": "of another form"}
    with pytest.raises(CheckpointMismatch, match=text):
        CursorOffset.parse(newer, ORIGIN, ["orders"], strict=False)
    with pytest.raises(CheckpointMismatch, match=text):
        PeekLockOffset.parse({**newer, "read": 7}, PEEK_LOCK, ["orders"], strict=False)


def test_offset_of_any_consumer_fits_options_that_name_none() -> None:
    """Req: X-01."""
    offset = CursorOffset(READER, {"orders": Position(7)}).to_json(ORIGIN)
    anyone = Origin("cursor", "broker.example")
    assert CursorOffset.parse(offset, anyone, ["orders"], strict=True).reader == READER


def test_new_readers_differ_and_have_a_cursor_of_their_own_unless_it_is_named() -> None:
    """Req: X-01."""
    one, two = (new_reader(None, hands_start_in=True) for _ in range(2))
    assert one.cursor != two.cursor
    assert one.owner != two.owner
    lake = new_reader("lake", hands_start_in=True)
    assert lake.cursor == "lake"
    assert lake.owner != new_reader("lake", hands_start_in=True).owner
    assert new_reader("lake", hands_start_in=False) == new_reader("lake", hands_start_in=False)
    assert len(one.owner or "") <= 128


def test_name_is_required_where_the_checkpoint_cannot_give_it() -> None:
    """Req: X-01. Before Spark 4.2."""
    with pytest.raises(OptionError, match="consumerName"):
        require_name(None, hands_start_in=False)
    require_name("lake", hands_start_in=False)
    require_name(None, hands_start_in=True)


def test_rate_allows_so_many_messages_a_second_and_keeps_what_a_second_left() -> None:
    rate = Rate(10)
    assert rate.allows(5.0) == 10
    rate.take(10)
    assert rate.allows(5.05) == 0
    assert rate.allows(5.5) == 5
    assert rate.allows(6.5) == 10  # not 15
    rate.take(30)  # claims that were found
    assert rate.allows(8.5) == 0
    assert rate.allows(108.5) == 1000  # a trigger of 100 s
    assert Rate(None).allows(5.0) is None


def test_peek_lock_offset_comes_back_from_its_text() -> None:
    offset = PeekLockOffset(4, {"orders": [(10, 3), (20, 1)]}, {"orders": [(5, 2)]}, 4096)
    written = json.dumps(offset.to_json(PEEK_LOCK))
    assert PeekLockOffset.parse(json.loads(written), PEEK_LOCK, ["orders"], strict=True) == offset


@given(st.lists(st.integers(0, 300)))
def test_ranges_hold_the_numbers_they_were_made_of(numbers: list[int]) -> None:
    ranges = to_ranges(numbers)
    assert numbers_of(ranges) == sorted(set(numbers))
    assert all(first + count < later for (first, count), (later, _) in pairwise(ranges))


def test_without_leaves_out_what_another_batch_has() -> None:
    left = without({"a": [(1, 5)], "b": [(1, 2)]}, {"a": [(2, 2)], "b": [(1, 2)]})
    assert left == {"a": [(1, 1), (4, 2)]}


@given(CLAIMS, st.integers(1, 7))
def test_partitions_hold_each_message_of_the_claims_once_in_order(counts: list[int], parts: int) -> None:
    claims = [("orders", Claim(no, count, count * 100)) for no, count in enumerate(counts, 1)]
    divided = divide(claims, parts)
    assert len(divided) <= parts
    rows = [
        (part.no, at)
        for slices in divided
        for part in slices
        for at in range(part.skip, part.skip + part.count)
    ]
    assert rows == [(no, at) for no, count in enumerate(counts, 1) for at in range(count)]
    sizes = [sum(part.count for part in slices) for slices in divided]
    assert max(sizes) <= -(-sum(counts) // min(parts, sum(counts)))


@given(st.integers(1, 5000), st.integers(0, 400_000), st.integers(1, 5000))
def test_requests_for_a_slice_are_as_large_as_an_answer(count: int, mean: int, fetch_size: int) -> None:
    whole = Slice("orders", 1, 17, count, mean)
    parts = [*cut(whole, fetch_size)]
    assert sum(part.count for part in parts) == count
    assert [part.skip for part in parts] == [*accumulate((part.count for part in parts[:-1]), initial=17)]
    assert all(part.count <= fetch_size for part in parts)
    assert all(part.count == 1 or part.count * mean <= READ_BYTES for part in parts)


def test_nothing_claimed_has_no_partition() -> None:
    assert divide([], 4) == []


def test_budget_takes_the_first_message_whatever_its_size() -> None:
    budget = Budget(10, 100)
    assert budget.fits(1, 5000)
    budget.take(1, 5000)
    assert budget.is_spent
    assert not budget.fits(1, 1)
