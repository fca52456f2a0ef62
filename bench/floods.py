"""Peers that send without a pause, and the effect on a good client: `python -m bench.floods [ATTACK...]`.

Owns: the attacks, the figures of one, and the command that runs some by hand. Must not know: how frames are
made (`flood.c`).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.loadgen import BUILD, STALL_S_MAX, Endpoint, LoadFailed, compiled, drive, offered
from bench.run import Run
from bench.systems import KEY, KEY_NAME, Peeklock
from peeklock.auth import generate

OFFERED = 500
"""Messages a second of the good client."""

GOOD, FLOODED = "bench", "flooded"
"""The queue of the good client, and the one of the peers."""

WARM_UP = 2_000
"""Messages before the first measurement."""

CROWDS = (1, 6)
"""Peers at a time."""

POLL_S = 2.0
"""Pause between two requests to `/health`: each costs the broker a few ms."""


@dataclass(frozen=True, slots=True)
class Attack:
    """What a peer sends: a kind of `flood.c`, and how."""

    kind: str
    options: tuple[str, ...] = ()
    with_key: bool = False
    token_key: str | None = None  # the key that signs the token it puts
    messages: int = 0  # in the queue before, a peer


TLS, WEBSOCKET, DEAF = "-E", "-W", "-x"

ATTACKS = {
    "begin-end": Attack("begin-end"),
    "refused-attaches": Attack("attaches"),
    "dispositions": Attack("dispositions"),
    "empty-frames": Attack("empty-frames"),
    "session-flows": Attack("session-flows"),
    "cbs-flows": Attack("cbs-flows"),
    "cbs-links": Attack("cbs-links"),
    "bad-tokens": Attack("tokens", token_key="wrong"),
    "begin-end-tls": Attack("begin-end", (TLS,)),
    "begin-end-websocket": Attack("begin-end", (WEBSOCKET,)),
    "empty-frames-tls": Attack("empty-frames", (TLS,)),
    "empty-frames-websocket": Attack("empty-frames", (WEBSOCKET,)),
    "session-flows-unread": Attack("session-flows", (DEAF,)),
    "missing-attaches": Attack("attaches", ("-a", "missing"), with_key=True),
    "unsettled-dispositions": Attack("unsettled", with_key=True, messages=100),
    "link-flows": Attack("link-flows", with_key=True),
    "good-tokens": Attack("tokens", with_key=True, token_key=KEY),
    "peeks": Attack("peeks", with_key=True, messages=100),
    "settled-sends": Attack("settled-sends", with_key=True),
    "sends": Attack("sends", with_key=True),
}


@dataclass(slots=True)
class Health:
    """The greatest values that `/health` had; None where it has no such member."""

    longest_turn_ms: float | None = None
    lag_ms: float | None = None

    def note(self, said: dict[str, Any]) -> None:
        """Take one answer."""
        for name in ("longest_turn_ms", "lag_ms"):
            if (value := said.get(name)) is not None:
                setattr(self, name, max(value, getattr(self, name) or 0))


@dataclass(frozen=True, slots=True)
class Figures:
    """What the good client and the broker measured; latencies from when a send is due to its answer."""

    p999_ms: float
    max_ms: float
    refused: int
    health: Health
    sent: dict[str, Any] = field(default_factory=dict)  # the report of the flood

    @property
    def frames_per_s(self) -> float:
        """Frames that the broker took from the peers.

        Those in the buffers of open sockets are left out; of a connection that the broker ended, all count.
        """
        share = 1 - self.sent["bytes_untaken"] / max(self.sent["bytes"], 1)
        return float(self.sent["frames"] * share / self.sent["seconds"])


def measure(endpoint: Endpoint, seconds: float, attack: Attack | None = None, peers: int = 0) -> Figures:
    """Offer messages for so long, beside so many peers.

    Raises:
        LoadFailed: the good client or the peers could not run to the end.
    """
    sent: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        offer = stack.enter_context(offered(endpoint, GOOD, OFFERED, int(seconds) + 60))
        health = stack.enter_context(_watched_health(endpoint.port))
        if attack is not None:
            sent = stack.enter_context(flooded(endpoint, attack, peers))
        time.sleep(seconds)
    latency_us = offer.load.latency_us
    return Figures(latency_us["p99.9"] / 1000, latency_us["max"] / 1000, offer.load.refused, health, sent)


def prepare(endpoint: Endpoint, attack: Attack) -> None:
    """Run the slow first steps, the broker's first messages and figures, and fill the attacked queue."""
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=STALL_S_MAX)
    with contextlib.closing(connection):
        _read_health(connection)
    drive(endpoint, GOOD, "both", WARM_UP, "-o", str(4 * OFFERED))
    if attack.messages:
        drive(endpoint, FLOODED, "send", attack.messages * max(CROWDS))


def without_pause(run: Run, seconds: float) -> None:
    """Measure each attack on a fresh broker: without peers, then with each crowd."""
    for name, attack in ATTACKS.items():
        broker = run.fresh_peeklock({FLOODED: {}})
        try:
            broker.start()
            _add(run, broker, name, attack, seconds)
        except LoadFailed as error:
            run.left_out(f"floods: {name}", error)
        finally:
            broker.stop()


