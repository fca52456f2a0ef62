"""Rounds of streaming queries whose driver, workers and broker are killed; then every message is looked for.

Owns: what dies when, what is fed in, what must have come out for each mode (X-02). Must not know: how the
queries are made (`spark_driver`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties, scan
from peeklock.amqp.types import Int, Long
from peeklock.client.connection import BlockingConnection
from peeklock.client.connection_string import ConnectionString
from peeklock.store.check import SOUND, check
from tests.kill.ledger import Broken
from tests.kill.loop import PROPERTIES, broker_on
from tests.kill.processes import ProcessTree, kill
from tests.kill.spark_driver import Lane, Plan, copies_of
from tests.kill.spark_targets import EachBatch, ForgetfulQueue, Queue, Table, Target


def lane_of(mode: str, target: type[Target], *, sessions: bool = False) -> Lane:
    """Return a query of a mode into a target, under a name that tells it from others."""
    source = f"{mode}-of-sessions" if sessions else mode
    name = f"{source}-to-{target.__name__}"
    return Lane(name, mode, f"{target.__module__}:{target.__qualname__}", sessions)


GROUPS = {
    "cursor": [lane_of("cursor", target) for target in (Table, Queue, ForgetfulQueue, EachBatch)],
    "peekLock": [lane_of("peekLock", target) for target in (Table, Queue, EachBatch)],
    "browse": [lane_of("browse", target) for target in (Table, Queue, EachBatch)],
    "sessions": [lane_of(mode, Table, sessions=True) for mode in ("cursor", "peekLock", "browse")],
}
"""All modes into all kinds of target, as many at a time as two cores bear. Table formats that need jars are
`kill_stream`'s."""

READY_S_MAX = 90.0
FINISH_S_MAX = 240.0

CHUNK = 10
"""Messages that the feeder sends at a time, to each queue."""

LOCK_S = 5.5
"""As long as the queues' locks last (`PROPERTIES`), and some more."""

FEED_PAUSE_S = 0.05
"""Pause between two chunks: three queries on two cores keep up, and batches end and begin often."""

NEVER = ("DataLoss", "CheckpointMismatch", "cursor-owned", "OptionError", "AssertionError", "KeyError")
"""Failures that no kill excuses."""


@dataclass
class Feed:
    """What was sent to each queue, and accepted."""

    count: int = 0
    stopped: bool = False
    failure: BaseException | None = None

    def run(self, settings: ConnectionString, queues: Sequence[str]) -> None:
        """Send until stopped; what was in flight when the broker died is sent again under its id."""
        connected = BlockingConnection(settings)
        try:
            senders = [connected.sender(queue) for queue in queues]
            while not self.stopped:
                for number in range(self.count, self.count + CHUNK):
                    # The session is for the queues that have sessions; the others accept it.
                    message = encode_message(
                        properties=Properties(message_id=f"uid-{number}", group_id=f"session-{number % 7}"),
                        data=b"uid=%08d" % number,
                    )
                    for sender in senders:
                        sender.send(message)
                for sender in senders:
                    sender.flush()
                self.count += CHUNK
                time.sleep(FEED_PAUSE_S)
        except BaseException as failure:  # raised again for the final checks
            self.failure = failure
        finally:
            connected.close()


class Driver(ProcessTree):
    """A process of queries, and all that it starts."""

    def __init__(self, folder: Path, plan: Plan, python: str) -> None:
        file = folder / "plan.json"
        plan.write(file)
        command = [python, "-m", "tests.kill.spark_driver", str(file)]
        super().__init__(command, folder / "driver.log", folder / "spark.log")

    def wait_until_ready(self) -> None:
        """Wait until all queries run. Raises: Broken."""
        deadline = time.monotonic() + READY_S_MAX
        while "ready" not in self.said():
            if self.status() is not None or time.monotonic() > deadline:
                raise Broken(f"the driver did not become ready: {self.last_words()}")
            time.sleep(0.02)

    def wait_until_done(self) -> None:
        """Wait until it ends by itself. Raises: Broken."""
        status = self.wait(FINISH_S_MAX)
        if status != 0 or "done" not in self.said():
            raise Broken(f"the driver ended with status {status}: {self.last_words()}")


