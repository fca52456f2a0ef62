"""The pages `/$api/v1/keys` and `/$api/v1/keys/NAME`: the namespace's shared access keys.

A change counts before the answer. Keys of `--keys` are shown and not changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from peeklock.admin.exchange import Response
from peeklock.api.exchange import JSON, to_json
from peeklock.broker.vocabulary.errors import ArgumentInvalid, InvalidOperation
from peeklock.server import log
from peeklock.server.keys.keys import GivenKeyFile
from peeklock.server.keys.rules import KeysRefused, rule_json
from peeklock.server.net.operator_pages import PageRequest
from peeklock.server.system.keys import NamespaceKeys
from peeklock.store.base import StoreError

Change = Callable[[NamespaceKeys], Awaitable[dict[str, Any]]]


class KeyPages:
    """Shows and changes the keys of one namespace."""

    def __init__(self, keys: NamespaceKeys | GivenKeyFile | None) -> None:
        """`keys`: None = this broker has no keys of its own."""
        self._keys = keys

    async def show(self, request: PageRequest) -> Response:
        """Return all rules with their keys."""

        async def shown() -> dict[str, Any]:
            keys = self._keys
            assert keys is not None
            rules = await asyncio.to_thread(keys.load) if isinstance(keys, GivenKeyFile) else keys.rules()
            return {"keys": [rule_json(rule) for rule in rules]}

        return await self._answer(request, 200, shown)

    async def add(self, request: PageRequest) -> Response:
        """Add a rule with new keys; the query's `rights` names its rights."""
        rights = [right.strip() for given in request.query.get("rights", ()) for right in given.split(",")]
        if not rights:
            return request.exchange.refusal(ArgumentInvalid("rights is missing: name one, such as Send."))

        async def added(keys: NamespaceKeys) -> dict[str, Any]:
            return rule_json(await keys.add(request.argument, rights))

        return await self._change(request, 201, added)

    async def rotate(self, request: PageRequest) -> Response:
        """Replace the primary key of a rule; with `revoke=true` in the query also the secondary key."""
        revokes = request.query.get("revoke") == ["true"]

        async def rotated(keys: NamespaceKeys) -> dict[str, Any]:
            return rule_json(await keys.rotate(request.argument, revoke=revokes))

        return await self._change(request, 200, rotated)

    async def remove(self, request: PageRequest) -> Response:
        """Remove a rule."""

        async def removed(keys: NamespaceKeys) -> dict[str, Any]:
            name, was_last = await keys.remove(request.argument)
            return {"removed": name, "lastWithManage": was_last}

        return await self._change(request, 200, removed)

    async def _change(self, request: PageRequest, status: int, do: Change) -> Response:
        async def changed() -> dict[str, Any]:
            keys = self._keys
            assert keys is not None
            if isinstance(keys, GivenKeyFile):
                raise KeysRefused(keys.only_read)
            return await do(keys)

        return await self._answer(request, status, changed)

    async def _answer(
        self, request: PageRequest, status: int, do: Callable[[], Awaitable[dict[str, Any]]]
    ) -> Response:
        if self._keys is None:
            why = "This broker has no keys of its own: start it with --auth sas."
            return request.exchange.refusal(InvalidOperation(why))
        try:
            value = await do()
        except KeysRefused as failure:
            return request.exchange.refusal(InvalidOperation(f"{failure}."))
        except StoreError as failure:
            do_now = "repair the disk, restart the broker, and look at the keys: the change may be there"
            log.error("the keys cannot be read or changed", {"reason": str(failure), "do": do_now})
            return request.exchange.refusal(InvalidOperation(f"{failure}: {do_now}."))
        return Response(status, JSON, to_json(value), (("Cache-Control", "no-store"),))
