"""A work that needs more memory than its process may have."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

import pytest

from peeklock.client import BlockingConnection, ConnectionString
from peeklock.demo.broker import BrokerProcess
from peeklock.server.workers.children import Children
from peeklock.worker.memory import DATA_BYTES_MAX
from tests.server.workers.asking import Client
from tests.server.workers.conftest import CONFIG, fill
from tests.server.workers.test_jobs import start, wait

LOW_MIB = 40

LOWERED = f"""\
import resource, sys
if "peeklock.worker" in sys.orig_argv:
    resource.setrlimit(resource.RLIMIT_DATA, ({LOW_MIB} << 20,) * 2)
"""
"""A system whose limit for processes is lower than ours."""

LARGE = b"a" * 250_000
GREEDY = {"regex": "^(a|b)*c"}
"""Over the large body it needs 22 MB, and half a second."""


def test_a_work_beyond_its_memory_ends_with_a_message_and_the_broker_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(LOWERED)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    config = tmp_path / "Config.json"
    config.write_text(json.dumps(CONFIG))
    with BrokerProcess(tmp_path, ["--durability=os", f"--config={config}"]) as broker:
        client = Client(broker)
        connection = BlockingConnection(ConnectionString.parse(broker.connection_string))
        fill(connection, 2, data=LARGE)
        connection.close()
        name, problem = client.events("/search", {"entity": "orders", **GREEDY})[-1]
        assert (name, problem["title"], problem["status"]) == ("problem", "Out of memory", 409)
        assert f"{LOW_MIB} MiB" in problem["detail"]
        job = wait(client, start(client, work="move", entity="orders", to="repaired", criteria=GREEDY))
        assert (job["state"], job["problem"]) == ("failed", problem["detail"])
        assert client.events("/search", {"entity": "orders", "limit": 1, "bodyBytesMax": 0})[-1][0] == "end"
        assert client.ask("GET", "/entities/orders")[1]["counts"]["active"] == 2


def test_a_process_may_have_so_much() -> None:
    async def limits() -> str:
        served: list[socket.socket] = []

        async def attach(sock: socket.socket) -> None:
            served.append(sock)

        work = {"work": "search", "namespace": "ns", "entities": ["orders"], "criteria": {}}
        child = await Children().start("ns", "", work, attach)
        assert await child.read()  # its first figures; it waits for an answer then
        found = await asyncio.to_thread(Path(f"/proc/{child.pid}/limits").read_text)
        child.kill()
        await child.ended()
        served[0].close()
        return found

    [line] = [line for line in asyncio.run(limits()).splitlines() if line.startswith("Max data size")]
    assert line.split()[3] == str(DATA_BYTES_MAX)
