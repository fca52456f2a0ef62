"""`python -m bench.micro_store`: the cost of durability, and the time of a start.

Owns: the figures for the budgets of the packages `engine` and `store`. Knows nothing of the wire. Data are on
a real disk (`--data`), with fsync.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

from peeklock.amqp.messaging import Sections
from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.changes import Change, MessageRemoved, MessageStored
from peeklock.broker.vocabulary.commands import (
    Address,
    Command,
    Complete,
    CreateEntity,
    LinkId,
    LockToken,
    OpenReceiver,
    OpenSender,
    ReceiveMode,
    ReplyTo,
    Send,
    SetCredit,
)
from peeklock.broker.vocabulary.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.effects import Deliver, Effect
from peeklock.broker.vocabulary.message import Message
from peeklock.broker.vocabulary.quotas import STANDARD
from peeklock.engine.bodies import BodyCache
from peeklock.engine.driver import Commit, Driver, HandOut, Reclaim, WakeAt
from peeklock.engine.engine import Engine
from peeklock.store.encoding import body_rows, frames
from peeklock.store.sqlite.store import SqliteStore

NOW_MS = 1_700_000_000_000
QUEUE_ID = 4
SENDER = LinkId(1, 0)
RECEIVER = LinkId(1, 1)
PAYLOAD = b"x" * 1024
UNLIMITED = 1 << 60


def namespace() -> Namespace:
    """Return an empty namespace."""
    return Namespace(limits=STANDARD, tokens=lambda: LockToken(os.urandom(16)), digest_key=b"bench")


def opening() -> list[Command]:
    """Return the commands that create a queue and attach to it."""
    return [
        CreateEntity(QueueDescription("orders", lock_duration_ms=300_000), ReplyTo(1, 0, 0)),
        *attaching(),
    ]


def attaching() -> list[Command]:
    """Return the commands that attach a sender and a receiver to the queue."""
    return [
        OpenSender(SENDER, Address("orders")),
        OpenReceiver(RECEIVER, Address("orders"), ReceiveMode.PEEK_LOCK),
    ]


def send(n: int) -> Send:
    """Return a send as the gateway would make it."""
    return Send(QUEUE_ID, Message(len(PAYLOAD)), Sections(PAYLOAD), ReplyTo(1, 0, n))


def show(what: str, figure: str) -> None:
    print(f"{what:58} {figure}", flush=True)


# The cost of a cycle


def cost(count: int) -> None:
    """Compare a cycle through the core alone with one through engine and encoding, batches of 200 changes."""
    alone = min(_cycle_alone(count) for _ in range(3))
    with_engine = min(_cycle_with_engine(count) for _ in range(3))
    show("core alone, send + deliver + complete", f"{alone:.1f} us")
    show("engine + encoding beyond it (budget 6 us)", f"{with_engine - alone:.1f} us")


def _cycle_alone(count: int) -> float:
    core = namespace()
    for command in [*opening(), SetCredit(RECEIVER, UNLIMITED, UNLIMITED)]:
        core.apply(command, NOW_MS)
    sends = [send(n) for n in range(count)]
    gc.collect()
    start = time.perf_counter()
    for first in range(0, count, 100):
        effects: list[Effect] = []
        for command in sends[first : first + 100]:
            effects += core.apply(command, NOW_MS)[1]
        for effect in effects:
            if type(effect) is Deliver:
                assert effect.lock_token is not None
                core.apply(Complete(QUEUE_ID, effect.lock_token, ReplyTo(1, 1, 0)), NOW_MS)
    return (time.perf_counter() - start) / count * 1e6


def _cycle_with_engine(count: int) -> float:
    engine = Engine(namespace(), BodyCache())
    for command in [*opening(), SetCredit(RECEIVER, UNLIMITED, UNLIMITED)]:
        engine.offer(command, NOW_MS)
    sends = [send(n) for n in range(count)]
    gc.collect()
    start = time.perf_counter()
    effects: list[Effect] = []
    offer = engine.offer
    for first in range(0, count, 100):
        for command in sends[first : first + 100]:
            offer(command, NOW_MS)
        for effect in effects:
            if type(effect) is Deliver:
                assert effect.lock_token is not None
                offer(Complete(QUEUE_ID, effect.lock_token, ReplyTo(1, 1, 0)), NOW_MS)
        batch = engine.take_batch(NOW_MS)
        assert batch is not None
        meta = frames.encode(batch)
        for row, payloads in batch.body_rows.items():
            body_rows.pack(row, payloads)
        effects = engine.committed(batch.no, len(meta), NOW_MS)
    return (time.perf_counter() - start) / count * 1e6


SUBSCRIPTIONS = 100


def fan_out(count: int) -> None:
    """Print the cost of each of a topic's copies, in the core and after it, batches of ten sends."""
    runs = [_fan_out(count) for _ in range(3)]
    core, engine, encoding, removals = (min(figures) for figures in zip(*runs, strict=True))
    what = f"a copy, one of {SUBSCRIPTIONS}:"
    show(f"{what} core", f"{core:.2f} us")
    show(f"{what} engine (budget 1.2 us)", f"{engine:.2f} us")
    show(f"{what} encoding with all counters (budget 1 us)", f"{encoding:.2f} us")
    show(f"{what} engine at its removal", f"{removals:.2f} us")


