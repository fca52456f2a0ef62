"""What the API asks of the broker and waits for: effects, bodies, messages.

Owns: each such request from its first command to its answer, and streams to their end. Must not know: who
waits, and what wakes it: time-outs and heartbeats come in as calls.

Theory of operation: all are one connection to the broker, which never breaks. `Ask` and `Show` are requests
of that connection. `Take` and `Stream` are receiver links, and a lock taken over them belongs to no link: it
lasts until its own end (wire contract C26). A take is given what is there once its first message has come, by
a drain. Messages that shall be deleted are locked first, and completed once all can be shown.

A stream has credit for a window of messages. A place in it is free again when a message is settled here, or
when its lock has lapsed; whoever settles over AMQP waits for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from peeklock.admin.exchange import Response
from peeklock.api.exchange import Answer, Ask, Show, Step, Stream, Take
from peeklock.broker.vocabulary.commands import (
    DELIVERY_BYTES,
    CloseLink,
    Complete,
    OpenReceiver,
    ReceiveMode,
    ReplyTo,
    SetCredit,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.effects import (
    Deliver,
    DetachLink,
    Done,
    Drained,
    Effect,
    LinkRefused,
    ReceiverOpened,
    Settled,
    SettlementFailed,
)
from peeklock.broker.vocabulary.errors import ServerBusy
from peeklock.broker.vocabulary.message import LOST_BODY, Message
from peeklock.rest.waiting import Body, WaitingRequests

TAKES_MAX = 10_000
"""Requests that wait for messages at a time, streams among them. Our choice: as of `rest.receives`."""

TAKE_BYTES_MAX = 1024 * 1024
"""Of the messages of one answer, and of those that a stream has under way, unless one is larger. Our
choice."""


class _Bodies:
    """Payloads of some messages, as they come."""

    __slots__ = ("messages", "payloads")

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.payloads: list[bytes | None] = [None] * len(messages)

    def fill(self, body: Body) -> set[int]:
        """Take what is in memory; return the rows that the rest is in."""
        rows = set()
        for number, message in enumerate(self.messages):
            if self.payloads[number] is None:
                self.payloads[number] = payload = body(message)
                if payload is None:
                    rows.add(message.body_row)
        return rows

    def all(self) -> list[bytes]:
        return [payload for payload in self.payloads if payload is not None]


@dataclass(slots=True)
class _Asking:
    answer: Ask | Show
    effect: Any = None
    bodies: _Bodies | None = None


@dataclass(slots=True)
class _Taking:
    take: Take
    is_over: bool
    """No longer waits: it is answered with what there is."""
    deliveries: list[Deliver] = field(default_factory=list)
    bodies: _Bodies | None = None
    """Once no more are taken."""
    completing: dict[int, Deliver] = field(default_factory=dict)
    """Those that are being deleted."""
    gone: dict[int, Deliver] = field(default_factory=dict)
    """Those that were."""


@dataclass(slots=True)
class _Streaming:
    stream: Stream
    begun: bool = False
    waiting: list[Deliver] = field(default_factory=list)
    """Whose bodies are not in memory, and those behind them."""
    under_way: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Lock token -> (end of the lock, size) of what was delivered and is not settled yet."""
    freed: int = 0
    freed_bytes: int = 0
    is_slow: bool = False


_Wait: TypeAlias = _Asking | _Taking | _Streaming


