"""What is kept of jobs, how many, and what is left of one that does not start."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from peeklock.admin.exchange import AdminRequest, Response
from peeklock.api.exchange import ApiExchange, Steer
from peeklock.auth.rights import ALL_RIGHTS, Grant, Proof
from peeklock.broker.vocabulary.errors import ServerBusy
from peeklock.server.workers import children, jobs
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
        if kept is None:
            del self.kept[job_id]


def grant_of(name: str) -> Grant:
    return Grant(ALL_RIGHTS, "", None, Proof("", name, ""), name)


class Steered:
    """The jobs of a namespace, and who steers them."""

    def __init__(self, facts: Facts | None = None) -> None:
        self.facts = facts or Facts()
        self.refusal: Exception | None = None
        """What the broker's end of a child's socket is refused with."""
        self.children = Children()
        self.jobs = Jobs("ns", self.children, self._attach, self.facts, lambda: 0)
        broker = ApiBroker()
        self._exchange = ApiExchange(broker.admin_context, AdminRequest("POST", "/$api/v1/jobs"), 0)

    async def _attach(self, sock: socket.socket, grants: object) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def do(self, do: Any, job_id: str = "", by: str = "root") -> Response:
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        order = ORDER if do == "start" else None
        asked = Steer(
            self._exchange, do, lambda job, owner: True, job_id, order, lambda job: (grant_of(by),), by
        )
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


def run(steer: Callable[[Steered], Coroutine[Any, Any, None]], facts: Facts | None = None) -> None:
    """Steer jobs that are durable at once."""

    async def bounded() -> None:
        steered = Steered(facts)
        steered.facts.may_be_durable.set()
        await steer(steered)

    asyncio.run(asyncio.wait_for(bounded(), 30))


def kept(count: int, state: str, by: str, first: int = 0) -> dict[str, Any]:
    """Return what is kept of some jobs."""
    return {
        str(n): {
            "shown": {"id": str(n), "createdAt": f"{n:09}", "state": state, "by": by, "done": 0},
            "work": {},
            "owner": grant_of(by).identity,
            "checkpoint": {"some": 1},
        }
        for n in range(first, first + count)
    }


@pytest.mark.parametrize("state", ["done", "failed"])
def test_jobs_that_have_ended_make_room_the_oldest_first(command: list[str], state: str) -> None:
    async def steer(steered: Steered) -> None:
        assert (await steered.do("start", by="c")).status == 201
        assert "0" not in steered.facts.kept
        assert len(steered.facts.kept) == jobs.KEPT_MAX

    facts = Facts()
    for n, by in enumerate("abcd"):
        facts.kept.update(kept(jobs.KEPT_OF_KEY_MAX - (by == "c"), state, by, n * 1000))
    facts.kept.update(kept(1, state, "e", 9000))
    assert len(facts.kept) == jobs.KEPT_MAX
    run(steer, facts)


def test_the_jobs_of_one_key_leave_room_for_those_of_others(command: list[str]) -> None:
    async def steer(steered: Steered) -> None:
        refused = await steered.do("start", by="reader")
        assert refused.status == 409
        assert b"50 jobs of this key" in refused.body
        assert (await steered.do("start", by="root")).status == 201
        assert (await steered.do("forget", "0")).status == 204
        assert (await steered.do("start", by="reader")).status == 201

    facts = Facts()
    facts.kept.update(kept(jobs.KEPT_OF_KEY_MAX, "stopped", "reader"))
    run(steer, facts)


@pytest.mark.parametrize("checkpoint", [None, {"some": 1}])
def test_a_job_that_cannot_be_resumed_is_kept_as_it_was(command: list[str], checkpoint: Any) -> None:
    async def steer(steered: Steered) -> None:
        before = json.loads(json.dumps(steered.facts.kept))
        steered.refusal = ServerBusy("no room")
        assert (await steered.do("resume", "0", by="other")).status == 503
        found = json.loads(json.dumps(steered.facts.kept))
        found["0"]["shown"].pop("updatedAt", None)
        assert found == before
        steered.refusal = None
        assert (await steered.do("resume", "0")).status == 202

    facts = Facts()
    facts.kept.update(kept(1, "stopped", "root"))
    facts.kept["0"]["checkpoint"] = checkpoint
    run(steer, facts)


def test_nothing_is_left_of_a_job_or_a_child_that_cannot_start(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steer(steered: Steered) -> None:
        steered.refusal = ServerBusy("no room")
        for _ in range(children.CHILDREN_OF_KEY_MAX + 1):
            assert (await steered.do("start")).status == 503
        assert steered.facts.kept == {}
        assert json.loads((await steered.do("list")).body) == {"jobs": []}
        for process in started:
            await asyncio.to_thread(process.wait)
        gc.collect()  # a socket that is not closed warns, which fails the test

    started: list[subprocess.Popen[bytes]] = []
    spawn = children._spawn

    def noted(*given: Any) -> subprocess.Popen[bytes]:
        started.append(spawn(*given))
        return started[-1]

    monkeypatch.setattr(children, "_spawn", noted)
    command.append("waits")
    run(steer)
    assert len(started) == children.CHILDREN_OF_KEY_MAX + 1


def test_one_key_cannot_have_all_children_of_a_namespace(command: list[str]) -> None:
    async def steer(steered: Steered) -> None:
        for _ in range(children.CHILDREN_OF_KEY_MAX):
            assert (await steered.do("start", by="reader")).status == 201
        refused = await steered.do("start", by="reader")
        assert refused.status == 503
        assert b"6 searches and jobs of this key are under way" in refused.body
        assert (await steered.do("start", by="root")).status == 201
        steered.jobs.stop()

    command.append("waits")
    run(steer)


def test_nothing_is_kept_of_a_job_after_the_end_of_its_namespace(command: list[str]) -> None:
    async def steer(steered: Steered) -> None:
        await steered.do("start")
        steered.jobs.stop()
        steered.facts.kept.clear()  # as the end of the namespace does
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert steered.facts.kept == {}
        job = await steered.shown()
        assert (await steered.do("resume", job["id"])).status in (409, 503)
        assert steered.facts.kept == {}

    run(steer)
