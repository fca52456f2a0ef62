"""A broker of a few lines, which carries out the operations of a job and dies when it is told to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties
from peeklock.amqp.types import Int, Long, Timestamp
from peeklock.jobs.checkpoint import Checkpoint
from peeklock.jobs.job import Job
from peeklock.jobs.operations import (
    Close,
    Complete,
    Done,
    Forward,
    Look,
    Message,
    Open,
    Operation,
    Outcome,
    Outgoing,
    Receive,
    Renew,
    Save,
    Settled,
    Wait,
)
from peeklock.jobs.plan import Plan
from peeklock.jobs.survey import Snapshot, Survey, highest_of
from peeklock.search import Peeked

TRANSACTION = 3
"""Messages of a transaction here: several, of each slice."""


class Killed(Exception):
    """The process of the job was killed."""


def message(
    number: int, body: str, *, session: str | None = None, state: int = 0, message_id: str | None = None
) -> bytes:
    """Return a message as a broker delivers it."""
    return encode_message(
        message_annotations={
            "x-opt-sequence-number": Long(number),
            "x-opt-message-state": Int(state),
            "x-opt-locked-until": Timestamp(60_000),
        },
        properties=Properties(message_id=message_id or f"id-{body}", group_id=session),
        application_properties={"DeadLetterReason": "bad", "body": body},
        data=body.encode(),
    )


def body_of(payload: bytes) -> str:
    return Peeked(payload).body.decode()


@dataclass
class Model:
    """A source, a target, and the faults that a test has chosen."""

    source: dict[int, bytes]
    detects_duplicates: bool = False
    dies_at: set[int] = field(default_factory=set)
    """Instants, counted over all runs, at which the process is killed."""
    lapses_at: set[int] = field(default_factory=set)
    """Instants at which all locks lapse."""
    comes_back: bool = False
    """Whether each message that arrives at the target fails there, and is a dead letter again."""
    target: list[bytes] = field(default_factory=list)
    held_by_others: set[int] = field(default_factory=set)
    saved: Checkpoint | None = None
    now_ms: int = 0
    instant: int = 0
    operations: list[Operation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ids: set[str] = set()
        self._locks: dict[bytes, int] = {}
        self._tokens = 0
        self._session: str | None = None

    def survey(self, plan: Plan, snapshot: Snapshot, *, by_session: bool = False) -> Survey:
        survey = Survey(snapshot, plan.chooser(), plan.limit, by_session=by_session)
        survey.add([self.source[number] for number in sorted(self.source)])
        return survey

    def highest(self) -> Mapping[int, int]:
        return highest_of(self.source)

    def run(self, plan: Plan, *, by_session: bool = False) -> Job:
        """Run a job, and go on from its checkpoint each time that it is killed."""
        while True:
            start = self.saved or Checkpoint(plan, self.highest())
            start = Checkpoint.from_json(json.loads(json.dumps(start.to_json())))
            survey = self.survey(plan, Snapshot(start.highest), by_session=by_session)
            job = Job(
                start,
                due=survey.states["active"],
                sessions=survey.sessions if by_session else None,
                is_resumed=self.saved is not None,
            )
            try:
                self.drive(job, plan)
                return job
            except Killed:
                self._locks.clear()

    def drive(self, job: Job, plan: Plan) -> None:
        operation = job.start(self.now_ms)
        while not isinstance(operation, Done):
            self.operations.append(operation)
            self.tick()
            outcome = self.outcome(operation, plan)
            self.tick()
            operation = job.step(outcome, self.now_ms)

    def tick(self) -> None:
        self.instant += 1
        self.now_ms += 7
        if self.instant in self.lapses_at:
            self._locks.clear()
        if self.instant in self.dies_at:
            raise Killed

    def outcome(self, operation: Operation, plan: Plan) -> Outcome:
        match operation:
            case Save(checkpoint):
                self.saved = checkpoint
            case Open(session_id):
                self._session = session_id
                return True
            case Receive(count_max):
                return self.receive(count_max)
            case Forward(messages):
                return self.forward(messages, plan)
            case Complete(tokens):
                return Settled(unknown=frozenset(token for token in tokens if not self.complete(token)))
            case Close(tokens):
                for token in tokens:
                    self._locks.pop(token, None)
            case Look(numbers):
                return frozenset(numbers & self.source.keys())
            case Wait(until_ms):
                self.now_ms = max(self.now_ms, until_ms)
            case Renew():
                pass
            case _:
                raise AssertionError(operation)
        return None

    def receive(self, count_max: int) -> tuple[Message, ...]:
        locked = {*self._locks.values()} | self.held_by_others
        found = []
        for number in sorted(self.source.keys() - locked)[:]:
            payload = self.source[number]
            if self._session is not None and Peeked(payload).session_id != self._session:
                continue
            self._tokens += 1
            token = self._tokens.to_bytes(16)
            self._locks[token] = number
            found.append(Message(token, payload))
            if len(found) == count_max:
                break
        return tuple(found)

    def forward(self, messages: tuple[Outgoing, ...], plan: Plan) -> Settled:
        if plan.by_transactions:
            undone: set[bytes] = set()
            for start in range(0, len(messages), TRANSACTION):
                self.tick()
                group = messages[start : start + TRANSACTION]
                if all(each.token in self._locks for each in group):
                    for each in group:
                        self.complete(each.token)
                        self.arrive(each.payload)
                else:
                    undone.update(each.token for each in group)
            return Settled(unknown=frozenset(undone))
        for each in messages:
            self.tick()
            self.arrive(each.payload)
        self.tick()
        sent = set()
        for each in messages:
            self.tick()
            if not self.complete(each.token):
                sent.add(each.token)
        return Settled(sent=frozenset(sent))

    def complete(self, token: bytes) -> bool:
        number = self._locks.pop(token, None)
        if number is None:
            return False
        del self.source[number]
        return True

    def arrive(self, payload: bytes) -> None:
        message_id = str(Peeked(payload).properties.message_id)
        if self.detects_duplicates and message_id in self._ids:
            return
        self._ids.add(message_id)
        self.target.append(payload)
        if self.comes_back:
            number = max(self.source, default=0) + 1000
            self.source[number] = message(number, body_of(payload), message_id=message_id)
