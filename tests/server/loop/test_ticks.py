"""How the ticks of many connections are spread."""

from __future__ import annotations

import asyncio

from peeklock.server.loop.timers import SLICES, tick_round


class Counted:
    def __init__(self) -> None:
        self.at: list[int] = []

    def tick(self, now_ms: int) -> None:
        self.at.append(now_ms)


class Story:
    """A clock that `sleep` moves."""

    def __init__(self, count: int) -> None:
        self.now_ms = 0
        self.connections = {n: Counted() for n in range(count)}

    async def sleep(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)

    def play(self) -> None:
        asyncio.run(tick_round(self.connections, lambda: self.now_ms, self.sleep, 1.0))


def test_each_connection_is_ticked_once_in_a_round_and_few_in_a_turn() -> None:
    story = Story(5003)
    story.play()
    turns = [connection.at for connection in story.connections.values()]
    assert {len(at) for at in turns} == {1}
    for instant in range(100, 1001, 100):
        assert turns.count([instant]) in (5003 // SLICES, 5003 // SLICES + 1)


def test_a_round_without_connections_takes_its_time_too() -> None:
    story = Story(0)
    story.play()
    assert story.now_ms == 1000


def test_connections_that_come_or_go_during_a_round_do_not_disturb_it() -> None:
    story = Story(30)
    gone = story.connections[19]

    async def sleep(seconds: float) -> None:
        story.now_ms += round(seconds * 1000)
        if story.now_ms == 500:
            del story.connections[19]
            story.connections[1000] = Counted()

    asyncio.run(tick_round(story.connections, lambda: story.now_ms, sleep, 1.0))
    assert gone.at == []
    assert story.connections[1000].at == [], "its turn comes in the next round"
    assert all(len(connection.at) == 1 for n, connection in story.connections.items() if n < 1000)
