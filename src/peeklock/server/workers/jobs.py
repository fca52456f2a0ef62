"""The jobs of one namespace: started, followed, kept, stopped and resumed.

Theory of operation. A job is a record, which is a fact of the process, and while it runs a child. The child
writes its checkpoints here; each is durable before the child goes on. A child that ends says why. If it was
killed, the job is interrupted, as all jobs are that ran when the broker ended. To resume is to start another
child with the checkpoint, and with the grants of who asks.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from peeklock.admin.exchange import Response
from peeklock.api.exchange import Steer, answer_json
from peeklock.api.instants import write_instant
from peeklock.api.problems import NotHere
from peeklock.auth.rights import Grant
from peeklock.broker.vocabulary.errors import InvalidOperation, ServerBusy, ServiceBusError
from peeklock.server import log
from peeklock.server.workers.children import LINE_BYTES_MAX, Child, Children, in_background
from peeklock.store.base import StoreError

Attach = Callable[[socket.socket, Sequence[Grant]], Awaitable[None]]

KEPT_MAX: Final = 200
KEPT_OF_KEY_MAX: Final = 50
"""Jobs of a namespace, and of one key there, that are kept. Those that are done or have failed are forgotten
beyond this, the oldest first. Our choice: a page for a person; a key cannot take the places of all others."""

RUNNING: Final = "running"
STOPPED: Final = "stopped"
INTERRUPTED: Final = "interrupted"
DONE: Final = "done"
FAILED: Final = "failed"

_FORGETTABLE: Final = (DONE, FAILED)

DISOWNED: Final = " "
"""The owner of a job whose key was removed: no identity."""

_UNAUTHORIZED: Final = 401


class Facts(Protocol):
    """Where jobs are kept."""

    def all(self) -> dict[str, Any]: ...

    async def put(self, job_id: str, kept: Mapping[str, Any] | None) -> None: ...


class NoFacts:
    """Keeps nothing: the namespace ends without a trace."""

    def all(self) -> dict[str, Any]:
        return {}

    async def put(self, job_id: str, kept: Mapping[str, Any] | None) -> None:
        pass


@dataclass(slots=True)
class _Record:
    """One job."""

    shown: dict[str, Any]
    """As JSON of the API."""
    work: Mapping[str, Any]
    """For the child."""
    owner: str
    """Who started or resumed it last, see `Grant.identity`; `DISOWNED` = a key that was removed."""
    checkpoint: Any = None
    child: Child | None = None
    is_stopping: bool = False
    began_s: float = 0.0
    began_with: int = 0
    """Messages that were done when this run began."""

    def drop_work(self) -> None:
        """Forget what only a job that goes on needs: up to half a megabyte."""
        self.work, self.checkpoint = {}, None

    @property
    def kept(self) -> dict[str, Any]:
        """What is kept of it."""
        return {
            "shown": self.shown,
            "work": self.work,
            "owner": self.owner,
            "checkpoint": self.checkpoint,
        }

    @property
    def may_be_forgotten(self) -> bool:
        """Whether another job may take its place."""
        return self.child is None and self.shown["state"] in _FORGETTABLE

    def json(self) -> dict[str, Any]:
        """Return it as JSON of the API."""
        found = dict(self.shown)
        if "of" in found:
            found["left"] = max(0, found["of"] - found["done"])
        if found["state"] == RUNNING and "of" in found:
            spent_s = max(time.monotonic() - self.began_s, 0.001)
            found["perSecond"] = round((found["done"] - self.began_with) / spent_s, 1)
        return found


class Jobs:
    """The jobs of one namespace."""

    def __init__(
        self, namespace: str, children: Children, attach: Attach, facts: Facts, now_ms: Callable[[], int]
    ) -> None:
        """Read what is kept. Those that ran are interrupted. Raises: StoreDamaged."""
        self._namespace = namespace
        self._children = children
        self._attach = attach
        self._facts = facts
        self._now_ms = now_ms
        self._is_stopping = False
        found = [
            _Record(each["shown"], each["work"], each.get("owner", ""), each["checkpoint"])
            for each in facts.all().values()
        ]
        found.sort(key=lambda record: str(record.shown["createdAt"]))
        self._records = {record.shown["id"]: record for record in found}
        for record in found:
            if record.shown["state"] == RUNNING:
                record.shown["state"] = INTERRUPTED

    def steer(self, asked: Steer, then: Callable[[Response], None]) -> None:
        """Do what is asked, and call `then` with the answer, now or later."""

        async def answer() -> None:
            try:
                found = await self._steer(asked)
            except asked.exchange.refused_on as failure:
                found = asked.exchange.refusal(failure)  # type: ignore[arg-type]  # one of `refused_on`
            except StoreError as failure:
                found = asked.exchange.refusal(ServerBusy(f"the job cannot be kept: {failure}"))
            then(found)

        in_background(answer())

    def stop(self) -> None:
        """End all children. Jobs that run are interrupted: their facts say so after the next start."""
        self._is_stopping = True
        for record in self._records.values():
            if record.child is not None:
                record.child.kill()

    def disown(self, identities: Collection[str]) -> None:
        """Keep the jobs of removed keys from keys that are made later under their names."""
        disowned = [record for record in self._records.values() if record.owner in identities]
        for record in disowned:
            record.owner = DISOWNED

        async def keep() -> None:
            with self._logged("the owner of a job cannot be stored"):
                for record in disowned:
                    await self._put(record)

        if disowned:
            in_background(keep())

    async def _steer(self, asked: Steer) -> Response:
        if asked.do == "list":
            seen = [each for each in self._records.values() if asked.sees(each.shown, each.owner)]
            return answer_json({"jobs": [record.json() for record in reversed(seen)]})
        if asked.do == "start":
            return await self._start(asked)
        record = self._records.get(asked.job_id)
        if record is None or not asked.sees(record.shown, record.owner):
            raise NotHere(f"There is no job '{asked.job_id[:64]}'.")
        if asked.do == "stop":
            self._require(record, RUNNING, "it does not run")
            record.is_stopping = True
            if record.child is not None:
                record.child.order({"stop": True})
        elif asked.do == "resume":
            return await self._resume(record, asked)
        elif asked.do == "forget":
            self._require(record, None, "it runs: stop it first")
            await self._forget(record)
            return Response(204)
        return answer_json(record.json(), 200 if asked.do == "show" else 202)

    def _require(self, record: _Record, state: str | None, why: str) -> None:
        """Raise InvalidOperation unless a job is in a state; None = in any but running."""
        is_running = record.child is not None or record.shown["state"] == RUNNING
        if is_running != (state == RUNNING):
            raise InvalidOperation(f"The job {record.shown['id']} is {record.shown['state']}: {why}.")

    async def _start(self, asked: Steer) -> Response:
        assert asked.order is not None
        now = write_instant(self._now_ms())
        job_id = uuid.uuid4().hex
        shown = {
            "id": job_id,
            **asked.order["shown"],
            "state": RUNNING,
            "by": asked.by,
            "createdAt": now,
            "updatedAt": now,
            "done": 0,
        }
        grants = asked.grants(shown)
        owner = grants[0].identity
        self._require_child(owner)
        replaced = self._replaced(owner)
        for each in replaced:  # at once: nobody may resume it, or replace it again
            del self._records[each.shown["id"]]
        record = self._records[job_id] = _Record(shown, asked.order["work"], owner)
        try:
            for each in replaced:
                await self._forget(each)
            await self._begin(record, grants)
        except BaseException:
            with self._logged("a job that has not started stays"):
                await self._forget(record)
            raise
        log.info("job started", {name: shown[name] for name in ("id", "work", "entity", "by")})
        return answer_json(record.json(), 201)

    async def _resume(self, record: _Record, asked: Steer) -> Response:
        self._require(record, None, "it runs")
        if record.shown["state"] == DONE:
            raise InvalidOperation(f"The job {record.shown['id']} is done.")
        grants = asked.grants(record.shown)
        self._require_child(grants[0].identity)
        before = dict(record.shown), record.owner
        record.owner = grants[0].identity
        record.shown.update(state=RUNNING, by=asked.by)
        record.shown.pop("problem", None)
        try:
            await self._begin(record, grants)
        except BaseException:
            record.shown, record.owner = before
            with self._logged("a job that was not resumed is kept as one that runs"):
                await self._put(record)
            raise
        return answer_json(record.json(), 202)

    def _require_child(self, owner: str) -> None:
        """Raise ServerBusy if there can be no further child."""
        if self._is_stopping:
            raise ServerBusy("the broker stops")
        self._children.require_room(self._namespace, owner)

    def _replaced(self, owner: str) -> list[_Record]:
        """Return which jobs a further one takes the places of. Raises: InvalidOperation."""
        kept = [*self._records.values()]
        found: list[_Record] = []
        own = [record for record in kept if record.owner == owner]
        for records, count_max, whose in ((own, KEPT_OF_KEY_MAX, " of this key"), (kept, KEPT_MAX, "")):
            if len(records) - len(found) < count_max:
                continue
            oldest = next((each for each in records if each.may_be_forgotten), None)
            if oldest is None:
                raise InvalidOperation(
                    f"There are {count_max} jobs{whose} that run, or were stopped or interrupted: "
                    "resume or forget some."
                )
            found.append(oldest)
        return found

    async def _forget(self, record: _Record) -> None:
        """Forget a job. Raises: StoreError; it may then come back at the next start."""
        self._records.pop(record.shown["id"], None)
        if not self._is_stopping:
            await self._facts.put(record.shown["id"], None)

    @contextmanager
    def _logged(self, what: str) -> Iterator[None]:
        """Log a failure of the store beside the one that is told."""
        try:
            yield
        except StoreError as failure:
            log.warning(what, {"reason": str(failure)})

    # A run

    async def _begin(self, record: _Record, grants: Sequence[Grant]) -> None:
        """Start the child of a job. Raises: ServerBusy, StoreError."""
        record.is_stopping = False  # from here on it may be asked to stop
        await self._keep(record)

        async def attach(sock: socket.socket) -> None:
            await self._attach(sock, grants)

        work = {**record.work, "namespace": self._namespace, "checkpoint": record.checkpoint}
        try:
            record.child = await self._children.start(
                self._namespace, record.owner, work, attach, kept_bytes_max=LINE_BYTES_MAX
            )
        except (ServiceBusError, OSError) as failure:
            log.warning("a process for a job cannot be started", {"reason": str(failure)})
            raise ServerBusy(f"a process for the job cannot be started: {failure}") from failure
        if self._is_stopping:
            record.child.kill()
        elif record.is_stopping:  # asked before there was a child
            record.child.order({"stop": True})
        record.began_s, record.began_with = time.monotonic(), record.shown["done"]
        in_background(self._follow(record, record.child))

    async def _follow(self, record: _Record, child: Child) -> None:
        """Take what a child writes until it ends."""
        outcome: dict[str, Any] = {"state": INTERRUPTED, "problem": "the process of the job has ended early"}
        try:
            while (line := await child.read_line()) is not None:
                found = self._take(record, line)
                if found is not None:
                    outcome = found
                elif "checkpoint" in line:
                    await self._keep(record)
                    child.order({"saved": True})
        except StoreError as failure:
            outcome = {"state": INTERRUPTED, "problem": f"its checkpoint cannot be kept: {failure}"}
            child.kill()
        await child.ended()
        record.child = None
        if self._is_stopping:
            return  # the next start finds that it ran
        record.shown.update(outcome)
        if outcome["state"] == DONE:
            record.drop_work()
        with self._logged("the end of a job cannot be kept"):
            await self._keep(record)
        log.info("job ended", {"id": record.shown["id"], **outcome, "done": record.shown["done"]})

    def _take(self, record: _Record, line: Mapping[str, Any]) -> dict[str, Any] | None:
        """Take a line of a child; return what the job becomes, None = it goes on."""
        shown = record.shown
        if "begun" in line:
            shown.update(of=line["begun"]["of"], guarantee=line["begun"]["guarantee"])
            record.began_s, record.began_with = time.monotonic(), shown["done"]
        elif "progress" in line:
            shown["done"] = line["progress"]
        elif "checkpoint" in line:
            record.checkpoint, shown["done"] = line["checkpoint"], line["done"]
        elif "end" in line:
            end = line["end"]
            shown["done"] = end["done"]
            if end["isStopped"]:
                return {"state": STOPPED}
            if end["left"]:
                left = f"{end['left']:,} messages are left: other receivers hold them, or have taken them."
                return {"state": STOPPED, "problem": left}
            return {"state": DONE}
        elif "problem" in line:
            problem = line["problem"]
            if problem["status"] == _UNAUTHORIZED:
                return {"state": STOPPED, "problem": _rights_ended(shown)}
            return {"state": FAILED, "problem": problem["detail"]}
        return None

    async def _keep(self, record: _Record) -> None:
        record.shown["updatedAt"] = write_instant(self._now_ms())
        await self._put(record)

    async def _put(self, record: _Record) -> None:
        """Keep a job as it is, unless it is forgotten, or the namespace has ended. Raises: StoreError.

        A namespace that ends may be followed by one of its name, which would have the job.
        """
        if record.shown["id"] in self._records and not self._is_stopping:
            await self._facts.put(record.shown["id"], record.kept)


def _rights_ended(shown: Mapping[str, Any]) -> str:
    """Return why a job has stopped whose key was removed, or its value or rights changed."""
    rights = f"{'Send' if shown['work'] == 'reschedule' else 'Listen'} on '{shown['entity']}'"
    if "to" in shown:
        rights += f" and Send on '{shown['to']}'"
    return (
        f"The key or role '{shown['by']}', with whose rights the job worked, was removed or changed: resume "
        f"the job with one that has {rights}."
    )
