"""The pages that probes ask for: `/health`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from peeklock.admin.exchange import Response
from peeklock.api.exchange import JSON
from peeklock.server.net.operator_pages import PageRequest


def health_page(
    figures: Callable[[], Awaitable[Mapping[str, Any]]],
) -> Callable[[PageRequest], Awaitable[Response]]:
    """Return the page `/health`; `figures` has a key `status`, which is `ok` or names a fault."""

    async def answer(request: PageRequest) -> Response:
        found = await figures()
        shown = dict(found) if request.sees_figures else {"status": found["status"]}
        return Response(200 if found["status"] == "ok" else 503, JSON, json.dumps(shown).encode() + b"\n")

    return answer
