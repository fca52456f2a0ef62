"""The broker's answers to requests of `$management` and `$cbs`, and those that wait for bodies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from peeklock.broker.vocabulary import effects
from peeklock.broker.vocabulary.commands import NO_LINK, ReplyTo
from peeklock.broker.vocabulary.message import LOST_BODY, Message
from peeklock.gateway.context import Output, Payloads

Answered = Callable[[effects.Effect, Payloads | None, int], bool]
"""Takes the effect that answers a request, payloads and now_ms. Returns False where a body is not in memory:
it is called again later."""

EFFECTS: Final = (
    effects.Claimed, effects.ClaimsLeft, effects.CursorsFound, effects.Done, effects.EntitiesFound,
    effects.EntityFound, effects.Failed, effects.LocksRenewed, effects.MessagesDeleted,
    effects.MessagesFound, effects.MessagesScheduled, effects.RulesFound, effects.SessionLockRenewed,
    effects.SessionsFound,
)  # fmt: skip
"""Effects that answer requests."""


class Answers:
    """The requests of one connection that the broker has not answered yet."""

    def __init__(self, connection_id: int, output: Output) -> None:
        self._connection_id = connection_id
        self._output = output
        self._requests: dict[int, Answered] = {}
        self._number = 0
        self.waiting: list[_WaitingAnswer] = []
        """Answers that lack bodies."""

    def reply_to(self) -> ReplyTo:
        """Return the reply-to of a new request."""
        self._number += 1
        return ReplyTo(self._connection_id, NO_LINK, self._number)

    def expect(self, reply_to: ReplyTo, answered: Answered) -> None:
        """Call `answered` with the answer to a request."""
        self._requests[reply_to.number] = answered

    def take(self, effect: Any, now_ms: int) -> None:
        """Pass an answer on. It waits here while a body of it is not in memory."""
        self._answer(effect.reply_to.number, effect, now_ms)

    def body_rows_wanted(self) -> set[int]:
        """Return the body rows that answers wait for."""
        return {row for waiting in self.waiting for row in waiting.rows_missing}

    def retry(self, now_ms: int) -> None:
        """Look again for the bodies that were missing."""
        waiting, self.waiting = self.waiting, []
        for answer in waiting:
            answer.keep(self._output.payloads)
            if answer.rows_missing:
                self.waiting.append(answer)
            else:
                self._answer(answer.number, answer.effect, now_ms, answer)

    def clear(self) -> None:
        """Forget all: the connection is over."""
        self.waiting.clear()
        self._requests.clear()

    def _answer(
        self, number: int, effect: effects.Effect, now_ms: int, waiting: _WaitingAnswer | None = None
    ) -> None:
        answered = self._requests.get(number)
        if answered is None:
            return
        payloads = self._output.payloads if waiting is None else waiting.payload
        is_complete = True
        if isinstance(effect, effects.MessagesFound) and payloads is not None:
            bodies = [payloads(view.message) for view in effect.messages]
            is_complete = None not in bodies
            # A message whose body is damaged is in the dead-letter queue now.
            if any(body is LOST_BODY for body in bodies):
                effect.messages = [
                    view for view, body in zip(effect.messages, bodies, strict=True) if body is not LOST_BODY
                ]
        # Where a body is missing, what is there is not encoded in vain.
        if is_complete and answered(effect, payloads, now_ms):
            del self._requests[number]
            return
        if waiting is None:
            assert isinstance(effect, effects.MessagesFound), "only messages have bodies to wait for"
            waiting = _WaitingAnswer(number, effect)
            waiting.keep(payloads)
        self.waiting.append(waiting)


@dataclass(slots=True)
class _WaitingAnswer:
    """An answer of which some bodies are not in memory.

    It keeps those that are: a message that is removed while the others are read can be read nowhere else.
    """

    number: int
    effect: effects.MessagesFound
    kept: dict[int, bytes] = field(default_factory=dict)
    """Payloads by position: all messages of an answer are of one queue."""
    rows_missing: set[int] = field(default_factory=set)
    """As of the last look: a body that is moved meanwhile is found when the old row arrives."""

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
