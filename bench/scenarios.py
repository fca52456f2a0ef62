"""The scenarios of a plain queue, beside RabbitMQ's: the load, and what is measured.

Each scenario adds rows to `Results`. Systems take turns within a scenario, A B A B, so that a slow minute of
the machine affects all of them; the report quotes medians. Other queues are in `queue_kinds`, topics in
`topics`, the event log in `capture`.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

from bench.awaited import SCENARIOS as AWAITED
from bench.capture import SCENARIOS as CAPTURE
from bench.crowd import SCENARIOS as CROWD
from bench.delay import delayed_path
from bench.disk import fsync_us
from bench.entities import ADMINISTRATION
from bench.loadgen import LoadFailed, drive, idle_connections
from bench.many_namespaces import SCENARIOS as NAMESPACES
from bench.over_http import SCENARIOS as OVER_HTTP
from bench.queue_kinds import SCENARIOS as QUEUE_KINDS
from bench.recording import SCENARIOS as RECORDING
from bench.run import MB, Run, drive_queue, offer_1000, settle_options
from bench.spark import SCENARIOS as SPARK
from bench.systems import Peeklock, StartFailed, System, rss_bytes
from bench.topics import SCENARIOS as TOPICS
from bench.transports import SCENARIOS as TRANSPORTS


def send_and_receive(run: Run) -> None:
    """Send N messages to an empty queue, then receive and complete them: 1 connection, 1 KiB, window 1000."""
    messages = run.scaled(60_000)

    def step(system: System) -> None:
        sent = drive_queue(system, "send", messages)
        run.results.add("send", "rate", "msg/s", system.name, sent.send_rate, better="higher", aim=15_000)
        run.results.add("send", "broker CPU", "us/msg", system.name, sent.broker_us)
        run.results.add("send", "broker cores in use", "cores", system.name, sent.broker_cores)
        received = drive_queue(system, "recv", messages, *settle_options(system))
        rate = received.receive_rate
        run.results.add("receive + complete", "rate", "msg/s", system.name, rate, better="higher", aim=12_000)
        run.results.add("receive + complete", "broker CPU", "us/msg", system.name, received.broker_us)
        run.results.add(
            "receive + complete", "broker cores in use", "cores", system.name, received.broker_cores
        )

    run.each("send", step)


def end_to_end(run: Run) -> None:
    """Send, receive and complete at the same time: 1 sending and 1 receiving connection."""
    messages = run.scaled(60_000)

    def step(system: System) -> None:
        load = drive_queue(system, "both", messages, *settle_options(system))
        name, add = "end to end", run.results.add
        add(name, "rate", "msg/s", system.name, load.receive_rate, better="higher")
        add(name, "broker CPU", "us/msg", system.name, load.broker_us, aim=85)
        add(
            name,
            "messages per broker CPU-second",
            "msg",
            system.name,
            1e6 / load.broker_us,
            better="higher",
            aim_ratio=1.2,
        )
        add(name, "broker cores in use", "cores", system.name, load.broker_cores)

    run.each("end to end", step)


def latency(run: Run) -> None:
    """Offer 1,000 messages/s: latency from the intended time to `accepted`, CPU, the disk's own fsync."""
    messages = run.scaled(20_000)

    def step(system: System) -> None:
        before = fsync_us(run.folder)
        load = offer_1000(system, messages)
        fsync = statistics.mean((before, fsync_us(run.folder)))
        name = "1,000 msg/s offered"
        run.results.add(name, "broker CPU", "us/msg", system.name, load.broker_us)
        run.results.add(name, "the disk's own fsync, p50", "us", system.name, fsync)
        for percentile in ("p50", "p99", "p99.9"):
            run.results.add(
                name, f"{percentile} send to accepted", "us", system.name, load.latency_us[percentile]
            )
        run.results.add(name, "p50 / fsync", "", system.name, load.latency_us["p50"] / fsync, aim=3)
        drive_queue(system, "recv", messages, *settle_options(system))

    run.each("latency", step)


def start_up(run: Run) -> None:
    """Spawn to ready on an empty store, idle memory, and 2,000 idle connections."""
    name, add = "start-up", run.results.add
    for _ in range(2 * run.rounds + 1):
        broker = run.fresh_peeklock()
        try:
            add(name, "spawn to ready", "s", broker.name, broker.start(), aim=0.6)
            time.sleep(0.5)  # what the start left to do
            add(name, "idle RSS", "MB", broker.name, rss_bytes(broker.endpoint().pid) / MB, aim=70)
        finally:
            broker.stop()

    connections = run.scaled(2000)
    fresh = run.fresh_peeklock()
    try:
        for system in (fresh, *(s for s in run.systems if not isinstance(s, Peeklock))):
            seconds = system.start()
            pid = system.endpoint().pid
            before = rss_bytes(pid)
            if seconds and system is not fresh:
                add(name, "spawn to ready", "s", system.name, seconds)
                add(name, "idle RSS", "MB", system.name, before / MB)
            with idle_connections(system.endpoint(), system.address("bench"), connections):
                grown = (rss_bytes(pid) - before) / MB
            add("idle connections", f"{connections:,} cost", "MB", system.name, grown, aim=150)
    except LoadFailed as error:
        run.left_out("idle connections", error)
    finally:
        fresh.stop()


