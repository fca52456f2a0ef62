"""The flood does what its attacks say, with a real broker; and it measures what a good client notices."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bench.floods import ATTACKS, FLOODED, GOOD, flood_command, measure, prepare
from bench.loadgen import compiled, drive
from bench.systems import Peeklock

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

FRAMES = 1000
"""Of each of the peers; they come in blocks of 64 KiB."""

ANSWERED_BYTES = {
    "begin-end": 10_000,
    "session-flows": 10_000,
    "good-tokens": 10_000,
    "unsettled-dispositions": 100 * 1024,  # deliveries
    "peeks": 30 * 32 * 1024,
}
"""What the broker answers at least: the attack reaches what it attacks. The close drops peeks that wait."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peeklock]:
    system = Peeklock(tmp_path_factory.mktemp("broker"), (GOOD, FLOODED))
    system.start()
    prepare(system.endpoint(), ATTACKS["peeks"])
    yield system
    system.stop()


def flood(*command: str) -> dict[str, Any]:
    """Run a flood until it ends by itself."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "flooding\n"
        said: dict[str, Any] = json.loads(process.stdout.read())
    assert process.returncode == 0
    return said


@pytest.mark.parametrize("name", list(ATTACKS))
def test_each_attack_sends_many_frames_and_the_broker_serves_on(broker: Peeklock, name: str) -> None:
    said = flood(*flood_command(broker.endpoint(), ATTACKS[name], 2), "-c", str(FRAMES), "-T", "30")
    assert said["frames"] >= 2 * FRAMES
    assert said["bytes"] >= said["frames"] * 8
    assert said["connections"] == 2 + said["ended"]
    assert said["bytes_read"] >= ANSWERED_BYTES.get(name, 0)
    drive(broker.endpoint(), GOOD, "both", 10)


def test_a_good_client_is_measured_beside_a_flood(broker: Peeklock) -> None:
    found = measure(broker.endpoint(), 0.2, ATTACKS["dispositions"], 1)
    assert 0 < found.p999_ms <= found.max_ms
    assert found.refused >= 0
    assert found.frames_per_s > 0
    assert found.health.lag_ms is not None


def test_a_connection_that_is_ended_is_opened_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def end_three() -> None:
            for _ in range(3):
                listener.accept()[0].close()
            listener.accept()[0].recv(65_536)

        thread = threading.Thread(target=end_three)
        thread.start()
        port = str(listener.getsockname()[1])
        said = flood(str(compiled("flood")), "-k", "begin-end", "-p", port, "-T", "1")
        thread.join()
    assert said["ended"] >= 3
    assert said["connections"] >= 4


def test_a_flood_ends_with_its_input() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        command = [str(compiled("flood")), "-k", "begin-end", "-p", port]
        done = subprocess.run(command, input="", capture_output=True, text=True, timeout=30, check=True)
    assert json.loads(done.stdout.splitlines()[1])["ended"] == 0


@pytest.mark.parametrize(
    "options",
    [
        ["-k", "dance", "-p", "5672"],
        ["-k", "begin-end"],
        ["-k", "begin-end", "-p", "5672", "-n", "0"],
        ["-k", "begin-end", "-p", "5672", "-h", "192.0.2.1"],
        ["-p", "5672"],
    ],
)
def test_bad_options_show_the_usage(options: list[str]) -> None:
    """There is none for a host: it connects to the loopback interface alone."""
    done = subprocess.run([str(compiled("flood")), *options], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "usage: flood" in done.stderr
