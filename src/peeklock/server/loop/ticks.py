"""The passing of time for thousands of connections, a few at a time.

Owns: how the ticks of one second are spread over it. Must not know: what a tick does. All at once they would
hold up whoever is due in that turn of the loop: 5,000 connections took tens of milliseconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

SLICES = 10
"""Turns that share the connections of a round. Our choice: 500 of 5,000 take some 2 ms."""


class Ticked(Protocol):
    """What time passes for."""

    def tick(self, now_ms: int) -> None:
        """Let time pass."""


async def tick_round(
    connections: Mapping[int, Ticked],
    now_ms: Callable[[], int],
    sleep: Callable[[float], Awaitable[None]],
    round_s: float,
) -> None:
    """Tick once what is there at the start and still there at its turn, over `round_s` seconds."""
    ids = list(connections)
    for turn in range(SLICES):
        await sleep(round_s / SLICES)
        now = now_ms()
        for connection_id in ids[turn::SLICES]:
            connection = connections.get(connection_id)
            if connection is not None:
                connection.tick(now)
