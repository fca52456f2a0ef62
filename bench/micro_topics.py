"""`python -m bench.micro_topics`: the cost of a send to a topic, part by part, from the transfer to the
frame; and of commands that concern a topic with many subscriptions.

Owns: these figures. Nothing is written and nothing is received: the figures are of single calls, the best of
several rounds, as `timeit` advises. `bench.topics` measures the whole process.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

from bench.rule_mix import compared, properties
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Properties
from peeklock.broker.content.subject import MessageSubject
from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.changes import Change, EntityStored, RuleStored
from peeklock.broker.vocabulary.commands import (
    Address,
    Command,
    CreateEntity,
    DeleteEntity,
    ListEntities,
    LockToken,
    LookUp,
    ReplyTo,
    Send,
    UpdateEntity,
)
from peeklock.broker.vocabulary.descriptions import (
    EntityKind,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.quotas import STANDARD
from peeklock.engine.bodies import BodyCache
from peeklock.engine.engine import Engine
from peeklock.gateway.inspection import take_in
from peeklock.rules.filters import CorrelationFilter, Filter, SqlFilter, TrueFilter
from peeklock.store.base import Batch
from peeklock.store.encoding.frames import encode

NOW_MS = 1_700_000_000_000
TOPIC_QUEUE_ID = 4
BATCH = 20
"""Messages in one commit, about as many as come during another one."""

BLOCK_MS_MAX = 50.0
"""A command may block all others for so long."""

COPY_US_MAX = 4.0
"""From a send to its frame, for each copy."""

REPLY_TO = ReplyTo(1, 0, 0)


def _equal(n: int) -> Filter:
    return SqlFilter(f"tenant = {n} AND kind = 'order'")


def _window(n: int) -> Filter:
    return SqlFilter(f"tenant > {n - 1} AND tenant < {n + 1}")


def _correlated(n: int) -> Filter:
    return CorrelationFilter(properties=(("tenant", n),))


def _system(n: int) -> Filter:
    return CorrelationFilter(content_type="application/json", properties=(("tenant", n),))


def _everything(n: int) -> Filter:
    return TrueFilter()


KINDS: tuple[tuple[str, Callable[[int], Filter], int, int], ...] = (
    ("SQL, equalities", _equal, 1, 2_000),
    ("SQL, equalities", _equal, 10, 2_000),
    ("SQL, equalities", _equal, 1_000, 2_000),
    ("SQL, one window each", _window, 1_000, 200),
    ("SQL, a mix of comparisons", compared, 1, 2_000),
    ("SQL, a mix of comparisons", compared, 10, 2_000),
    ("SQL, a mix of comparisons", compared, 1_000, 400),
    ("correlation", _correlated, 1_000, 2_000),
    ("correlation", _correlated, 10_000, 2_000),
    ("correlation with a system property", _system, 10_000, 2_000),
    ("everything", _everything, 100, 1_000),
    ("everything", _everything, 1_000, 100),
)
"""Name, filters, subscriptions, sends a round. One takes a message, or all do; of the mix a few."""

MIXED = properties(1_000)


def _payload(make: Callable[[int], Filter], n: int, count: int) -> bytes:
    """Return the n-th message for filters of one kind, of which there are `count`."""
    about = MIXED[n % len(MIXED)] if make is compared else {"kind": "order", "tenant": n % count}
    return encode_message(
        header=Header(durable=True),
        message_annotations={"x-opt-partition-key": "pk-0001"},
        properties=Properties(message_id=f"{n:032x}", content_type="application/json"),
        application_properties=about,
        data=bytes(1024),
    )


def _namespace() -> Namespace:
    return Namespace(limits=STANDARD, tokens=lambda: LockToken(os.urandom(16)), digest_key=b"bench")


def _create(make: Callable[[int], Filter], count: int) -> list[Command]:
    topic: list[Command] = [CreateEntity(TopicDescription("events"), REPLY_TO)]
    return topic + [
        CreateEntity(
            SubscriptionDescription("events", f"s{n:05}"), REPLY_TO, RuleDescription("only", make(n))
        )
        for n in range(count)
    ]


def _topic(make: Callable[[int], Filter], count: int) -> tuple[Namespace, list[Change]]:
    core = _namespace()
    changes: list[Change] = []
    for command in _create(make, count):
        changes += core.apply(command, NOW_MS)[0]
    return core, changes


def one_round(core: Namespace, make: Callable[[int], Filter], count: int, sends: int) -> dict[str, float]:
    """Return the microseconds of each part of `sends` sends, in total."""
    engine = Engine(core, BodyCache())
    spent = dict.fromkeys(("take in", "apply", "record", "numbers", "encode"), 0.0)
    spent["copies"] = 0
    clock = time.perf_counter
    for first in range(0, sends, BATCH):
        changes: list[Change] = []
        for n in range(first, first + BATCH):
            payload = _payload(make, n, count)
            started = clock()
            message, sections = take_in(payload, reads_routing=True)
            taken_in = clock()
            stored, _ = core.apply(Send(TOPIC_QUEUE_ID, message, sections, ReplyTo(1, 0, n)), NOW_MS)
            applied = clock()
            engine._record(stored)
            spent["record"] += clock() - applied
            spent["apply"] += applied - taken_in
            spent["take in"] += taken_in - started
            spent["copies"] += len(stored)
            changes += stored
        started = clock()
        changes += core.numbers_issued()
        stated = clock()
        encode(Batch(1, changes, {}, [], 0))
        spent["encode"] += clock() - stated
        spent["numbers"] += stated - started
    return spent


def send(make: Callable[[int], Filter], count: int, sends: int, rounds: int) -> None:
    """Print the cost of sends to a topic, for each part."""
    core, _ = _topic(make, count)
    gc.collect()
    gc.freeze()  # as the server does after its start
    gc.set_threshold(10_000, 10, 50)
    found = [one_round(core, make, count, sends) for _ in range(rounds)]
    copies = found[0].pop("copies")
    parts = {part: min(each[part] for each in found) * 1e6 for part in found[0]}
    total = sum(parts.values())
    told = "  ".join(f"{part} {us / sends:.1f}" for part, us in parts.items())
    print(f"    a send {total / sends:8.1f} us, copies {copies / sends:.1f}: {told}")
    if copies > 10 * sends:
        by_copy = "  ".join(f"{part} {us / copies:.2f}" for part, us in parts.items())
        print(f"    a copy {total / copies:8.2f} us, budget {COPY_US_MAX}: {by_copy}")


def subject(rounds: int) -> None:
    """Print the cost of reading a message for its rules."""
    message, sections = take_in(_payload(_equal, 1, 10), reads_routing=True)
    message.enqueued_at_ms = NOW_MS

    def see(name: str | None) -> None:
        seen = MessageSubject(message, sections, _no_token)
        if name is not None:
            getattr(seen, name)

    for name in (None, "user", "system"):
        print(f"{_timed(partial(see, name), 2_000, rounds):12.2f} us  {name or 'nothing is asked'}")


def _no_token() -> bytes:
    return b""


def _timed(call: Callable[[], object], times: int, rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, time.perf_counter() - started)
    return best / times * 1e6


def commands(make: Callable[[int], Filter], count: int) -> None:
    """Print the cost of commands that concern a topic with many subscriptions, once each, and its memory."""
    asked = _create(make, count)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    made, changes = _topic(make, count)
    gc.collect()
    size_bytes = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()
    print(f"{size_bytes:12,.0f} bytes  a subscription, with its stored records")
    del made

    core = _namespace()
    started = time.perf_counter()
    for command in asked:
        core.apply(command, NOW_MS)
    print(f"{(time.perf_counter() - started) / count * 1e6:12.1f} us  create a subscription")

    restored = _namespace()
    started = time.perf_counter()
    for change in changes:
        if isinstance(change, EntityStored):
            restored.restore_entity(change)
        elif isinstance(change, RuleStored):
            restored.restore_rule(change)
    restored.finish_restore(NOW_MS, count + 2)
    print(f"{(time.perf_counter() - started) / count * 1e6:12.1f} us  restore a subscription")

    one_more = CreateEntity(SubscriptionDescription("events", "new"), REPLY_TO)
    for label, command in (
        ("look the topic up", LookUp(Address("events"), REPLY_TO)),
        ("create one more", one_more),
        ("list 100 of them, then", ListEntities(EntityKind.SUBSCRIPTION, 0, 100, REPLY_TO, "events")),
        ("list 100 of them, again", ListEntities(EntityKind.SUBSCRIPTION, 0, 100, REPLY_TO, "events")),
        ("update the topic", UpdateEntity(TopicDescription("events", default_ttl_ms=3_600_000), REPLY_TO)),
        ("delete the topic", DeleteEntity("events", REPLY_TO)),
    ):
        _once(label, partial(core.apply, command, NOW_MS))
        if command is one_more:
            _once("totals, for /metrics", core.totals)


def _once(label: str, call: Callable[[], object]) -> None:
    started = time.perf_counter()
    call()
    took_ms = (time.perf_counter() - started) * 1e3
    print(f"{took_ms:12.2f} ms  {label}" + (f"   over {BLOCK_MS_MAX:.0f}" if took_ms > BLOCK_MS_MAX else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    for name, make, count, sends in KINDS:
        print(f"{count:,} subscriptions, {name}:")
        send(make, count, sends, rounds)
    print("a message as its rules see it:")
    subject(rounds)
    for name, make in (("correlation", _correlated), ("SQL", _equal)):
        print(f"commands about 10,000 subscriptions, {name}:")
        commands(make, 10_000)


if __name__ == "__main__":
    main()
