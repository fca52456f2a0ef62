"""The loop for messages while the machine's clock is set, forwards and back, also between two lives.

Owns: when the clock is set and where to, and whether clients make progress meanwhile. Must not know: how the
broker follows the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.kill.clients import Client
from tests.kill.faked_clock import FakedClock
from tests.kill.ledger import Broken
from tests.kill.loop import NAMESPACE, MessageLoop

STEP_S_MAX = 1500
"""Steps from the machine's time. Two of them are less than the duplicate window of an hour: beyond it a
message may rightly come twice."""

FOLLOWED_S = 4.5
"""Time until a step is sure to be accepted: the process reads its clock again within a second, the broker
compares it once a second, and the step has to last for two."""

FOLLOWED = "the wall clock was set"


class ClockLoop(MessageLoop):
    """Messages of one queue, as in `MessageLoop`, under a clock that is set in each round and after it."""

    def __init__(
        self, folder: Path, seed: int, *, options: Sequence[str] = (), namespace: str = NAMESPACE
    ) -> None:
        super().__init__(folder, seed, options=options, namespace=namespace)
        self._clock = FakedClock(folder)

    async def run(self, rounds: int) -> dict[str, int]:
        """Run as any loop; the broker's processes have the clock that is set here."""
        with self._clock:
            return await super().run(rounds)

    async def round(self, *, polite: bool) -> None:
        """Work, set the clock, work until the step is accepted, and set it again for the next life."""
        senders, receivers = await self.connect(senders=2, receivers=2)
        clients: list[Client] = [*senders, *receivers]
        await asyncio.sleep(self.random.uniform(0.1, 0.5))
        self._clock.set(self.random.randint(-STEP_S_MAX, STEP_S_MAX))
        await asyncio.sleep(FOLLOWED_S)
        await self._get_on("sends", clients, lambda: sum(sender.outcomes for sender in senders))
        await self._get_on("completions", clients, self._completed)
        for sender in senders:  # so that the backlog does not only grow
            sender.stopped = True
        await asyncio.sleep(self.random.uniform(0.0, 0.3))
        await (self.stop if polite else self.kill)(clients)
        self._clock.set(self.random.randint(-STEP_S_MAX, STEP_S_MAX))

    def _completed(self) -> int:
        return sum(fate.completed for fate in self.ledger.fates.values())

    async def _get_on(self, what: str, clients: Sequence[Client], count: Callable[[], int]) -> None:
        """Wait, at most 10 s, until there are more answers than now."""
        loop = asyncio.get_running_loop()
        deadline, before = loop.time() + 10, count()
        while count() == before:
            self.check(clients)
            if loop.time() > deadline:
                raise Broken(f"{what} make no progress under a clock that was set")
            await asyncio.sleep(0.05)

    def verdict(self) -> dict[str, int]:
        """Check the ledger, and the log for the accepted steps. Raises: Broken."""
        log = self.broker.log.read_text()
        figures = super().verdict() | {"steps": log.count(FOLLOWED)}
        if not figures["steps"]:
            raise Broken("no step of the clock was accepted")
        if figures["refused"]:
            raise Broken(f"{figures['refused']} sends were refused under a clock that was set")
        return figures
