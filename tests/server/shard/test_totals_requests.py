"""Who waits for which count of a namespace's figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peeklock.broker.handlers.totals import SLICE, Totals, TotalsCount
from peeklock.server.loop.turns import Turns
from peeklock.server.shard.shard import TotalsRequests
from tests.broker.harness import Broker


class Requester:
    """A desk over a namespace of three slices, and how many counts it has begun."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.broker.checks = False
        for number in range(2 * SLICE + 1):
            self.broker.create(f"q{number:04}")
        self.begun = 0
        loop = asyncio.get_running_loop()
        turns = Turns(loop.call_soon, loop.call_later, on_defect=lambda defect: None)
        self.rig = TotalsRequests(self._begin, turns)

    def _begin(self) -> TotalsCount:
        self.begun += 1
        return self.broker.namespace.count_totals()

    def ask(self) -> asyncio.Task[Totals]:
        return asyncio.get_running_loop().create_task(self.rig.totals())


async def turns_until(done: Callable[[], bool]) -> int:
    """Return how many turns of the loop it took until this was so."""
    turns = 0
    while not done():
        turns += 1
        await asyncio.sleep(0)
    return turns


def test_a_slice_is_counted_in_a_turn() -> None:
    """Req: R-05."""

    async def test() -> None:
        rig = Requester()
        asked = rig.ask()
        assert await turns_until(asked.done) > 3
        assert asked.result() == rig.broker.namespace.totals()

    asyncio.run(test())


def test_those_who_ask_during_a_count_share_the_next() -> None:
    """Req: R-05. What happened before they asked is in it, and many who ask cost two counts."""

    async def test() -> None:
        rig = Requester()
        first = rig.ask()
        await turns_until(lambda: rig.begun == 1)
        rig.broker.send()  # to the first queue, whose turn is over
        others = [rig.ask() for _ in range(50)]
        assert (await first).active_messages == 0
        assert [totals.active_messages for totals in await asyncio.gather(*others)] == [1] * 50
        assert rig.begun == 2
        assert (await rig.ask()).active_messages == 1
        assert rig.begun == 3

    asyncio.run(test())


def test_who_goes_away_leaves_the_count_to_the_others() -> None:
    async def test() -> None:
        rig = Requester()
        gone, stays = rig.ask(), rig.ask()
        await turns_until(lambda: rig.begun == 1)
        gone.cancel()
        assert (await stays).entities == 2 * SLICE + 1
        assert gone.cancelled()

    asyncio.run(test())
