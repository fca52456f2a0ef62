"""Requests of many values: at the limit, one past it, and far beyond."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.amqp.codec import DecodeError
from peeklock.amqp.encoding import encode
from peeklock.amqp.types import Array, Long
from peeklock.broker.vocabulary.commands import (
    CancelScheduled,
    Command,
    ReceiveDeferred,
    RenewLocks,
    Schedule,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.inspection import BATCH_MESSAGES_MAX
from peeklock.gateway.nodes.fields import ELEMENTS_MAX
from peeklock.gateway.nodes.requests import VALUES_MAX
from peeklock.gateway.nodes.schedules import iter_scheduled
from tests.gateway.harness import Harness, ask, message_bytes, refused

OUT_OF_RANGE = "com.microsoft:argument-out-of-range"


def numbers(count: int) -> Any:
    return Array.of(Long, range(count))


def tokens(count: int) -> Any:
    return Array.of(uuid.UUID, [uuid.UUID(int=n) for n in range(count)])


LISTS: list[tuple[str, str, Any, dict[str, Any], type[Command]]] = [
    ("renew-lock", "lock-tokens", tokens, {}, RenewLocks),
    ("update-disposition", "lock-tokens", tokens, {"disposition-status": "completed"}, UpdateDisposition),
    ("cancel-scheduled-message", "sequence-numbers", numbers, {}, CancelScheduled),
    ("receive-by-sequence-number", "sequence-numbers", numbers, {}, ReceiveDeferred),
]


@pytest.fixture
def rig() -> Harness:
    return Harness()


@pytest.fixture
def sender(rig: Harness) -> int:
    return rig.pair("orders/$management")[0]


@pytest.mark.parametrize(("operation", "key", "values", "others", "kind"), LISTS)
def test_a_list_has_so_many_elements_at_most(
    rig: Harness,
    sender: int,
    operation: str,
    key: str,
    values: Any,
    others: dict[str, Any],
    kind: type[Command],
) -> None:
    """Req: R-05"""
    ask(rig, sender, operation, {**others, key: values(ELEMENTS_MAX)})
    assert isinstance(rig.take(kind), kind)
    for count in (ELEMENTS_MAX + 1, VALUES_MAX - 4):
        ask(rig, sender, operation, {**others, key: values(count)})
        text = refused(rig, 400, OUT_OF_RANGE).description
        assert f"'{key}' has {count} elements; the limit is 1000." in text
    for count in (VALUES_MAX + 1, 60_000):
        ask(rig, sender, operation, {**others, key: values(count)})
        text = refused(rig, 400, OUT_OF_RANGE).description
        assert "more than 2048 values: a list in it has 1000 elements at most" in text
    assert rig.commands == []


def test_a_list_within_a_list_is_no_way_around(rig: Harness, sender: int) -> None:
    """Req: R-05"""
    for nested in ([[None] * 100] * 100, {str(n): n for n in range(5000)}, Array.of(bool, [True] * 500_000)):
        ask(rig, sender, "renew-lock", {"lock-tokens": [1], "other": nested})
        refused(rig, 400, OUT_OF_RANGE)


def test_a_schedule_has_as_many_messages_as_a_batch(rig: Harness, sender: int) -> None:
    """Req: R-05, S-01"""
    item = {"message": message_bytes()}
    ask(rig, sender, "schedule-message", {"messages": [item] * BATCH_MESSAGES_MAX})
    assert len(rig.take(Schedule).messages) == BATCH_MESSAGES_MAX
    ask(rig, sender, "schedule-message", {"messages": [item] * (BATCH_MESSAGES_MAX + 1)})
    assert "more than 4500 messages" in refused(rig, 403, "amqp:link:message-size-exceeded").description
    assert rig.commands == []


def test_a_schedule_is_read_in_slices() -> None:
    """Req: R-05"""
    rig = Harness(limits=GatewayLimits(slice_messages=10))
    sender, _ = rig.pair("orders/$management")
    rig.client.send(
        rig.channel,
        sender,
        b"tag",
        b"".join(
            (
                b"\x00\x53\x73" + encode(["id"]),
                b"\x00\x53\x74" + encode({"operation": "com.microsoft:schedule-message"}),
                b"\x00\x53\x77" + encode({"messages": [{"message": message_bytes()}] * 25}),
            )
        ),
    )
    assert rig.gateway.receive(rig.client.data_to_send(), rig.clock.now_ms, 1) == []
    assert rig.gateway.receive(b"", rig.clock.now_ms, 1) == []
    (command,) = rig.gateway.receive(b"", rig.clock.now_ms, 1)
    assert isinstance(command, Schedule)
    assert len(command.messages) == 25


@pytest.mark.parametrize("kind", [list, lambda items: Array(dict, items)])
def test_messages_of_a_schedule_are_found_in_a_list_or_an_array(kind: Any) -> None:
    items = [{"message-id": "x", "message": b"a"}, {"message": b"b"}]
    body = encode({"before": 1, "messages": kind(items), "behind": None})
    assert list(iter_scheduled(b"ab" + body, 2)) == [b"a", b"b"]


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"messages": None},
        {"messages": []},
        {"messages": {}},
        {"messages": b"x"},
        {"messages": [None]},
        {"messages": [{}]},
        {"messages": [{"message": "text"}]},
        {"messages": Array(dict, [{"message": None}])},
        {"messages": [{**{str(n): n for n in range(20)}, "message": b"x"}]},
        {**{str(n): n for n in range(20)}, "messages": [{"message": b"x"}]},
    ],
)
def test_a_schedule_of_anything_else_is_an_invalid_argument(body: Any) -> None:
    with pytest.raises(ArgumentInvalid):
        list(iter_scheduled(encode(body), 0))


@given(st.binary(max_size=20), st.integers(0, 60), st.integers(0, 20))
def test_garbage_in_a_schedule_gives_only_refusals(garbage: bytes, at: int, cut: int) -> None:
    """Req: R-05"""
    good = encode({"messages": [{"message-id": "x", "message": b"abc"}, {"message": b"def"}]})
    body = good[:at] + garbage + good[at + cut :] or b"\x40"
    with contextlib.suppress(DecodeError, ArgumentInvalid):
        list(iter_scheduled(body, 0))


@pytest.mark.parametrize("section", [0x73, 0x74])
def test_properties_of_very_many_values_are_refused(rig: Harness, sender: int, section: int) -> None:
    """Req: R-05"""
    many: Any = [["x"] * 10_000] if section == 0x73 else {str(n): n for n in range(VALUES_MAX)}
    delivery_id = rig.transfer(sender, bytes((0, 0x53, section)) + encode(many) + b"\x00\x53\x77\x40")
    assert "too many elements" in rig.rejection(delivery_id).description