def backlog(run: Run) -> None:
    """A backlog of 1,000,000: memory, rates beside an empty queue's, restart, space after draining."""
    name, add = "backlog", run.results.add
    depth, probe = run.scaled(1_000_000), run.scaled(100_000)
    broker = run.fresh_peeklock()
    settle = settle_options(broker)

    empty = run.fresh_peeklock()

    def probe_rates(of: Peeklock, label: str) -> None:
        # A probe sends and receives as much, so the depth stays.
        sent = drive_queue(of, "send", probe).send_rate
        received = drive_queue(of, "recv", probe, *settle).receive_rate
        add(name, f"send rate, {label}", "msg/s", of.name, sent, better="higher")
        add(name, f"receive + complete rate, {label}", "msg/s", of.name, received, better="higher")

    def rss(*, peak: bool = False) -> int:
        return rss_bytes(broker.endpoint().pid, peak=peak)

    def add_recovery(label: str) -> None:
        add(name, f"restart to serving, {label}", "s", broker.name, broker.start(), aim=6)
        peak, resident = rss(peak=True), rss()
        add(name, f"RSS, peak of recovery, {label}", "MB", broker.name, peak / MB, aim=500)
        for what, size_bytes in (("peak of recovery", peak), ("resident", resident)):
            each = (size_bytes - idle) / depth
            add(name, f"memory a message, {what}, {label}", "bytes", broker.name, each)

    try:
        broker.start()
        idle = rss()
        filled = drive_queue(broker, "send", depth, timeout_s=200)
        add(
            name,
            f"send rate while filling to {depth:,}",
            "msg/s",
            broker.name,
            filled.send_rate,
            better="higher",
        )
        add(name, "RSS, peak of filling", "MB", broker.name, rss(peak=True) / MB, aim=500)
        _add_memory_and_disk(run, broker, "full")
        # What filling left for the system to write back is no property of a deep queue.
        os.sync()
        # A second broker, whose queue is empty, takes turns with it: a machine's speed drifts more in a
        # minute than the differences of interest.
        empty.start()
        for _ in range(run.rounds + 2):
            probe_rates(empty, "empty queue")
            probe_rates(broker, "full queue")
        empty.stop()
        for direction in ("send", "receive + complete"):
            of_full = run.results.rows[name, f"{direction} rate, full queue"].median(broker.name)
            of_empty = run.results.rows[name, f"{direction} rate, empty queue"].median(broker.name)
            assert of_full is not None
            assert of_empty is not None
            add(
                name,
                f"{direction} rate, full / empty",
                "",
                broker.name,
                of_full / of_empty,
                better="higher",
                aim=0.8,
            )
        broker.stop()
        add_recovery("after SIGTERM")
        broker.kill()
        add_recovery("after SIGKILL")
        # Replace the whole backlog: the journal has then grown to where it is cut, three records per live
        # one.
        churned = drive_queue(broker, "both", depth, *settle, timeout_s=300)
        add(name, "end to end rate over it", "msg/s", broker.name, churned.receive_rate, better="higher")
        broker.kill()
        add_recovery("long journal")
        _add_memory_and_disk(run, broker, "full, after restart")
        drained = drive_queue(broker, "recv", depth, *settle, timeout_s=300)
        add(
            name,
            "receive + complete rate while draining",
            "msg/s",
            broker.name,
            drained.receive_rate,
            better="higher",
        )
        add(name, "RSS, peak of recovery and draining", "MB", broker.name, rss(peak=True) / MB, aim=500)
        _add_space_after_draining(run, broker)
    except (LoadFailed, StartFailed) as error:
        run.left_out("backlog", error)
    finally:
        empty.stop()
        broker.stop()


def _add_memory_and_disk(run: Run, broker: Peeklock, label: str) -> None:
    rss = rss_bytes(broker.endpoint().pid) / MB
    run.results.add("backlog", f"RSS, {label}", "MB", broker.name, rss, aim=500)
    run.results.add("backlog", f"disk, {label}", "MB", broker.name, broker.disk_bytes() / MB)


def _add_space_after_draining(run: Run, broker: Peeklock) -> None:
    drained = time.monotonic()
    while broker.disk_bytes() > 50 * MB and time.monotonic() - drained < 60:
        time.sleep(0.5)
    seconds = time.monotonic() - drained
    run.results.add("backlog", "disk under 50 MB after draining", "s", broker.name, seconds, aim=60)
    run.results.add("backlog", "disk then", "MB", broker.name, broker.disk_bytes() / MB, aim=50)


def delayed(run: Run) -> None:
    """Send 100 messages over a path with 70 ms round trip: one by one, at most 10 in flight, all at once."""

    def step(system: System) -> None:
        endpoint = system.endpoint()
        with delayed_path(endpoint.port, one_way_s=0.035) as port:
            far = type(endpoint)(port, endpoint.user, endpoint.password, endpoint.pid)
            for label, messages, window in (
                ("10 sends, one by one", 10, 1),
                ("100 sends, at most 10 in flight", 100, 10),
                ("100 sends, started together", 100, 100),
            ):
                load = drive(far, system.address("bench"), "send", messages, "-w", str(window))
                run.results.add("path delayed by 70 ms", label, "s", system.name, load.seconds)
        drive_queue(system, "recv", 210, *settle_options(system))

    run.each("delayed path", step)


SCENARIOS: dict[str, Callable[[Run], None]] = {
    "start-up": start_up,
    "send": send_and_receive,
    "end-to-end": end_to_end,
    "latency": latency,
    **AWAITED,
    "delayed": delayed,
    "backlog": backlog,
    **QUEUE_KINDS,
    **TOPICS,
    **CAPTURE,
    **RECORDING,
    **SPARK,
    **TRANSPORTS,
    **CROWD,
    **NAMESPACES,
    **ADMINISTRATION,
    **OVER_HTTP,
}
