"""Carries out a plan on a broker under load; then drains everything, and judges.

Owns: the order of what happens in a run. Must not know: what clients do; how samples are compared.
"""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from peeklock.client import BlockingConnection, ConnectionString, ServiceBusError
from peeklock.demo.broker import BrokerFailed
from tests.audit import LEDGERS
from tests.kill.ledger import Broken
from tests.kill.loop import QUEUE
from tests.soak import events
from tests.soak.copies import Copies
from tests.soak.features import Browsing, Deferring, Expiring, Feature, Large, Scheduling, Taking, Turning
from tests.soak.features_held import Chatting, Reading
from tests.soak.loads import TICK_S, BankLoad, Load, MessagesLoad, TopicsLoad
from tests.soak.official import Entities, Official
from tests.soak.plan import Event, Kind, plan
from tests.soak.site import CLOCK_STEP_S_MAX, NAMESPACE, SECOND, TURNING, Site
from tests.soak.watch import Sample, Watch

SAMPLES_A_RUN = 720
"""At most; so a sample comes every 1 to 5 s."""
JOIN_S_MAX = 90.0
BANK_QUEUES_MADE_AGAIN = ("book", "plans", "forwarding", "savings", "current", "cash")


@dataclass(slots=True)
class Mark:
    """An event that was carried out."""

    at_s: float
    kind: Kind
    took_s: float


@dataclass(slots=True)
class Outcome:
    """All that a run has found."""

    seed: int
    minutes: float
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    figures: dict[str, dict[str, int]] = field(default_factory=dict)
    """By client."""
    starts_s: list[float] = field(default_factory=list)
    """How long each start took."""
    interrupted: bool = False
    without_clock: bool = False


