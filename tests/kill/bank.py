"""What the clients of transactions learnt, and what must therefore be in the accounts (F-03, R-02).

Owns: the promises. Must not know: sockets or processes.

Theory of operation. An account is a queue, and a message in it is a note of some worth. A transfer takes
notes out of accounts and puts others of the same worth into them, and an entry into the book: a queue of
sessions, one session for each transfer client. All that is one transaction; so in the end an entry proves
that its transfer was done, and all notes follow from the entries:

    what is in the accounts = what was brought + what was put - what was taken, by the transfers in the book

A planner goes from step to step, each one transaction about its session of the queue of plans: it completes
its tasks and sends those of the next step, cancels its plan and schedules another one for tomorrow, sets the
state of its session, and sends an entry to the book. So state, tasks, plan and book agree on one step.

The book drops duplicates, and an entry's message id names its transfer. After a crash a *marker* is sent
under that id: exactly one of entry and marker is then in the book, so the id is as durable as the
transaction.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from tests.kill.ledger import Broken


class Fate(Enum):
    """The fate of a transfer, as far as its client knows."""

    OPEN = "not discharged: must leave nothing"
    ASKED = "to be committed, no answer yet: done as a whole, or not at all"
    DONE = "committed"
    UNDONE = "rolled back, as asked or by refusal: must leave nothing"


@dataclass(slots=True)
class Note:
    """One message of an account."""

    uid: int
    account: str
    worth: int
    put_by: int
    """Number of the transfer; 0 = brought in the beginning."""
    takers: list[int] = field(default_factory=list)
    """Transfers that have tried to take it."""
    number: int = 0
    """Its sequence number, once it was seen."""


@dataclass(slots=True)
class Transfer:
    """One transaction."""

    number: int
    client: str
    fate: Fate = Fate.OPEN
    taken: list[int] = field(default_factory=list)
    put: list[int] = field(default_factory=list)
    asked: int = 0
    """Its place in the order of requested commits."""
    marked: bool = False


class Bank:
    """All transfers of one run, over any number of broker processes."""

    def __init__(self) -> None:
        self.notes: dict[int, Note] = {}
        self.transfers: dict[int, Transfer] = {}
        self.refused = 0
        self._asked = 0
        self._by_number: dict[tuple[str, int], int] = {}

    # Reports of the clients

    def bring(self, account: str, worth: int) -> int:
        """Return the uid of a note that is sent without a transaction, and accepted."""
        return self._note(account, worth, 0)

    def begin(self, client: str) -> Transfer:
        """Record a declared transaction."""
        transfer = Transfer(len(self.transfers) + 1, client)
        self.transfers[transfer.number] = transfer
        return transfer

    def take(self, transfer: Transfer, uid: int) -> int:
        """Record a note that is completed in a transfer; return its worth."""
        transfer.taken.append(uid)
        note = self.notes[uid]
        note.takers.append(transfer.number)
        return note.worth

    def put(self, transfer: Transfer, account: str, worth: int) -> int:
        """Return the uid of a note that is sent in a transfer."""
        uid = self._note(account, worth, transfer.number)
        transfer.put.append(uid)
        return uid

    def ask(self, transfer: Transfer) -> None:
        """Record the request to commit."""
        self._asked += 1
        transfer.asked = self._asked
        transfer.fate = Fate.ASKED

    def roll_back(self, transfer: Transfer) -> None:
        """Record the request to roll back: whatever the answer, no effect may remain."""
        transfer.fate = Fate.UNDONE

    def answered(self, transfer: Transfer, condition: str | None) -> None:
        """Record the answer to the commit; None = accepted."""
        if condition is None:
            transfer.fate = Fate.DONE
        else:
            transfer.fate = Fate.UNDONE
            self.refused += 1

    def delivered(self, account: str, uid: int, number: int) -> None:
        """Check a note that was delivered."""
        note = self.notes.get(uid)
        if note is None or note.account != account:
            raise Broken(f"uid {uid} was never sent to {account}: {note}")
        if note.put_by and self.transfers[note.put_by].fate in (Fate.OPEN, Fate.UNDONE):
            raise Broken(f"{note} was left by a transfer that is not done: {self.transfers[note.put_by]}")
        for taker in note.takers:
            if self.transfers[taker].fate is Fate.DONE:
                raise Broken(f"{note} came back although it was taken: {self.transfers[taker]}")
        if note.number not in (0, number):
            raise Broken(f"{note} was delivered as {number} now")
        if self._by_number.setdefault((account, number), uid) != uid:
            raise Broken(f"number {number} of {account} was given to {note} and to another")
        note.number = number

    # Markers

    def unmarked(self, random: Random, more: int) -> list[Transfer]:
        """Choose transfers to send a marker for: all whose fate is unknown, and some others that have
        ended."""
        unmarked = [transfer for transfer in self.transfers.values() if not transfer.marked]
        unknown = [transfer for transfer in unmarked if transfer.fate is Fate.ASKED]
        others = [transfer for transfer in unmarked if transfer.fate in (Fate.DONE, Fate.UNDONE)]
        return unknown + random.sample(others, min(more, len(others)))

    # The end

    def judge(
        self,
        accounts: dict[str, list[tuple[int, int]]],
        entries: dict[str, list[int]],
        markers: list[int],
    ) -> dict[str, int]:
        """Check the content at the end.

        Args:
            accounts: (sequence number, uid) of the notes in each, in their order.
            entries: numbers of the transfers in each client's session of the book, in the order received.
            markers: numbers of the transfers whose markers are in the book.

        Raises: Broken.
        """
        done = self._done(entries, markers)
        for account, found in accounts.items():
            for number, uid in found:
                self.delivered(account, uid, number)
        there = Counter(uid for found in accounts.values() for _, uid in found)
        expected = {note.uid for note in self.notes.values() if not note.put_by or note.put_by in done}
        for number in done:
            for uid in self.transfers[number].taken:
                if uid not in expected:
                    raise Broken(f"{self.notes[uid]} was taken twice, or was never there")
                expected.remove(uid)
        if there != Counter(expected):
            missing = [self.notes[uid] for uid in expected if uid not in there]
            surplus = [self.notes[uid] for uid in there if uid not in expected or there[uid] > 1]
            raise Broken(
                f"{len(missing)} notes are missing {missing[:3]}, {len(surplus)} too many {surplus[:3]}"
            )
        brought = sum(note.worth for note in self.notes.values() if not note.put_by)
        worth = sum(self.notes[uid].worth for uid in there)
        if worth != brought:
            raise Broken(f"{brought} were brought, {worth} are left")
        self._check_numbers(accounts, done)
        fates = Counter(transfer.fate for transfer in self.transfers.values())
        unknown = [transfer.number for transfer in self.transfers.values() if transfer.fate is Fate.ASKED]
        return {
            "transfers": len(self.transfers),
            "committed": fates[Fate.DONE],
            "rolled back": fates[Fate.UNDONE] - self.refused,
            "refused": self.refused,
            "unknown and done": len(done.intersection(unknown)),
            "unknown and undone": len(set(unknown) - done),
            "markers": len(markers),
        }

    def _done(self, entries: dict[str, list[int]], markers: list[int]) -> set[int]:
        """Return the transfers that are in the book."""
        times = Counter(number for found in entries.values() for number in found)
        for transfer in self.transfers.values():
            found = times.pop(transfer.number, 0)
            allowed = {Fate.DONE: (1,), Fate.ASKED: (0, 1)}.get(transfer.fate, (0,))
            if found not in allowed:
                raise Broken(f"{found} entries in the book of {transfer}")
            if transfer.marked and found + markers.count(transfer.number) != 1:
                raise Broken(f"not exactly one of entry and marker is in the book of {transfer}")
        if times:
            raise Broken(f"entries without a transfer: {times}")
        for client, numbers in entries.items():
            order = [self.transfers[number].asked for number in numbers]
            if order != sorted(order) or any(self.transfers[number].client != client for number in numbers):
                raise Broken(f"the entries of {client} are not in the order of its commits: {numbers}")
        return {number for numbers in entries.values() for number in numbers}

    def _check_numbers(self, accounts: dict[str, list[tuple[int, int]]], done: set[int]) -> None:
        """Check that each account has numbered all its notes without a gap (S-01)."""
        for account in accounts:
            numbers = [
                note.number
                for note in self.notes.values()
                if note.account == account and (not note.put_by or note.put_by in done)
            ]
            if sorted(numbers) != list(range(1, len(numbers) + 1)):
                raise Broken(f"the numbers of {account} have gaps or duplicates: {sorted(numbers)}")

    def _note(self, account: str, worth: int, put_by: int) -> int:
        uid = len(self.notes) + 1
        self.notes[uid] = Note(uid, account, worth, put_by)
        return uid


class Steps:
    """The progress of one planner; each step is done as a whole, or not at all."""

    def __init__(self) -> None:
        self.done = 0
        """The last step that is known to be done."""
        self.plan: int | None = None
        """The number of its plan."""
        self.rolled_back = 0
        self._asked: int | None = None
        """The number of the next step's plan, if its commit was requested and not answered."""
        self._numbers: set[int] = set()

    def planned(self, number: int) -> None:
        """Record the number in the answer for a plan, whether or not the step is done. Raises: Broken."""
        if number in self._numbers:
            raise Broken(f"a schedule was answered again with number {number}")
        self._numbers.add(number)

    def ask(self, plan: int) -> None:
        """Record the request to commit the next step."""
        self._asked = plan

    def answered(self) -> None:
        """Record that it is committed."""
        self.done, self.plan, self._asked = self.done + 1, self._asked, None

    def found(self, state: bytes | None) -> None:
        """Check the state of the session, as its holder reads it. Raises: Broken."""
        if self._asked is not None and state == self.render(self.done + 1):
            self.answered()
        if state != self.render(self.done):
            raise Broken(f"the state of a planner is {state!r}, and step {self.done} was done")
        self._asked = None

    def judge(self, tasks: list[int], plans: list[int], entries: list[int], count: int) -> None:
        """Check the content at the end: steps of tasks, numbers of plans, steps in the book. Raises:
        Broken."""
        if tasks != [self.done] * count:
            raise Broken(f"the tasks are of steps {tasks}; expected {count} of step {self.done}")
        if plans != ([] if self.plan is None else [self.plan]):
            raise Broken(f"the plans are {plans}, and {self.plan} is the last one that was committed")
        if entries != list(range(1, self.done + 1)):
            raise Broken(f"the steps in the book are {entries}, and {self.done} were done")

    @staticmethod
    def render(number: int) -> bytes | None:
        """Return the state after a step."""
        return b"step %d" % number if number else None


class States:
    """What was set as the state of one session: each state is a number, in the order of setting (G-03)."""

    def __init__(self) -> None:
        self._asked = 0
        self._answered = 0

    def asking(self) -> int:
        """Return the number of a state that is about to be set."""
        self._asked += 1
        return self._asked

    def answered(self, number: int) -> None:
        """Record that it is set."""
        self._answered = number

    def found(self, state: bytes | None) -> None:
        """Compare the state with the answers. Raises: Broken."""
        possible = range(self._answered, self._asked + 1)
        if state not in {self.render(number) for number in possible}:
            raise Broken(
                f"the state of a session is {state!r}; number {self._answered} was set, and maybe others up "
                f"to {self._asked}"
            )

    @property
    def count(self) -> int:
        return self._answered

    @staticmethod
    def render(number: int) -> bytes | None:
        """Return the state of a number; each seventh clears it."""
        return None if number % 7 == 0 else b"state %d" % number
