"""The works of a namespace whose clients wait for their streams."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from peeklock.admin.exchange import AdminRequest
from peeklock.api.exchange import EVENTS, ApiExchange, Work
from peeklock.server.workers import children
from peeklock.server.workers.children import Children
from peeklock.server.workers.hub import WorkHub
from tests.api.asking import ApiBroker

CHILD = """
import sys
sys.stdin.readline()
while True:
    print("x" * 65536, flush=True)
"""
"""A worker that writes for ever."""


def test_a_stop_ends_a_work_whose_client_reads_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    monkeypatch.setattr(children, "COMMAND", [sys.executable, str(script)])

    async def attach(sock: socket.socket, grants: object) -> None:
        pass

    async def check() -> None:
        hub = WorkHub("ns", Children(), attach)
        is_slow, has_ended = asyncio.Event(), asyncio.Event()

        def take(some: bytes | None) -> None:
            hub.slow(1, is_slow=True)  # and it never reads on
            (has_ended if some is None else is_slow).set()

        exchange = ApiExchange(ApiBroker().admin_context, AdminRequest("POST", "/$api/v1/searches"), 0)
        assert hub.begin(Work(exchange, (), "root", {}, EVENTS), lambda answer: None, take) == 1
        await is_slow.wait()
        hub.stop()
        await has_ended.wait()
        assert not len(hub)

    asyncio.run(asyncio.wait_for(check(), 10))
