"""Which messages are traced, and the spans that their way through the broker makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from peeklock.amqp.messaging import scan
from peeklock.broker.vocabulary.addresses import LinkId, SequenceNumber
from peeklock.broker.vocabulary.commands import Address, DropConnection, ReplyTo, Schedule, Send, SendBatch
from peeklock.broker.vocabulary.effects import Accepted, Deliver, MessagesScheduled, Rejected
from peeklock.broker.vocabulary.errors import QuotaExceeded
from peeklock.broker.vocabulary.message import Message, MessageState
from peeklock.server.otel.spans import MessageSpans
from peeklock.store.base import Batch
from tests.gateway.harness import message_bytes

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
PARENT = f"00-{TRACE:032x}-{SPAN:016x}-01"
ORDERS = 28


class Traced:
    """Spans of one namespace with the queue `orders`, and a clock that moves 1 ms a look."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.now_ns = 1_764_204_000_000_000_000
        self.bodies: dict[int, bytes] = {}
        self.spans = MessageSpans(
            provider.get_tracer("test"),
            lambda queue_id: "orders" if queue_id == ORDERS else "",
            lambda message: self.bodies.get(message.body_row),
            self._clock_ns,
        )

    def _clock_ns(self) -> int:
        self.now_ns += 1_000_000
        return self.now_ns

    def commit(self) -> None:
        self.spans.committing(Batch(1, []))
        self.spans.committed()

    def finished(self) -> list[ReadableSpan]:
        found = [*self._exporter.get_finished_spans()]
        self._exporter.clear()
        return sorted(found, key=lambda span: span.start_time or 0)

    def names(self) -> list[str]:
        return [span.name for span in self.finished()]


def payload(parent: Any = PARENT, key: Any = "traceparent") -> bytes:
    return message_bytes(application_properties={"other": 1, key: parent})


def send(encoded: bytes, number: int | None = 0, *further: bytes) -> Send:
    reply_to = None if number is None else ReplyTo(1, 2, number)
    behind = [(Message(len(each)), scan(each)) for each in further]
    return Send(ORDERS, Message(len(encoded)), scan(encoded), reply_to, None, behind)


def delivery(body_row: int = 1) -> Deliver:
    message = Message(100)
    message.queue_id, message.body_row = ORDERS, body_row
    message.sequence_number, message.enqueued_at_ms = SequenceNumber(7), 1_764_204_000_500
    return Deliver(message, None, 0, 2, None, MessageState.ACTIVE, None, LinkId(1, 2))


@pytest.fixture
def traced() -> Iterator[Traced]:
    made = Traced()
    yield made
    assert not made.spans._accepting
    assert not made.spans._unanswered


def test_a_traced_send_has_accept_with_commit_in_it(traced: Traced) -> None:
    command = send(payload())
    traced.spans.offered([command])
    traced.commit()
    command.message.sequence_number = SequenceNumber(9)
    traced.spans.handed_out(1, [Accepted(ReplyTo(1, 2, 0))])
    accept, commit = traced.finished()
    assert accept.context is not None
    assert commit.parent is not None
    assert accept.parent is not None
    assert (accept.context.trace_id, accept.parent.span_id) == (TRACE, SPAN)
    assert (commit.context.trace_id, commit.parent.span_id) == (TRACE, accept.context.span_id)
    assert (accept.name, accept.kind) == ("accept orders", SpanKind.CONSUMER)
    assert dict(accept.attributes or {}) == {
        "messaging.system": "servicebus",
        "messaging.operation.name": "accept",
        "messaging.destination.name": "orders",
        "messaging.message.envelope.size": len(payload()),
        "messaging.servicebus.message.sequence_number": 9,
    }
    assert (accept.start_time or 0) < (commit.start_time or 0) < (commit.end_time or 0)
    assert (commit.end_time or 0) < (accept.end_time or 0)


@pytest.mark.parametrize(
    ("parent", "key"),
    [
        (PARENT, "Diagnostic-Id"),
        (PARENT.encode(), b"Diagnostic-Id"),  # as Python's client writes it
        (PARENT.encode(), b"traceparent"),
    ],
)
def test_each_spelling_of_the_clients_is_read(traced: Traced, parent: Any, key: Any) -> None:
    traced.spans.offered([send(payload(parent, key))])
    traced.commit()
    traced.spans.handed_out(1, [Accepted(ReplyTo(1, 2, 0))])
    assert traced.names() == ["accept orders", "commit"]


