"""What TLS and WebSocket cost: the same load over each transport of one broker, in turns.

Owns: the scenario and its ratios to plain AMQP. Must not know: how bytes are wrapped (`wire.h`).
"""

from __future__ import annotations

from collections.abc import Callable

from bench.run import Run, drive_queue, settle_options

PLAIN = "plain"

TRANSPORTS: dict[str, tuple[tuple[str, ...], float | None]] = {
    PLAIN: ((), None),
    "TLS": (("-E",), 0.65),
    "WebSocket": (("-W",), 0.6),
    "WebSocket within TLS": (("-E", "-W"), None),
}
"""By name: options of the load generator, and the least share of the plain rate that it is to keep."""


def transports(run: Run) -> None:
    """Send, receive and complete 1 KiB over plain AMQP, TLS, WebSocket and both, 1 + 1 connections."""
    messages = run.scaled(60_000)
    name, add = "transports", run.results.add
    broker = run.fresh_peeklock()
    settle = settle_options(broker)
    try:
        broker.start()
        for _ in range(run.rounds):
            for mode in ("send", "recv"):
                plain = 0.0
                for transport, (options, aim) in TRANSPORTS.items():
                    if mode == "recv":
                        drive_queue(broker, "send", messages)
                    load = drive_queue(broker, mode, messages, *options, *(settle if mode == "recv" else ()))
                    if mode == "send":
                        drive_queue(broker, "recv", messages)
                    what = "send" if mode == "send" else "receive + complete"
                    rate = load.send_rate if mode == "send" else load.receive_rate
                    add(name, f"{what}, {transport}", "msg/s", broker.name, rate, better="higher")
                    add(name, f"{what}, {transport}, broker CPU", "us/msg", broker.name, load.broker_us)
                    add(name, f"{what}, {transport}, client CPU", "us/msg", broker.name, load.client_us)
                    plain = plain or rate
                    if transport != PLAIN:
                        label = f"{what}, {transport} / {PLAIN}"
                        add(name, label, "", broker.name, rate / plain, better="higher", aim=aim)
    finally:
        broker.stop()


SCENARIOS: dict[str, Callable[[Run], None]] = {"transports": transports}
