"""Requests over HTTP that wait for messages of an entity.

Theory of operation: all are one connection to the broker, which never breaks. A request is a receiver link
with credit for some deliveries, closed once it takes no more, so a lock taken here belongs to no link: it
lasts until its own end (wire contract C26). A wait costs one small object here and a link in the core. The
first message ends the wait by a drain, and so does its time-out: the answer has what is there, or the
certainty that no message is under way.

Messages that are to be deleted are locked first, and completed once all can be shown: a client that goes
away while it waits loses nothing, nor does one whose message must be read from the disk. Between that
completion and the answer there is one commit: messages are gone if the client leaves in it, or if the answer
is lost on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from peeklock.admin.exchange import Response
from peeklock.broker.vocabulary import commands, effects
from peeklock.broker.vocabulary.errors import ServerBusy
from peeklock.broker.vocabulary.message import LOST_BODY, Message
from peeklock.rest.exchange import Take

RECEIVES_MAX = 10_000
"""Requests that wait for messages at a time. Our choice: twice the receivers that one entity may have; they
take about 300 MB with their connections."""

TAKE_BYTES_MAX = 1024 * 1024
"""Of the messages of one answer, unless one is larger. Our choice."""

Body: TypeAlias = Callable[[Message], bytes | None]
"""Returns a message's payload if it is in memory."""

OnDefect: TypeAlias = Callable[[Exception, dict[str, object]], None]
"""Takes a defect of ours that a request met, and what the request was about."""


@dataclass(slots=True)
class Taking:
    """A request that waits for messages."""

    take: Take
    is_over: bool
    """It no longer waits: the answer has what is there."""
    deliveries: list[effects.Deliver] = field(default_factory=list)
    payloads: list[bytes | None] | None = None
    """Of the deliveries, once no more are taken; None for those that are not in memory."""
    shown: dict[int, Any] = field(default_factory=dict)
    """What the answer shows, by index of the delivery."""
    completing: set[int] = field(default_factory=set)
    """Indexes of deliveries that are being deleted."""


