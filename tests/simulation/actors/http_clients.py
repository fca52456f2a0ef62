"""Clients that speak HTTP: they send, wait for messages, settle and renew, and leave while they wait.

Owns: what is asked over HTTP. The random source is apart from the world's, so that the other clients of a
seed act as they would without these. Must not know: the broker's internals, the form of requests
(`http_peer`).

A lock that is taken or renewed over HTTP belongs to no connection: for the checker, to one that never breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from peeklock.broker.vocabulary.descriptions import Description, SubscriptionDescription, TopicDescription
from tests.simulation.actors.actors import Shared
from tests.simulation.actors.http_peer import (
    NOT_ALLOWED,
    Request,
    condition_of,
    in_seconds,
    lock_path,
    many_messages,
    one_message,
    path_of,
    read_message,
)
from tests.simulation.actors.messages import compose
from tests.simulation.oracle.checker import LOCK_LOST, split
from tests.simulation.oracle.history import COMMIT_MS_MAX, WIRE_MS_MAX, Lock, Sent
from tests.simulation.oracle.records import MAIN, Violation
from tests.simulation.world.http_service import Answered

HTTP_EVERY, HTTP_IN = 13, (2, 5, 10)
"""Among so many seeds, those with HTTP clients."""

ROUND_MS_MAX = 2_500
"""The longest pause of a client between two actions."""

WAITS_MAX = 3
"""Requests of one client that wait for messages at a time."""

TIMEOUTS_S = (0, 0, 1, 3, 10, 20, None)
"""How long a client asks to wait; None = it states no time."""

DEFAULT_TIMEOUT_S = 60

ANSWERED_WITHIN_S = 20
"""A client that waits for longer leaves once the faults are over: all questions must be answered in time."""

SURELY_KNOWN_MS = WIRE_MS_MAX + COMMIT_MS_MAX
"""By then a client's request has arrived and is done, or never will be."""

METHODS = {"complete": "DELETE", "abandon": "PUT"}

RECENT = 12
"""Locks of any client, which others renew or settle."""


def has_http(seed: int) -> bool:
    """Return whether there are HTTP clients."""
    return seed % HTTP_EVERY in HTTP_IN


class HttpClients:
    """The HTTP clients of a seed."""

    def __init__(self, shared: Shared, entities: Sequence[Description]) -> None:
        random = Random(f"http of {shared.world.seed}")
        self._shared, self._random = shared, random
        self._clients: list[HttpSender | HttpReceiver] = []
        for entity in entities:
            if not isinstance(entity, SubscriptionDescription) and random.random() < 0.5:
                self._clients.append(HttpSender(shared, random, entity))
            if isinstance(entity, TopicDescription):
                continue
            for _ in range(random.choice((0, 1, 1, 2))):
                end = random.choice(("", "", "", "/$DeadLetterQueue"))
                deletes = random.choice((0.0, 0.0, 0.3, 1.0))
                self._clients.append(HttpReceiver(shared, random, entity.name + end, deletes))

    def start(self) -> None:
        """Begin."""
        for client in self._clients:
            self._shared.world.after(self._random.randint(0, 1_000), client.act)

    def stop(self) -> None:
        """Begin nothing new; outstanding questions must still be answered."""
        for client in self._clients:
            client.stop()

    def open_questions(self) -> int:
        """How many answers are outstanding."""
        return sum(request.waits for client in self._clients for request in client.requests)


class HttpClient:
    """A client that asks now and then, several questions at a time."""

    def __init__(self, shared: Shared, random: Random, name: str) -> None:
        self.shared, self.random, self.name = shared, random, name
        self.world, self.checker = shared.world, shared.checker
        self.requests: list[Request] = []
        self.stopped = False

    @property
    def now_ms(self) -> int:
        """The time as it passes at the broker, which the checker uses."""
        return self.shared.node.passed_ms

    def stop(self) -> None:
        self.stopped = True

    def act(self) -> None:
        """Act, if a process listens, and again some time later."""
        if self.stopped:
            return
        self.world.after(self.random.randint(1, ROUND_MS_MAX) * self.shared.slowness, self.act)
        if self.shared.node.process is not None:
            self.do_something()

    def do_something(self) -> None:
        raise NotImplementedError

    def request(self, what: str, answered: Callable[[Answered | None], None]) -> Request:
        """Connect for one request. Now and then no one waits for the answer."""
        self.requests = [request for request in self.requests if request.waits]
        request = Request(self.shared, self.random, f"{self.name}: {what}", answered)
        self.requests.append(request)
        if self.random.random() < 0.05:
            leave = self.random.choice((request.leave, request.drop))
            self.world.after(self.random.randint(0, 40), leave)
        return request