def _add(run: Run, broker: Peeklock, name: str, attack: Attack, seconds: float) -> None:
    def add(measure: str, unit: str, value: float, aim: float | None = None) -> None:
        run.results.add(f"{name} without a pause", measure, unit, broker.name, value, aim=aim)

    endpoint = broker.endpoint()
    prepare(endpoint, attack)
    quiet = measure(endpoint, seconds)
    add("p99.9 without it", "ms", quiet.p999_ms)
    if quiet.health.longest_turn_ms is not None:
        add("longest turn without it", "ms", quiet.health.longest_turn_ms)
    for peers in CROWDS:
        found = measure(endpoint, seconds, attack, peers)
        label = "one peer" if peers == 1 else f"{peers} peers"
        add(f"{label}, p99.9", "ms", found.p999_ms, aim=100)
        add(f"{label}, p99.9 to that without", "", found.p999_ms / quiet.p999_ms, aim=10)
        add(f"{label}, refused sends", "", found.refused, aim=0)
        if found.health.longest_turn_ms is not None:
            add(f"{label}, longest turn", "ms", found.health.longest_turn_ms, aim=20)
        add(f"{label}, frames", "1/s", found.frames_per_s)


def flood_command(endpoint: Endpoint, attack: Attack, peers: int) -> list[str]:
    """Return the command that attacks until its standard input ends."""
    command = [str(compiled("flood")), "-k", attack.kind, "-n", str(peers), "-p", str(endpoint.port)]
    command += ["-a", FLOODED, *attack.options]
    if attack.with_key:
        command += ["-u", endpoint.user, "-P", endpoint.password]
    if attack.token_key is not None:
        in_an_hour_ms = int(time.time() * 1000) + 3_600_000
        command += ["-t", generate(f"sb://localhost/{FLOODED}", KEY_NAME, attack.token_key, in_an_hour_ms)]
    return command


@contextlib.contextmanager
def flooded(endpoint: Endpoint, attack: Attack, peers: int) -> Iterator[dict[str, Any]]:
    """Run peers while the body runs; the dict has their report at the end."""
    found: dict[str, Any] = {}
    with subprocess.Popen(
        flood_command(endpoint, attack, peers),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # they are connected, or it has ended
        try:
            yield found
        finally:
            said, errors = process.communicate(timeout=STALL_S_MAX)
    if process.returncode != 0:
        raise LoadFailed(errors.strip())
    found.update(json.loads(said))


@contextlib.contextmanager
def _watched_health(port: int) -> Iterator[Health]:
    """Request `/health` from time to time while the body runs, and once more after it."""
    found = Health()
    over = threading.Event()

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=STALL_S_MAX)
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                last = over.wait(POLL_S)
                found.note(_read_health(connection))
                if last:
                    break
        connection.close()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def _read_health(connection: http.client.HTTPConnection) -> dict[str, Any]:
    connection.request("GET", "/health")
    said: dict[str, Any] = json.loads(connection.getresponse().read())
    return said


def _line(name: str, peers: int, quiet: Figures, found: Figures) -> str:
    """Return the figures of one attack as a line."""
    sent = found.sent
    turn_ms = f"{_text(quiet.health.longest_turn_ms)} -> {_text(found.health.longest_turn_ms)}"
    line = (
        f"{name} x {peers}: p99.9 {quiet.p999_ms:.1f} -> {found.p999_ms:.1f} ms"
        f" ({found.p999_ms / quiet.p999_ms:.1f} times), max {found.max_ms:.0f} ms, {found.refused} refused,"
        f" longest turn {turn_ms} ms, lag {_text(found.health.lag_ms)} ms,"
        f" {found.frames_per_s:,.0f} frames/s,"
        f" {sent['connections']} connections, {sent['ended']} ended"
    )
    return f"{line}: {sent['last_words']}" if sent["ended"] else line


def _text(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1f}"


def main() -> None:
    """Run attacks by hand, each on a fresh broker unless a port is named, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m bench.floods", description=__doc__.splitlines()[0])
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"default: all: {', '.join(ATTACKS)}")
    parser.add_argument("--peers", type=int, action="append", help="default: 1, then 6")
    parser.add_argument("--seconds", type=float, default=5.0, help="a measurement (default: %(default)s)")
    parser.add_argument("--port", type=int, help=f"of a broker with the queues {GOOD} and {FLOODED}")
    options = parser.parse_args()
    unknown = set(options.attacks) - set(ATTACKS)
    if unknown:
        parser.error(f"no such attack: {', '.join(sorted(unknown))}")
    BUILD.mkdir(exist_ok=True)
    for name in options.attacks or ATTACKS:
        attack = ATTACKS[name]
        with tempfile.TemporaryDirectory(dir=BUILD, prefix="floods-") as folder:
            broker = Peeklock(Path(folder), (GOOD, FLOODED))
            try:
                if options.port is None:
                    broker.start()
                    endpoint = broker.endpoint()
                else:
                    endpoint = Endpoint(options.port, KEY_NAME, KEY, 0)
                prepare(endpoint, attack)
                quiet = measure(endpoint, options.seconds)
                for peers in options.peers or CROWDS:
                    found = measure(endpoint, options.seconds, attack, peers)
                    print(_line(name, peers, quiet, found), flush=True)
            except LoadFailed as error:
                print(f"{name}: FAILED: {error}", flush=True)
            finally:
                broker.stop()


if __name__ == "__main__":
    main()
