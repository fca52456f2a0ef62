"""`python -m bench.micro_broker`: the cost of a command in the core, and of a stored message in memory, for a
plain queue; the cost of commands also for other kinds.

Owns: the figures for the budgets of the package `broker`. Knows nothing of wire, engine, store.

Each figure is the best of several rounds, as `timeit` advises: the rest is noise of the machine.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peeklock.amqp.messaging import Sections
from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.changes import Change, EntityStored, MessageRemoved, MessageStored
from peeklock.broker.vocabulary.commands import (
    Address,
    CloseLink,
    Complete,
    CreateEntity,
    LinkId,
    LockToken,
    OpenReceiver,
    OpenSender,
    ReceiveMode,
    ReplyTo,
    Send,
    SessionRequest,
    SetCredit,
)
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.broker.vocabulary.effects import Deliver
from peeklock.broker.vocabulary.message import Message, Routing
from peeklock.broker.vocabulary.quotas import STANDARD

NOW_MS = 1_700_000_000_000
QUEUE_ID = 4
SENDER = LinkId(1, 0)
SESSION_COUNT = 1000
FAR_MS = NOW_MS + 60_000

BUDGETS_US = {"send": 5.0, "deliver": 6.0, "complete": 4.0, "restore": 1.5}
BUDGET_BYTES = 300


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of queue, and what the gateway reads of the messages for it."""

    description: QueueDescription
    routing: Callable[[int], Routing | None]
    sessions: int = 0
    """So many, in turn, each with a receiver; 0: one receiver without a session."""

    def namespace(self) -> Namespace:
        """Return a namespace with one queue of this kind and a sender."""
        made = Namespace(limits=STANDARD, tokens=lambda: LockToken(os.urandom(16)), digest_key=b"bench")
        made.apply(CreateEntity(self.description, ReplyTo(1, 0, 0)), NOW_MS)
        made.apply(OpenSender(SENDER, Address("orders")), NOW_MS)
        return made

    def receivers(self, core: Namespace) -> list[LinkId]:
        """Open the receivers."""
        named = [SessionRequest(_session_id(number), FAR_MS) for number in range(self.sessions)]
        requests: Sequence[SessionRequest | None] = named or [None]
        links = [LinkId(1, number) for number, _ in enumerate(requests, 1)]
        for link, request in zip(links, requests, strict=True):
            core.apply(OpenReceiver(link, Address("orders"), ReceiveMode.PEEK_LOCK, request), NOW_MS)
        return links

    def sends(self, count: int) -> list[Send]:
        """Return commands as the gateway would make them, each with its own size object."""
        commands = []
        for n in range(count):
            message = Message(1000 + n % 500)
            message.routing = self.routing(n)
            commands.append(Send(QUEUE_ID, message, Sections(b""), ReplyTo(1, 0, n)))
        return commands


def _session_id(number: int) -> str:
    return f"session-{number:08x}"


def _message_id(number: int) -> bytes:
    return b"\xa1\x20%032x" % number


PLAIN = Kind(QueueDescription("orders"), lambda n: None)
KINDS = {
    "plain": PLAIN,
    "1,000 sessions": Kind(
        QueueDescription("orders", requires_session=True),
        lambda n: Routing(_message_id(n), _session_id(n % SESSION_COUNT)),
        SESSION_COUNT,
    ),
    "partitioned": Kind(
        QueueDescription("orders", enable_partitioning=True),
        lambda n: Routing(_message_id(n), None, _session_id(n % SESSION_COUNT)),
    ),
    "detecting duplicates": Kind(
        QueueDescription("orders", requires_duplicate_detection=True), lambda n: Routing(_message_id(n))
    ),
}


def timed(count: int, work: Callable[[], None]) -> float:
    """Return the microseconds per item."""
    gc.collect()
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) / count * 1e6


