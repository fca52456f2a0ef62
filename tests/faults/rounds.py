"""Rounds of one fault under load; then everything is drained, checked and audited.

Owns: the order of a run. Must not know: what a fault does; where results are kept.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from peeklock.demo.broker import BrokerFailed, program
from tests.faults.faults import FAULTS, IN_ORDER, LOADED, NAMESPACES, NODES, Place, mend
from tests.faults.load import QUEUE, Load, gap_s
from tests.faults.site import Site, tail
from tests.faults.taking import TAKEN
from tests.kill.ledger import Broken
from tests.kill.loop import PROPERTIES
from tests.simulation.world.accounts import Account

QUEUES = {QUEUE: {**PROPERTIES, "DuplicateDetectionHistoryTimeWindow": "P1D"}, TAKEN: {}}
"""With a window that a clock which is an hour off does not end."""
LOAD_S = (1.0, 3.0)
"""Of load before a fault."""
IN_PIPES_S = 0.5
"""What was answered before a fault has come after so long."""
LEDGER = "ledger.jsonl"


@dataclass(frozen=True, slots=True)
class Round:
    """What one round has shown."""

    fault: str
    seed: int
    number: int
    sends_gap_s: float
    """The longest time without an acknowledged send."""
    completions_gap_s: float
    """The longest time without an acknowledged completion."""
    load_average: float
    """Of the machine, over the minute before the end of the round."""
    accepted: int
    """Messages that were acknowledged up to here, in all rounds of the run."""


class Run:
    """Rounds of one fault."""

    def __init__(self, folder: Path, fault: str, seed: int, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._fault = fault
        self._seed = seed
        self._say = say
        self._random = Random(f"{fault} {seed}")
        self._load = Load(Account(host=f"{LOADED}.localhost"), seed)
        self.rounds: list[Round] = []

    def run(self, count: int) -> dict[str, int]:
        """Run rounds, then judge; return figures. Raises: Broken."""
        has_clocks = self._fault == "clock"
        site = Site(self._folder, NAMESPACES, QUEUES, has_wires=True, has_clocks=has_clocks)
        try:
            for name in NODES:
                site.start(name)
            figures = asyncio.run(self._rounds(site, count))
            site.stop_all()
            self._say(site.check())
        except (AssertionError, BrokerFailed) as failure:  # Broken is one
            logs = "\n".join(f"node {name}: {tail(node)}" for name, node in site.nodes.items())
            raise Broken(f"{failure}\n{logs}") from failure
        finally:
            site.close()
        self._audit(site)
        return figures

    async def _rounds(self, site: Site, count: int) -> dict[str, int]:
        load = self._load
        owner = await asyncio.to_thread(site.until_owned, LOADED)
        load.start(site.nodes[self._entrance(owner)].amqp_port)
        try:
            for number in range(count):
                await self._round(site, number)
            await load.drain()
        finally:
            await load.stop()
        lost = load.taken.judge(in_order=self._fault in IN_ORDER)
        return {**load.ledger.finish(), "lost on the way to a receiver that deletes": lost}

    def _entrance(self, owner: str) -> str:
        return self._random.choice([name for name in NODES if name != owner])

    async def _round(self, site: Site, number: int) -> None:
        load, ledger = self._load, self._load.ledger
        owner = await asyncio.to_thread(site.until_owned, LOADED)
        place = Place(site, owner, self._entrance(owner), self._random)
        load.use(site.nodes[place.entrance].amqp_port)
        await load.until_served(time.monotonic())
        await asyncio.sleep(self._random.uniform(*LOAD_S))
        load.check()
        at_s = time.monotonic()
        await asyncio.to_thread(FAULTS[self._fault], place)
        await load.until_served(time.monotonic() + IN_PIPES_S)
        gaps = [gap_s(moments, at_s) for moments in (ledger.sends_s, ledger.completions_s)]
        accepted = sum(fate.accepted for fate in ledger.fates.values())
        done = Round(
            self._fault,
            self._seed,
            number,
            round(gaps[0], 2),
            round(gaps[1], 2),
            round(os.getloadavg()[0], 1),
            accepted,
        )
        self.rounds.append(done)
        self._say(
            f"{self._fault} {number}: {done.sends_gap_s} s without a send, "
            f"{done.completions_gap_s} s without a completion"
        )
        await asyncio.to_thread(mend, site)
        site.require_no_defect()

    def _audit(self, site: Site) -> None:
        """Audit the event log against what clients learnt. Raises: Broken."""
        ledger = self._folder / LEDGER
        rows = self._load.ledger.audit_rows(QUEUE)
        ledger.write_text("".join(json.dumps({"namespace": LOADED, **row}) + "\n" for row in rows))
        log = site.log_of(LOADED, is_default=False)
        command = [program(), "pipeline", "audit", "--from", str(log), "--ledger", str(ledger), "--drained"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Broken(
                f"the audit ended with status {done.returncode}:\n{done.stdout}{done.stderr[-2000:]}"
            )
        self._say(done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "audited")
