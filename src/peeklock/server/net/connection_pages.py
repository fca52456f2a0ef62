"""The pages `/connections` and `/connections/ID`: the open AMQP connections, and the end of one.

Nothing is counted for them between requests: a request looks at each connection twice, a second apart, so its
rates are of that second. Ten thousand connections are looked at in slices, other work has its turn between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING

from peeklock.admin.exchange import Response
from peeklock.api.connections import Where, connection_json, counts_of
from peeklock.api.exchange import JSON, to_json
from peeklock.api.problems import NotHere
from peeklock.server import log
from peeklock.server.loop.turns import Turns
from peeklock.server.net.operator_pages import PageRequest

if TYPE_CHECKING:
    from peeklock.server.net.amqp import AmqpConnection

RATE_S = 1.0
"""Between the two looks. Our choice: what one waits for a page."""

SLICE_S = 0.002
"""Of one turn, which has 10 ms. Our choice: with 10,000 connections their ticks take 8 ms of some turns."""

PART_CONNECTIONS = 200
"""In a part of the answer. Our choice: some 100 KB, which are written in a fraction of a millisecond."""

CLOSED_BY_OPERATOR = "The operator closed this connection."


class ConnectionPages:
    """Shows and closes connections: of one namespace, or of all."""

    def __init__(
        self,
        connections: Mapping[int, AmqpConnection],
        namespace_of: Callable[[int], str],
        now_ms: Callable[[], int],
        turns: Turns,
    ) -> None:
        """`connections` by id, `namespace_of` one; `turns` measures the loop's turns."""
        self._connections = connections
        self._namespace_of = namespace_of
        self._now_ms = now_ms
        self._turns = turns

    async def show(self, request: PageRequest) -> Response:
        """Return all connections."""
        time_s = asyncio.get_running_loop().time
        before: dict[int, dict[tuple[int, int], int]] = {}
        at_s = time_s()
        async for connection in self._in_slices():
            before[connection.connection_id] = counts_of(connection.view())
        await asyncio.sleep(RATE_S)
        elapsed_s = time_s() - at_s
        parts = [b'{"connections":[']
        shown: list[bytes] = []
        async for connection in self._in_slices():
            where = Where(
                connection.connection_id,
                self._namespace_of(connection.connection_id),
                connection.endpoint,
                connection.has_tls,
                connection.opened_at_ms,
            )
            counts = before.pop(connection.connection_id, {})  # freed one by one, not 10,000 in one turn
            found = connection_json(where, connection.view(), counts, elapsed_s, self._now_ms())
            if len(shown) == PART_CONNECTIONS:
                parts.append(b",".join((*shown, b"")))
                shown.clear()
            shown.append(to_json(found))
        return Response(200, JSON, more=(*parts, b",".join(shown) + b"]}\n"))

    async def close(self, request: PageRequest) -> Response:
        """Close a connection with `amqp:connection:forced`; its client may connect again."""
        named = request.argument
        number = int(named) if named.isascii() and named.isdigit() and len(named) < 19 else None
        connection = None if number is None else self._connections.get(number)
        if connection is None:
            return request.exchange.refusal(NotHere(f"No open connection has the id '{named[:40]}'."))
        identities = connection.view().identities
        fields = {"connection": number, "peer": connection.endpoint, "identities": identities}
        log.info("the operator closes a connection", fields)
        connection.close(CLOSED_BY_OPERATOR, self._now_ms())
        return Response(204)

    async def _in_slices(self) -> AsyncIterator[AmqpConnection]:
        """Yield the connections that are open now, and still when their turn comes."""
        self._turns.begin()
        until_s = self._turns.clock_s() + SLICE_S
        for number in list(self._connections):
            if self._turns.clock_s() >= until_s:
                await asyncio.sleep(0)
                self._turns.begin()
                until_s = self._turns.clock_s() + SLICE_S
            connection = self._connections.get(number)
            if connection is not None:
                yield connection
