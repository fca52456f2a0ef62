"""The cost of TLS and WebSocket: the same load over each transport of one broker, in turns.

Owns: the scenario and its ratios to plain AMQP. Must not know: how bytes are wrapped (`wire.h`).
"""

from __future__ import annotations

from collections.abc import Callable

from bench.loadgen import Load
from bench.run import Run, drive_queue, settle_options

NAME = "transports"
PLAIN = "plain"

TRANSPORTS: dict[str, tuple[tuple[str, ...], float | None]] = {
    PLAIN: ((), None),
    "TLS": (("-E",), 0.65),
    "WebSocket": (("-W",), 0.6),
    "WebSocket within TLS": (("-E", "-W"), None),
}
"""By name: options of the load generator, and the least share of the plain rate."""


def transports(run: Run) -> None:
    """Send, receive and complete 1 KiB over plain AMQP, TLS, WebSocket and both, 1 + 1 connections."""
    messages = max(
        run.scaled(60_000), 20_000
    )  # fewer take less time than the machine's speed needs to settle
    broker = run.fresh_peeklock()
    settle = settle_options(broker)
    try:
        broker.start()
        drive_queue(broker, "both", messages, *settle)  # a broker's first messages are its slowest
        for _ in range(max(run.rounds, 2)):
            for transport, (options, _aim) in TRANSPORTS.items():
                sent = drive_queue(broker, "send", messages, *options)
                _add(run, "send", transport, sent, sent.send_rate)
                received = drive_queue(broker, "recv", messages, *options, *settle)
                _add(run, "receive + complete", transport, received, received.receive_rate)
    finally:
        broker.stop()
    for what in ("send", "receive + complete"):
        plain, *rates = (run.results.rows[NAME, f"{what}, {name}"].median(broker.name) for name in TRANSPORTS)
        for (name, (_, aim)), rate in zip(list(TRANSPORTS.items())[1:], rates, strict=True):
            assert rate is not None
            assert plain is not None
            label = f"{what}, {name} / {PLAIN}"
            run.results.add(NAME, label, "", broker.name, rate / plain, better="higher", aim=aim)


def _add(run: Run, what: str, transport: str, load: Load, rate: float) -> None:
    add, system = run.results.add, "peeklock"
    add(NAME, f"{what}, {transport}", "msg/s", system, rate, better="higher")
    add(NAME, f"{what}, {transport}, broker CPU", "us/msg", system, load.broker_us)
    add(NAME, f"{what}, {transport}, client CPU", "us/msg", system, load.client_us)


SCENARIOS: dict[str, Callable[[Run], None]] = {"transports": transports}
