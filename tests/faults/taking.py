"""Clients that receive and delete: what is on its way when a connection breaks is lost, and no more.

Owns: the clients, and how much may be missing. Must not know: why a connection breaks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from peeklock.amqp.events import DeliveryReceived
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties
from peeklock.amqp.performatives import DeliveryState
from tests.kill.clients import Client
from tests.kill.ledger import Broken
from tests.simulation.actors.peer import SendLink, error_condition
from tests.simulation.oracle.records import uid_of
from tests.simulation.world.accounts import Account

TAKEN = "taken"
CREDIT = 20
IN_FLIGHT_MAX = 3


class Taken:
    """What was sent to the queue and what came."""

    def __init__(self) -> None:
        self.uids = 0
        self.accepted: set[int] = set()
        self.asked: set[int] = set()
        """Sent, with an unknown outcome or none yet."""
        self.seen: Counter[int] = Counter()
        self.connections = 0
        """Of takers, each of which has broken."""

    def judge(self, *, in_order: bool) -> int:
        """Check, once all is received; return how many messages are lost. Raises: Broken.

        `in_order`: the namespace moved in order alone, which loses none.
        """
        twice = [uid for uid, times in self.seen.items() if times > 1]
        if twice:
            raise Broken(f"{len(twice)} messages were received and deleted twice: {twice[:5]}")
        lost = self.accepted - self.seen.keys()
        most = 0 if in_order else CREDIT * self.connections
        if len(lost) > most:
            raise Broken(
                f"{len(lost)} messages are lost to {self.connections} connections with a credit of {CREDIT}, "
                f"where {most} may be: {sorted(lost)[:5]}"
            )
        return len(lost)


class Feeder(Client):
    """Sends some messages at a time."""

    def __init__(self, name: str, taken: Taken, account: Account) -> None:
        super().__init__(name, account)
        self._taken = taken
        self._link: SendLink | None = None
        self._in_flight = 0

    def ready(self) -> None:
        self._link = self.peer.attach_sender(TAKEN)

    def feed(self) -> None:
        """Send what may be in flight."""
        link, taken = self._link, self._taken
        while link is not None and link.credit > 0 and self._in_flight < IN_FLIGHT_MAX and not self.peer.lost:
            self._in_flight += 1
            taken.uids += 1
            taken.asked.add(taken.uids)
            message = encode_message(
                properties=Properties(message_id=str(taken.uids)), data=b"uid=%08d;" % taken.uids
            )
            link.send(message, self._outcome(taken.uids))

    def _outcome(self, uid: int) -> Callable[[DeliveryState | None], None]:
        def outcome(state: DeliveryState | None) -> None:
            self._in_flight -= 1
            if error_condition(state) is None:
                self._taken.accepted.add(uid)

        return outcome


class Taker(Client):
    """Receives and deletes."""

    def __init__(self, name: str, taken: Taken, account: Account) -> None:
        super().__init__(name, account)
        self._taken = taken
        taken.connections += 1

    def ready(self) -> None:
        link = self.peer.attach_receiver(TAKEN, delete=True)
        link.on_attached = lambda: link.flow(CREDIT)

        def take(event: DeliveryReceived) -> None:
            self._taken.seen[uid_of(event.payload)] += 1
            if sum(self._taken.seen.values()) % (CREDIT // 2) == 0:
                link.flow(CREDIT)

        link.on_delivery = take
