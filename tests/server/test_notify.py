"""What a service manager hears from a broker: its socket is a datagram socket of the test."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess
from peeklock.server.notify import Notifier

WAIT_S_MAX = 20.0


@contextmanager
def manager(address: str) -> Iterator[socket.socket]:
    """Yield the socket of a service manager at a path or, with `@`, at an abstract name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + address[1:] if address.startswith("@") else address)
        receiver.settimeout(WAIT_S_MAX)
        yield receiver


def said(receiver: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in receiver.recv(4096).decode().splitlines())


def until(receiver: socket.socket, variable: str) -> dict[str, str]:
    """Return the next notification with this variable; those before must be signs of life."""
    while True:
        found = said(receiver)
        if variable in found:
            return found
        assert found == {"WATCHDOG": "1"}


def test_a_broker_reports_ready_life_reload_and_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = str(tmp_path / "notify")
    with manager(address) as receiver:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        with BrokerProcess(tmp_path) as broker:
            ready = said(receiver)
            ports = f"{broker.amqp_port} and {broker.http_port}"
            assert ready == {"READY": "1", "STATUS": f"serving on ports {ports}, durability fsync"}
            assert [said(receiver) for _ in range(3)] == [{"WATCHDOG": "1"}] * 3

            assert broker.pid is not None
            before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            os.kill(broker.pid, signal.SIGHUP)
            reloading = until(receiver, "RELOADING")
            assert before_us <= int(reloading["MONOTONIC_USEC"])
            assert until(receiver, "READY") == ready

            assert broker.stop() == 0
            assert until(receiver, "STOPPING")["STOPPING"] == "1"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the abstract namespace")
def test_an_abstract_socket_is_reached() -> None:
    address = f"@peeklock-{os.getpid()}-{time.monotonic_ns()}"
    with manager(address) as receiver:
        Notifier.of_environment({"NOTIFY_SOCKET": address}, 1).ready("here")
        assert said(receiver) == {"READY": "1", "STATUS": "here"}


def test_signs_of_life_come_at_half_of_the_interval_and_stop_with_the_loop(tmp_path: Path) -> None:
    with manager(str(tmp_path / "notify")) as receiver:
        notifier = Notifier(str(tmp_path / "notify"), 100_000)

        async def live() -> None:
            running = asyncio.create_task(notifier.run())
            await asyncio.sleep(0.001)
            time.sleep(0.2)  # noqa: ASYNC251  # holds up the loop on purpose; one sign was sent before
            running.cancel()

        asyncio.run(live())
        assert said(receiver) == {"WATCHDOG": "1"}
        receiver.setblocking(False)
        with pytest.raises(BlockingIOError):
            receiver.recv(1)


@pytest.mark.parametrize(
    "environment",
    [{}, {"WATCHDOG_PID": "2", "WATCHDOG_USEC": "1000"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "x"}],
    ids=["without-watchdog", "of-another-process", "zero", "not-a-number"],
)
def test_no_sign_of_life_is_sent_that_nobody_expects(tmp_path: Path, environment: dict[str, str]) -> None:
    address = str(tmp_path / "notify")
    with manager(address) as receiver:
        asyncio.run(Notifier.of_environment({"NOTIFY_SOCKET": address, **environment}, 1).run())
        receiver.setblocking(False)
        with pytest.raises(BlockingIOError):
            receiver.recv(1)


def test_a_watchdog_of_this_process_is_followed(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_PID": "7", "WATCHDOG_USEC": "1000"}
    with manager(address) as receiver:

        async def live() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(Notifier.of_environment(environment, 7).run(), 0.01)

        asyncio.run(live())
        assert said(receiver) == {"WATCHDOG": "1"}


def test_without_a_manager_nothing_is_sent() -> None:
    silent = Notifier.of_environment({}, 1)
    silent.ready("here")
    silent.reloading()
    silent.stopping()
    asyncio.run(silent.run())


def test_nothing_follows_the_stop(tmp_path: Path) -> None:
    """A reload that the stop cancels ends after it."""
    address = str(tmp_path / "notify")
    with manager(address) as receiver:
        notifier = Notifier(address)
        notifier.stopping()
        notifier.ready()
        assert "STOPPING" in said(receiver)
        receiver.setblocking(False)
        with pytest.raises(BlockingIOError):
            receiver.recv(1)


def test_an_address_of_another_kind_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Notifier.of_environment({"NOTIFY_SOCKET": "vsock:2:1"}, 1).ready("here")
    (record,) = caplog.records
    assert "NOTIFY_SOCKET is 'vsock:2:1', and only a path or @name is supported" in str(record.__dict__)


def test_a_manager_that_is_not_there_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier(str(tmp_path / "missing"))
    with caplog.at_level(logging.WARNING):
        notifier.ready("here")
        notifier.stopping()
    assert len(caplog.records) == 1


def test_a_manager_that_reads_nothing_holds_nothing_up(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with manager(address):
        notifier = Notifier(address)
        begun = time.monotonic()
        for _ in range(2_000):  # the kernel keeps some 10 to 300 for it
            notifier.ready("here")
        assert time.monotonic() - begun < WAIT_S_MAX / 2
