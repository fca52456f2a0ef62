"""Senders: single messages, batches, pre-settled, scheduled.

Owns: how messages are sent, by the world's random source. Must not know: the broker's internals.
"""

from __future__ import annotations

from typing import Any

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import BATCH_FORMAT
from peeklock.amqp.performatives import ACCEPTED, DeliveryState
from peeklock.broker.vocabulary.descriptions import Description
from tests.simulation.actors.actors import Actor, Shared
from tests.simulation.actors.messages import compose
from tests.simulation.actors.peer import SendLink, error_condition
from tests.simulation.oracle.records import Violation


class Sender(Actor):
    """Sends to one queue or topic: single, batched, pre-settled, scheduled."""

    def __init__(
        self, shared: Shared, name: str, queue: Description, *, pace_ms: int, cbs: bool = False
    ) -> None:
        """Set up the sender; of the settings of `queue` only constant ones count."""
        super().__init__(shared, name, cbs=cbs)
        self._queue = queue
        self._pace_ms = pace_ms
        self._link: SendLink | None = None

    def ready(self) -> None:
        self._attach()
        self.next_time(self.random.randint(0, self._pace_ms), self._act)

    def _attach(self) -> None:
        assert self.peer is not None
        self._link = link = self.peer.attach_sender(self._queue.name)
        link.on_lost = lambda condition: self._link_lost(condition)

    def left(self) -> None:
        self._link = None

    def _link_lost(self, condition: str | None) -> None:
        self._link = None
        if self.peer is None or self.peer.lost or self.checker.may_refuse(condition, self._queue.name):
            return
        if not self.checker.excused(self.connection):
            raise Violation(f"{self.name}: the broker detached the sender link: {condition}")

    def _act(self) -> None:
        if self.stopped:
            return
        self.next_time(self.random.randint(1, 2 * self._pace_ms), self._act)
        link = self._link
        if link is None:
            self._attach()
            return
        if not link.open or link.credit <= 0:
            return
        roll = self.random.random()
        if roll < 0.5:
            for _ in range(self.random.choice((1, 1, 1, 2, 5))):
                if link.credit > 0:
                    self._send_one(link)
        elif roll < 0.68:
            self._send_batch(link)
        elif roll < 0.76:
            self._send_one(link, settled=True)
        elif roll < 0.85:
            self._send_one(link, scheduled=True)
        elif roll < 0.95:
            self._schedule()
        elif roll < 0.965:
            self._send_one(link, wrong=True)
        elif roll < 0.98:
            self.leave()
        else:
            link.detach()
            self._attach()

    def _send_one(
        self, link: SendLink, *, scheduled: bool = False, settled: bool = False, wrong: bool = False
    ) -> None:
        sent, payload = compose(self.shared, self._queue, scheduled=scheduled, wrong=wrong)
        self.checker.sending([sent])
        link.send(payload, None if settled else lambda state: self._outcome([sent.uid], state))

    def _send_batch(self, link: SendLink) -> None:
        self.shared.groups += 1
        many = self.random.choice((1, 2, 3, 8))
        wrong = self.random.randrange(20)
        made = [
            compose(
                self.shared,
                self._queue,
                group=self.shared.groups,
                scheduled=self.random.random() < 0.1,
                wrong=wrong == index,
            )
            for index in range(many)
        ]
        self.checker.sending([sent for sent, _ in made])
        payload = encode_message(data=[payload for _, payload in made])
        uids = [sent.uid for sent, _ in made]
        if self.random.random() < 0.1:
            link.send(payload, None, message_format=BATCH_FORMAT)
        else:
            link.send(payload, lambda state: self._outcome(uids, state), message_format=BATCH_FORMAT)

    def _outcome(self, uids: list[int], state: DeliveryState | None) -> None:
        condition = error_condition(state)
        if condition is None and state != ACCEPTED:
            raise Violation(f"the outcome of a send is {state}")
        self.world.note(f"{self.name}: {uids} {condition or 'accepted'}")
        self.checker.send_answered(uids, condition or "accepted")

    def _schedule(self) -> None:
        assert self.peer is not None
        self.shared.groups += 1
        many = self.random.choice((1, 1, 3))
        made = [
            compose(self.shared, self._queue, scheduled=True, group=self.shared.groups) for _ in range(many)
        ]
        self.checker.sending([sent for sent, _ in made])
        uids = [sent.uid for sent, _ in made]
        messages = []
        for sent, payload in made:
            entry: dict[str, Any] = {"message": payload}
            if sent.own_id:
                entry["message-id"] = sent.message_id
            messages.append(entry)

        def answered(status: int, condition: str | None, body: Any) -> None:
            if status == 0:
                return
            self.world.note(f"{self.name}: scheduled {uids} {status} {condition} {body}")
            if status != 200:
                self.checker.send_answered(uids, str(condition))
                return
            numbers = list(body["sequence-numbers"])
            self.checker.scheduled(uids, numbers)
            self.shared.scheduled += [
                (self._queue.name, number, uid)
                for number, uid in zip(numbers, uids, strict=True)
                if self.checker.sent[uid].outcome == "accepted"
            ]

        self.peer.ask(self._queue.name, "com.microsoft:schedule-message", {"messages": messages}, answered)