class Conductor:
    """One run."""

    def __init__(
        self, folder: Path, seed: int, minutes: float, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.site = Site(folder)
        self.outcome = Outcome(seed, minutes, without_clock=self.site.clock is None)
        self.interrupt = asyncio.Event()
        """Ends the run early; it is judged all the same."""
        self.last = "start"
        self._say = say
        self._random = Random(seed)
        self._span_s = minutes * 60
        self._plan = plan(seed, minutes)
        self._folder = folder
        self._seed = seed
        self._copies = Copies(self.site, seed)
        self._watch = Watch(self.site, min(5.0, max(1.0, self._span_s / SAMPLES_A_RUN)))
        self._messages = MessagesLoad(self.site.broker, folder / "messages", seed)
        self._topics = TopicsLoad(self.site.broker, folder / "topics", seed)
        self._banks = 0
        self._bank: BankLoad
        self._features: list[Feature] = []
        self._reloads = 0
        self._is_paused = True

    @property
    def _loads(self) -> tuple[Load, ...]:
        return self._messages, self._topics, self._bank

    async def run(self) -> Outcome:
        """Run, and return what was found; a broken promise is among the failures."""
        try:
            with self.site.clocked():
                await self._run()
        except (Broken, BrokerFailed) as failure:
            self.outcome.failures.append(str(failure))
        except Exception:  # a defect of the soak or of a client: what was seen so far is drawn all the same
            self.outcome.failures.append(traceback.format_exc())
        finally:
            self._watch.stopping.set()
            for feature in self._features:
                feature.stopping.set()
            self.site.broker.kill()
        self.outcome.samples = self._watch.samples
        self.outcome.seconds = self._watch.now_s()
        return self.outcome

    async def _run(self) -> None:
        await self._begin()
        ticking = asyncio.create_task(self._tick())
        try:
            for event in self._plan:
                if not await self._wait_until(event.at_s, ticking):
                    break
                await self._do(event)
            await self._wait_until(self._span_s, ticking)
        finally:
            ticking.cancel()
            with suppress(asyncio.CancelledError):
                await ticking
        self.outcome.interrupted = self.interrupt.is_set()
        await self._end()

    async def _wait_until(self, at_s: float, ticking: asyncio.Task[None]) -> bool:
        """Wait for a time of the run; return whether to go on. Raises what a client has found."""
        stopping = asyncio.create_task(self.interrupt.wait())
        left_s = max(0.0, at_s - self._watch.now_s())
        await asyncio.wait({ticking, stopping}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if ticking.done():
            ticking.result()
        return not self.interrupt.is_set()

    async def _tick(self) -> None:
        said_s = 0.0
        while True:
            await asyncio.sleep(TICK_S)
            self._check_features()
            if not self._is_paused:
                for load in self._loads:
                    load.tick()
                    load.keep_alive()
                    load.check()
            if self._watch.now_s() - said_s > 5:
                said_s = self._watch.now_s()
                self._say(self._progress())

    def _check_features(self) -> None:
        for feature in self._features:
            if feature.failure is not None:
                raise Broken(f"{feature.queue}: {feature.failure!r}") from feature.failure

    def _progress(self) -> str:
        left_s = max(0, round(self._span_s - self._watch.now_s()))
        parts = [f"{left_s // 60:3}:{left_s % 60:02} left", f"life {self._watch.life}"]
        if self._watch.samples:
            now = self._watch.samples[-1].values
            for name in ("received, 1/s", "messages held", "memory, MB", "data folder, MB"):
                if name in now:
                    parts.append(f"{name.split(',')[0]} {now[name]:.0f}")
        return "  ".join(
            [*parts, f"{len(self.outcome.marks)} of {len(self._plan)} events, last: {self.last}"]
        )

    # The beginning

    async def _begin(self) -> None:
        await self._start()
        await asyncio.to_thread(self._copies.keep)
        await self._topics.make()
        await self._open_bank()
        for load in self._loads:
            await load.begin()
        await asyncio.to_thread(self._make_features)
        for feature in self._features:
            feature.start()
        self._is_paused = False
        self._watch.start()

    async def _open_bank(self) -> None:
        account = await asyncio.to_thread(self.site.second_account)
        scratch = self._folder / f"bank-{self._banks}"
        self._bank = BankLoad(self.site.broker, scratch, self._seed + self._banks, account)
        self._banks += 1

    def _make_features(self) -> None:
        def settings(*, tls: bool) -> Callable[[], ConnectionString]:
            text = self.site.connection_string(tls=tls)
            ca = str(self.site.broker.authority()) if tls else None
            return lambda: ConnectionString.parse(text, ca_file=ca, timeout_s=60)

        def turning() -> ConnectionString:
            return ConnectionString.parse(self.site.connection_string(TURNING, self.site.turning_key))

        seed, over_tls, plain = self._seed, settings(tls=True), settings(tls=False)
        self._features = [
            Deferring("deferring", over_tls, seed),
            Scheduling("scheduling", plain, seed),
            Expiring("expiring", over_tls, seed),
            Taking("taking", plain, seed),
            Large("large", over_tls, seed),
            Browsing("work", plain, seed),
            Turning("turning", turning, seed),
            Chatting("chatting", over_tls, seed),
            Reading("reading", plain, seed),
            Official("official", plain, seed, self.site),
            Entities("entities", plain, seed, self.site),
        ]

    # Events

    async def _do(self, event: Event) -> None:
        if event.kind is Kind.CLOCK and self.site.clock is None:
            return
        at_s, started = self._watch.now_s(), time.monotonic()
        try:
            await self._action(event.kind)()
        except (Broken, BrokerFailed):
            if self.interrupt.is_set():
                return  # Ctrl-C ends commands too
            raise
        took_s = time.monotonic() - started
        self.outcome.marks.append(Mark(at_s, event.kind, took_s))
        self.last = f"{event.kind} ({took_s:.1f} s)"

    def _action(self, kind: Kind) -> Callable[[], Awaitable[Any]]:
        ledger = self._messages.loop.ledger
        actions: dict[Kind, Callable[[], Awaitable[Any]]] = {
            Kind.KILL: self._kill,
            Kind.RESTART: self._restart,
            Kind.RELOAD: lambda: asyncio.to_thread(self._reload),
            Kind.ROTATE: self._rotate,
            Kind.BACKUP: lambda: asyncio.to_thread(self._copies.back_up, ledger, full=True),
            Kind.INCREMENT: lambda: asyncio.to_thread(self._copies.back_up, ledger, full=False),
            Kind.RESTORE: lambda: asyncio.to_thread(self._copies.restore),
            Kind.CLOCK: self._set_clock,
            Kind.DAMAGE: self._damage,
            Kind.BANK: self._judge_bank,
        }
        return actions[kind]

    async def _start(self) -> None:
        self.outcome.starts_s.append(await asyncio.to_thread(self.site.broker.start))
        self._watch.begins()

    async def _kill(self) -> None:
        self._is_paused = True
        self._watch.alive = False
        self.site.broker.kill()
        for load in self._loads:
            await load.over(polite=False)
        await self._resume()

    async def _stop(self) -> None:
        self._is_paused = True
        for load in self._loads:
            load.quiet()
        self._watch.alive = False
        if status := await asyncio.to_thread(self.site.broker.stop):
            raise Broken(f"exit status {status} after SIGTERM")
        for load in self._loads:
            await load.over(polite=True)

    async def _resume(self) -> None:
        await self._start()
        for load in self._loads:
            await load.begin()
        self._is_paused = False

    async def _restart(self) -> None:
        await self._stop()
        await self._resume()

    async def _damage(self) -> None:
        await self._stop()
        copied = await asyncio.to_thread(self._copies.copy)
        await self._resume()
        await asyncio.to_thread(self._copies.damage, copied)

    def _reload(self) -> None:
        """Add a queue to the file, and delete the one of the reload before."""
        self._reloads += 1
        old, self.site.extra = self.site.extra, [f"reloaded-{self._reloads}"]
        self.site.write_config()
        self.site.reload()
        status, _ = self.site.ask("GET", f"/$api/v1/entities/{self.site.extra[0]}")
        if status != 200:
            raise Broken(f"{self.site.extra[0]} is in the followed file, and the broker answers {status}")
        for name in old:
            status, _ = self.site.ask("DELETE", f"/{name}?api-version=2021-05")
            if status != 200:
                raise Broken(f"the deletion of {name} was answered with {status}")
        said = self.site.run("health", "--data", str(self.site.broker.data))
        if "ok" not in said:
            raise Broken(f"the control socket says: {said}")

    async def _rotate(self) -> None:
        await asyncio.to_thread(self._turn_key)
        run, data = self.site.run, str(self.site.broker.data)
        await asyncio.to_thread(run, "keys", "rotate", data, SECOND, "--namespace", SECOND)
        self._bank.loop.account = await asyncio.to_thread(self.site.second_account)

    def _turn_key(self) -> None:
        """Replace a key in the file: from then on the old one is refused."""
        old = self.site.turning_key
        self.site.turn_key()
        self.site.reload()
        settings = ConnectionString.parse(self.site.connection_string(TURNING, old), timeout_s=5)
        connection = BlockingConnection(settings)
        try:
            connection.sender("turning").send(b"")
            connection.sender("turning").flush()
        except ServiceBusError as error:
            if "unauthorized" not in error.condition:
                raise
        else:
            raise Broken("a key that was replaced is still accepted")
        finally:
            connection.close()

    async def _set_clock(self) -> None:
        assert self.site.clock is not None
        self.site.clock.set(self._random.randint(-CLOCK_STEP_S_MAX, CLOCK_STEP_S_MAX))

    async def _judge_bank(self) -> None:
        """Judge all transfers so far, delete their queues, and begin with others."""
        await self._stop()
        await self._start()
        await self._close_bank()
        for queue in BANK_QUEUES_MADE_AGAIN:
            account = self._bank.loop.account
            path = f"/{queue}?api-version=2021-05"
            status, _ = await asyncio.to_thread(self.site.ask, "DELETE", path, account=account)
            if status != 200:
                raise Broken(f"the deletion of {queue} was answered with {status}")
        self._watch.alive = False
        if status := await asyncio.to_thread(self.site.broker.stop):
            raise Broken(f"exit status {status} after SIGTERM")
        await self._start()
        await self._open_bank()
        for load in self._loads:
            await load.begin()
        self._is_paused = False

    async def _close_bank(self) -> None:
        await self._bank.loop.finish()
        self._add("bank", self._bank.loop.verdict())

    # The end

    async def _end(self) -> None:
        for load in self._loads:
            load.quiet()
        for feature in self._features:
            feature.stopping.set()
        await self._revive()
        self.last = "draining"
        self._say(self._progress())
        for feature in self._features:
            await asyncio.to_thread(feature.join, JOIN_S_MAX)
            if feature.is_alive():
                raise Broken(f"{feature.queue}: a step takes more than {JOIN_S_MAX} s")
        self._check_features()
        if self.site.clock is not None:
            self.site.clock.set(0)
        await self._stop()
        self._watch.stopping.set()
        await self._start()
        await self._drain()
        if status := await asyncio.to_thread(self.site.broker.stop):
            raise Broken(f"exit status {status} after SIGTERM")
        self.site.run("check", str(self.site.broker.data))
        self.last = "judging"
        self._say(self._progress())
        log, ledger = self.site.log, self._messages.loop.ledger
        self._write_ledgers()
        self._add("event log", await asyncio.to_thread(events.judge, log, QUEUE, ledger))
        list(events.segments(log / "_namespaces" / SECOND))

    async def _revive(self) -> None:
        """Start the broker again if Ctrl-C has ended it too."""
        try:
            await asyncio.to_thread(self.site.broker.check)
        except BrokerFailed:
            if not self.interrupt.is_set():
                raise
            self._is_paused = True
            self.site.broker.kill()
            for load in self._loads:
                await load.over(polite=False)
            await self._start()

    def _write_ledgers(self) -> None:
        """Write what clients learnt for the audit of the event log."""
        rows = self._messages.loop.audit_rows()
        path = self._folder / LEDGERS / f"{NAMESPACE}.jsonl"
        path.parent.mkdir()
        path.write_text("".join(json.dumps({"namespace": NAMESPACE, **row}) + "\n" for row in rows))

    async def _drain(self) -> None:
        for load, name in ((self._messages, "messages"), (self._topics, "topics")):
            await load.loop.finish()
            self._add(name, load.loop.verdict())
        await self._close_bank()
        for feature in self._features:
            await asyncio.to_thread(feature.drain)
            self._add(feature.queue if feature.queue != QUEUE else "browsing", feature.judge())
            feature.end()

    def _add(self, client: str, figures: dict[str, int]) -> None:
        """Add figures of a client to those that it has."""
        total = Counter(self.outcome.figures.get(client, {}))
        total.update(figures)
        self.outcome.figures[client] = dict(total)
