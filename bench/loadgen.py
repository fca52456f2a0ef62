"""The C programs: compiles them, and runs the load generator `loadgen.c`.

Owns its command line; knows no scenario.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEADERS = tuple(Path(__file__).with_name(name) for name in ("amqp.h", "wire.h"))
BUILD = Path(__file__).with_name(".build")

STALL_S_MAX = 60
"""How long an offer waits for a broker that does not answer. Our choice: twice the longest that was seen."""


class LoadFailed(Exception):
    """The load generator failed; the text is its output."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address and key to connect with, and the broker process to charge the CPU time to."""

    port: int
    user: str
    password: str
    pid: int


@dataclass(frozen=True, slots=True)
class Load:
    """The result of one run: rates in messages/s, CPU in microseconds a message, latencies in
    microseconds."""

    count: int
    send_rate: float
    receive_rate: float
    broker_us: float
    broker_cores: float
    client_us: float
    latency_us: dict[str, float]
    seconds: float
    refused: int  # sends, where that does not end the run


@dataclass(frozen=True, slots=True)
class HandOut:
    """The result of handing out sessions: sessions/s, waits in seconds, CPU in microseconds a hand-out."""

    steady_rate: float  # while each session is filled again after it was drained; 0 where none is
    drain_rate: float  # after that
    receive_rate: float  # messages/s over both
    wait_s: dict[str, float]  # from when a session was available to when a receiver had it: p50, max
    times_handed_out: dict[str, int]  # of one session: min, max
    broker_us: float
    client_us: float


def compile_loadgen() -> Path:
    """Return the path of the compiled load generator."""
    return compiled("loadgen")


def compiled(name: str) -> Path:
    """Compile a C program of this folder unless that is done, and return its path.

    Raises:
        LoadFailed: no C compiler, or it refused.
    """
    program = BUILD / name
    source = Path(__file__).with_name(f"{name}.c")
    changed_at = max(file.stat().st_mtime for file in (source, *HEADERS))
    if program.exists() and program.stat().st_mtime >= changed_at:
        return program
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise LoadFailed("no C compiler: install gcc (Debian and Ubuntu: apt-get install gcc libc6-dev)")
    BUILD.mkdir(exist_ok=True)
    fresh = BUILD / f"{name}-{os.getpid()}"  # several processes may find it missing at the same time
    command = [compiler, "-O2", "-Wall", "-Wextra", "-o", str(fresh), str(source)]
    # TLS where the headers of OpenSSL are installed; without them `-E` reports what is missing.
    for options in (["-DWITH_TLS", "-lssl", "-lcrypto"], []):
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
    if done.returncode != 0:
        raise LoadFailed(f"{compiler} refused {source.name}:\n{done.stderr}")
    fresh.replace(program)
    return program


def drive(
    endpoint: Endpoint, address: str, mode: str, count: int, *options: str, timeout_s: float = 120
) -> Load:
    """Run the load generator to its end: `mode` is send, recv or both.

    Messages are 1 KiB with properties, as the official clients make them; the window is 1000.

    Raises:
        LoadFailed: an outcome other than accepted, a closed connection, no progress, or out of time.
    """
    return _load(_run(endpoint, address, mode, count, *options, timeout_s=timeout_s))


def hand_out(
    endpoint: Endpoint, address: str, count: int, sessions: int, *options: str, timeout_s: float = 120
) -> HandOut:
    """Fill sessions, and let receivers take the next one again and again until `count` messages are done.

    Raises:
        LoadFailed: as `drive`, or a session that was given to two, without messages, or that is none of ours.
    """
    said = _run(endpoint, address, "next", count, "-g", str(sessions), *options, timeout_s=timeout_s)
    return HandOut(
        steady_rate=said["steady_rate"],
        drain_rate=said["drain_rate"],
        receive_rate=said["recv_rate"],
        wait_s=said["wait_s"],
        times_handed_out=said["times_handed_out"],
        broker_us=said["broker_us_per_session"],
        client_us=said["client_us_per_session"],
    )


class Offer:
    """Messages offered at a rate while other things go on; `load` has the result, at the end."""

    load: Load


@contextlib.contextmanager
def offered(endpoint: Endpoint, address: str, rate: int, seconds_max: int) -> Iterator[Offer]:
    """Send `rate` messages a second while the body runs, for `seconds_max` seconds at most.

    Latencies count from the time at which a send is due. Sends that are refused are counted.

    Raises:
        LoadFailed: a closed connection, or no progress.
    """
    command = _command(endpoint, address)
    command += ["-m", "send", "-n", str(rate * seconds_max), "-r", "-j", "-o", str(rate), "-e", "-f"]
    command += ["-T", str(STALL_S_MAX)]
    offer = Offer()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is connected, or has ended
        try:
            yield offer
        finally:
            said, errors = process.communicate(timeout=2 * STALL_S_MAX)
    if process.returncode != 0:
        raise LoadFailed(errors.strip())
    offer.load = _load(json.loads(said))


@contextlib.contextmanager
def idle_connections(endpoint: Endpoint, address: str, count: int, *options: str) -> Iterator[None]:
    """Hold `count` connections, each with a receiver that gave no credit, while the body runs."""
    command = [*_command(endpoint, address), "-I", str(count), *options]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if not process.stdout.readline():
            raise LoadFailed(process.stderr.read().strip())
        try:
            yield
        finally:
            _, errors = process.communicate(timeout=30)
    if process.returncode != 0:
        raise LoadFailed(errors.strip())


def _command(endpoint: Endpoint, address: str) -> list[str]:
    program = str(compile_loadgen())
    port, pid = str(endpoint.port), str(endpoint.pid)
    return [program, "-p", port, "-u", endpoint.user, "-P", endpoint.password, "-B", pid, "-a", address]


def _run(
    endpoint: Endpoint, address: str, mode: str, count: int, *options: str, timeout_s: float
) -> dict[str, Any]:
    command = [*_command(endpoint, address), "-m", mode, "-n", str(count), "-r", "-j", *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise LoadFailed(f"not done after {timeout_s:.0f} s: {mode} of {count}") from error
    if done.returncode != 0:
        raise LoadFailed(done.stderr.strip() or f"status {done.returncode}")
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def _load(said: dict[str, Any]) -> Load:
    return Load(
        count=said["count"],
        send_rate=said["send_rate"],
        receive_rate=said["recv_rate"],
        broker_us=said["broker_us_per_message"],
        broker_cores=said["broker_cpu_cores"],
        client_us=said["client_us_per_message"],
        latency_us=said["latency_us"],
        seconds=said["seconds"],
        refused=said["refused"],
    )
