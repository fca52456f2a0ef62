"""Features that hold something over steps: a session with its state, a cursor with its claims.

Owns: the order of sessions, states, claims. Must not know: when the broker dies.
"""

from __future__ import annotations

from typing import Any

from peeklock.client import NEXT, ReceiveMode, ServiceBusError
from peeklock.client.claims import Cursor, Slice, fetch
from tests.kill.bank import States
from tests.kill.ledger import Broken
from tests.soak.features import Feature, number_of, uid_of

SESSIONS = 6
CURSOR = "soak"


class Chatting(Feature):
    """Sessions: messages in order, none left out, and a state that survives."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._sent: dict[str, list[int]] = {f"chat-{n}": [] for n in range(SESSIONS)}
        self._done: dict[str, int] = dict.fromkeys(self._sent, 0)
        """The last uid of each session whose completion was acknowledged."""
        self._states = {name: States() for name in self._sent}

    def step(self) -> None:
        for name in self.random.sample(sorted(self._sent), 2):
            uids = [self.ledger.sending() for _ in range(3)]
            self._sent[name] += uids
            self.send(uids, session=name)
        self.last_step()

    def last_step(self) -> None:
        receiver = self.connection.receiver(self.queue, ReceiveMode.PEEK_LOCK, NEXT)
        receiver.session_wait_ms = 200
        try:
            deliveries = receiver.receive(20, 0.2)
        except ServiceBusError as error:
            if "timeout" in error.condition:
                return  # no session has messages
            raise
        name = receiver.session_id
        assert name is not None
        self._check_state(name)
        self._check_order(name, [self.deliver(delivery) for delivery in deliveries])
        self.complete(receiver, deliveries)
        if deliveries:
            self._done[name] = uid_of(deliveries[-1].payload)
            self._forget(name)
        receiver.close()

    def _check_state(self, name: str) -> None:
        node, states = self.connection.management(self.queue), self._states[name]
        found = node.request("com.microsoft:get-session-state", {"session-id": name})
        states.found(found.body["session-state"])
        number = states.asking()
        body = {"session-id": name, "session-state": States.render(number)}
        node.request("com.microsoft:set-session-state", body)
        states.answered(number)

    def _check_order(self, name: str, uids: list[int]) -> None:
        if uids != sorted(set(uids)) or (uids and uids[0] <= self._done[name]):
            raise Broken(f"session {name} after {self._done[name]}: delivered out of order: {uids}")
        between = [uid for uid in self._sent[name] if uids and uid < uids[-1] and uid not in uids]
        fates = self.ledger.fates
        left_out = [uid for uid in between if fates[uid].accepted and not fates[uid].completing]
        if left_out:
            raise Broken(f"session {name}: {uids} came, and {left_out} were left out")

    def _forget(self, name: str) -> None:
        self._sent[name] = [uid for uid in self._sent[name] if uid > self._done[name]]


class Reading(Feature):
    """A cursor: claims are read and committed."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.reopened()
        self._is_ours = False

    def reopened(self) -> None:
        self._cursor = Cursor(self.connection, self.queue, CURSOR, "reader")
        self._is_ours = False

    def step(self) -> None:
        self.send([self.ledger.sending() for _ in range(6)])
        self.last_step()

    def last_step(self) -> None:
        cursor = self._cursor
        if not self._is_ours:
            cursor.finish_look(cursor.start_take(take_over=True))
            self._is_ours = True
        if not cursor.claims:
            cursor.finish_claims([cursor.start_claim(50, 1 << 20, None)])
        for claim in list(cursor.claims.values()):
            part = Slice(self.queue, claim.no, 0, claim.count, claim.size_bytes // max(1, claim.count))
            uids = []
            for _, payloads in fetch(self.connection, CURSOR, "reader", [part], 50):
                for payload in payloads:
                    uids.append(uid_of(payload))
                    self.ledger.delivered(uids[-1], number_of(payload))
            for uid in uids:
                self.ledger.completing(uid)
            cursor.start_commit(claim.no)
            cursor.finish_commit()
            for uid in uids:
                self.ledger.completed(uid)
