"""Requests of the API that wait for the broker: commands, takes and streams.

Theory of operation: as in `rest.receives`, all are one connection to the broker. `Ask` and `Show` are
requests of that connection, `Take` and `Stream` are receiver links.

A stream has credit for a window of messages. A place in it is free again when a message is settled here, or
when its lock has lapsed; a message that is settled over AMQP keeps its place until then.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from peeklock.admin.exchange import Response
from peeklock.api.exchange import Answer, Ask, Show, Steer, Stream, Work
from peeklock.broker.vocabulary import commands, effects
from peeklock.broker.vocabulary.addresses import LockToken
from peeklock.broker.vocabulary.errors import ServerBusy
from peeklock.broker.vocabulary.message import LOST_BODY, Message
from peeklock.rest.exchange import Take
from peeklock.rest.receives import TAKE_BYTES_MAX, Body, OnDefect, Receives


@dataclass(slots=True)
class _Asking:
    answer: Ask | Show
    effect: Any = None
    messages: list[Message] = field(default_factory=list)
    """Whose bodies the answer shows."""
    payloads: list[bytes | None] = field(default_factory=list)


@dataclass(slots=True)
class _Streaming:
    stream: Stream
    begun: bool = False
    waiting: list[effects.Deliver] = field(default_factory=list)
    """Deliveries whose bodies are not in memory, and those behind them."""
    under_way: dict[LockToken, tuple[int, int]] = field(default_factory=dict)
    """Lock token -> (end of the lock, size) of messages that are delivered and not settled yet."""
    freed: int = 0
    freed_bytes: int = 0
    is_slow: bool = False


class Waits(Receives):
    """The requests of the API to one namespace that are not answered yet."""

    def __init__(self, connection_id: int, on_defect: OnDefect) -> None:
        super().__init__(connection_id, on_defect)
        self._streamed: dict[LockToken, int] = {}  # lock token -> the stream that has delivered it
        self._events: list[tuple[int, bytes | None]] = []

    # From the clients

    def begin(self, asked: Ask | Show | Take | Stream) -> int | Response:
        """Begin a request, and return its number; or its answer, if there are too many."""
        if isinstance(asked, Take):
            return super().begin(asked)
        if isinstance(asked, Ask | Show):
            self._last += 1
            self._ask(self._last, asked)
            return self._last
        refusal = self._opened(asked)
        if refusal is not None:
            return refusal
        number = self._last
        self._commands.append(
            commands.OpenReceiver(self._link(number), asked.address, commands.ReceiveMode.PEEK_LOCK)
        )
        streaming = self._waits[number] = _Streaming(asked)
        self._credit_stream(number, streaming)
        return number

    def cancel(self, number: int) -> None:
        waiting = self._waits.get(number)
        if isinstance(waiting, _Asking):
            del self._waits[number]
        elif isinstance(waiting, _Streaming):
            self._commands.append(commands.CloseLink(self._link(number)))
            self._release_all(waiting.waiting)
            self._forget(number)
        else:
            super().cancel(number)

    def slow(self, number: int, *, is_slow: bool) -> None:
        """Note that the client of a stream reads slower than messages come, or fast again."""
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
        """End all waits for messages, since the broker stops. Commands under way are answered first."""
        super().end_all()
        for number, waiting in list(self._waits.items()):
            if isinstance(waiting, _Streaming):
                self.cancel(number)
                self._end_stream(
                    number, waiting, waiting.stream.exchange.refusal(ServerBusy("the broker stops"))
                )

    # From the broker

    def handle(self, effect: effects.Effect, body: Body) -> None:
        if isinstance(
            effect,
            effects.Deliver
            | effects.ReceiverOpened
            | effects.LinkRefused
            | effects.DetachLink
            | effects.Drained,
        ):
            waiting = self._waits.get(effect.link.number)
            if isinstance(waiting, _Streaming):
                self._handle_stream(effect.link.number, waiting, effect, body)
                return
        elif not isinstance(effect, effects.Settled | effects.SettlementFailed):
            reply_to = getattr(effect, "reply_to", None)
            if reply_to is not None:
                self._answered(reply_to.link_number, effect, body)
                return
        super().handle(effect, body)

    def _handle_stream(
        self,
        number: int,
        waiting: _Streaming,
        effect: effects.Deliver
        | effects.ReceiverOpened
        | effects.LinkRefused
        | effects.DetachLink
        | effects.Drained,
        body: Body,
    ) -> None:
        match effect:
            case effects.Deliver():
                self._stream(number, waiting, effect, body)
            case effects.ReceiverOpened():
                waiting.begun = True
                self._events.append((number, b": messages come as they are locked\n\n"))
            case effects.LinkRefused() | effects.DetachLink():
                self._release_all(waiting.waiting)
                self._forget(number)
                self._end_stream(number, waiting, waiting.stream.exchange.refusal(effect.error))

    # For the owner

    def take_events(self) -> list[tuple[int, bytes | None]]:
        """Return what is to be written to streams since the last call; None = a stream has ended.

        A stream that was refused at once is in `take_ended`.
        """
        taken, self._events = self._events, []
        return taken

    # Commands

    def _ask(self, number: int, answer: Ask | Show) -> None:
        self._waits[number] = _Asking(answer)
        command: Any = answer.command
        self._commands.append(replace(command, reply_to=commands.ReplyTo(self._connection_id, number, 0)))

    def _answered(self, number: int, effect: Any, body: Body) -> None:
        waiting = self._waits.get(number)
        if not isinstance(waiting, _Asking):
            return
        waiting.effect = effect
        answer = waiting.answer
        if isinstance(answer.command, commands.UpdateDisposition) and isinstance(effect, effects.Done):
            for token in answer.command.lock_tokens:
                self._free(token)
        if isinstance(answer, Show) and not isinstance(effect, effects.Failed):
            waiting.messages = [view.message for view in answer.views(effect)]
            waiting.payloads = [None] * len(waiting.messages)
        self._look_again(number, waiting, body)

    def _look_again(self, number: int, waiting: Any, body: Body) -> None:
        if isinstance(waiting, _Streaming):
            self._send_on(number, waiting, body)
        elif not isinstance(waiting, _Asking):
            super()._look_again(number, waiting, body)
        elif self._fill(number, waiting.messages, waiting.payloads, body):
            self._render(number, waiting)

    def _render(self, number: int, waiting: _Asking) -> None:
        answer, effect = waiting.answer, waiting.effect
        del self._waits[number]
        found: Answer
        try:
            if isinstance(effect, effects.Failed | effects.Rejected):
                instead = answer.instead(effect.error) if isinstance(answer, Ask) else None
                found = instead or answer.exchange.refusal(answer.refusal(effect.error))
            elif isinstance(answer, Ask):
                found = answer.render(effect)
            else:
                found = answer.render(
                    effect, [payload for payload in waiting.payloads if payload is not None]
                )
        except Exception as defect:  # it costs this request its answer
            self._on_defect(defect, {"request": type(answer.command).__name__})
            found = Response(500, "text/plain", b"internal error")
        if isinstance(found, Ask | Show):
            self._ask(number, found)  # the next command of the same request
            return
        assert isinstance(found, Response | Work | Steer)
        self._ended.append((number, found))

    # Streams

    def _stream(self, number: int, waiting: _Streaming, delivery: effects.Deliver, body: Body) -> None:
        assert delivery.lock_token is not None
        size = delivery.message.size_bytes + commands.DELIVERY_BYTES
        waiting.under_way[delivery.lock_token] = (delivery.locked_until_ms, size)
        self._streamed[delivery.lock_token] = number
        waiting.waiting.append(delivery)
        if len(waiting.waiting) == 1:
            self._send_on(number, waiting, body)

    def _send_on(self, number: int, waiting: _Streaming, body: Body) -> None:
        """Send those whose bodies are there, in order."""
        while waiting.waiting:
            delivery = waiting.waiting[0]
            payloads: list[bytes | None] = [None]
            if not self._fill(number, [delivery.message], payloads, body):
                return
            [payload] = payloads
            waiting.waiting.pop(0)
            if payload is LOST_BODY:
                assert delivery.lock_token is not None
                self._free(delivery.lock_token)
                continue
            assert payload is not None
            try:
                event = waiting.stream.render(delivery, payload)
            except Exception as defect:
                self._on_defect(defect, {"entity": waiting.stream.address.path})
                continue  # its lock lapses
            self._events.append((number, event))

    def _free(self, token: LockToken) -> None:
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
        self._commands.append(commands.SetCredit(self._link(number), count_max, bytes_max))

    def _end_stream(self, number: int, waiting: _Streaming, problem: Response) -> None:
        """Report to a stream that no more messages will come."""
        if waiting.begun:
            self._events += [(number, b"event: end\ndata: %s\n\n" % problem.body), (number, None)]
        else:
            self._ended.append((number, problem))

    def _forget(self, number: int) -> None:
        waiting = self._waits[number]
        super()._forget(number)
        if isinstance(waiting, _Streaming):
            for token in waiting.under_way:
                self._streamed.pop(token, None)