class SparkLoop:
    """One run over one folder. Linux only: processes are found in /proc."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        options: Sequence[str] = (),
        lanes: Sequence[Lane],
        python: str = sys.executable,
    ) -> None:
        self._folder = folder
        self._random = Random(seed)
        self._python = python
        self._lanes = [*lanes]
        queues: dict[str, dict[str, Any]] = {}
        for lane in self._lanes:
            queues[lane.name] = PROPERTIES | {"RequiresSession": lane.sessions}
            if (properties := lane.load().queue) is not None:
                queues[copies_of(lane)] = PROPERTIES | properties
        self._broker = broker_on(folder, *options, queues=queues)
        self._drivers: list[Driver] = []
        self._figures: Counter[str] = Counter()

    async def run(self, rounds: int) -> dict[str, int]:
        """Kill processes some times in each round, and the driver at its end; then check. Raises: Broken."""
        return await asyncio.to_thread(self._run, rounds)

    def _run(self, rounds: int) -> dict[str, int]:
        feed = Feed()
        feeding: threading.Thread | None = None
        try:
            self._broker.start()
            settings = ConnectionString.parse(self._broker.connection_string)
            feeding = threading.Thread(target=feed.run, args=(settings, [lane.name for lane in self._lanes]))
            feeding.start()
            for _ in range(rounds):
                driver = self._start(finish=False)
                self._round(driver)
                self._note(driver)
                print(".", end="", flush=True)  # `tests.__main__` takes silence for a hang
            feed.stopped = True
            feeding.join()
            if feed.failure is not None:
                raise feed.failure
            if any(lane.mode == "peekLock" for lane in self._lanes):
                time.sleep(LOCK_S)  # messages that a killed reader had locked would not be available
            driver = self._start(finish=True)
            driver.wait_until_done()
            again = [line for line in driver.said() if line.startswith("again ")]
            if again:
                raise Broken(f"a query failed although no process was killed: {again[0]}")
            self._figures["messages"] = feed.count
            with contextlib.closing(BlockingConnection(settings)) as connected:
                self._judge(connected, feed.count)
            if self._broker.stop() != 0:
                raise Broken("the broker did not stop cleanly")
            report = check(self._broker.data)
            if report.exit_status != SOUND:
                raise Broken("the store is damaged: " + "; ".join(report.lines))
        finally:
            feed.stopped = True
            for each in self._drivers:
                each.kill_all()
            self._broker.kill()
            if feeding is not None:
                feeding.join()
        return dict(self._figures)

    def _start(self, *, finish: bool) -> Driver:
        plan = Plan(self._broker.connection_string, self._lanes, finish)
        driver = Driver(self._folder, plan, self._python)
        self._drivers.append(driver)
        return driver

    def _round(self, driver: Driver) -> None:
        """Kill a process at random instants, sometimes while Spark starts."""
        if self._random.random() < 0.8:
            driver.wait_until_ready()
        else:
            time.sleep(self._random.uniform(0.0, 10.0))
        victims = [
            "broker",
            "worker",
            *self._random.choices(("broker", "worker"), k=self._random.randint(0, 2)),
        ]
        self._random.shuffle(victims)
        for victim in victims:
            time.sleep(self._random.uniform(0.0, 2.0))
            if victim == "broker":
                self._figures["broker kills"] += 1
                self._broker.kill()
                time.sleep(self._random.uniform(0.0, 0.5))
                self._broker.start()
            elif workers := driver.workers():  # none yet, while Spark starts
                self._figures["worker kills"] += 1
                kill(self._random.choice(workers))
        time.sleep(self._random.uniform(0.0, 2.0))
        self._figures["driver kills"] += 1
        driver.kill()
        self._figures["batches cut short"] += sum(
            last(self._folder / f"checkpoint-{lane.name}" / "offsets")
            > last(self._folder / f"checkpoint-{lane.name}" / "commits")
            for lane in self._lanes
        )

    def _note(self, driver: Driver) -> None:
        """Count the failures of queries, and refuse those that no kill excuses."""
        for line in driver.said():
            if line.startswith("again "):
                self._figures["queries started again"] += 1
                if any(name in line for name in NEVER):
                    raise Broken(line)

    # The final checks

    def _judge(self, connected: BlockingConnection, count: int) -> None:
        sent = {f"uid={number:08d}" for number in range(count)}
        for lane in self._lanes:
            name = lane.name
            found = [*self._found(connected, lane)]
            if not found:
                raise Broken(f"{name} has written nothing")
            for kind, bodies in found:
                require_once(f"{name}, the {kind}", sent, bodies if lane.once else set(bodies))
                self._figures[f"in the {kind} of {name}"] = len(bodies)
            left = messages_of(connected, name)
            if lane.mode == "browse":
                require_once(f"{name}, the source", sent, [body for body, _ in left])
                touched = [shown for _, shown in left if shown != (0, 0)]
                if touched:
                    raise Broken(f"{name}: a browse has changed {len(touched)} messages")
            elif left:
                raise Broken(f"{name}: {len(left)} messages are left in the queue: {left[:3]}")
            self._figures["batches"] += 1 + last(self._folder / f"checkpoint-{name}" / "commits")

    def _found(self, connected: BlockingConnection, lane: Lane) -> Iterator[tuple[str, list[str]]]:
        """Yield the kinds of a lane's outputs, and the bodies in them."""
        if lane.load().queue is not None:
            yield "queue", [body for body, _ in messages_of(connected, copies_of(lane))]
        if (rows := self._folder / f"rows-{lane.name}.json").exists():
            yield "table", json.loads(rows.read_text())


