"""`python -m bench.micro_broker`: what a command costs the core, and a stored message in memory.

Owns: the figures that the budgets of the broker room are held against. Knows nothing of wire, engine, store.

Each figure is the best of several rounds, as `timeit` advises: the rest is noise of the machine.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import time
import tracemalloc
from collections.abc import Callable

from peeklock.broker.changes import Change, EntityStored, MessageRemoved, MessageStored
from peeklock.broker.commands import (
    Address,
    Complete,
    CreateQueue,
    OpenReceiver,
    OpenSender,
    ReceiveMode,
    Send,
    SetCredit,
)
from peeklock.broker.descriptions import QueueDescription
from peeklock.broker.effects import Deliver
from peeklock.broker.message import Message
from peeklock.broker.namespace import Namespace
from peeklock.broker.quotas import STANDARD

NOW_MS = 1_700_000_000_000
QUEUE_ID = 4
SENDER = (1, 0, 0)
RECEIVER = (1, 0, 1)
CREATED = EntityStored(1, QueueDescription("orders"), NOW_MS, NOW_MS)

BUDGETS_US = {"send": 5.0, "deliver": 6.0, "complete": 4.0, "restore": 1.5}
BUDGET_BYTES = 300


def namespace() -> Namespace:
    """Make a namespace with one queue, a sender and a receiver."""
    made = Namespace(limits=STANDARD, tokens=lambda: os.urandom(16), digest_key=b"bench")
    made.apply(CreateQueue(CREATED.description, (1, 0, 0, 0)), NOW_MS)
    made.apply(OpenSender(SENDER, Address("orders")), NOW_MS)
    made.apply(OpenReceiver(RECEIVER, Address("orders"), ReceiveMode.PEEK_LOCK), NOW_MS)
    return made


def sends(count: int) -> list[Send]:
    """Make commands as the gateway would, each with a size of its own that no other object shares."""
    return [Send(QUEUE_ID, Message(1000 + n % 500), b"", (1, 0, 0, n)) for n in range(count)]


def timed(count: int, work: Callable[[], None]) -> float:
    """Give the microseconds per item."""
    gc.collect()
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) / count * 1e6


def one_round(count: int) -> dict[str, float]:
    """Send, deliver, complete and restore `count` messages."""
    core = namespace()
    commands = sends(count)
    changes: list[Change] = []
    deliveries: list[Deliver] = []

    def send() -> None:
        apply = core.apply
        for command in commands:
            changes.extend(apply(command, NOW_MS)[0])

    def deliver() -> None:
        for total in range(
            10, count + 10, 10
        ):  # credit comes in small steps, as from a receiver that keeps up
            deliveries.extend(core.apply(SetCredit(RECEIVER, total, 1 << 60), NOW_MS)[1])  # type: ignore[arg-type]

    figures = {"send": timed(count, send), "deliver": timed(count, deliver)}
    completions = [Complete(QUEUE_ID, found.lock_token or b"", (1, 0, 1, 0)) for found in deliveries]

    def complete() -> None:
        apply = core.apply
        for command in completions:
            apply(command, NOW_MS)

    figures["complete"] = timed(count, complete)
    # One message in two was completed; each record is an object of its own, as it comes out of a journal.
    records = [MessageStored(QUEUE_ID, message) for message in (change.message for change in changes)]  # type: ignore[union-attr]
    for n in range(0, count, 2):
        records.append(MessageRemoved(QUEUE_ID, records[n].message))  # type: ignore[arg-type]
    restored = Namespace(limits=STANDARD, tokens=lambda: b"", digest_key=b"bench")
    restored.restore_entity(CREATED)
    frames = [records[n : n + 256] for n in range(0, len(records), 256)]

    def restore() -> None:
        for frame in frames:
            restored.restore(frame)
        restored.finish_restore(NOW_MS, 2)

    figures["restore"] = timed(len(records), restore)
    assert restored.totals().active_messages == count // 2
    return figures


def round_trip(count: int) -> float:
    """Send, deliver and complete one message after the other, with the receiver waiting."""
    core = namespace()
    commands = sends(count)
    core.apply(SetCredit(RECEIVER, count, 1 << 60), NOW_MS)

    def cycle() -> None:
        for command in commands:
            effects = core.apply(command, NOW_MS)[1]
            core.apply(Complete(QUEUE_ID, effects[1].lock_token, (1, 0, 1, 0)), NOW_MS)  # type: ignore[union-attr, arg-type]

    return timed(count, cycle)


def bytes_per_message(count: int) -> float:
    """Give the memory of one stored message: its record, all indexes, and what the engine writes into it."""
    core = namespace()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    rows = itertools.count(1_000_000)
    row = next(rows)
    now_ms = NOW_MS
    for n in range(count):
        if n % 20 == 0:
            now_ms = NOW_MS + n // 20  # one instant for the commands of one turn of the loop
        message = Message(1000 + n % 500)
        core.apply(Send(QUEUE_ID, message, b"", None), now_ms)
        if n % 200 == 0:
            row = next(rows)  # the engine shares one row number among the 200 or so bodies in it
        message.body_row, message.body_slot, message.journal_no = row, n % 200, row
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rounds = [one_round(arguments.messages) for _ in range(arguments.rounds)]
    for name, budget in BUDGETS_US.items():
        best = min(figures[name] for figures in rounds)
        print(f"{name:>10}  {best:6.2f} us   budget {budget} us")
    best = min(round_trip(arguments.messages) for _ in range(arguments.rounds))
    print(f"{'all three':>10}  {best:6.2f} us   one after the other, receiver waiting")
    size = bytes_per_message(arguments.messages * 4)
    print(f"{'memory':>10}  {size:6.0f} bytes a message, budget {BUDGET_BYTES}")


if __name__ == "__main__":
    main()
