"""The pages `/$api/v1/keys` and `/$api/v1/keys/NAME`: the namespace's shared access keys.

The file of the keys is changed in a thread, and followed before the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from peeklock.admin.exchange import Response
from peeklock.api.exchange import JSON, to_json
from peeklock.broker.vocabulary.errors import ArgumentInvalid, InvalidOperation
from peeklock.server.keys.keys import KeyFile, KeysRefused, rule_json
from peeklock.server.net.operator_pages import PageRequest


class KeyPages:
    """Shows and changes the keys of one namespace."""

    def __init__(self, file: KeyFile | None, follow: Callable[[], Awaitable[object]]) -> None:
        """`file`: None = this broker has no keys of its own; `follow` applies a change of it."""
        self._file = file
        self._follow = follow

    async def show(self, request: PageRequest) -> Response:
        """Return all rules with their keys."""

        def shown(file: KeyFile) -> dict[str, Any]:
            return {"keys": [rule_json(rule) for rule in file.load()]}

        return await self._answer(request, 200, shown)

    async def add(self, request: PageRequest) -> Response:
        """Add a rule with new keys; the query's `rights` names its rights."""
        rights = [right.strip() for given in request.query.get("rights", ()) for right in given.split(",")]
        if not rights:
            return request.exchange.refusal(ArgumentInvalid("rights is missing: name one, such as Send."))
        return await self._change(request, 201, lambda file: rule_json(file.add(request.argument, rights)))

    async def rotate(self, request: PageRequest) -> Response:
        """Give a rule a new primary key; with `revoke=true` in the query also a new secondary key."""
        revokes = request.query.get("revoke") == ["true"]
        return await self._change(
            request, 200, lambda file: rule_json(file.rotate(request.argument, revoke=revokes))
        )

    async def remove(self, request: PageRequest) -> Response:
        """Remove a rule."""

        def removed(file: KeyFile) -> dict[str, Any]:
            name, was_last = file.remove(request.argument)
            return {"removed": name, "lastWithManage": was_last}

        return await self._change(request, 200, removed)

    async def _change(self, request: PageRequest, status: int, do: Callable[[KeyFile], Any]) -> Response:
        response = await self._answer(request, status, do)
        if response.status < 300:
            await self._follow()
        return response

    async def _answer(self, request: PageRequest, status: int, do: Callable[[KeyFile], Any]) -> Response:
        if self._file is None:
            why = "This broker has no keys of its own: start it with --auth sas."
            return request.exchange.refusal(InvalidOperation(why))
        try:
            value = await asyncio.to_thread(do, self._file)
        except KeysRefused as failure:
            return request.exchange.refusal(InvalidOperation(f"{failure}."))
        return Response(status, JSON, to_json(value), (("Cache-Control", "no-store"),))
