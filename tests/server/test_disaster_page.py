"""docs/how-to/recover-from-disaster.md: its commands run as they are, one disaster after the other."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peeklock.cli.running import find
from peeklock.client import BlockingConnection, ConnectionString, encode_message, scan
from peeklock.demo.broker import READY, program
from peeklock.moving.copying import peek

PAGE = (Path(__file__).parents[2] / "docs/how-to/recover-from-disaster.md").read_text(encoding="utf-8")

PORTS = ("--amqp-port=0", "--http-port=0")


def commands_of(heading: str) -> list[str]:
    """Return the commands of a part of the page."""
    part = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", part, re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines()]


def run(folder: Path, command: str, **ports: int) -> str:
    """Run a command, with the ports of the brokers in place of those on the page."""
    for number, port in ports.items():
        command = command.replace(f"localhost:{number[1:]}", f"localhost:{port}")
    words = shlex.split(command)
    assert words[0] == "peeklock"
    done = subprocess.run(
        [program(), *words[1:]], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def served(folder: Path, command: str) -> Iterator[str]:
    """Serve as a command says, on free ports; yield the connection string."""
    words = shlex.split(re.sub(r" --(amqp|http)-port \d+", "", command))
    assert words[:2] == ["peeklock", "serve"]
    with (
        (folder / "broker.log").open("a") as log,
        subprocess.Popen(
            [program(), *words[1:], *PORTS], cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            ready = READY.match(process.stdout.readline().rstrip())
            assert ready is not None, (folder / "broker.log").read_text()[-2000:]
            yield ready[1]
        finally:
            process.terminate()
            process.wait(60)
    assert process.returncode == 0


def port_of(text: str) -> int:
    return ConnectionString.parse(text, timeout_s=10).port


@contextmanager
def connected(text: str) -> Iterator[BlockingConnection]:
    connection = BlockingConnection(ConnectionString.parse(text, timeout_s=10))
    try:
        yield connection
    finally:
        connection.close()


def send(text: str, body: bytes) -> None:
    with connected(text) as connection:
        sender = connection.sender("orders")
        sender.send(encode_message(data=body))
        sender.flush()


def bodies_of(text: str, queue: str = "orders") -> list[bytes]:
    with connected(text) as connection:
        return [scan(each).decode_body()[0][1] for each in peek(connection, queue, 0, 100)]


def test_each_disaster_ends_as_the_page_says(tmp_path: Path) -> None:
    queues = [{"Name": "orders"}]
    (tmp_path / "Config.json").write_text(
        json.dumps({"UserConfig": {"Namespaces": [{"Name": "bank", "Queues": queues}]}})
    )
    with served(tmp_path, "peeklock serve --data ./data --config Config.json --capture ./events") as text:
        send(text, b"one")
        full, increment, dry_run = commands_of("Before it happens")
        run(tmp_path, full)
        send(text, b"two")
        run(tmp_path, increment)
        assert run(tmp_path, dry_run).endswith("whole\n")
    with served(tmp_path, "peeklock serve --data ./data") as text:
        _a_queue_is_deleted(tmp_path, text)
    look, go_on = commands_of("The store is damaged")
    assert "no damage found" in run(tmp_path, look)
    with served(tmp_path, go_on):
        pass
    [start] = commands_of("The event log is lost")
    shutil.rmtree(tmp_path / "events")
    with served(tmp_path, start):
        pass
    shutil.rmtree(tmp_path / "data")
    restore, start = commands_of("The disk or the machine is lost")
    run(tmp_path, restore)
    with served(tmp_path, start) as text:
        assert bodies_of(text) == [b"one", b"two"]
    (tmp_path / "restored").rename(tmp_path / "data")
    _a_key_leaks(tmp_path)


def _a_queue_is_deleted(folder: Path, text: str) -> None:
    find(data=folder / "data").data("DELETE", "/orders?api-version=2021-05")
    restore, start, copy = commands_of("Somebody deleted a queue")
    run(folder, restore)
    with served(folder, start) as other:
        said = run(folder, copy, _5673=port_of(other), _5672=port_of(text))
    assert "copied 1 messages of 'orders' to 'browse/queues/orders'" in said
    assert bodies_of(text) == []
    assert bodies_of(text, "browse/queues/orders") == [b"one"]


def _a_key_leaks(folder: Path) -> None:
    rotate, show, replace = commands_of("A key leaked")
    with served(folder, "peeklock serve --data ./data --auth sas"):
        leaked = run(folder, "peeklock keys add ./data worker --rights Send,Listen")
        assert set(run(folder, rotate).splitlines()[1:]).isdisjoint(leaked.splitlines())
        assert "worker" in run(folder, show)
    run(folder, replace)
