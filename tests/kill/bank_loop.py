"""Rounds of transfers between accounts, with a broker that dies in the middle of them.

Owns: the clients of a round, and the changes of entities in it. Must not know: how clients work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peeklock.auth import generate
from tests.kill.bank import Bank, Fate, States, Steps
from tests.kill.bank_clients import (
    ACCOUNTS,
    AUDIT,
    BOOK,
    FORWARDING,
    PLANS,
    TASKS,
    Auditor,
    Planner,
    StateSetter,
    Transferer,
    book_message,
    note_message,
    number_of,
    read_book,
    session_of,
    task_message,
    task_of,
    uid_of,
)
from tests.kill.clients import Client
from tests.kill.ledger import Broken
from tests.kill.loop import DELIVERIES_MAX, NAMESPACE, WAIT_S_MAX, Loop
from tests.simulation.world.accounts import USUAL, Account

ACCOUNT: dict[str, Any] = {"LockDuration": "PT5M", "MaxDeliveryCount": DELIVERIES_MAX}
QUEUES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(ACCOUNTS, ACCOUNT),
    PLANS: {"LockDuration": "PT5M", "MaxDeliveryCount": DELIVERIES_MAX, "RequiresSession": True},
    FORWARDING: {"ForwardTo": ACCOUNTS[-1]},
    BOOK: {
        **ACCOUNT,
        "RequiresSession": True,
        "RequiresDuplicateDetection": True,
        "DuplicateDetectionHistoryTimeWindow": "P1D",
    },
}

TRANSFER_SESSIONS = ("a", "b", "c")
STATE_SESSIONS = ("north", "south")
PLAN_SESSIONS = ("east", "west")
NOTES = 40
"""Brought to each account."""
WORTH = 1_000_000
"""Of each note; enough that it can be divided for a long time."""
MARKERS = 20
"""Sent per round for transfers whose end is known."""

COMMITTED_MIN = 100
STEPS_MIN = 20
STEPS_ROLLED_BACK_MIN = 4
"""Rounds go on until more than so many transfers and steps are known to be done, and steps rolled back."""


class BankLoop(Loop):
    """Transactions over several queues, states of sessions, message ids, across kills."""

    def __init__(
        self, folder: Path, seed: int, *, options: Sequence[str] = (), namespace: str = NAMESPACE
    ) -> None:
        super().__init__(folder, seed, QUEUES, options, namespace)
        self.account: Account = USUAL
        self.bank = Bank()
        self._states = {name: States() for name in STATE_SESSIONS}
        self._steps = {name: Steps() for name in PLAN_SESSIONS}
        self._figures: dict[str, int] = {}

    async def round(self, *, polite: bool) -> None:
        """Send markers for the round before; then work for a random time."""
        await self.audit()
        clients = await self.connect()
        await asyncio.sleep(self.random.uniform(0.05, 0.6))
        if self.random.random() < 0.6:
            await change_lock_duration(
                self.broker.http_port,
                self.random.choice(ACCOUNTS),
                self.random.randint(100, 300),
                self.account,
            )
            await asyncio.sleep(self.random.uniform(0.0, 0.3))
        if polite:
            await self.stop(clients)
        else:
            await self.kill(clients)

    async def connect(self) -> list[Client]:
        """Connect clients, which begin at once."""
        clients: list[Client] = [
            *(
                Transferer(self.name("transferer"), self.bank, self.random, name, self.account)
                for name in TRANSFER_SESSIONS
            ),
            *(
                StateSetter(self.name("state-setter"), states, name, self.account)
                for name, states in self._states.items()
            ),
            *(
                Planner(self.name("planner"), steps, self.random, name, self.account)
                for name, steps in self._steps.items()
            ),
        ]
        for client in clients:
            await client.connect(self.broker.amqp_port)
        return clients

    async def audit(self) -> None:
        """Send markers, and first of all the notes and the tasks."""
        auditor = Auditor(self.name("auditor"), self.account)
        await auditor.connect(self.broker.amqp_port)
        await asyncio.wait_for(auditor.connected, WAIT_S_MAX)
        if not self.bank.notes:
            for account in ACCOUNTS:
                uids = [self.bank.bring(account, WORTH) for _ in range(NOTES)]
                await auditor.send(account, [note_message(uid) for uid in uids])
            await auditor.send(PLANS, [task_message(0, name) for name in PLAN_SESSIONS for _ in range(TASKS)])
        transfers = self.bank.unmarked(self.random, MARKERS)
        await auditor.send(BOOK, [book_message("marker", transfer.number, AUDIT) for transfer in transfers])
        for transfer in transfers:
            transfer.marked = True
        await auditor.leave()

    def is_enough(self) -> bool:
        """Return whether enough was committed and rolled back."""
        committed = sum(transfer.fate is Fate.DONE for transfer in self.bank.transfers.values())
        return (
            committed > COMMITTED_MIN
            and sum(steps.done for steps in self._steps.values()) > STEPS_MIN
            and sum(steps.rolled_back for steps in self._steps.values()) > STEPS_ROLLED_BACK_MIN
        )

    async def finish(self) -> None:
        """Read accounts and book, and check them."""
        await self.audit()
        auditor = Auditor(self.name("auditor"), self.account)
        await auditor.connect(self.broker.amqp_port)
        await asyncio.wait_for(auditor.connected, WAIT_S_MAX)
        accounts = {}
        for account in ACCOUNTS:
            notes = await auditor.browse(account)
            accounts[account] = [(number_of(payload), uid_of(payload)) for payload in notes]
        for left in (
            FORWARDING,
            f"{FORWARDING}/$Transfer/$DeadLetterQueue",
            f"{ACCOUNTS[0]}/$DeadLetterQueue",
        ):
            if await auditor.browse(left):
                raise Broken(f"messages are left in {left}")
        numbers = [number_of(payload) for payload in await auditor.browse(BOOK)]
        if numbers != list(range(1, len(numbers) + 1)):
            raise Broken(f"the numbers of the book have gaps: {numbers}")
        entries = {}
        for client in TRANSFER_SESSIONS:
            found = read_book(await auditor.receive_session(BOOK, client))
            entries[client] = [number for kind, number in found if kind == "entry"]
        audited = read_book(await auditor.receive_session(BOOK, AUDIT))
        markers = [number for kind, number in audited if kind == "marker"]
        steps = {}
        for name in PLAN_SESSIONS:
            found = read_book(await auditor.receive_session(BOOK, name))
            steps[name] = [number for _, number in found]
        plans = await auditor.browse(PLANS)
        states = {name: await auditor.state_of(PLANS, name) for name in PLAN_SESSIONS}
        await auditor.leave()
        for name, known in self._steps.items():
            known.found(states[name])
            own = [payload for payload in plans if session_of(payload) == name]
            tasks = [step for payload in own if (step := task_of(payload)) is not None]
            numbers = [number_of(payload) for payload in own if task_of(payload) is None]
            known.judge(tasks, numbers, steps[name], TASKS)
        self._figures = self.bank.judge(accounts, entries, markers)
        self._figures["steps"] = sum(steps.done for steps in self._steps.values())
        self._figures["steps rolled back"] = sum(steps.rolled_back for steps in self._steps.values())

    def verdict(self) -> dict[str, int]:
        """Return what was found; `finish` has checked it."""
        return {**self._figures, "states": sum(states.count for states in self._states.values())}


async def change_lock_duration(http_port: int, queue: str, seconds: int, account: Account = USUAL) -> None:
    """Change an account by the administration: all locks in it are lost (L-12)."""
    expires_ms = time.time_ns() // 1_000_000 + 3_600_000
    token = generate(f"http://{account.host}/", account.key_name, account.key, expires_ms)
    namespace = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
    body = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<QueueDescription xmlns="{namespace}"><LockDuration>PT{seconds}S</LockDuration>'
        f"<MaxDeliveryCount>{DELIVERIES_MAX}</MaxDeliveryCount></QueueDescription></content></entry>"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", http_port)
    writer.write(
        f"PUT /{queue}?api-version=2021-05 HTTP/1.1\r\nHost: {account.host}\r\nAuthorization: {token}\r\n"
        f"If-Match: *\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    answer = await reader.read()
    writer.close()
    if not answer.startswith(b"HTTP/1.1 200"):
        raise Broken(f"the account was not changed: {answer[:300]!r}")
