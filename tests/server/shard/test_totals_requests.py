"""Who waits for which count of a namespace's figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peeklock.broker.handlers.totals import SLICE, Totals, TotalsCount
from peeklock.server.loop.turns import Turns
from peeklock.server.shard.shard import FRESH_S, TotalsRequests
from tests.broker.harness import Broker


class Requester:
    """A desk over a namespace, of three slices unless said otherwise, and how many counts it has begun."""

    def __init__(self, queues: int = 2 * SLICE + 1) -> None:
        self.broker = Broker()
        self.broker.checks = False
        for number in range(queues):
            self.broker.create(f"q{number:04}")
        self.begun = 0
        self.clock_s = 0.0
        self.mark: int | None = 1
        loop = asyncio.get_running_loop()
        turns = Turns(
            loop.call_soon, loop.call_later, on_defect=lambda defect: None, clock_s=lambda: self.clock_s
        )
        self.rig = TotalsRequests(self._begin, turns, lambda: self.mark)

    def _begin(self) -> TotalsCount:
        self.begun += 1
        return self.broker.namespace.count_totals()

    def send(self) -> None:
        """Send to the first queue, whose turn in a count comes first."""
        self.broker.send()
        self.mark = 1 + (self.mark or 0)

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


def test_a_long_count_is_shown_for_two_seconds() -> None:
    """Req: R-05. Many who ask a busy namespace cost a count in two seconds."""

    async def test() -> None:
        rig = Requester()
        first = rig.ask()
        await turns_until(lambda: rig.begun == 1)
        rig.send()
        others = [rig.ask() for _ in range(50)]
        assert [totals.active_messages for totals in await asyncio.gather(first, *others)] == [0] * 51
        rig.clock_s = FRESH_S - 0.001
        assert (await rig.ask()).active_messages == 0
        assert rig.begun == 1
        rig.clock_s = FRESH_S
        assert (await rig.ask()).active_messages == 1
        assert rig.begun == 2

    asyncio.run(test())


def test_figures_are_shown_while_nothing_happens() -> None:
    async def test() -> None:
        rig = Requester()
        await rig.ask()
        rig.clock_s = 1000.0
        assert (await rig.ask()).active_messages == 0
        assert rig.begun == 1
        rig.send()
        assert (await rig.ask()).active_messages == 1
        assert rig.begun == 2

    asyncio.run(test())


def test_a_short_count_has_all_that_happened_before() -> None:
    async def test() -> None:
        rig = Requester(queues=SLICE - 1)
        for sent in range(5):
            assert (await rig.ask()).active_messages == sent
            rig.send()
        rig.mark = None  # something happens just now
        for _ in range(3):
            assert (await rig.ask()).active_messages == 5
        assert rig.begun == 8

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
