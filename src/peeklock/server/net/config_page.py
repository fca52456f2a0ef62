"""The page `/$api/v1/config`: the entities and rules of the namespace as a Config.json."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peeklock.admin.exchange import Response
from peeklock.api.exchange import JSON, to_json
from peeklock.broker.vocabulary.descriptions import Description, RuleDescription
from peeklock.config.exporting import export_of
from peeklock.config.namespace_limits import NamespaceLimits
from peeklock.server.net.operator_pages import PageRequest

Definitions = tuple[list[Description], dict[str, list[RuleDescription]]]
"""Entities, and rules by path of a subscription."""


class ConfigPage:
    """Shows the definitions of one namespace."""

    def __init__(
        self, definitions: Callable[[], Definitions], limits: Callable[[], NamespaceLimits], tier: str
    ) -> None:
        """`definitions` returns all of them, which do not change afterwards; `limits` the namespace's own."""
        self._definitions = definitions
        self._limits = limits
        self._tier = tier

    async def show(self, request: PageRequest) -> Response:
        """Return the file as text, and what it lacks. A thread writes it: 10,000 entities take 0.1 s."""
        exported = await asyncio.to_thread(export_of, *self._definitions(), self._limits())
        shown = {"config": exported.text, "warnings": exported.warnings, "tier": self._tier}
        return Response(200, JSON, to_json(shown))