def _fan_out(count: int) -> list[float]:
    core = namespace()
    engine = Engine(core, BodyCache())
    topic = CreateEntity(TopicDescription("events"), ReplyTo(1, 0, 0))
    subscriptions = (SubscriptionDescription("events", f"s{n}") for n in range(SUBSCRIPTIONS))
    for command in (topic, *(CreateEntity(each, ReplyTo(1, 0, 0)) for each in subscriptions)):
        engine.offer(command, NOW_MS)
    spent = [0.0] * 4
    sends = [send(n) for n in range(max(count // SUBSCRIPTIONS, 10))]
    gc.collect()
    for first in range(0, len(sends), 10):
        start = time.perf_counter()
        decided = [core.apply(command, NOW_MS)[0] for command in sends[first : first + 10]]
        applied = time.perf_counter()
        for changes in decided:
            engine._record(changes)
        recorded = time.perf_counter()
        batch = engine.take_batch(NOW_MS)
        assert batch is not None
        meta = frames.encode(batch)
        encoded = time.perf_counter()
        engine.committed(batch.no, len(meta), NOW_MS)
        stored = [change for changes in decided for change in changes if type(change) is MessageStored]
        removals: list[Change] = [MessageRemoved(change.queue_id, change.message) for change in stored]
        removing = time.perf_counter()
        engine._record(removals)
        for at, took in enumerate(
            (applied - start, recorded - applied, encoded - recorded, time.perf_counter() - removing)
        ):
            spent[at] += took
    copies = len(sends) * SUBSCRIPTIONS
    return [seconds / copies * 1e6 for seconds in spent]


# Against the disk


class Broker:
    """Does what the server does, without sockets."""

    def __init__(self, folder: Path) -> None:
        self.store = SqliteStore(folder)
        self.engine = Engine(namespace(), BodyCache())
        self.driver = Driver(self.engine)
        self.driver.connect(RECEIVER.connection_id)
        self.driver.rest()  # timers are no part of these figures
        self.commits = 0
        self.slowest_ms = 0.0

    async def open(self) -> None:
        await self.store.open()
        await self.engine.recover(self.store, NOW_MS)

    async def commit(self) -> list[Effect]:
        """Commit what is open and reclaim space until nothing is left to do; return the effects."""
        driver, now = self.driver, NOW_MS + int(time.monotonic() * 1000)
        effects: list[Effect] = []
        actions = driver.step(now)
        while driver.more or driver.in_flight or any(type(action) is not WakeAt for action in actions):
            for action in actions:
                match action:
                    case HandOut():
                        effects += action.effects
                    case Commit(batch):
                        start = time.perf_counter()
                        driver.committed(batch.no, await self.store.commit(batch), now)
                        self.slowest_ms = max(self.slowest_ms, (time.perf_counter() - start) * 1000)
                        self.commits += 1
                    case Reclaim(wanted):
                        driver.reclaimed(await wanted.read_from(self.store), now)
            actions = driver.step(now)
        return effects

    def offer(self, commands: list[Command]) -> None:
        self.driver.offer(commands, NOW_MS)

    def complete(self, effects: list[Effect]) -> int:
        """Complete all that was delivered."""
        count = 0
        for effect in effects:
            if type(effect) is Deliver:
                assert effect.lock_token is not None
                self.offer([Complete(QUEUE_ID, effect.lock_token, ReplyTo(1, 1, 0))])
                count += 1
        return count


async def throughput(folder: Path, count: int, window: int) -> None:
    """Keep `window` messages in flight from send to complete."""
    broker = Broker(folder)
    await broker.open()
    broker.offer([*opening(), SetCredit(RECEIVER, UNLIMITED, UNLIMITED)])
    await broker.commit()
    start = time.perf_counter()
    sent = done = 0
    while done < count:
        while sent < count and sent - done < window:
            broker.offer([send(sent)])
            sent += 1
        done += broker.complete(await broker.commit())
    elapsed = time.perf_counter() - start
    show(
        f"cycles/s, window {window}, fsync on",
        f"{count / elapsed:,.0f}  ({broker.commits} commits, slowest {broker.slowest_ms:.0f} ms)",
    )
    await broker.store.close()


async def fill(folder: Path, count: int, touches: int) -> None:
    """Store `count` messages, and then `touches` more records for each."""
    broker = Broker(folder)
    await broker.open()
    broker.offer(opening())
    await broker.commit()
    for first in range(0, count, 1000):
        broker.offer([send(n) for n in range(first, min(first + 1000, count))])
        await broker.commit()
    show(f"  journal after {count:,} sends", f"{broker.engine.ledger.journal.size_bytes / 1e6:.0f} MB")
    if touches:
        # Keep it from being truncated: the worst case is built here.
        broker.engine.ledger.journal.size_bytes = -(1 << 60)
        queue = [m for m in (broker.engine.namespace.find(QUEUE_ID, n) for n in range(1, count + 1)) if m]
        for _ in range(touches):
            for first in range(0, count, 1000):
                broker.engine._record([MessageStored(QUEUE_ID, m) for m in queue[first : first + 1000]])
                await broker.commit()
    await broker.store.close()


async def recovery(folder: Path, label: str) -> None:
    """Start from a folder."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    broker = Broker(folder)
    gc.collect()
    start = time.perf_counter()
    await broker.open()
    elapsed = time.perf_counter() - start
    show(
        f"recovery of {broker.engine.ledger.journal.live_messages:,} messages, {label}",
        f"{elapsed:.2f} s  (journal {broker.engine.ledger.journal.size_bytes / 1e6:.0f} MB, peak memory "
        f"+{(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024:.0f} MB)",
    )
    await broker.store.close()


async def drain(folder: Path) -> None:
    """Receive and complete the whole backlog, then watch the folder."""
    broker = Broker(folder)
    await broker.open()
    count = broker.engine.ledger.journal.live_messages
    show("folder before the drain", f"{folder_bytes(folder) / 1e6:.0f} MB")
    broker.offer([OpenReceiver(RECEIVER, Address("orders"), ReceiveMode.PEEK_LOCK)])
    await broker.commit()
    start = time.perf_counter()
    done = 0
    while done < count:
        broker.offer([SetCredit(RECEIVER, done + 1000, UNLIMITED)])
        effects = await broker.commit()
        done += broker.complete(effects)
    show("drained, messages/s", f"{count / (time.perf_counter() - start):,.0f}")
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < 60 and folder_bytes(folder) > 50e6:
        await broker.commit()
        await asyncio.sleep(0.01)
    show("folder under 50 MB after", f"{elapsed:.1f} s  ({folder_bytes(folder) / 1e6:.0f} MB)")
    await asyncio.sleep(2)
    show(
        "folder two seconds later",
        f"{folder_bytes(folder) / 1e6:.1f} MB, slowest commit {broker.slowest_ms:.0f} ms",
    )
    await broker.store.close()


def folder_bytes(folder: Path) -> int:
    """Return the total size of the files in a folder."""
    return sum(file.stat().st_size for file in folder.iterdir())


def main() -> None:
    """Run what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "what", nargs="*", help="cost fan-out throughput recovery worst drain", default=["cost", "throughput"]
    )
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--data", default="/var/tmp", help="a folder on a real disk")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="peeklock-bench-", dir=options.data))
    try:
        for what in options.what:
            if what == "cost":
                cost(min(options.count, 50_000))
            elif what == "fan-out":
                fan_out(min(options.count, 100_000))
            elif what == "throughput":
                for window in (1, 100, 1000):
                    asyncio.run(
                        throughput(root / f"window-{window}", min(options.count, 300 * window), window)
                    )
            elif what in ("recovery", "worst"):
                asyncio.run(fill(root / what, options.count, 2 if what == "worst" else 0))
                gc.collect()
                asyncio.run(
                    recovery(root / what, "three times as many records" if what == "worst" else "no others")
                )
            elif what == "drain":
                asyncio.run(fill(root / what, options.count, 0))
                asyncio.run(drain(root / what))
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