class HttpSender(HttpClient):
    """Sends to one queue or topic: single, scheduled, batched."""

    def __init__(self, shared: Shared, random: Random, entity: Description) -> None:
        super().__init__(shared, random, f"http-sender-{entity.name}")
        self._entity = entity

    def do_something(self) -> None:
        roll = self.random.random()
        if roll < 0.3:
            self._send_batch()
        else:
            sent, payload = self._compose(scheduled=roll > 0.85, wrong=roll < 0.34)
            self._send([sent], *one_message(sent, payload))

    def _compose(self, *, scheduled: bool, wrong: bool, group: int = 0) -> tuple[Sent, bytes]:
        sent, payload = compose(
            self.shared, self._entity, scheduled=scheduled, wrong=wrong, group=group, random=self.random
        )
        in_seconds(sent)
        return sent, payload

    def _send_batch(self) -> None:
        self.shared.groups += 1
        wrong = self.random.randrange(20)
        made = [
            self._compose(
                scheduled=self.random.random() < 0.1, wrong=index == wrong, group=self.shared.groups
            )
            for index in range(self.random.choice((1, 2, 3, 8)))
        ]
        self._send([sent for sent, _ in made], *many_messages(made))

    def _send(self, messages: list[Sent], fields: dict[str, str], body: bytes) -> None:
        uids = [sent.uid for sent in messages]
        wrong = next((sent.wrong for sent in messages if sent.wrong), None)

        def answered(found: Answered | None) -> None:
            if found is not None:
                status = found.response.status
                self.checker.send_answered(uids, "accepted" if status == 201 else condition_of(status, wrong))

        self.checker.sending(messages)
        self.request(f"sends {uids}", answered).send("POST", path_of(self._entity.name), fields, body)


