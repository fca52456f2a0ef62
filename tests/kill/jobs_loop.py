"""Jobs over queues that are killed at random instants, each started again until it says that it is done.

Owns: the path of the messages, and where each must be at its end (X-04):

    orders --capture--> a table --replay--> copies
    held, all deferred --release--> its dead-letter queue --resubmit--> returned

Must not know: how a job works.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties
from peeklock.client.connection import BlockingConnection
from peeklock.client.connection_string import ConnectionString
from peeklock.client.links import DEFER, ReceiveMode
from peeklock.demo.broker import program
from peeklock.store.check import SOUND, check
from tests.kill.ledger import Broken
from tests.kill.loop import PROPERTIES, broker_on
from tests.kill.processes import ProcessTree, kill
from tests.kill.spark_loop import messages_of, require_once
from tests.pipeline.lake import committed_rows
from tests.spark_session import QUICK_JAVA

MESSAGES = 2_000
QUEUES = ("orders", "copies", "held", "returned")
DEAD = "held/$DeadLetterQueue"

JOB_S_MAX = 300.0
"""Only a hang takes as long: on a quiet machine a job needs 10 s."""
TRIES_MAX = 12
"""How often a job is started until it is done: after a kill, messages may be locked for some seconds."""
RETRY_S = 2.0
"""Pause before a job that said that it is not done."""


class JobsLoop:
    """One run over one folder. All queues detect duplicates."""

    def __init__(self, folder: Path, seed: int, *, options: Sequence[str] = ()) -> None:
        self._folder = folder
        self._random = Random(seed)
        self._broker = broker_on(folder, *options, queues={name: dict(PROPERTIES) for name in QUEUES})
        self._jobs: list[ProcessTree] = []
        self._figures: Counter[str] = Counter()

    async def run(self, rounds: int) -> dict[str, int]:
        """Kill each job `rounds` times, or its workers or the broker; then check. Raises: Broken."""
        return await asyncio.to_thread(self._run, rounds)

    def _run(self, rounds: int) -> dict[str, int]:
        try:
            self._broker.start()
            settings = ConnectionString.parse(self._broker.connection_string)
            with contextlib.closing(BlockingConnection(settings)) as connected:
                _fill(connected)
                self._move(connected, rounds)
                self._judge(connected)
            if self._broker.stop() != 0:
                raise Broken("the broker did not stop cleanly")
            report = check(self._broker.data)
            if report.exit_status != SOUND:
                raise Broken("the store is damaged: " + "; ".join(report.lines))
        finally:
            for job in self._jobs:
                job.kill_all()
            self._broker.kill()
        return dict(self._figures)

    def _move(self, connected: BlockingConnection, rounds: int) -> None:
        """Do all jobs, one after the other."""
        lake = self._folder / "lake"
        capture = ("capture", "--entity", "orders", "--to", str(lake), "--encoded", "--max-messages", "200")
        self._do(capture, rounds, lambda: len(_rows(lake)))
        self._do(
            ("replay", "--from", str(lake), "--entity", "copies"),
            rounds,
            lambda: len(messages_of(connected, "copies")),
        )
        self._do(("release", "--entity", "held"), rounds, lambda: len(messages_of(connected, DEAD)))
        self._do(
            ("resubmit", "--entity", "held", "--to-entity", "returned"),
            rounds,
            lambda: len(messages_of(connected, "returned")),
        )

    def _do(self, job: Sequence[str], rounds: int, done: Callable[[], int]) -> None:
        """Kill a job some times; then let it end. `done` counts what it has moved."""
        for _ in range(rounds):
            running = self._start(job)
            if self._random.random() < 0.2:
                time.sleep(self._random.uniform(0.0, 5.0))  # while it starts
            else:
                _wait_for_more(running, done)
            time.sleep(self._random.uniform(0.0, 0.3))
            self._kill(job[0], running)
            print(".", end="", flush=True)  # `tests.__main__` takes silence for a hang
        for _ in range(TRIES_MAX):
            running = self._start(job)
            if running.wait(JOB_S_MAX) == 0:
                return
            self._figures[f"{job[0]} not done at first"] += 1
            time.sleep(RETRY_S)
        raise Broken(f"{job[0]} is not done after {TRIES_MAX} starts: {running.last_words()}")

    def _kill(self, name: str, running: ProcessTree) -> None:
        victim = self._random.choice(("job", "job", "worker", "broker"))
        if running.status() is not None:
            self._figures[f"{name} was over"] += 1
            return
        if victim == "worker" and (workers := running.workers()):
            kill(self._random.choice(workers))
            running.wait(JOB_S_MAX)
        elif victim == "broker":
            self._broker.kill()
            time.sleep(self._random.uniform(0.0, 0.5))
            self._broker.start()
            running.wait(JOB_S_MAX)
        else:
            victim = "job"
            running.kill()
        self._figures[f"{victim} kills in {name}"] += 1

    def _start(self, job: Sequence[str]) -> ProcessTree:
        # A task whose worker is killed is tried again, as on a cluster.
        spark = ("--master", "local[2,4]", "--conf", "spark.driver.memory=1g")
        started = ProcessTree(
            [program(), "pipeline", *job, *(() if job[0] == "release" else spark)],
            self._folder / "jobs.log",
            self._folder / "spark.log",
            {
                "SERVICEBUS_CONNECTION_STRING": self._broker.connection_string,
                "SPARK_SUBMIT_OPTS": QUICK_JAVA,
            },
        )
        self._jobs.append(started)
        return started

    def _judge(self, connected: BlockingConnection) -> None:
        for queue in ("orders", "held", DEAD):
            if left := messages_of(connected, queue):
                raise Broken(f"{len(left)} messages are left in {queue}: {left[:3]}")
        sent = _bodies("orders")
        require_once("the table", sent, _rows(self._folder / "lake"))
        require_once("copies", sent, [body for body, _ in messages_of(connected, "copies")])
        require_once("returned", _bodies("held"), [body for body, _ in messages_of(connected, "returned")])
        self._figures["messages"] = 2 * MESSAGES


def _bodies(queue: str) -> set[str]:
    return {f"{queue}-{number}" for number in range(MESSAGES)}


def _fill(connected: BlockingConnection) -> None:
    """Send messages, and defer those in the queue `held`, as a stream in mode peekLock leaves them behind."""
    for queue in ("orders", "held"):
        sender = connected.sender(queue)
        for body in sorted(_bodies(queue)):
            properties = Properties(message_id=f"id-{body}")
            sender.send(encode_message(properties=properties, data=body.encode()))
        sender.flush()
        sender.close()
    receiver = connected.receiver("held", ReceiveMode.PEEK_LOCK)
    left = MESSAGES
    while left:
        arrived = receiver.receive(200, 5.0)
        for delivery in arrived:
            receiver.settle(delivery, DEFER)
        receiver.flush()
        left -= len(arrived)
    receiver.close()


def _rows(lake: Path) -> list[str]:
    """Return the bodies in the table."""
    return [row["body"].decode() for row in committed_rows(lake, ["body"])]


def _wait_for_more(running: ProcessTree, done: Callable[[], int]) -> None:
    """Wait until a job has moved something, or is over. Raises: Broken."""
    before = done()
    deadline = time.monotonic() + JOB_S_MAX
    while done() == before and running.status() is None:
        if time.monotonic() > deadline:
            raise Broken(f"nothing happens: {running.last_words()}")
        time.sleep(0.02)
