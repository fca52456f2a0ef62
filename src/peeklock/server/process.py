"""The process of a broker: event loop, signals, memory, and the line that says it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
from asyncio import sslproto

import click

from peeklock import FORM, __version__
from peeklock.auth import Authority
from peeklock.config.hosts import shown_host
from peeklock.server import log
from peeklock.server.app import Broker
from peeklock.server.descriptors import raise_descriptor_limit
from peeklock.server.keys.authority_manager import is_loopback
from peeklock.server.loop.tasks import tell_failure
from peeklock.server.notify import Notifier
from peeklock.server.settings import Settings
from peeklock.server.supervised import ReadyFile, end_with_parent

TLS_BUFFER_BYTES = 32 * 1024
"""For reading from a TLS connection without uvloop. Our choice: two records."""


def serve(settings: Settings, process_started: float, authority: Authority | None = None) -> int:
    """Run a broker until a signal or a failure stops it; return the exit status.

    Args:
        settings: the options of `peeklock serve`.
        process_started: of the monotonic clock, for the ready line.
        authority: as of `Broker`.

    Raises: StartFailed.
    """
    log.configure()
    os.umask(0o077)  # only the owner may read messages
    raise_descriptor_limit()
    # The writer thread takes the interpreter back several times a commit; at the default of 5 ms each a busy
    # event loop would stretch every commit by tens of milliseconds.
    sys.setswitchinterval(0.0005)

    async def main() -> int:
        notifier = Notifier.of_environment(os.environ, os.getpid())
        broker = Broker(settings, authority, notifier=notifier)
        return await run(broker, settings, process_started, notifier)

    try:
        import uvloop
    except ImportError:
        # asyncio sets 256 KiB aside for each TLS connection; the largest record has 16 KiB.
        sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
        return asyncio.run(main())
    return uvloop.run(main())


async def run(broker: Broker, settings: Settings, process_started: float, notifier: Notifier) -> int:
    """Start a broker, announce it, and serve until it stops; return the exit status. Raises: StartFailed."""
    ready_file = None if settings.ready_file is None else ReadyFile(settings.ready_file)
    await broker.start()
    # A million messages are a few million objects that live long: exclude them from collections.
    gc.collect()
    gc.freeze()
    # 15,000 objects of messages, scattered in memory, take 5 ms in the second generation; 110,000 took 40,
    # in one turn of the loop.
    gc.set_threshold(5_000, 2, 500)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, broker.ask_to_stop)
    loop.add_signal_handler(signal.SIGUSR1, broker.accept_clock)
    loop.add_signal_handler(signal.SIGHUP, broker.reload.ask)
    text = _announce(broker, settings, time.monotonic() - process_started)
    ports = f"ports {broker.amqp_port} and {broker.http_port}"
    notifier.ready(f"serving on {ports}, durability {settings.durability}")
    shown = {
        "connectionString": text,
        "amqpPort": broker.amqp_port,
        "httpPort": broker.http_port,
        "pid": os.getpid(),
    }
    with contextlib.nullcontext() if ready_file is None else ready_file.shown(shown):
        if settings.exit_with_parent:
            watch = loop.create_task(end_with_parent(broker.ask_to_stop))
            watch.add_done_callback(tell_failure)
        return await broker.stopped()


def _announce(broker: Broker, settings: Settings, took_s: float) -> str:
    """Print the connection string and warnings, and log the start; return the connection string."""
    authority = broker.registry.default.authority_manager
    if settings.emulator:
        click.echo("Emulator Service is Successfully Up!")  # what Testcontainers waits for
    endpoint, _, plain = broker.endpoint(shown_host(settings.host)).partition(";")
    text = f"{endpoint};{authority.connection_string_key}{plain}"
    click.echo(f"peeklock ready in {took_s:.2f} s: {text} (administration: port {broker.http_port})")
    if authority.warning:
        warning = authority.warning
        if settings.is_development and not is_loopback(settings.host):
            warning = f"{warning}, also from other machines"
        log.warning(warning, {"do": "--auth sas gives keys of your own"})
        click.echo(f"peeklock: {warning}; --auth sas gives keys of your own")
    if "sas" in settings.auth and settings.keys is None:
        click.echo(f"peeklock: show the keys with: peeklock keys list {settings.data}")
    log.info(
        "ready",
        {
            "version": __version__,
            "core": FORM,
            "durability": settings.durability,
            "data": str(settings.data) if settings.data else None,
            **({} if settings.store is None else {"store": "PostgreSQL"}),
            "amqp_port": broker.amqp_port,
            "http_port": broker.http_port,
            "ports": broker.ports.opened,
            "start_ms": round(took_s * 1000),
        },
    )
    return text
