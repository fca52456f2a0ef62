"""The spans of traced messages: accept, commit, deliver.

A message is traced if its sender's instrumentation says so: `traceparent` or `Diagnostic-Id` among the
application properties, with the flag `sampled`. `accept` and `deliver` are children of the sender's span, so
they are part of its trace; `commit` is a child of `accept`. Other messages cost a search of their properties.

    offered            committing         committed         handed out
       |------------------- accept -------------------------|
                           |---- commit ----|
                                                             | deliver, one for each delivery

Source: W3C Trace Context; OpenTelemetry's semantic conventions for messaging.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from peeklock.amqp.codec import DecodeError
from peeklock.amqp.messaging import Sections, scan
from peeklock.broker.vocabulary.commands import Command, DropConnection, ReplyTo, Schedule, Send, SendBatch
from peeklock.broker.vocabulary.effects import Accepted, Deliver, Effect, MessagesScheduled, Rejected
from peeklock.broker.vocabulary.message import Message
from peeklock.store.base import Batch

OPEN_MAX = 10_000
"""Accept spans that wait for their answer; further messages have none. Our choice: 10 MB."""

PROPERTIES_BYTES_MAX = 65536
"""Of properties and application properties together. Source: the limit of the service."""

_TRACEPARENT = re.compile(
    rb"[\xa0\xa1](?:\x0btraceparent|\x0dDiagnostic-Id)"
    rb"(?:[\xa0\xa1]\x37|[\xb0\xb1]\x00\x00\x00\x37)00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})"
)
"""A key and its value in an encoded map: strings, or binaries as the Python client writes them."""

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SYSTEM = {"messaging.system": "servicebus"}


@dataclass(slots=True)
class _Accepting:
    """A traced message that is not answered yet."""

    span: Span
    message: Message


class MessageSpans:
    """Makes the spans of one namespace. It is a `shard.spanned_loop.Spans`."""

    def __init__(
        self,
        tracer: Tracer,
        name_of: Callable[[int], str],
        body: Callable[[Message], bytes | None],
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Trace nothing yet.

        Args:
            tracer: makes spans.
            name_of: returns the path of a queue by its id.
            body: returns an encoded message if it is in memory.
            clock_ns: returns UTC ns.
        """
        self._tracer = tracer
        self._name_of = name_of
        self._body = body
        self._clock_ns = clock_ns
        self._accepting: dict[ReplyTo, list[_Accepting]] = {}
        self._unanswered: list[_Accepting] = []
        """Pre-settled messages of the open batch: nothing is answered."""
        self._unanswered_in_commit: list[_Accepting] = []
        self._commit: tuple[int, int, int] = (0, 0, 0)
        """Begin and end of the last commit, UTC ns, and its changes."""
        self._waiting: dict[int, list[Deliver]] = {}
        """Deliveries whose bodies are being read, by connection."""

    # From the loop

    def offered(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Send):
                reply_to = command.reply_to
                self._accept(command.queue_id, command.message, command.sections, reply_to)
                for number, (message, sections) in enumerate(command.further, 1):
                    further = None if reply_to is None else reply_to._replace(number=reply_to.number + number)
                    self._accept(command.queue_id, message, sections, further)
            elif isinstance(command, SendBatch):
                for message, sections in command.messages:
                    self._accept(command.queue_id, message, sections, command.reply_to)
            elif isinstance(command, Schedule):
                for message, sections in command.messages:
                    self._accept(command.address.path, message, sections, command.reply_to)
            elif isinstance(command, DropConnection):
                self._forget(command.connection_id)

    def committing(self, batch: Batch) -> None:
        self._commit = (self._clock_ns(), 0, len(batch.changes))
        self._unanswered_in_commit, self._unanswered = self._unanswered, []

    def committed(self) -> None:
        begin_ns, _, changes = self._commit
        self._commit = (begin_ns, self._clock_ns(), changes)
        unanswered, self._unanswered_in_commit = self._unanswered_in_commit, []
        for accepting in unanswered:
            self._answered(accepting, None)

    def handed_out(self, connection_id: int, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                self._deliver(connection_id, effect)
            elif isinstance(effect, Accepted | Rejected | MessagesScheduled) and self._accepting:
                error = effect.error if isinstance(effect, Rejected) else None
                for reply_to in _answered_by(effect):
                    for accepting in self._accepting.pop(reply_to, ()):
                        self._answered(accepting, error)

    def bodies_read(self, connection_id: int) -> None:
        for delivery in self._waiting.pop(connection_id, ()):
            self._deliver(connection_id, delivery)

    # Spans

    def _accept(
        self, queue: int | str, message: Message, sections: Sections, reply_to: ReplyTo | None
    ) -> None:
        sender = _sender(sections)
        if sender is None or len(self._accepting) + len(self._unanswered) >= OPEN_MAX:
            return
        span = self._begin("accept", SpanKind.CONSUMER, sender, queue, message)
        accepting = _Accepting(span, message)
        if reply_to is None:
            self._unanswered.append(accepting)
        else:
            self._accepting.setdefault(reply_to, []).append(accepting)

    def _answered(self, accepting: _Accepting, error: Exception | None) -> None:
        span, message = accepting.span, accepting.message
        if error is not None:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        elif (commit := self._commit)[1]:
            if message.sequence_number:
                span.set_attribute("messaging.servicebus.message.sequence_number", message.sequence_number)
            self._add_commit(span, *commit)
        span.end(self._clock_ns())

    def _add_commit(self, accept: Span, begin_ns: int, end_ns: int, changes: int) -> None:
        attributes: dict[str, str | int] = {**_SYSTEM, "messaging.operation.name": "commit"}
        attributes["peeklock.batch.changes"] = changes
        context = set_span_in_context(accept)
        span = self._tracer.start_span("commit", context, SpanKind.INTERNAL, attributes, start_time=begin_ns)
        span.end(end_ns)

    def _deliver(self, connection_id: int, delivery: Deliver) -> None:
        message = delivery.message
        payload = self._body(message)
        if payload is None:
            self._waiting.setdefault(connection_id, []).append(delivery)
            return
        if not _may_be_traced(payload, message.bare_offset, message.bare_offset + PROPERTIES_BYTES_MAX):
            return  # what nearly all messages are: their sections need not be found
        with suppress(DecodeError):  # a damaged body has no properties
            sender = _sender(scan(payload, whole=False))
            if sender is None:
                return
            span = self._begin("deliver", SpanKind.PRODUCER, sender, message.queue_id, message)
            span.set_attribute("messaging.servicebus.message.delivery_count", delivery.delivery_count)
            span.set_attribute("messaging.servicebus.message.enqueued_time", message.enqueued_at_ms // 1000)
            span.set_attribute("messaging.servicebus.message.sequence_number", message.sequence_number)
            span.end(self._clock_ns())

    def _begin(
        self, operation: str, kind: SpanKind, sender: Context, queue: int | str, message: Message
    ) -> Span:
        name = queue if isinstance(queue, str) else self._name_of(queue)
        attributes: dict[str, str | int] = {
            **_SYSTEM,
            "messaging.operation.name": operation,
            "messaging.destination.name": name,
            "messaging.message.envelope.size": message.size_bytes,
        }
        return self._tracer.start_span(
            f"{operation} {name}", sender, kind, attributes, start_time=self._clock_ns()
        )

    def _forget(self, connection_id: int) -> None:
        """Drop what waits for a connection that is over: its answers reach nobody."""
        self._waiting.pop(connection_id, None)
        for reply_to in [each for each in self._accepting if each.connection_id == connection_id]:
            del self._accepting[reply_to]


def _answered_by(effect: Accepted | Rejected | MessagesScheduled) -> Iterator[ReplyTo]:
    first = effect.reply_to
    yield first
    if isinstance(effect, Accepted):
        for number in range(1, effect.count):
            yield first._replace(number=first.number + number)


def _may_be_traced(payload: bytes, start: int, end: int) -> bool:
    """Return whether a part of a message has one of the keys."""
    return payload.find(b"traceparent", start, end) >= 0 or payload.find(b"Diagnostic-Id", start, end) >= 0


def _sender(sections: Sections) -> Context | None:
    """Return the context of the sender's span; None if the message is not traced."""
    if not _may_be_traced(sections.payload, sections.properties_end, sections.body_offset):
        return None
    found = _TRACEPARENT.search(sections.payload, sections.properties_end, sections.body_offset)
    if found is None or not int(found[3], 16) & TraceFlags.SAMPLED:
        return None
    context = SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=_SAMPLED)
    return set_span_in_context(NonRecordingSpan(context), Context()) if context.is_valid else None