def kill_stream(
    folder: Path,
    mode: str,
    target: type[Target],
    seed: int,
    *,
    rounds: int = 1,
    python: str = sys.executable,
) -> dict[str, int]:
    """Run one query of a mode into a target under kills, and check that every message came as promised.

    Args:
        target: a class at the top of an importable module; its `settings` are Spark's.
        python: of an environment with another Spark.

    Raises: Broken.
    """
    loop = SparkLoop(folder, seed, lanes=[lane_of(mode, target)], python=python)
    return asyncio.run(loop.run(rounds))


def last(log: Path) -> int:
    """Return the last batch in a log of a checkpoint, -1 if there is none."""
    return max((int(entry.name) for entry in log.glob("[0-9]*")), default=-1)


def has_delta() -> bool:
    """Return whether Delta's jars are among Spark's."""
    spec = find_spec("pyspark")
    return spec is not None and any(
        any(Path(folder).glob("jars/delta-spark*.jar")) for folder in spec.submodule_search_locations or ()
    )


def require_once(name: str, sent: set[str], bodies: Collection[str]) -> None:
    """Require each sent message once, and nothing else. Raises: Broken."""
    counts = Counter(bodies)
    missing = sent - counts.keys()
    if missing:
        raise Broken(f"{name}: {len(missing)} of {len(sent)} messages are missing: {sorted(missing)[:5]}")
    strange = counts.keys() - sent
    if strange:
        raise Broken(f"{name}: {len(strange)} messages were never sent: {sorted(strange)[:5]}")
    doubled = sorted(body for body, times in counts.items() if times > 1)
    if doubled:
        raise Broken(f"{name}: {len(doubled)} messages came more than once: {doubled[:5]}")


def messages_of(connected: BlockingConnection, queue: str) -> list[tuple[str, tuple[int, int]]]:
    """Return all messages of a queue by a browse: body, and delivery count with state."""
    found: list[tuple[str, tuple[int, int]]] = []
    start = 0
    management = connected.management(queue)
    while True:
        body = {"from-sequence-number": Long(start), "message-count": Int(1000)}
        answer = management.request("com.microsoft:peek-message", body).body.get("messages") or []
        if not answer:
            return found
        for one in answer:
            sections = scan(one["message"])
            annotations = sections.decode_message_annotations()
            shown = (sections.decode_header().delivery_count, annotations.get("x-opt-message-state", 0))
            ((_, data),) = sections.decode_body()
            found.append((data.decode(), shown))
            start = annotations["x-opt-sequence-number"] + 1
