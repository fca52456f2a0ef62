"""Whatever a client puts into a request or a session filter: one command, or one refusal that it knows."""

from __future__ import annotations

import uuid
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.amqp.events import DispositionReceived, LinkAttached, LinkDetached
from peeklock.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Described,
    Int,
    Long,
    Role,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
)
from peeklock.broker.vocabulary.commands import OpenReceiver
from peeklock.broker.vocabulary.effects import ReceiverOpened
from peeklock.gateway.nodes.management import OPERATIONS
from tests.gateway.harness import QUEUE_ID, TOKEN, Harness, Response, message_bytes
from tests.gateway.links.test_sessions import FILTER, TIMEOUT

few = settings(deadline=None, max_examples=300)

KEYS = (
    "session-id",
    "session-state",
    "last-updated-time",
    "skip",
    "top",
    "from-sequence-number",
    "message-count",
    "sequence-numbers",
    "receiver-settle-mode",
    "lock-tokens",
    "disposition-status",
    "deadletter-reason",
    "properties-to-modify",
    "enqueued-time-utc",
    "messages",
    "rule-name",
    "rule-description",
    "cursor",
    "claim",
    "max-messages",
    "max-bytes",
    "expires-after",
)

FILTER_KEYS = (
    "sql-filter",
    "correlation-filter",
    "true-filter",
    "sql-rule-action",
    "expression",
    "label",
    "properties",
)

CONDITIONS = {
    "amqp:decode-error",
    "amqp:not-allowed",
    "amqp:not-implemented",
    "com.microsoft:argument-error",
    "com.microsoft:argument-out-of-range",
}

integers = st.one_of(
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-(2**63), 2**63 - 1).flatmap(lambda n: st.sampled_from([Long(n), Timestamp(n)])),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(0, 2**32 - 1).map(UInt),
    st.integers(-(2**15), 2**15 - 1).map(Short),
    st.integers(-128, 127).map(Byte),
    st.integers(0, 255).map(UByte),
    st.integers(0, 2).map(Int),
)
scalars = st.one_of(
    integers,
    st.none(),
    st.booleans(),
    st.floats(),
    st.text(max_size=140),
    st.text("abc", max_size=5).map(Symbol),
    st.characters(exclude_categories=["Cs"]).map(Char),
    st.binary(max_size=20),
    st.binary(min_size=4, max_size=4).map(Decimal32),
    st.uuids(),
    st.just(TOKEN),
    st.sampled_from(["completed", "defered", "suspended", message_bytes()]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["message", "message-id", "x"]), inner, max_size=3),
        st.dictionaries(st.sampled_from(FILTER_KEYS), inner, max_size=2),
        st.builds(Described, st.sampled_from([ULong(0x137000000C), FILTER, Symbol("x")]), inner),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(lambda found: Array.of(Long, found)),
        st.lists(st.uuids(), max_size=3).map(lambda found: Array.of(uuid.UUID, found)),
    ),
    max_leaves=6,
)


@few
@given(
    st.sampled_from(sorted(OPERATIONS)),
    st.one_of(st.dictionaries(st.sampled_from(KEYS), values, max_size=len(KEYS)), values),
)
def test_a_request_becomes_one_command_or_one_refusal(operation: str, body: Any) -> None:
    """Req: R-05, T-03."""
    rig = Harness()
    sender, _ = rig.pair("orders/$management")
    rig.events.clear()
    rig.request(sender, operation, body)
    rig.take_event(DispositionReceived)
    if rig.commands:
        assert len(rig.commands) == 1
        assert rig.events == []
        return
    [event] = rig.events
    response = Response(event)  # type: ignore[arg-type]  # checked by what follows
    assert (response.status >= 400, response.body) == (True, {})
    assert str(response.condition) in CONDITIONS


@few
@given(values, values, st.text(max_size=128))
def test_a_session_filter_is_a_wish_or_a_refusal(value: Any, timeout: Any, session_id: str) -> None:
    """Req: R-05, G-01, G-04."""
    rig = Harness()
    rig.attach(Role.RECEIVER, "orders", filter={FILTER: value}, properties={TIMEOUT: timeout})
    if not rig.commands:
        assert str(rig.refusal().condition) in {"amqp:invalid-field", "com.microsoft:argument-error"}
        return
    command = rig.take(OpenReceiver)
    assert command.session is not None
    assert 0 <= command.session.wait_until_ms - rig.clock.now_ms <= 86_400_000
    opened = ReceiverOpened(command.link, QUEUE_ID, session_id=session_id, locked_until_ms=1)
    rig.effect(opened)
    answered = rig.take_event(LinkAttached).source.filter[FILTER]  # type: ignore[union-attr, index]  # it has a source with a filter
    assert (answered.value if isinstance(answered, Described) else answered) == session_id
    assert isinstance(answered, Described) == isinstance(value, Described)
    assert not any(isinstance(event, LinkDetached) for event in rig.events)