class Receives:
    """The requests for messages of one namespace that are not answered yet. Each has a number."""

    def __init__(self, connection_id: int, on_defect: OnDefect) -> None:
        """`connection_id`: under which the broker knows the requests, as if all came by one connection."""
        self._connection_id = connection_id
        self._on_defect = on_defect
        self._waits: dict[int, Any] = {}
        self._last = 0
        self._links = 0  # of requests that wait for messages
        self._missing: dict[int, set[int]] = {}  # body row -> the requests whose messages are in it
        self._commands: list[commands.Command] = []
        self._ended: list[tuple[int, Any]] = []
        """Answers; those of the API may be more than responses."""

    def __len__(self) -> int:
        return self._links

    # From the clients

    def begin(self, asked: Take) -> int | Response:
        """Begin to wait, and return the number of the request; or its answer, if there are too many."""
        refusal = self._opened(asked)
        if refusal is not None:
            return refusal
        taking = self._waits[self._last] = Taking(asked, is_over=asked.timeout_s <= 0)
        self._open(self._last, taking)
        return self._last

    def time_out(self, number: int) -> None:
        """End a wait: the answer comes once it is certain that no message is under way."""
        waiting = self._waits.get(number)
        if isinstance(waiting, Taking):
            waiting.is_over = True
            if not waiting.deliveries:
                self._set_credit(number, waiting.take, drain=True)

    def cancel(self, number: int) -> None:
        """Forget a request whose client is gone; messages that were locked for it are released."""
        waiting = self._waits.get(number)
        if isinstance(waiting, Taking):
            if not waiting.completing:
                if waiting.payloads is None:
                    self._commands.append(commands.CloseLink(self._link(number)))
                self._release_all(waiting.deliveries)
            self._forget(number)

    def end_all(self) -> None:
        """End all waits, since the broker stops. What is being deleted is deleted first."""
        for number, waiting in list(self._waits.items()):
            if isinstance(waiting, Taking) and not waiting.completing:
                self.cancel(number)
                self._ended.append((number, waiting.take.exchange.refusal(ServerBusy("the broker stops"))))

    # From the broker

    def handle(self, effect: effects.Effect, body: Body) -> None:
        """Take an effect; `body` returns a message's payload if it is in memory."""
        if isinstance(effect, effects.Settled | effects.SettlementFailed):
            self._deleted(effect)
            return
        assert isinstance(
            effect,
            effects.ReceiverOpened
            | effects.LinkRefused
            | effects.DetachLink
            | effects.Deliver
            | effects.Drained,
        )
        number = effect.link.number
        waiting = self._waits.get(number)
        if waiting is None or waiting.payloads is not None:
            if isinstance(effect, effects.Deliver):  # it was under way when its link was closed
                self._release(effect)
            return
        match effect:
            case effects.Deliver():
                self._take(number, waiting, effect, body)
            case effects.LinkRefused() | effects.DetachLink() if not waiting.deliveries:
                self._end(number, waiting.take.exchange.refusal(effect.error))
            case effects.LinkRefused() | effects.DetachLink() | effects.Drained():
                self._taken(number, waiting, body)

    def bodies_wanted(self) -> set[int]:
        """Return the body rows that messages wait for."""
        return set(self._missing)

    def bodies_arrived(self, body: Body) -> None:
        """Look again for the bodies that were missing."""
        missing, self._missing = self._missing, {}
        for number in sorted(set().union(*missing.values())):
            if number in self._waits:
                self._look_again(number, self._waits[number], body)

    # For the owner

    def take_commands(self) -> list[commands.Command]:
        """Return the commands since the last call."""
        taken, self._commands = self._commands, []
        return taken

    def take_ended(self) -> list[tuple[int, Any]]:
        """Return the answers since the last call, by the numbers of their requests."""
        taken, self._ended = self._ended, []
        return taken

    # Messages

    def _opened(self, asked: Any) -> Response | None:
        """Count a request that waits for messages; return its refusal if there are too many."""
        if self._links >= RECEIVES_MAX:
            refusal = f"{RECEIVES_MAX} requests wait for messages, the maximum; try again later"
            refused: Response = asked.exchange.refusal(ServerBusy(refusal))
            return refused
        self._links += 1
        self._last += 1
        return None

    def _open(self, number: int, waiting: Taking) -> None:
        take = waiting.take
        self._commands.append(
            commands.OpenReceiver(self._link(number), take.address, commands.ReceiveMode.PEEK_LOCK)
        )
        self._set_credit(number, take, drain=waiting.is_over)

    def _take(self, number: int, waiting: Taking, delivery: effects.Deliver, body: Body) -> None:
        waiting.deliveries.append(delivery)
        if len(waiting.deliveries) >= waiting.take.count_max:
            self._taken(number, waiting, body)
        elif len(waiting.deliveries) == 1 and not waiting.is_over:
            self._set_credit(number, waiting.take, drain=True)

    def _taken(self, number: int, waiting: Taking, body: Body) -> None:
        """Take no more."""
        self._commands.append(commands.CloseLink(self._link(number)))
        waiting.payloads = [None] * len(waiting.deliveries)
        self._look_again(number, waiting, body)

    def _look_again(self, number: int, waiting: Any, body: Body) -> None:
        """Show the messages of a request once all bodies are in memory."""
        messages = [delivery.message for delivery in waiting.deliveries]
        if self._fill(number, messages, waiting.payloads, body):
            self._show(number, waiting)

    def _fill(self, number: int, messages: list[Message], payloads: list[bytes | None], body: Body) -> bool:
        """Get payloads that are still None; return whether all are there. The others are awaited."""
        for index, message in enumerate(messages):
            if payloads[index] is None:
                payloads[index] = body(message)
                if payloads[index] is None:
                    self._missing.setdefault(message.body_row, set()).add(number)
        return None not in payloads

    def _show(self, number: int, waiting: Taking) -> None:
        take, payloads = waiting.take, waiting.payloads
        assert payloads is not None
        # A message whose body is damaged: the broker has ended its lock and dead-letters it.
        whole = [index for index, payload in enumerate(payloads) if payload is not LOST_BODY]
        if waiting.deliveries and not whole:
            waiting.deliveries, waiting.payloads = [], None
            self._open(number, waiting)
            return
        try:
            for index in whole:
                payload = payloads[index]
                assert payload is not None
                waiting.shown[index] = take.show(waiting.deliveries[index], payload)
        except Exception as defect:  # it costs this request its answer; the locks lapse
            self._on_defect(defect, {"entity": take.address.path})
            self._end(number, Response(500, "text/plain", b"internal error"))
            return
        if not take.deletes or not whole:
            self._end(number, take.answer(list(waiting.shown.values())))
            return
        waiting.completing.update(whole)
        for index in whole:
            delivery = waiting.deliveries[index]
            assert delivery.lock_token is not None
            reply_to = commands.ReplyTo(self._connection_id, number, index)
            self._commands.append(commands.Complete(delivery.message.queue_id, delivery.lock_token, reply_to))

    def _deleted(self, effect: effects.Settled | effects.SettlementFailed) -> None:
        number, index = effect.reply_to.link_number, effect.reply_to.number
        waiting = self._waits.get(number)
        if waiting is None:
            return
        waiting.completing.remove(index)
        if isinstance(
            effect, effects.SettlementFailed
        ):  # its lock ended before: it is another receiver's now
            del waiting.shown[index]
        if not waiting.completing:
            self._end(number, waiting.take.answer(list(waiting.shown.values())))

    def _set_credit(self, number: int, take: Take, *, drain: bool) -> None:
        size = TAKE_BYTES_MAX if take.count_max > 1 else 1
        self._commands.append(commands.SetCredit(self._link(number), take.count_max, size, drain))

    def _end(self, number: int, response: Response) -> None:
        self._forget(number)
        self._ended.append((number, response))

    def _forget(self, number: int) -> None:
        del self._waits[number]
        self._links -= 1

    def _release(self, delivery: effects.Deliver) -> None:
        """Release a message that no client was sent (L-16)."""
        assert delivery.lock_token is not None
        self._commands.append(commands.Release(delivery.message.queue_id, delivery.lock_token, None))

    def _release_all(self, deliveries: list[effects.Deliver]) -> None:
        for delivery in deliveries:
            self._release(delivery)

    def _link(self, number: int) -> commands.LinkId:
        return commands.LinkId(self._connection_id, number)