@pytest.mark.parametrize(
    "encoded",
    [
        message_bytes(),
        payload(PARENT[:-2] + "00"),
        payload("00-" + "0" * 32 + PARENT[35:]),
        payload(PARENT.upper()),
        payload(PARENT[:-1]),
        payload(7),
        message_bytes(b"\xa1\x0btraceparent\xa1\x37" + PARENT.encode()),
    ],
    ids=["none", "not sampled", "no trace id", "upper case", "too short", "a number", "in the body"],
)
def test_other_messages_are_not_traced(traced: Traced, encoded: bytes) -> None:
    traced.bodies[1] = encoded
    traced.spans.offered([send(encoded), send(encoded, None)])
    traced.commit()
    traced.spans.handed_out(1, [Accepted(ReplyTo(1, 2, 0)), delivery()])
    assert traced.finished() == []


def test_messages_of_one_command_are_answered_by_a_count(traced: Traced) -> None:
    traced.spans.offered([send(payload(), 5, message_bytes(), payload(), payload())])
    traced.commit()
    traced.spans.handed_out(1, [Accepted(ReplyTo(1, 2, 5), 3)])
    assert traced.names() == ["accept orders", "accept orders", "commit", "commit"]
    traced.spans.handed_out(1, [Accepted(ReplyTo(1, 2, 8))])
    assert traced.names() == ["accept orders", "commit"]


def test_a_batch_and_a_schedule_trace_each_message(traced: Traced) -> None:
    pairs = [(Message(9), scan(payload())), (Message(9), scan(payload()))]
    traced.spans.offered([SendBatch(ORDERS, pairs, ReplyTo(1, 2, 0))])
    traced.spans.offered([Schedule(Address("later"), [(Message(9), scan(payload()))], ReplyTo(1, 0, 1))])
    traced.commit()
    scheduled = MessagesScheduled(ReplyTo(1, 0, 1), [SequenceNumber(3)])
    traced.spans.handed_out(1, [Accepted(ReplyTo(1, 2, 0)), scheduled])
    assert sorted(traced.names()) == ["accept later", *["accept orders"] * 2, *["commit"] * 3]


def test_a_refusal_is_an_error_without_a_commit(traced: Traced) -> None:
    traced.spans.offered([send(payload())])
    traced.spans.handed_out(1, [Rejected(ReplyTo(1, 2, 0), QuotaExceeded("The queue is full."))])
    (accept,) = traced.finished()
    assert accept.status.status_code is StatusCode.ERROR
    assert accept.status.description == "The queue is full."
    assert (accept.attributes or {})["error.type"] == "QuotaExceeded"


def test_a_pre_settled_message_is_accepted_with_its_commit(traced: Traced) -> None:
    traced.spans.offered([send(payload(), None)])
    traced.spans.committing(Batch(1, []))
    traced.spans.offered([send(payload(), None)])
    traced.spans.committed()
    assert traced.names() == ["accept orders", "commit"]
    traced.commit()
    assert traced.names() == ["accept orders", "commit"]


def test_a_delivery_is_a_span_of_the_sender_s_trace(traced: Traced) -> None:
    traced.bodies[1] = payload()
    traced.spans.handed_out(1, [delivery()])
    (deliver,) = traced.finished()
    assert deliver.parent is not None
    assert (deliver.parent.trace_id, deliver.parent.span_id) == (TRACE, SPAN)
    assert (deliver.name, deliver.kind) == ("deliver orders", SpanKind.PRODUCER)
    assert dict(deliver.attributes or {}) == {
        "messaging.system": "servicebus",
        "messaging.operation.name": "deliver",
        "messaging.destination.name": "orders",
        "messaging.message.envelope.size": 100,
        "messaging.servicebus.message.delivery_count": 2,
        "messaging.servicebus.message.enqueued_time": 1_764_204_000,
        "messaging.servicebus.message.sequence_number": 7,
    }


def test_a_delivery_whose_body_is_on_disk_follows_when_it_is_read(traced: Traced) -> None:
    traced.spans.handed_out(1, [delivery()])
    assert traced.finished() == []
    traced.bodies[1] = payload()
    traced.spans.bodies_read(2)
    assert traced.finished() == []
    traced.spans.bodies_read(1)
    assert traced.names() == ["deliver orders"]


def test_a_damaged_body_has_no_span(traced: Traced) -> None:
    traced.bodies[1] = b"\x00\x53\x74\xd1\xff"
    traced.spans.handed_out(1, [delivery()])
    assert traced.finished() == []


def test_what_a_connection_waits_for_ends_with_it(traced: Traced) -> None:
    traced.spans.offered([send(payload())])
    traced.spans.handed_out(1, [delivery()])
    traced.spans.offered([DropConnection(1, True, [])])
    assert not traced.spans._waiting
    traced.commit()
    assert traced.finished() == []