class HttpReceiver(HttpClient):
    """Receives from one queue or dead-letter queue, and settles and renews, also locks of others."""

    def __init__(self, shared: Shared, random: Random, address: str, deletes: float) -> None:
        """Set up the client; `deletes`: how often it receives and deletes."""
        super().__init__(shared, random, f"http-receiver-{address}")
        self._address = address
        self._entity = split(address)[0]
        self._deletes = deletes
        self._long: list[Request] = []
        """Requests that may wait for too long."""

    def stop(self) -> None:
        super().stop()
        for request in self._long:
            request.leave()

    def do_something(self) -> None:
        others = [(address, lock) for address, lock in self.shared.locks[-RECENT:] if lock.hold is None]
        if others and self.random.random() < 0.25:
            address, lock = self.random.choice(others)
            self.random.choice((self._renew, self._complete, self._abandon))(address, lock)
        elif sum(request.waits for request in self.requests) < WAITS_MAX:
            self._receive()

    # Receiving

    def _receive(self) -> None:
        random, checker = self.random, self.checker
        deletes = random.random() < self._deletes
        timeout_s = random.choice(TIMEOUTS_S)
        deletion = checker.deletions.asking(split(self._address)) if deletes else None
        lasts_ms = 1000 * (DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s)

        def answered(found: Answered | None) -> None:
            if found is None:
                checker.receiving(self._entity, request, False)
                if deletion is not None:
                    # The broker may not learn that the client left: then it waits the whole time.
                    self.world.after(SURELY_KNOWN_MS + lasts_ms, checker.deletions.over, deletion)
                return
            checker.used_up(request)
            uid = None
            if found.response.status == (200 if deletes else 201):
                uid = self._received(request, found, deletes=deletes)
            elif found.response.status != 204:
                self._check_refusal("a receive", self._address, found.response.status)
            if deletion is not None:
                checker.deletions.answered(deletion, uid)

        request = self.request(f"receives{' and deletes' * deletes} for {timeout_s} s", answered)
        query = "" if timeout_s is None else f"?timeout={timeout_s}"
        request.send("DELETE" if deletes else "POST", f"{path_of(self._address)}/head{query}")
        self.world.after(SURELY_KNOWN_MS, self._waiting, request)
        self.world.after(lasts_ms, checker.receiving, self._entity, request, False)
        if timeout_s is None or timeout_s > ANSWERED_WITHIN_S:
            self._long = [each for each in self._long if each.waits] + [request]
        if random.random() < 0.25:
            leave = random.choice((request.leave, request.leave, request.drop))
            self.world.after(random.randint(0, min(lasts_ms, 20_000)), leave)

    def _waiting(self, request: Request) -> None:
        """Report a receiver: the broker knows of it by now, and while it waits the queue is not idle."""
        if request.waits and not request.shard.process.dead:
            self.checker.receiving(self._entity, request, True)

    def _received(self, request: Request, found: Answered, *, deletes: bool) -> int:
        seen, token = read_message(request, self._address, found)
        self.world.note(f"{self.name} <- {seen}")
        lock = self.checker.delivered(
            seen, self._address, token, request.connection, deletes=deletes, by_http=True
        )
        if lock is None:
            return self.checker.history.identified(seen, *split(self._address)).uid
        self.shared.locks.append((self._address, lock))
        self._decide(lock)
        return lock.uid

    def _decide(self, lock: Lock) -> None:
        """Choose what to do with a message, and when."""
        random, world = self.random, self.world
        left_ms = max(0, lock.until_ms - self.now_ms)
        think_ms = random.choice((0, 1, 5, 50, 400, 2_000))
        kind = random.choices(
            ("complete", "abandon", "lapse", "renew", "late", "twice"), (50, 12, 8, 15, 6, 5)
        )[0]
        if kind == "renew":
            world.after(random.randint(0, left_ms), self._renew, self._address, lock)
            world.after(left_ms + random.randint(-200, 3_000), self._complete, self._address, lock)
        elif kind == "late":
            world.after(left_ms + random.randint(-40, 400), self._complete, self._address, lock)
        elif kind == "abandon":
            world.after(think_ms, self._abandon, self._address, lock)
        elif kind != "lapse":
            world.after(think_ms, self._complete, self._address, lock)
            if kind == "twice":
                world.after(think_ms + random.randint(0, 500), self._abandon, self._address, lock)

    # Locks

    def _complete(self, address: str, lock: Lock) -> None:
        self._settle(address, lock, "complete")

    def _abandon(self, address: str, lock: Lock) -> None:
        self._settle(address, lock, "abandon")

    def _settle(self, address: str, lock: Lock, kind: str) -> None:
        if self.stopped or self.shared.node.process is None:
            return

        def answered(found: Answered | None) -> None:
            if found is not None:
                status = found.response.status
                condition = None if status == 200 else condition_of(status)
                self.checker.settle_answered(lock, kind, asked_ms, condition)

        asked_ms = self.now_ms
        self.checker.settling(lock, kind)
        request = self.request(f"settles uid {lock.uid}: {kind}", answered)
        request.send(METHODS[kind], lock_path(address, lock))

    def _renew(self, address: str, lock: Lock) -> None:
        if self.stopped or self.shared.node.process is None:
            return

        def answered(found: Answered | None) -> None:
            if found is None:
                return  # never known: the lock may be longer than answered
            status, until_ms = found.response.status, found.until_ms
            if status != 200 and condition_of(status) != LOCK_LOST[0]:
                self._check_refusal("a renewal", address, status)
                return
            self.checker.renew_answered(
                lock, asked_ms, until_ms if status == 200 else None, request.connection, renewal
            )

        asked_ms = self.now_ms
        request = self.request(f"renews uid {lock.uid}", answered)
        renewal = self.checker.renewing(lock, request.connection)
        request.send("POST", lock_path(address, lock))

    def _check_refusal(self, what: str, address: str, status: int) -> None:
        """Check that a refusal has a reason. Raises: Violation."""
        condition, (name, sub) = condition_of(status), split(address)
        entity = next(iter(self.checker.facts.descriptions[self.checker.facts.named(name)[-1]]))[1]
        of_sessions = getattr(entity, "requires_session", False) and sub == MAIN
        if not (condition == NOT_ALLOWED and of_sessions) and not self.checker.may_refuse(condition, name):
            raise Violation(f"{self.name}: {what} was answered with {status}")