def one_round(kind: Kind, count: int) -> dict[str, float]:
    """Send, deliver, complete and restore `count` messages."""
    core = kind.namespace()
    links = kind.receivers(core)
    commands = kind.sends(count)
    changes: list[Change] = []
    deliveries: list[Deliver] = []

    def send() -> None:
        apply = core.apply
        for command in commands:
            changes.extend(apply(command, NOW_MS)[0])

    def deliver() -> None:
        # Credit comes in small steps, as from receivers that keep up.
        for total in range(10, count // len(links) + 10, 10):
            for link in links:
                deliveries.extend(core.apply(SetCredit(link, total, 1 << 60), NOW_MS)[1])  # type: ignore[arg-type]  # the first effect is a delivery, the link is open

    figures = {"send": timed(count, send), "deliver": timed(count, deliver)}
    completions = [
        Complete(QUEUE_ID, found.lock_token or LockToken(b""), ReplyTo(1, 1, 0)) for found in deliveries
    ]

    def complete() -> None:
        apply = core.apply
        for command in completions:
            apply(command, NOW_MS)

    figures["complete"] = timed(count, complete)
    # One message in two was completed; each record is a separate object, as it comes out of a journal.
    records: list[Change] = [
        MessageStored(QUEUE_ID, change.message) for change in changes if isinstance(change, MessageStored)
    ]
    for n in range(0, count, 2):
        records.append(MessageRemoved(QUEUE_ID, commands[n].message))
    restored = Namespace(limits=STANDARD, tokens=lambda: LockToken(b""), digest_key=b"bench")
    restored.restore_entity(EntityStored(1, kind.description, NOW_MS, NOW_MS))
    frames = [records[n : n + 256] for n in range(0, len(records), 256)]

    def restore() -> None:
        for frame in frames:
            restored.restore(frame)
        restored.finish_restore(NOW_MS, 2)

    figures["restore"] = timed(len(records), restore)
    assert restored.totals().active_messages == count // 2
    return figures


def round_trip(kind: Kind, count: int) -> float:
    """Send, deliver and complete one message after the other, with the receivers waiting."""
    core = kind.namespace()
    commands = kind.sends(count)
    for link in kind.receivers(core):
        core.apply(SetCredit(link, count, 1 << 60), NOW_MS)

    def cycle() -> None:
        for command in commands:
            effects = core.apply(command, NOW_MS)[1]
            core.apply(Complete(QUEUE_ID, effects[1].lock_token, ReplyTo(1, 1, 0)), NOW_MS)  # type: ignore[union-attr, arg-type]  # the first effect is a delivery, the link is open

    return timed(count, cycle)


def hand_out(count: int) -> float:
    """Hand sessions of one message to waiting receivers: accept, receive, complete, leave."""
    core = KINDS["1,000 sessions"].namespace()
    for n in range(count):
        message = Message(1000)
        message.routing = Routing(_message_id(n), _session_id(n))
        core.apply(Send(QUEUE_ID, message, Sections(b""), None), NOW_MS)
    request = SessionRequest(None, FAR_MS)

    def cycle() -> None:
        for number in range(1, count + 1):
            link = LinkId(1, number)
            core.apply(OpenReceiver(link, Address("orders"), ReceiveMode.PEEK_LOCK, request), NOW_MS)
            (delivered, _) = core.apply(SetCredit(link, 10, 1 << 60, drain=True), NOW_MS)[1]
            core.apply(Complete(QUEUE_ID, delivered.lock_token, ReplyTo(*link, 0)), NOW_MS)  # type: ignore[union-attr, arg-type]  # the first effect is a delivery, the link is open
            core.apply(CloseLink(link), NOW_MS)

    figure = timed(count, cycle)
    assert core.totals().sessions == 0
    return figure


def bytes_per_message(count: int) -> float:
    """Return the memory of one stored message: its record, all indexes, and what the engine writes into
    it."""
    core = PLAIN.namespace()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    rows = itertools.count(1_000_000)
    row = next(rows)
    now_ms = NOW_MS
    for n in range(count):
        if n % 20 == 0:
            now_ms = NOW_MS + n // 20  # one instant for the commands of one turn of the loop
        message = Message(1000 + n % 500)
        core.apply(Send(QUEUE_ID, message, Sections(b""), None), now_ms)
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
    for kind_name, kind in KINDS.items():
        print(f"{kind_name}:")
        rounds = [one_round(kind, arguments.messages) for _ in range(arguments.rounds)]
        for name, budget in BUDGETS_US.items():
            best = min(figures[name] for figures in rounds)
            print(f"{name:>10}  {best:6.2f} us" + (f"   budget {budget} us" if kind is PLAIN else ""))
        best = min(round_trip(kind, arguments.messages) for _ in range(arguments.rounds))
        print(f"{'all three':>10}  {best:6.2f} us   one after the other, receivers waiting")
    best = min(hand_out(arguments.messages // 5) for _ in range(arguments.rounds))
    print(f"{'hand-out':>10}  {best:6.2f} us   a session of one message: accept, receive, complete, leave")
    size = bytes_per_message(arguments.messages * 4)
    print(f"{'memory':>10}  {size:6.0f} bytes a message, budget {BUDGET_BYTES}")


if __name__ == "__main__":
    main()
