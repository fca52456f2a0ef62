"""Messages that are sent over HTTP are encoded, and held to the rules, as any message is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Properties, Sections
from peeklock.amqp.types import Timestamp
from peeklock.broker.vocabulary.errors import ArgumentInvalid, ArgumentOutOfRange, InvalidOperation
from peeklock.broker.vocabulary.message import FIELDS, Message
from peeklock.gateway.inspection import take_in
from peeklock.gateway.rewriting import INSTANT_MS_MAX, TTL_MS_MAX
from peeklock.rest.broker_properties import BrokerProperties
from peeklock.rest.encoding import message_of
from tests.gateway.harness import everything

NOW_MS = 1_700_000_000_000
IDS = st.none() | st.text(max_size=3) | st.sampled_from(["", "x" * 120, "ü" * 100, "y" * 128, "z" * 129])
TEXTS = st.none() | st.text(max_size=3) | st.sampled_from(["x" * 255, "y" * 300, "z" * 32_768, "z" * 32_769])
VALUES = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | TEXTS
SAID = st.builds(
    BrokerProperties,
    correlation_id=TEXTS,
    label=TEXTS,
    message_id=IDS,
    partition_key=IDS,
    reply_to=TEXTS,
    reply_to_session_id=TEXTS,
    session_id=IDS,
    to=TEXTS,
    via_partition_key=IDS,
    content_type=st.none() | st.just("text/plain") | st.just("t" * 300),
    scheduled_at_ms=st.none() | st.integers(0, INSTANT_MS_MAX + 1),
    ttl_ms=st.none() | st.integers(1, 2 * TTL_MS_MAX) | st.just(TTL_MS_MAX),
)


def told(make: Callable[[], tuple[Message, Sections]]) -> object:
    try:
        message, sections = make()
    except (ArgumentInvalid, ArgumentOutOfRange, InvalidOperation) as failure:
        return repr(failure)
    return (
        [getattr(message, name) for name in FIELDS],
        everything(sections),
    )


@given(
    st.binary(max_size=3) | st.just(b"z" * 300),
    SAID,
    st.dictionaries(st.text(max_size=3), VALUES, max_size=3),
)
def test_bytes_and_record_are_those_of_any_message(
    body: bytes, said: BrokerProperties, own: dict[str, Any]
) -> None:
    annotations: dict[str, Any] = {
        "x-opt-scheduled-enqueue-time": said.scheduled_at_ms and Timestamp(said.scheduled_at_ms),
        "x-opt-partition-key": said.partition_key,
        "x-opt-via-partition-key": said.via_partition_key,
    }
    if said.scheduled_at_ms == 0:
        annotations["x-opt-scheduled-enqueue-time"] = Timestamp(0)
    given_ones = {name: value for name, value in annotations.items() if value is not None}
    is_long = (said.ttl_ms or 0) > TTL_MS_MAX
    properties = Properties(
        message_id=said.message_id,
        to=said.to,
        subject=said.label,
        reply_to=said.reply_to,
        correlation_id=said.correlation_id,
        content_type=said.content_type,
        absolute_expiry_time=NOW_MS + (said.ttl_ms or 0) if is_long else None,
        creation_time=NOW_MS if is_long else None,
        group_id=said.session_id,
        reply_to_group_id=said.reply_to_session_id,
    )
    payload = encode_message(
        header=None if said.ttl_ms is None else Header(ttl=min(said.ttl_ms, TTL_MS_MAX)),
        message_annotations=given_ones or None,
        properties=None if properties == Properties() else properties,
        application_properties=own or None,
        data=body,
    )
    made = told(lambda: message_of(body, said, own, NOW_MS))
    assert made == told(lambda: take_in(payload, reads_routing=True))
