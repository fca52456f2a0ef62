"""What tests may ask of a namespace: move its clock.

A clock goes forwards only, from one due time to the next: each timer fires in its order and at its own time,
and is durable before the next. Tokens and idle time-outs keep the real clock.
"""

from __future__ import annotations

from peeklock.server.namespaces.served import ServedNamespace


async def advance(served: ServedNamespace, ms: int) -> int:
    """Move the clock of a namespace forwards; return its new time, UTC ms. `served.clock` may not be None."""
    clock, shard = served.clock, served.shard
    assert clock is not None
    async with served.moving:
        end = clock.now_ms() + ms
        while (due := shard.timers.next_ms) is not None and due <= end:
            clock.move_to(due)
            await shard.catch_up()
        clock.move_to(end)
        await shard.catch_up()
    return end
