"""What is kept of a job, and orders that come while it starts."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from peeklock.admin.exchange import AdminRequest, Response
from peeklock.api.exchange import ApiExchange, Steer
from peeklock.server.workers import children
from peeklock.server.workers.children import Children
from peeklock.server.workers.jobs import Jobs
from tests.api.asking import ApiBroker

CHILD = """
import json, sys
sys.stdin.readline()
print(json.dumps({"begun": {"of": 1, "guarantee": ""}}), flush=True)
for line in sys.stdin if "waits" in sys.argv else ():
    if "stop" in json.loads(line):
        print(json.dumps({"end": {"done": 0, "left": 0, "isStopped": True}}), flush=True)
        sys.exit()
print(json.dumps({"end": {"done": 1, "left": 0, "isStopped": False}}), flush=True)
"""
"""A worker without a work. With `waits` it ends when it is told to stop."""

ORDER = {"shown": {"work": "purge", "entity": "q"}, "work": {"work": "job", "plan": {"numbers": [1] * 9}}}


class Facts:
    """Facts in memory, which are durable once they may be."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.may_be_durable = asyncio.Event()

    def all(self) -> dict[str, Any]:
        return self.kept

    async def put(self, job_id: str, kept: Mapping[str, Any] | None) -> None:
        text = json.dumps(kept)
        await self.may_be_durable.wait()
        self.kept[job_id] = json.loads(text)


class Steered:
    """The jobs of a namespace, and who steers them."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.jobs = Jobs("ns", Children(), lambda sock, grants: asyncio.sleep(0), self.facts, lambda: 0)
        broker = ApiBroker()
        self._exchange = ApiExchange(broker.admin_context, AdminRequest("POST", "/$api/v1/jobs"), 0)

    async def do(self, do: Any, job_id: str = "") -> Response:
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        asked = Steer(self._exchange, do, lambda job: True, job_id, ORDER if do == "start" else None)
        self.jobs.steer(asked, answer.set_result)
        return await answer

    async def shown(self) -> dict[str, Any]:
        [job] = json.loads((await self.do("list")).body)["jobs"]
        return dict(job)

    async def ended(self) -> dict[str, Any]:
        while (job := await self.shown())["state"] == "running":  # noqa: ASYNC110  # a job tells nobody that it ends
            await asyncio.sleep(0.01)
        return job


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have jobs run `CHILD`; return its command, to which arguments may be added."""
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    made = [sys.executable, str(script)]
    monkeypatch.setattr(children, "COMMAND", made)
    return made


def test_a_job_that_is_stopped_before_its_start_is_durable_stops(command: list[str]) -> None:
    async def steer() -> None:
        steered = Steered()
        started = asyncio.ensure_future(steered.do("start"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        job = await steered.shown()
        assert (await steered.do("stop", job["id"])).status == 202
        steered.facts.may_be_durable.set()
        assert (await started).status == 201
        assert (await steered.ended())["state"] == "stopped"

    command.append("waits")
    asyncio.run(asyncio.wait_for(steer(), 30))


def test_of_a_job_that_is_done_only_what_is_shown_is_kept(command: list[str]) -> None:
    async def steer() -> None:
        steered = Steered()
        steered.facts.may_be_durable.set()
        await steered.do("start")
        job = await steered.ended()
        assert (job["state"], job["done"]) == ("done", 1)
        [kept] = steered.facts.kept.values()
        assert (kept["work"], kept["checkpoint"]) == ({}, None)

    asyncio.run(asyncio.wait_for(steer(), 30))
