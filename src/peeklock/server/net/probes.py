"""The pages that probes ask for: `/live`, `/ready`, `/health`. `shard.vitals` decides their answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from peeklock.admin.exchange import Response
from peeklock.api.exchange import JSON
from peeklock.server.net.operator_pages import PageRequest
from peeklock.server.shard.vitals import Vitals, why_not_live, why_not_ready


class ProbePages:
    """Answers the probes of one broker."""

    def __init__(
        self,
        figures: Callable[[], Awaitable[Mapping[str, Any]]],
        vitals: Callable[[], Vitals],
        stops: Callable[[], bool],
    ) -> None:
        """`figures` has a key `status`, which is `ok` or names a fault; `stops`: whether the broker stops."""
        self._figures = figures
        self._vitals = vitals
        self._stops = stops

    async def live(self, request: PageRequest) -> Response:
        """Return whether the broker lives: 200, else 503 with the reason."""
        why = why_not_live(self._vitals())
        return _answer(200 if why is None else 503, {"status": why or "live"})

    async def ready(self, request: PageRequest) -> Response:
        """Return whether sends and receives are taken: 200, else 503 with the reason."""
        vitals = self._vitals()
        why = why_not_ready(vitals, stops=self._stops())
        if why is not None:
            return _answer(503, {"status": why})
        limited = {} if vitals.refused == "ok" else {"limited": vitals.refused}
        return _answer(200, {"status": "ready", **limited})

    async def health(self, request: PageRequest) -> Response:
        """Return the status, 503 unless it is `ok`, and the figures to those who may see them."""
        found = await self._figures()
        status = found["status"]
        return _answer(200 if status == "ok" else 503, found if request.sees_figures else {"status": status})


def _answer(status: int, found: Mapping[str, Any]) -> Response:
    return Response(status, JSON, json.dumps(found).encode() + b"\n")
