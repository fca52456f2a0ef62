"""Topics: filters over many subscriptions, copies for all of them, the number of subscriptions itself.
Peeklock alone.

Messages are for tenants in turn, and every filter is for one of them, two subscriptions a tenant: a message
comes to 2 of 1,000 or 10,000 subscriptions, the usual case. The worst case, a message for all, is measured
apart. A filter for equality is found by a lookup; the others are evaluated one by one, so both are measured.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from bench.administration import Administration
from bench.run import MB, Run, drive_queue, settle_options
from bench.stalls import answer_times
from bench.systems import Peeklock, rss_bytes

TOPIC = "events"
SHARING = 2
"""Subscriptions of one tenant."""

BODY_BYTES_MAX = 1_300
"""What a message of 1 KiB may take on disk beside its records: 1.2 KB with its properties, and once."""

Filter = Callable[[int], dict[str, object]]
"""Makes the filter for a tenant, as in Config.json."""


def _sql(expression: str) -> dict[str, object]:
    return {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}


def _equal(tenant: int) -> dict[str, object]:
    terms = (f"tenant = {tenant}", "kind = 'order'", "sys.ContentType = 'application/json'")
    return _sql(" AND ".join(terms[: 1 + tenant % 3]))


def _compared(tenant: int) -> dict[str, object]:
    return _sql(
        (
            f"tenant IN ({tenant}, {-1 - tenant})",
            f"tenant > {tenant - 1} AND tenant < {tenant + 1}",
            f"kind LIKE 'ord%' AND tenant > {tenant - 1} AND tenant < {tenant + 1}",
        )[tenant % 3]
    )


def _correlated(tenant: int) -> dict[str, object]:
    return {"FilterType": "Correlation", "CorrelationFilter": {"Properties": {"tenant": tenant}}}


def _with_system_property(tenant: int) -> dict[str, object]:
    asked = {"ContentType": "application/json", "Properties": {"tenant": tenant}}
    return {"FilterType": "Correlation", "CorrelationFilter": asked}


def _everything(tenant: int) -> dict[str, object]:
    return {"FilterType": "True"}


FILTERS: dict[str, Filter] = {
    "equal": _equal,
    "compared": _compared,
    "correlated": _correlated,
    "with-system-property": _with_system_property,
    "everything": _everything,
}


def rules(count: int, make: Filter) -> list[dict[str, object]]:
    """Return a rule for each of so many subscriptions."""
    return [{"Name": _name(n), "Properties": make(n // SHARING)} for n in range(count)]


def _name(number: int) -> str:
    return f"s{number:05}"


def subscription(number: int, topic: str = TOPIC) -> str:
    """Return the path of a topic's subscription."""
    return f"{topic}/Subscriptions/{_name(number)}"


def filters(run: Run) -> None:
    """Send to a topic of 1,000 or 10,000 subscriptions of which 2 match, by kind of filter: rate, CPU."""
    for count, kind, make, aim in (
        (1_000, "SQL filters of 1 to 3 terms, equalities", _equal, 1_000),
        (1_000, "SQL filters of 1 to 3 terms, other comparisons", _compared, 1_000),
        (1_000, "correlation filters", _correlated, 5_000),
        (10_000, "correlation filters", _correlated, 3_000),
        (10_000, "correlation filters with a system property", _with_system_property, None),
    ):
        with _topic(run, count, make) as broker:
            _filter_rates(run, broker, f"{count:,} {kind}", count, aim)


