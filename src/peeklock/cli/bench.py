"""`peeklock bench`: rates and latencies of any Service Bus, measured with messages of its own.

It knows options and how figures are shown. `client.load` sends and receives.
"""

from __future__ import annotations

import json
import math
import secrets
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from peeklock.cli.message_output import Progress
from peeklock.cli.places import Given, in_a_namespace
from peeklock.cli.stopping import INTERRUPTED, stopping
from peeklock.cli.tables import table

if TYPE_CHECKING:
    from peeklock.client.connection_string import ConnectionString
    from peeklock.client.load import Figures, Load, Plan

SECONDS: Final = 10.0
"""How long a run sends without --messages and --seconds. Our choice: rates are steady then."""
MESSAGES: Final = 10_000
"""Messages of --only receive without --messages. Our choice: a second or two of receiving."""
SIZE: Final = 1024
SIZE_MAX: Final = 100 << 20
"""Largest body. Source: the largest message of Premium is 100 MB."""
_LATENCIES: Final = ("p50", "p90", "p99", "max")


@click.command()
@click.argument("entity")
@in_a_namespace("Send and Listen")
@click.option(
    "--messages",
    type=click.IntRange(1),
    metavar="N",
    help="Send at most so many.",
    show_default="no limit; 10,000 with --only receive",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    metavar="S",
    help="Send at most so long.",
    show_default="10; no limit with --messages",
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Messages a second.")
@click.option("--size", type=click.IntRange(0, SIZE_MAX), default=SIZE, metavar="BYTES", help="Of each body.")
@click.option("--only", type=click.Choice(("send", "receive")), help="Measure this alone.")
@click.option("--yes", is_flag=True, help="Do not ask before another machine is measured.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench(
    entity: str,
    given: Given,
    messages: int | None,
    seconds: float | None,
    rate: float | None,
    size: int,
    only: Any,
    yes: bool,
    as_json: bool,
) -> None:
    """Send messages to the empty queue ENTITY, receive and complete them, and show rates and latencies.

    \b
    As fast as it can:    peeklock bench orders
    At a rate:            peeklock bench orders --rate 200 --seconds 30
    Large messages:       peeklock bench orders --size 200000 --messages 1000
    Sending alone:        peeklock bench orders --only send
    For a program:        peeklock bench orders --json

    Without --rate at most 100 messages wait for their outcome, and 1,000 to be received. With --rate the time
    counts from when a message is due. --only send receives the messages after that, --only receive sends them
    before, and neither counts that.

    It completes only messages that it sent, and releases others. A queue with messages is refused. It asks
    before it measures another machine, where messages may cost money. Works with any Service Bus.

    Exit status: 0 measured; 1 refused, failed, or messages did not arrive; 2 wrong options; 130 stopped by
    Ctrl-C, and what was measured is shown.
    """
    plan = _plan(entity.strip("/"), size, messages, seconds, rate, only)
    _measure(given, plan, yes=yes, as_json=as_json)


def _plan(
    entity: str, size: int, messages: int | None, seconds: float | None, rate: float | None, only: Any
) -> Plan:
    """Return what to send. Raises: click.UsageError."""
    from peeklock.client.load import Plan

    if not all(math.isfinite(each) for each in (seconds, rate) if each is not None):
        raise click.UsageError("--seconds and --rate are numbers.")
    if only == "receive":
        if rate is not None or seconds is not None:
            raise click.UsageError("--rate and --seconds are of sending: --only receive takes --messages.")
        messages = messages or MESSAGES
    elif messages is None and seconds is None:
        seconds = SECONDS
    return Plan(entity, size, messages, seconds, rate, only or "both")


def _measure(given: Given, plan: Plan, *, yes: bool, as_json: bool) -> NoReturn:
    """Measure, print, and exit."""
    from peeklock.client.errors import ServiceBusError
    from peeklock.client.load import Load, NotEmpty

    with given.connected(plan.entity) as broker:
        _agree(plan, broker.settings, yes)
        load = Load(broker.settings, plan, secrets.token_hex(8))
        progress = Progress()
        status = 0
        with stopping() as stop:

            def beat(sent: int, received: int) -> None:
                progress.show(received or sent, f"{sent:,} sent, {received:,} received")
                if stop.is_asked:
                    load.stop()

            try:
                load.run(beat)
            except NotEmpty as failure:
                progress.clear()
                click.echo(f"peeklock: {failure}: measure an empty queue, made for it.", err=True)
                sys.exit(1)
            except ServiceBusError as failure:
                progress.clear()
                given.report(failure, plan.entity)
                status = 1
        progress.clear()
        if load.sent.count:
            click.echo(_as_json(load, broker.settings) if as_json else "\n".join(_lines(load)))
        if not status:
            _remark(load)
        sys.exit(INTERRUPTED if stop.is_asked else status or bool(load.missing))


def _agree(plan: Plan, settings: ConnectionString, yes: bool) -> None:
    """Ask before another machine gets a load; exit if it must not."""
    if yes or _is_here(settings.host):
        return
    how_many = f"{plan.messages:,}" if plan.messages is not None else f"{plan.seconds:g} s of"
    rate = "" if plan.rate is None else f" at {plan.rate:g} a second"
    what = f"{how_many} messages of {plan.size_bytes:,} bytes{rate} to '{plan.entity}' of {settings.host}"
    if not sys.stdin.isatty():
        click.echo(f"peeklock: {what}, another machine, are not sent without --yes.", err=True)
        sys.exit(1)
    if not click.confirm(f"Send {what}? It may cost money, and slow others down."):
        sys.exit(1)


def _is_here(host: str) -> bool:
    """Return whether a host is this machine: a name or an address of its loopback."""
    import ipaddress
    import socket

    try:
        found = {str(each[4][0]).partition("%")[0] for each in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(address).is_loopback for address in found)


# Figures


def _rows(load: Load) -> dict[str, Figures]:
    rows = {"send": load.sent, "end to end": load.received}
    if load.plan.what == "receive":
        return {"receive": load.received}
    return rows if load.plan.what == "both" else {"send": load.sent}


def _lines(load: Load) -> Iterator[str]:
    from peeklock.client.load import percentiles_ms

    head = ("", "MESSAGES", "RATE/S", *(f"{each.upper()} MS" for each in _LATENCIES))
    rows = []
    for name, figures in _rows(load).items():
        latencies = percentiles_ms(figures.latencies_ns)
        shown = (f"{latencies[each]:,.2f}" if latencies else "-" for each in _LATENCIES)
        rows.append((name, f"{figures.count:,}", f"{figures.rate:,.0f}", *shown))
    yield from table(head, rows, head[1:])


def _as_json(load: Load, settings: ConnectionString) -> str:
    from peeklock.client.load import percentiles_ms

    found: dict[str, Any] = {
        "host": settings.host,
        "entity": load.plan.entity,
        "sizeBytes": load.plan.size_bytes,
        "wantedRate": load.plan.rate,
    }
    for name, figures in _rows(load).items():
        latencies = {each: round(ms, 3) for each, ms in percentiles_ms(figures.latencies_ns).items()}
        key = name.replace("end to end", "endToEnd")
        found[key] = {
            "messages": figures.count,
            "seconds": round((figures.ended_ns - figures.began_ns) / 1e9, 3),
            "rate": round(figures.rate, 1),
            "latencyMs": latencies or None,
        }
    return json.dumps({**found, "missing": load.missing, "released": load.others})


def _remark(load: Load) -> None:
    """Print what makes the figures inexact, or the run a failure."""
    if load.missing:
        text = f"{load.missing:,} messages did not arrive within 10 s: is there another receiver?"
        click.echo(f"peeklock: {text}", err=True)
    if load.others:
        text = f"released messages of others {load.others:,} times: measure a queue that only this uses."
        click.echo(f"peeklock: {text}", err=True)
