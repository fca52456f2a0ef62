"""Requests for the next message, which wait for it.

Owns: each such request from its first command to its answer. Must not know: who waits, and what wakes it:
time-outs come in as calls.

Theory of operation: a request is a receiver link with credit for one delivery, closed with it, so a lock
taken here belongs to no link: it lasts until its own end (wire contract C26). A wait costs one small object
here and a link in the core. When its time is over the credit is drained, so that the answer is either a
message or the certainty that none is under way.

What is to be deleted is locked first, and completed once its answer is ready to be written: a client that
went away while it waited loses nothing, nor does one whose message has to be read from the disk. Between that
completion and the answer there is one commit: a message is gone if the client leaves in it, as it is if the
answer is lost on its way.
"""

from __future__ import annotations

from collections.abc import Callable

from peeklock.admin.exchange import Response
from peeklock.broker.vocabulary.commands import (
    CloseLink,
    Complete,
    OpenReceiver,
    ReceiveMode,
    ReplyTo,
    SetCredit,
)
from peeklock.broker.vocabulary.effects import (
    Deliver,
    DetachLink,
    Drained,
    Effect,
    LinkRefused,
    ReceiverOpened,
    Settled,
    SettlementFailed,
)
from peeklock.broker.vocabulary.errors import ServerBusy
from peeklock.broker.vocabulary.message import LOST_BODY
from peeklock.rest.exchange import Receive
from peeklock.rest.showing import response_of
from peeklock.rest.waiting import Body, WaitingRequests

RECEIVES_MAX = 10_000
"""Requests that wait for messages at a time. Our choice: twice the receivers that one entity may have; they
take about 300 MB with their connections, and none is for nothing."""


class _Waiting:
    __slots__ = ("delivery", "is_over", "receive", "response")

    def __init__(self, receive: Receive) -> None:
        self.receive = receive
        self.is_over = receive.timeout_s <= 0
        """No longer waits: it is answered with what there is."""
        self.delivery: Deliver | None = None
        self.response: Response | None = None
        """What is answered once the message is deleted."""


class Receives(WaitingRequests):
    """The requests for messages of one namespace that are not answered yet."""

    def __init__(self, connection_id: int, on_defect: Callable[[Exception, dict[str, object]], None]) -> None:
        """Begin with none; the arguments are those of `WaitingRequests`."""
        super().__init__(connection_id, on_defect)
        self._waiting: dict[int, _Waiting] = {}
        self._missing: dict[int, list[int]] = {}  # body row -> the requests whose message is in it

    def __len__(self) -> int:
        return len(self._waiting)

    # From who waits

    def begin(self, receive: Receive) -> int | Response:
        """Begin to wait, and return the number of the request; or its answer, if there are too many."""
        if len(self._waiting) >= RECEIVES_MAX:
            return receive.exchange.refusal(
                ServerBusy(f"{RECEIVES_MAX} requests wait for messages, there is no room for another one")
            )
        self._last = number = self._last + 1
        waiting = self._waiting[number] = _Waiting(receive)
        self._ask(number, waiting)
        return number

    def time_out(self, number: int) -> None:
        """End a wait: the answer comes once it is certain that no message is under way."""
        waiting = self._waiting.get(number)
        if waiting is not None:
            waiting.is_over = True
            if waiting.delivery is None:
                self._set_credit(number, drain=True)

    def cancel(self, number: int) -> None:
        """Forget a request whose client is gone; a message that was locked for it is given back."""
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            return
        if waiting.delivery is None:
            self._commands.append(CloseLink(self._link(number)))
        elif waiting.response is None:
            self._release(waiting.delivery)

    def end_all(self) -> None:
        """End all waits, since the broker stops."""
        for number, waiting in list(self._waiting.items()):
            if waiting.response is None:
                self.cancel(number)
                self._end(number, waiting.receive.exchange.refusal(ServerBusy("the broker stops")))

    # From the broker

    def handle(self, effect: Effect, body: Body) -> None:
        """Take an effect; `body` returns a message's payload if it is in memory."""
        if isinstance(effect, Settled | SettlementFailed):
            self._deleted(effect)
            return
        assert isinstance(effect, ReceiverOpened | LinkRefused | DetachLink | Deliver | Drained)
        number = effect.link.number
        waiting = self._waiting.get(number)
        match effect:
            case Deliver():
                self._commands.append(CloseLink(effect.link))
                if waiting is None:  # the client went away while this was under way
                    self._release(effect)
                    return
                waiting.delivery = effect
                self._show(number, waiting, body)
            case LinkRefused() | DetachLink():
                if waiting is not None and waiting.delivery is None:
                    self._end(number, waiting.receive.exchange.refusal(effect.error))
            case Drained():
                if waiting is not None and waiting.delivery is None:
                    self._commands.append(CloseLink(effect.link))
                    self._end(number, Response(204))

    def bodies_wanted(self) -> set[int]:
        """Return the body rows that messages wait for."""
        return set(self._missing)

    def bodies_arrived(self, body: Body) -> None:
        """Look again for the bodies that were missing."""
        missing, self._missing = self._missing, {}
        for numbers in missing.values():
            for number in numbers:
                waiting = self._waiting.get(number)
                if waiting is not None:
                    self._show(number, waiting, body)

    # Answers

    def _show(self, number: int, waiting: _Waiting, body: Body) -> None:
        delivery = waiting.delivery
        assert delivery is not None
        payload = body(delivery.message)
        if payload is None:
            self._missing.setdefault(delivery.message.body_row, []).append(number)
            return
        if payload is LOST_BODY:
            # The broker has ended its lock and dead-letters it: the next one is for who waits.
            waiting.delivery = None
            self._ask(number, waiting)
            return
        receive = waiting.receive
        lock_url = None if receive.deletes else receive.messages_url
        try:
            response = response_of(delivery, payload, lock_url=lock_url)
        except Exception as defect:  # it costs this request its answer; the message's lock lapses
            self._on_defect(defect, {"entity": receive.address.path})
            self._end(number, Response(500, "text/plain", b"internal error"))
            return
        if not receive.deletes:
            self._end(number, response)
            return
        assert delivery.lock_token is not None
        waiting.response = response
        reply_to = ReplyTo(self._connection_id, number, number)
        self._commands.append(Complete(delivery.message.queue_id, delivery.lock_token, reply_to))

    def _deleted(self, effect: Settled | SettlementFailed) -> None:
        number = effect.reply_to.number
        waiting = self._waiting.get(number)
        if waiting is not None:
            assert waiting.response is not None
            # A lock that ended before: the message is another receiver's now, and none was received here.
            self._end(number, waiting.response if isinstance(effect, Settled) else Response(204))

    def _end(self, number: int, response: Response) -> None:
        self._waiting.pop(number, None)
        self._ended.append((number, response))

    def _ask(self, number: int, waiting: _Waiting) -> None:
        address = waiting.receive.address
        self._commands.append(OpenReceiver(self._link(number), address, ReceiveMode.PEEK_LOCK))
        self._set_credit(number, drain=waiting.is_over)

    def _set_credit(self, number: int, *, drain: bool) -> None:
        self._commands.append(SetCredit(self._link(number), 1, 1, drain))
