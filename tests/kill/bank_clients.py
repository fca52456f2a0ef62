"""Clients of `bank_loop`: transfers and planners work in transactions, state setters set the states of
sessions, an auditor sends markers and reads what is left.

Owns: the clients' side. Must not know: when the broker dies.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, TypeVar

from peeklock.amqp.events import DeliveryReceived
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import BATCH_FORMAT, Properties, scan
from peeklock.amqp.performatives import ACCEPTED, RELEASED, DeliveryState
from peeklock.amqp.types import Array, Int, Long, Symbol, Timestamp
from tests.kill.bank import Bank, States, Steps, Transfer
from tests.kill.clients import Client
from tests.kill.ledger import Broken
from tests.simulation.actors.peer import CoordinatorLink, ReceiveLink, SendLink, error_condition
from tests.simulation.world.accounts import USUAL, Account

ACCOUNTS = ("savings", "current", "cash")
FORWARDING = "forwarding"
"""What is sent here is forwarded to the last account."""
BOOK = "book"
PLANS = "plans"
"""Where planners have their sessions."""
TASKS = 3
"""Tasks of each planner's step."""
DAY_MS = 86_400_000
AUDIT = "audit"
"""The session of the markers."""

CREDIT = 20
HAND_MIN = 10
"""A client asks for notes when it holds fewer."""
OPEN_MAX = 4
"""Transactions that a client has open at once."""
CREDIT_MIN = 16
"""Credit that a client needs on each link before it begins a transaction."""
PAGE = 250

LOCK_LOST = "com.microsoft:message-lock-lost"
ROLLED_BACK = "amqp:transaction:rollback"

_NOTE = re.compile(rb"uid=(\d+);")
_ENTRY = re.compile(rb"(entry|marker)=(\d+);")
_TASK = re.compile(rb"task=(\d+);")

T = TypeVar("T")


def note_message(uid: int) -> bytes:
    """Encode a note."""
    return encode_message(data=b"uid=%d;" % uid)


def book_message(kind: str, number: int, session_id: str) -> bytes:
    """Encode an entry or a marker of a transfer."""
    properties = Properties(message_id=f"transfer-{number}", group_id=session_id)
    return encode_message(properties=properties, data=b"%s=%d;" % (kind.encode(), number))


def task_message(step: int, session_id: str) -> bytes:
    """Encode a task of a step."""
    return encode_message(properties=Properties(group_id=session_id), data=b"task=%d;" % step)


def task_of(payload: bytes) -> int | None:
    """Return the step of a task, None for anything else."""
    found = _TASK.search(payload)
    return None if found is None else int(found[1])