class Waits(WaitingRequests):
    """The requests of the API to one namespace that are not answered yet."""

    def __init__(self, connection_id: int, on_defect: Callable[[Exception, dict[str, object]], None]) -> None:
        """Begin with none; the arguments are those of `WaitingRequests`."""
        super().__init__(connection_id, on_defect)
        self._waits: dict[int, _Wait] = {}
        self._links = 0  # of those that wait for messages
        self._missing: dict[int, set[int]] = {}  # body row -> the requests whose messages are in it
        self._streamed: dict[bytes, int] = {}  # lock token -> the stream that has delivered it
        self._events: list[tuple[int, bytes | None]] = []

    def __len__(self) -> int:
        return self._links

    # From who waits

    def begin(self, answer: Ask | Show | Take | Stream) -> int | Response:
        """Begin a request, and return its number; or its answer, if there are too many."""
        self._last = number = self._last + 1
        if isinstance(answer, Ask | Show):
            self._ask(number, answer)
            return number
        if self._links >= TAKES_MAX:
            return answer.exchange.refusal(
                ServerBusy(f"{TAKES_MAX} requests wait for messages, there is no room for another one")
            )
        self._links += 1
        if isinstance(answer, Take):
            taking = self._waits[number] = _Taking(answer, is_over=answer.timeout_s <= 0)
            self._begin_take(number, taking)
        else:
            self._commands.append(OpenReceiver(self._link(number), answer.address, ReceiveMode.PEEK_LOCK))
            streaming = self._waits[number] = _Streaming(answer)
            self._credit_stream(number, streaming)
        return number

    def time_out(self, number: int) -> None:
        """End a wait: the answer comes once it is certain that no message is under way."""
        waiting = self._waits.get(number)
        if isinstance(waiting, _Taking):
            waiting.is_over = True
            if not waiting.deliveries:
                self._credit_take(number, waiting.take, drain=True)

    def cancel(self, number: int) -> None:
        """Forget a request whose client is gone; messages that it was not told of are given back."""
        waiting = self._waits.get(number)
        if waiting is None:
            return
        if isinstance(waiting, _Taking):
            if not waiting.completing and not waiting.gone:
                if waiting.bodies is None:
                    self._commands.append(CloseLink(self._link(number)))
                self._release_all(waiting.deliveries)
        elif isinstance(waiting, _Streaming):
            self._commands.append(CloseLink(self._link(number)))
            self._release_all(waiting.waiting)
        self._forget(number)

    def slow(self, number: int, *, is_slow: bool) -> None:
        """Take note that the client of a stream does not read as fast as messages come, or does again."""
        waiting = self._waits.get(number)
        if isinstance(waiting, _Streaming):
            waiting.is_slow = is_slow
            self._credit_stream(number, waiting)

    def beat(self, number: int, now_ms: int) -> None:
        """Free the places of a stream whose locks have lapsed."""
        waiting = self._waits.get(number)
        if isinstance(waiting, _Streaming):
            for token, (until_ms, _) in list(waiting.under_way.items()):
                if until_ms <= now_ms:
                    self._free(token)

    def end_all(self) -> None:
        """End all waits for messages, since the broker stops. What was asked for is done first."""
        for number, waiting in list(self._waits.items()):
            if isinstance(waiting, _Asking) or (isinstance(waiting, _Taking) and waiting.completing):
                continue
            exchange = waiting.take.exchange if isinstance(waiting, _Taking) else waiting.stream.exchange
            self.cancel(number)
            self._refused(number, waiting, exchange.refusal(ServerBusy("the broker stops")))

    # From the broker

    def handle(self, effect: Effect, body: Body) -> None:
        """Take an effect; `body` returns a message's payload if it is in memory."""
        if isinstance(effect, Deliver | ReceiverOpened | LinkRefused | DetachLink | Drained):
            self._handle_link(effect, body)
            return
        reply_to = effect.reply_to  # type: ignore[union-attr]  # all that are asked for here have one
        number: int = reply_to.link_number
        waiting = self._waits.get(number)
        if isinstance(waiting, _Taking):
            assert isinstance(effect, Settled | SettlementFailed)
            self._deleted(number, waiting, reply_to.number, is_gone=isinstance(effect, Settled))
        elif isinstance(waiting, _Asking):
            waiting.effect = effect
            command = waiting.answer.command
            if isinstance(command, UpdateDisposition) and isinstance(effect, Done):
                for token in command.lock_tokens:
                    self._free(token)
            self._answer(number, waiting, body)

    def _handle_link(
        self, effect: Deliver | ReceiverOpened | LinkRefused | DetachLink | Drained, body: Body
    ) -> None:
        number = effect.link.number
        waiting = self._waits.get(number)
        if isinstance(waiting, _Asking):
            return
        match effect:
            case Deliver():
                if isinstance(waiting, _Streaming):
                    self._stream(number, waiting, effect, body)
                elif isinstance(waiting, _Taking) and waiting.bodies is None:
                    self._take(number, waiting, effect, body)
                else:  # its client has gone away meanwhile
                    self._release(effect)
            case ReceiverOpened() if isinstance(waiting, _Streaming):
                waiting.begun = True
                self._events.append((number, b": messages come as they are locked\n\n"))
            case LinkRefused() | DetachLink() if waiting is not None:
                if isinstance(waiting, _Streaming):
                    self._release_all(waiting.waiting)
                    self._forget(number)
                    self._refused(number, waiting, waiting.stream.exchange.refusal(effect.error))
                elif waiting.deliveries:
                    if waiting.bodies is None:
                        self._taken(number, waiting, body)
                else:
                    self._end(number, waiting.take.exchange.refusal(effect.error))
            case Drained() if isinstance(waiting, _Taking) and waiting.bodies is None:
                self._taken(number, waiting, body)

    def bodies_wanted(self) -> set[int]:
        """Return the body rows that messages wait for."""
        return set(self._missing)

    def bodies_arrived(self, body: Body) -> None:
        """Look again for the bodies that were missing."""
        missing, self._missing = self._missing, {}
        for number in sorted(set().union(*missing.values())):
            waiting = self._waits.get(number)
            if isinstance(waiting, _Asking):
                self._show(number, waiting, body)
            elif isinstance(waiting, _Taking):
                self._show_taken(number, waiting, body)
            elif isinstance(waiting, _Streaming):
                self._send_on(number, waiting, body)

    # For the owner

    def take_events(self) -> list[tuple[int, bytes | None]]:
        """Return what is to be written to streams since the last call; None = a stream has ended.

        One that was refused at once is among `take_ended`.
        """
        taken, self._events = self._events, []
        return taken

    # Requests

    def _ask(self, number: int, answer: Ask | Show) -> None:
        self._waits[number] = _Asking(answer)
        command: Any = answer.command
        self._commands.append(replace(command, reply_to=ReplyTo(self._connection_id, number, 0)))

    def _answer(self, number: int, waiting: _Asking, body: Body) -> None:
        answer = waiting.answer
        if isinstance(answer, Ask):
            effect, render = waiting.effect, answer.render
            self._end(number, self._rendered(lambda: render(effect), answer.command))
            return
        waiting.bodies = _Bodies([view.message for view in answer.views(waiting.effect)])
        self._show(number, waiting, body)

    def _show(self, number: int, waiting: _Asking, body: Body) -> None:
        answer, bodies = waiting.answer, waiting.bodies
        assert isinstance(answer, Show)
        assert bodies is not None
        if self._misses(number, bodies.fill(body)):
            return
        effect, render = waiting.effect, answer.render
        self._end(number, self._rendered(lambda: render(effect, bodies.all()), answer.command))

    def _rendered(self, render: Callable[[], Answer], about: object) -> Answer:
        try:
            return render()
        except Exception as defect:  # it costs this request its answer, nobody else anything
            self._on_defect(defect, {"request": type(about).__name__})
            return Response(500, "text/plain", b"internal error")

    # Takes

    def _begin_take(self, number: int, waiting: _Taking) -> None:
        take = waiting.take
        self._commands.append(OpenReceiver(self._link(number), take.address, ReceiveMode.PEEK_LOCK))
        self._credit_take(number, take, drain=waiting.is_over)

    def _take(self, number: int, waiting: _Taking, delivery: Deliver, body: Body) -> None:
        waiting.deliveries.append(delivery)
        if len(waiting.deliveries) >= waiting.take.count_max:
            self._taken(number, waiting, body)
        elif len(waiting.deliveries) == 1 and waiting.take.timeout_s > 0:
            self._credit_take(number, waiting.take, drain=True)

    def _taken(self, number: int, waiting: _Taking, body: Body) -> None:
        """Take no more."""
        self._commands.append(CloseLink(self._link(number)))
        waiting.bodies = _Bodies([delivery.message for delivery in waiting.deliveries])
        self._show_taken(number, waiting, body)

    def _show_taken(self, number: int, waiting: _Taking, body: Body) -> None:
        bodies = waiting.bodies
        assert bodies is not None
        if self._misses(number, bodies.fill(body)):
            return
        if waiting.deliveries and all(payload is LOST_BODY for payload in bodies.all()):
            # The broker has ended their locks and dead-letters them: the next ones are for who waits.
            waiting.deliveries, waiting.bodies = [], None
            self._begin_take(number, waiting)
            return
        if not waiting.take.deletes or not waiting.deliveries:
            self._end_take(number, waiting, dict(enumerate(waiting.deliveries)))
            return
        for index, delivery in enumerate(waiting.deliveries):
            waiting.completing[index] = delivery
            assert delivery.lock_token is not None
            reply_to = ReplyTo(self._connection_id, number, index)
            self._commands.append(Complete(delivery.message.queue_id, delivery.lock_token, reply_to))

    def _deleted(self, number: int, waiting: _Taking, index: int, *, is_gone: bool) -> None:
        delivery = waiting.completing.pop(index)
        if is_gone:  # else its lock ended before, and it is another receiver's
            waiting.gone[index] = delivery
        if not waiting.completing:
            self._end_take(number, waiting, waiting.gone)

    def _end_take(self, number: int, waiting: _Taking, taken: dict[int, Deliver]) -> None:
        assert waiting.bodies is not None
        payloads = waiting.bodies.all()
        # A body that is damaged: the broker has ended its lock and dead-letters the message.
        whole = {index: each for index, each in sorted(taken.items()) if payloads[index] is not LOST_BODY}
        render = waiting.take.render
        answer = self._rendered(
            lambda: render(list(whole.values()), [payloads[index] for index in whole]), waiting.take
        )
        self._end(number, answer)

    def _credit_take(self, number: int, take: Take, *, drain: bool) -> None:
        size = TAKE_BYTES_MAX if take.count_max > 1 else 1
        self._commands.append(SetCredit(self._link(number), take.count_max, size, drain))

    # Streams

    def _stream(self, number: int, waiting: _Streaming, delivery: Deliver, body: Body) -> None:
        assert delivery.lock_token is not None
        size = delivery.message.size_bytes + DELIVERY_BYTES
        waiting.under_way[delivery.lock_token] = (delivery.locked_until_ms, size)
        self._streamed[delivery.lock_token] = number
        waiting.waiting.append(delivery)
        if len(waiting.waiting) == 1:
            self._send_on(number, waiting, body)

    def _send_on(self, number: int, waiting: _Streaming, body: Body) -> None:
        """Send those whose bodies are there, in order."""
        while waiting.waiting:
            delivery = waiting.waiting[0]
            payload = body(delivery.message)
            if payload is None:
                self._misses(number, {delivery.message.body_row})
                return
            waiting.waiting.pop(0)
            if payload is LOST_BODY:
                assert delivery.lock_token is not None
                self._free(delivery.lock_token)
                continue
            try:
                event = waiting.stream.render(delivery, payload)
            except Exception as defect:
                self._on_defect(defect, {"entity": waiting.stream.address.path})
                continue  # its lock lapses
            self._events.append((number, event))

    def _free(self, token: bytes) -> None:
        """Free the place that a message has in its stream."""
        number = self._streamed.pop(token, 0)
        waiting = self._waits.get(number)
        if isinstance(waiting, _Streaming):
            _, size = waiting.under_way.pop(token)
            waiting.freed += 1
            waiting.freed_bytes += size
            self._credit_stream(number, waiting)

    def _credit_stream(self, number: int, waiting: _Streaming) -> None:
        if waiting.is_slow:
            return
        count_max = waiting.stream.window + waiting.freed
        bytes_max = TAKE_BYTES_MAX + waiting.freed_bytes
        self._commands.append(SetCredit(self._link(number), count_max, bytes_max))

    # Both

    def _misses(self, number: int, rows: set[int]) -> bool:
        for row in rows:
            self._missing.setdefault(row, set()).add(number)
        return bool(rows)

    def _refused(self, number: int, waiting: _Wait, problem: Response) -> None:
        """Tell a client that no message will come."""
        if isinstance(waiting, _Streaming) and waiting.begun:
            self._events += [(number, b"event: end\ndata: %s\n\n" % problem.body), (number, None)]
        else:
            self._ended.append((number, problem))

    def _end(self, number: int, answer: Answer) -> None:
        self._forget(number)
        assert not isinstance(answer, Step | Take | Stream)
        if isinstance(answer, Response):
            self._ended.append((number, answer))
            return
        self._ask(number, answer)  # the next command of the same request

    def _forget(self, number: int) -> None:
        waiting = self._waits.pop(number)
        if isinstance(waiting, _Asking):
            return
        self._links -= 1
        if isinstance(waiting, _Streaming):
            for token in waiting.under_way:
                self._streamed.pop(token, None)

    def _release_all(self, deliveries: list[Deliver]) -> None:
        for delivery in deliveries:
            self._release(delivery)