def _filter_rates(run: Run, broker: Peeklock, name: str, count: int, aim: float | None) -> None:
    messages, tenants = run.scaled(20_000), ("-t", str(count // SHARING))
    add, of, settle = run.results.add, broker.name, settle_options(broker)
    turns = run.rounds + 2
    for _ in range(turns):  # a plain queue and the topic
        plain = drive_queue(broker, "send", messages, *tenants)
        drive_queue(broker, "recv", messages, *settle)
        sent = drive_queue(broker, "send", messages, *tenants, queue=TOPIC)
        add(name, "sends", "msg/s", of, sent.send_rate, better="higher", aim=aim)
        add(name, "sends to a plain queue", "msg/s", of, plain.send_rate, better="higher")
        add(name, "sends, topic / plain", "", of, sent.send_rate / plain.send_rate, better="higher")
        add(name, "broker CPU", "us/msg", of, sent.broker_us)
        add(name, "broker CPU, plain queue", "us/msg", of, plain.broker_us)
    # Fails unless the copies are there.
    copies = turns * -(-messages // (count // SHARING))
    drive_queue(broker, "recv", copies, *settle, queue=subscription(0))


def fan_out(run: Run) -> None:
    """Send to a topic of 100 or 1,000 subscriptions that take everything: CPU a copy, bodies on disk."""
    copies = run.scaled(200_000)
    add = run.results.add
    for count in (100, 1_000):
        name, messages = f"copies for {count:,} subscriptions", copies // count
        with _topic(run, count, _everything) as broker:
            of = broker.name
            for _ in range(run.rounds):
                sent = drive_queue(broker, "send", messages, "-t", "1", queue=TOPIC)
                add(name, "sends", "msg/s", of, sent.send_rate, better="higher")
                add(name, "copies", "/s", of, sent.send_rate * count, better="higher")
                add(name, "broker CPU", "us/copy", of, sent.broker_us / count, aim=4)
            stored = run.rounds * messages
            bodies = broker.body_bytes() / stored
            add(name, "bodies on disk", "bytes a message", of, bodies, aim=BODY_BYTES_MAX)
            add(name, "disk, records and all", "bytes a copy", of, broker.disk_bytes() / stored / count)
            add(name, "RSS", "MB", of, rss_bytes(broker.endpoint().pid) / MB)
            received = drive_queue(broker, "recv", stored, *settle_options(broker), queue=subscription(0))
            measure = "receive + complete, one subscription"
            add(name, measure, "msg/s", of, received.receive_rate, better="higher")


def subscriptions(run: Run) -> None:
    """10,000 subscriptions of one topic: memory, start, creation, and waits of others while they are
    deleted."""
    count, created = run.scaled(10_000), 500
    empty = run.fresh_peeklock()
    try:
        empty.start()
        time.sleep(0.5)  # what the start left to do
        empty_bytes = rss_bytes(empty.endpoint().pid)
    finally:
        empty.stop()
    add, of = run.results.add, empty.name
    for kind, make in (("correlation", _correlated), ("SQL", _equal)):
        name = f"{count:,} subscriptions, {kind} filters"
        for _ in range(run.rounds):
            with _topic(run, count, make, starts=False) as broker:
                add(name, "spawn to ready, all to be created from Config.json", "s", of, broker.start())
                grown = rss_bytes(broker.endpoint().pid) - empty_bytes
                add(name, "memory a subscription, after creation", "bytes", of, grown / count)
                broker.kill()
                broker.topics = {}  # what the file does not name stays
                add(name, "spawn to ready, all there", "s", of, broker.start(), aim=6)
                grown = rss_bytes(broker.endpoint().pid) - empty_bytes
                add(name, "memory a subscription, after restart", "bytes", of, grown / count)
                _create_and_delete(run, broker, name, created)


def _create_and_delete(run: Run, broker: Peeklock, name: str, created: int) -> None:
    endpoint, add, of = broker.endpoint(), run.results.add, broker.name
    with Administration(endpoint) as administration:
        with answer_times(endpoint.port) as answers:
            started = time.perf_counter()
            for number in range(created):
                administration.create_subscription(TOPIC, f"new{number}")
            seconds = time.perf_counter() - started
        add(name, "creation of one more, one by one", "ms", of, seconds / created * 1e3)
        add(name, "longest wait for an HTTP answer meanwhile", "ms", of, max(answers) * 1e3, aim=50)
        with answer_times(endpoint.port) as answers:
            started = time.perf_counter()
            administration.delete(TOPIC)
            seconds = time.perf_counter() - started
            time.sleep(1)  # what is done later
        add(name, "deletion of the topic, until answered", "ms", of, seconds * 1e3)
        measure = "longest wait for an HTTP answer, deletion and a second after"
        add(name, measure, "ms", of, max(answers) * 1e3, aim=50)


@contextlib.contextmanager
def _topic(run: Run, count: int, make: Filter, *, starts: bool = True) -> Iterator[Peeklock]:
    """Yield a broker with one topic of so many subscriptions, and stop it."""
    broker = run.fresh_peeklock(topics={TOPIC: rules(count, make)})
    try:
        if starts:
            broker.start()
        yield broker
    finally:
        broker.stop()


SCENARIOS: dict[str, Callable[[Run], None]] = {
    "filters": filters,
    "fan-out": fan_out,
    "subscriptions": subscriptions,
}