def plan_message(number: int, session_id: str) -> bytes:
    """Encode the plan of a step, for tomorrow."""
    at = Timestamp(time.time_ns() // 1_000_000 + DAY_MS)
    annotations = {Symbol("x-opt-scheduled-enqueue-time"): at}
    return encode_message(
        message_annotations=annotations, properties=Properties(group_id=session_id), data=b"plan=%d;" % number
    )


def uid_of(payload: bytes) -> int:
    """Return the uid of a note."""
    found = _NOTE.search(payload)
    if found is None:
        raise Broken(f"not a note: {payload!r}")
    return int(found[1])


def number_of(payload: bytes) -> int:
    """Return a message's sequence number."""
    return int(scan(payload).decode_message_annotations()["x-opt-sequence-number"])


def session_of(payload: bytes) -> str | None:
    """Return a message's session."""
    return scan(payload).decode_properties().group_id


@dataclass(slots=True)
class Held:
    """A note that a client has locked."""

    uid: int
    link: ReceiveLink
    delivery_id: int


@dataclass(slots=True)
class Running:
    """A transfer in progress."""

    transfer: Transfer
    txn_id: bytes
    taken: list[Held]
    waiting: int
    """Answers that must come before it is discharged."""
    spoiled: bool = False


class Transferer(Client):
    """Makes transfers, several at once; some are rolled back. Now and then it disconnects."""

    def __init__(
        self, name: str, bank: Bank, random: Random, session_id: str, account: Account = USUAL
    ) -> None:
        super().__init__(name, account)
        self._bank = bank
        self._random = random
        self._session_id = session_id
        self._hand: list[Held] = []
        self._running = 0
        self._control: CoordinatorLink
        self._to: dict[str, SendLink] = {}
        self._left: dict[ReceiveLink, int] = {}  # credit of each receiver

    def ready(self) -> None:
        account = self._random.choice(ACCOUNTS)
        channel = self.peer.begin()  # so that it sends anywhere, and takes from this account
        self._control = self.peer.attach_coordinator(channel=channel)
        link = self.peer.attach_receiver(account, delete=False, channel=channel)
        link.on_attached = partial(self._ask_for_notes, link)
        link.on_delivery = partial(self._delivered, account, link)
        self._to = {
            where: self.peer.attach_sender(where, channel=channel) for where in (*ACCOUNTS, FORWARDING, BOOK)
        }
        for sender in (self._control, *self._to.values()):
            sender.on_credit = self._go

    def _ask_for_notes(self, link: ReceiveLink) -> None:
        self._left[link] = CREDIT
        link.flow(CREDIT)

    def _delivered(self, account: str, link: ReceiveLink, event: DeliveryReceived) -> None:
        uid = uid_of(event.payload)
        self._bank.delivered(account, uid, number_of(event.payload))
        self._hand.append(Held(uid, link, event.delivery_id))
        self._left[link] -= 1
        self._go()

    def _go(self) -> None:
        if self._random.random() < 0.0005:
            self.vanish()
        if self.peer.lost or any(link.credit < CREDIT_MIN for link in (self._control, *self._to.values())):
            return
        while self._hand and self._running < OPEN_MAX:
            count = min(self._random.randint(1, 3), len(self._hand))
            taken = [self._hand.pop(self._random.randrange(len(self._hand))) for _ in range(count)]
            self._running += 1
            self._control.declare(partial(self._declared, taken))
        if len(self._hand) < HAND_MIN:
            for link, left in self._left.items():
                if left < CREDIT // 2:
                    self._ask_for_notes(link)

    def _declared(self, taken: list[Held], txn_id: bytes | None, condition: str | None) -> None:
        if txn_id is None:
            raise Broken(f"a transaction was not declared: {condition}")
        transfer = self._bank.begin(self._session_id)
        running = Running(transfer, txn_id, taken, len(taken))
        worth = 0
        for held in taken:
            worth += self._bank.take(transfer, held.uid)
            held.link.settle(held.delivery_id, ACCEPTED, partial(self._taken, running), txn_id=txn_id)
        self._put(transfer, self._split(worth), txn_id)
        entry = book_message("entry", transfer.number, self._session_id)
        self._to[BOOK].send(entry, self._sent, txn_id=txn_id)

    def _split(self, worth: int) -> list[int]:
        """Divide a worth into two or three parts, as far as possible."""
        parts = []
        for _ in range(self._random.randint(1, 2)):
            if worth > 1:
                parts.append(self._random.randint(1, worth - 1))
                worth -= parts[-1]
        return [*parts, worth]

    def _put(self, transfer: Transfer, parts: list[int], txn_id: bytes) -> None:
        accounts = self._random.sample(ACCOUNTS, len(parts))
        together = self._random.random() < 0.2
        notes = [
            (account, self._bank.put(transfer, account, worth))
            for account, worth in zip(accounts[:1] * len(parts) if together else accounts, parts, strict=True)
        ]
        through = {account: account for account in ACCOUNTS}
        if self._random.random() < 0.5:
            through[ACCOUNTS[-1]] = FORWARDING
        if together:
            batch = encode_message(data=[note_message(uid) for _, uid in notes])
            to = self._to[through[accounts[0]]]
            to.send(batch, self._sent, message_format=BATCH_FORMAT, txn_id=txn_id)
            return
        for account, uid in notes:
            self._to[through[account]].send(note_message(uid), self._sent, txn_id=txn_id)

    def _sent(self, state: DeliveryState | None) -> None:
        condition = error_condition(state)
        if condition is not None:
            raise Broken(f"a message was not taken into a transaction: {condition}")

    def _taken(self, running: Running, state: DeliveryState | None) -> None:
        condition = error_condition(state)
        if condition == LOCK_LOST:
            running.spoiled = True  # the account was changed meanwhile
        elif condition is not None:
            raise Broken(f"a note was not taken in a transaction: {condition}")
        self._answered(running)

    def _answered(self, running: Running) -> None:
        """Discharge a transfer whose answers have all come."""
        running.waiting -= 1
        if running.waiting:
            return
        fail = running.spoiled or self._random.random() < 0.15
        if fail:
            self._bank.roll_back(running.transfer)
        else:
            self._bank.ask(running.transfer)
        self._control.discharge(running.txn_id, fail, partial(self._discharged, running, fail))

    def _discharged(self, running: Running, fail: bool, state: DeliveryState | None) -> None:
        condition = error_condition(state)
        if condition not in ((None,) if fail else (None, ROLLED_BACK)):
            raise Broken(f"the answer to a discharge was {condition}: {running.transfer}")
        if not fail:
            self._bank.answered(running.transfer, condition)
        if fail or condition is not None:
            # Locked as before, unless the account was changed: then another receiver has it, or it was
            # given back.
            if not running.spoiled and condition is None and self._random.random() < 0.5:
                self._hand += running.taken
            else:
                for held in running.taken:
                    held.link.settle(held.delivery_id, RELEASED, lambda _: None)
        self._running -= 1
        self._go()


class Planner(Client):
    """Holds one session of the plans, and does one step after the other; some are rolled back first."""

    def __init__(
        self, name: str, steps: Steps, random: Random, session_id: str, account: Account = USUAL
    ) -> None:
        super().__init__(name, account)
        self._steps = steps
        self._random = random
        self._session_id = session_id
        self._tasks: list[int] = []  # delivery ids
        self._working = True
        self._waiting = 0
        self._plan = 0

    def ready(self) -> None:
        channel = self.peer.begin()
        self._control = self.peer.attach_coordinator(channel=channel)
        self._link = self.peer.attach_receiver(
            PLANS, delete=False, session=(self._session_id,), channel=channel
        )
        self._link.on_attached = lambda: self._ask("get-session-state", {}, self._found)
        self._link.on_delivery = self._delivered
        self._to = {where: self.peer.attach_sender(where, channel=channel) for where in (PLANS, BOOK)}
        for sender in (self._control, *self._to.values()):
            sender.on_credit = self._go

    def _found(self, status: int, condition: str | None, body: Any) -> None:
        if status == 0:
            return
        if status != 200:
            raise Broken(f"the state was not read: {condition}")
        self._steps.found(body["session-state"])
        self._working = False
        self._link.flow(TASKS)

    def _delivered(self, event: DeliveryReceived) -> None:
        step = task_of(event.payload)
        if step != self._steps.done:
            raise Broken(f"there is a task of step {step}, and step {self._steps.done} was done")
        self._tasks.append(event.delivery_id)
        self._go()

    def _go(self) -> None:
        links = (self._control, *self._to.values())
        if self._working or len(self._tasks) < TASKS or any(link.credit < CREDIT_MIN for link in links):
            return
        self._working = True
        self._control.declare(self._declared)

    def _declared(self, txn_id: bytes | None, condition: str | None) -> None:
        if txn_id is None:
            raise Broken(f"a transaction was not declared: {condition}")
        step = self._steps.done + 1
        tasks, self._tasks = self._tasks, []
        requests: list[tuple[str, dict[str, Any]]] = [
            ("schedule-message", {"messages": [{"message": plan_message(step, self._session_id)}]}),
            ("set-session-state", {"session-state": b"replaced"}),
            ("set-session-state", {"session-state": Steps.render(step)}),
        ]
        if self._steps.plan is not None:
            gone = {"sequence-numbers": Array.of(Long, [self._steps.plan])}
            requests.append(("cancel-scheduled-message", gone))
        self._waiting = 2 * len(tasks) + 1 + len(requests)
        answered = partial(self._answered, txn_id, tasks)
        for delivery_id in tasks:
            self._link.settle(delivery_id, ACCEPTED, answered, txn_id=txn_id)
            self._to[PLANS].send(task_message(step, self._session_id), answered, txn_id=txn_id)
        entry = Properties(message_id=f"step-{self._session_id}-{step}", group_id=self._session_id)
        self._to[BOOK].send(
            encode_message(properties=entry, data=b"entry=%d;" % step), answered, txn_id=txn_id
        )
        for operation, body in requests:
            self._ask(operation, body, partial(self._asked, answered, operation), txn_id=txn_id)

    def _asked(
        self, answered: Callable[[None], None], operation: str, status: int, condition: str | None, body: Any
    ) -> None:
        if status == 0:
            return
        if status != 200:
            raise Broken(f"{operation} was refused in a transaction: {condition}")
        if operation == "schedule-message":
            self._plan = body["sequence-numbers"][0]
            self._steps.planned(self._plan)
        answered(None)

    def _answered(self, txn_id: bytes, tasks: list[int], state: DeliveryState | None) -> None:
        condition = error_condition(state)
        if condition is not None:
            raise Broken(f"a message or settlement was not taken into a transaction: {condition}")
        self._waiting -= 1
        if self._waiting:
            return
        fail = self._random.random() < 0.3
        if not fail:
            self._steps.ask(self._plan)
        self._control.discharge(txn_id, fail, partial(self._discharged, fail, tasks))

    def _discharged(self, fail: bool, tasks: list[int], state: DeliveryState | None) -> None:
        condition = error_condition(state)
        if condition is not None:
            raise Broken(f"the answer to a discharge was {condition}")
        if fail:
            self._steps.rolled_back += 1
            self._tasks = tasks  # they are locked as before
        else:
            self._steps.answered()
            self._link.flow(TASKS)
        self._working = False
        self._go()

    def _ask(
        self,
        operation: str,
        more: dict[str, Any],
        answer: Callable[[int, str | None, Any], None],
        txn_id: bytes | None = None,
    ) -> None:
        body = {"session-id": self._session_id, **more}
        self.peer.ask(PLANS, f"com.microsoft:{operation}", body, answer, txn_id=txn_id)


class StateSetter(Client):
    """Holds one session of the book and sets its state again and again, several requests in flight."""

    def __init__(self, name: str, states: States, session_id: str, account: Account = USUAL) -> None:
        super().__init__(name, account)
        self._states = states
        self._session_id = session_id
        self._held = False

    def ready(self) -> None:
        link = self.peer.attach_receiver(BOOK, delete=False, session=(self._session_id,))
        link.on_attached = self._holds
        link.on_lost = self._refused

    def _refused(self, condition: str | None) -> None:
        if not self._held:
            raise Broken(f"the session {self._session_id} is not free: {condition}")

    def _holds(self) -> None:
        self._held = True
        self._ask("get", {}, self._found)

    def _found(self, status: int, condition: str | None, body: Any) -> None:
        if status == 200:
            self._states.found(body["session-state"])
            for _ in range(OPEN_MAX):
                self._set()
        elif status:
            raise Broken(f"the state was not read: {condition}")

    def _set(self) -> None:
        number = self._states.asking()
        self._ask("set", {"session-state": States.render(number)}, partial(self._answered, number))

    def _answered(self, number: int, status: int, condition: str | None, body: Any) -> None:
        if status == 200:
            self._states.answered(number)
            self._set()
        elif status:
            raise Broken(f"the state was not set: {condition}")

    def _ask(self, verb: str, more: dict[str, Any], answer: Callable[[int, str | None, Any], None]) -> None:
        operation = f"com.microsoft:{verb}-session-state"
        self.peer.ask(BOOK, operation, {"session-id": self._session_id, **more}, answer)


class Auditor(Client):
    """Brings the first notes, sends markers, and reads what is left; the broker lives meanwhile."""

    def __init__(self, name: str, account: Account = USUAL) -> None:
        super().__init__(name, account)
        self.connected = asyncio.get_running_loop().create_future()

    def ready(self) -> None:
        self.connected.set_result(None)

    async def send(self, queue: str, payloads: list[bytes]) -> None:
        """Send messages, all of which must be accepted."""
        link = self.peer.attach_sender(queue)
        waiting = len(payloads)
        left = iter(payloads)
        done = asyncio.Event()

        def outcome(state: DeliveryState | None) -> None:
            nonlocal waiting
            condition = error_condition(state)
            if condition is not None:
                raise Broken(f"a message to {queue} was refused: {condition}")
            waiting -= 1
            if not waiting:
                done.set()

        def go() -> None:
            while link.credit > 0 and (payload := next(left, None)) is not None:
                link.send(payload, outcome)

        link.on_credit = go
        if payloads:
            await self._or_lost(done.wait())
        link.detach()

    async def browse(self, queue: str) -> list[bytes]:
        """Return all messages of a queue, in the order of their numbers."""
        found: list[bytes] = []
        start = 0
        while True:
            answer: asyncio.Future[tuple[int, Any]] = asyncio.get_running_loop().create_future()
            body = {"from-sequence-number": Long(start), "message-count": Int(PAGE)}

            def answered(
                status: int, _: str | None, page: Any, answer: asyncio.Future[tuple[int, Any]] = answer
            ) -> None:
                answer.set_result((status, page))

            self.peer.ask(queue, "com.microsoft:peek-message", body, answered)
            status, page = await self._or_lost(answer)
            if status != 200:
                return found
            found += [message["message"] for message in page["messages"]]
            start = number_of(found[-1]) + 1

    async def receive_session(self, queue: str, session_id: str) -> list[bytes]:
        """Receive and delete all messages of a session."""
        found: list[bytes] = []
        drained = asyncio.Event()
        link = self.peer.attach_receiver(queue, delete=True, session=(session_id,))
        link.on_attached = lambda: link.flow(1_000_000, drain=True)
        link.on_delivery = lambda event: found.append(event.payload)
        link.on_drained = drained.set
        await self._or_lost(drained.wait())
        link.detach()
        return found

    async def state_of(self, queue: str, session_id: str) -> bytes | None:
        """Return the state of a session without a holder."""
        link = self.peer.attach_receiver(queue, delete=False, session=(session_id,))
        attached = asyncio.Event()
        link.on_attached = attached.set
        await self._or_lost(attached.wait())
        answer: asyncio.Future[tuple[int, Any]] = asyncio.get_running_loop().create_future()
        self.peer.ask(
            queue,
            "com.microsoft:get-session-state",
            {"session-id": session_id},
            lambda status, _, body: answer.set_result((status, body)),
        )
        _, body = await self._or_lost(answer)
        link.detach()
        state: bytes | None = body["session-state"]
        return state

    async def leave(self) -> None:
        """Close properly."""
        self.close()
        await asyncio.wait_for(self.over.wait(), 10)
        if self.failure is not None:
            raise self.failure

    async def _or_lost(self, wanted: Awaitable[T]) -> T:
        wanted = asyncio.ensure_future(wanted)
        over = asyncio.ensure_future(self.over.wait())
        await asyncio.wait((wanted, over), timeout=30, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not wanted.done():
            wanted.cancel()
            raise self.failure or Broken(f"{self.peer.name} got no answer")
        return await wanted


def read_book(payloads: list[bytes]) -> list[tuple[str, int]]:
    """Return kind and transfer of messages of the book."""
    found = [_ENTRY.search(payload) for payload in payloads]
    return [(match[1].decode(), int(match[2])) for match in found if match is not None]
