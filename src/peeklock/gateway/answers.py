"""Answers of the broker to requests of `$management` and `$cbs`, and those that wait for bodies.

Owns: which answer belongs to which request, and the payloads of an answer that is not complete. Must not
know: what an answer says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from peeklock.broker.vocabulary.effects import Effect, MessagesFound
from peeklock.broker.vocabulary.message import LOST_BODY, Message
from peeklock.gateway.context import Context, Payloads


class Answers:
    """The answers of one connection; the requests under way are in its `Context`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.waiting: list[_WaitingAnswer] = []
        """Those that lack bodies."""

    def take(self, effect: Any, now_ms: int) -> None:
        """Hand an effect to whoever asked; it waits here while a body of it is not in memory."""
        self._answer(effect.reply_to.number, effect, now_ms)

    def body_rows_wanted(self) -> set[int]:
        """Name the body rows that answers wait for."""
        rows: set[int] = set()
        for waiting in self.waiting:
            rows |= waiting.rows_missing
        return rows

    def retry(self, now_ms: int) -> None:
        """Look again for the bodies that were missing."""
        waiting, self.waiting = self.waiting, []
        for answer in waiting:
            answer.keep(self._context.payloads)
            self._answer(answer.number, answer.effect, now_ms, answer)

    def clear(self) -> None:
        """Forget all: the connection is over."""
        self.waiting.clear()
        self._context.requests.clear()

    def _answer(
        self, number: int, effect: Effect, now_ms: int, waiting: _WaitingAnswer | None = None
    ) -> None:
        context = self._context
        answered = context.requests.get(number)
        if answered is None:
            return
        payloads = context.payloads
        if waiting is not None:
            context.payloads = waiting.payload
        if isinstance(effect, MessagesFound) and context.payloads is not None:
            _leave_out_lost(effect, context.payloads)
        done = answered(effect, now_ms)
        context.payloads = payloads
        if done:
            del context.requests[number]
        else:
            if waiting is None:
                assert isinstance(effect, MessagesFound), "only messages have bodies to wait for"
                waiting = _WaitingAnswer(number, effect)
                waiting.keep(payloads)
            self.waiting.append(waiting)


def _leave_out_lost(effect: MessagesFound, payloads: Payloads) -> None:
    """Leave out messages whose bodies are damaged: they are in the dead-letter queue now."""
    if any(payloads(view.message) is LOST_BODY for view in effect.messages):
        effect.messages = [view for view in effect.messages if payloads(view.message) is not LOST_BODY]


@dataclass(slots=True)
class _WaitingAnswer:
    """An answer of which some bodies are not in memory.

    Those that are stay with it: a message that is removed while the others are read can be read nowhere else.
    """

    number: int
    effect: MessagesFound
    kept: dict[int, bytes] = field(default_factory=dict)
    """Payloads by position: all messages of an answer are of one queue."""
    rows_missing: set[int] = field(default_factory=set)
    """As they were when last looked for: a body that is moved meanwhile is found when the old row arrives."""

    def keep(self, payloads: Payloads | None) -> None:
        self.rows_missing.clear()
        for view in self.effect.messages:
            message = view.message
            if message.position not in self.kept:
                payload = None if payloads is None else payloads(message)
                if payload is None:
                    self.rows_missing.add(message.body_row)
                else:
                    self.kept[message.position] = payload

    def payload(self, message: Message) -> bytes | None:
        return self.kept.get(message.position)
