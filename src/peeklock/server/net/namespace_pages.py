"""The pages `/$api/v1/namespaces`: the namespaces of the process, and what tests ask of them.

Those of the default namespace know all; those of another one know that one alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from peeklock.admin.exchange import Response
from peeklock.api.exchange import JSON, to_json
from peeklock.api.problems import NotHere
from peeklock.auth import KeyRefused, NamespaceFull, Right, SasRule
from peeklock.broker.vocabulary.durations import format_duration, parse_duration
from peeklock.broker.vocabulary.errors import ArgumentInvalid, InvalidOperation, ServiceBusError
from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.config.hosts import host_in, shown_host
from peeklock.config.namespace_limits import write_limits
from peeklock.server import configuration, log
from peeklock.server.keys.keys import GivenKeyFile
from peeklock.server.namespaces.for_tests import advance, reset
from peeklock.server.namespaces.lifecycle import Lifecycle, NotDeletable, Wanted
from peeklock.server.namespaces.registry import NamespaceThere, Registry
from peeklock.server.namespaces.served import ServedNamespace
from peeklock.server.namespaces.throw_away import ThrowAway
from peeklock.server.net.operator_pages import PageRequest
from peeklock.server.settings import StartFailed
from peeklock.store.base import StoreError, StoreInUse

if TYPE_CHECKING:
    from peeklock.server.cluster.member import Member

ADVANCE_MS_MAX = 10 * 365 * 86_400_000
"""Of one request. Our choice: ten years are more than any timer but the largest time to live."""

_OWNER = "its owner ended it"


class NamespacePages:
    """Shows, makes and ends namespaces."""

    def __init__(
        self,
        registry: Registry,
        lifecycle: Lifecycle,
        throw_away: ThrowAway,
        own: ServedNamespace,
        endpoint_of: Callable[[str], str],
        member: Member | None = None,
    ) -> None:
        """`own` serves the page; `endpoint_of` returns the endpoint of a connection string for a host.

        `member`: this process as a node; None = it is in no cluster.
        """
        self._member = member
        self._registry = registry
        self._lifecycle = lifecycle
        self._throw_away = throw_away
        self._own = own
        self._endpoint_of = endpoint_of

    async def show_all(self, request: PageRequest) -> Response:
        """Return all namespaces that may be seen here."""
        shown = self._registry if self._own.is_default else (self._own,)
        views = [self._view(served) for served in shown]
        if self._member is not None and self._own.is_default:
            names = {view["name"].lower() for view in views}
            every = self._member.directory.by_store.values()
            views += [self._view_elsewhere(one) for one in every if one.name.lower() not in names]
        return _json(200, {"namespaces": views})

    async def show(self, request: PageRequest) -> Response:
        """Return one namespace."""
        served = self._found(request)
        if served is not None:
            return _json(200, self._view(served))
        if self._member is not None and self._own.is_default:
            wanted = self._member.directory.by_name(request.argument)
            if wanted is not None:
                return _json(200, self._view_elsewhere(wanted))
        return self._missing(request)

    async def make(self, request: PageRequest) -> Response:
        """Make a throw-away namespace; return its connection string. The body may be a Config.json."""

        async def made() -> ServedNamespace:
            lease_s = _lease_s(request)
            config = configuration.in_request(request.body) if request.body else None
            served = self._throw_away.make(request.query.get("name", [None])[0], lease_s)
            if config is not None:
                try:
                    await served.configure(config)
                except StartFailed:
                    self._throw_away.end(served, "its configuration was refused")
                    raise
            return served

        return await self._answer(request, 201, made)

    async def create(self, request: PageRequest) -> Response:
        """Make a namespace that stays; return its connection string. The body may be a Config.json."""

        async def created() -> ServedNamespace:
            config = configuration.in_request(request.body) if request.body else None
            if self._member is not None and (found := self._member.directory.by_name(request.argument)):
                raise NamespaceThere(f"There is already a namespace '{found.name}'.")
            return await self._lifecycle.make(request.argument, config)

        return await self._answer(request, 201, created)

    async def delete(self, request: PageRequest) -> Response:
        """Delete a namespace with all that is in it, or end a throw-away one."""
        served = self._found(request)
        member = self._member
        if served is None and member is not None and self._own.is_default:
            wanted = member.directory.by_name(request.argument)
            if wanted is not None:
                return await self._answer(request, 204, partial(member.delete, wanted))
        if served is None:
            return self._missing(request)
        if self._throw_away.lease_of(served) is not None:
            self._throw_away.end(served, _OWNER)
            return Response(204)

        async def deleted() -> None:
            await self._lifecycle.delete(served)

        return await self._answer(request, 204, deleted)

    async def _answer(
        self, request: PageRequest, status: int, do: Callable[[], Awaitable[ServedNamespace | None]]
    ) -> Response:
        """Return the answer to a request of the default namespace that makes or deletes another one."""
        if not self._own.is_default:
            why = f"Only the default namespace '{self._registry.default.name}' makes and deletes others."
            return request.exchange.refusal(InvalidOperation(why))
        try:
            served = await do()
        except (ValueError, KeyRefused, StartFailed) as failure:
            return request.exchange.refusal(ArgumentInvalid(f"{str(failure).rstrip('.')}."))
        except (NamespaceThere, NamespaceFull, NotDeletable, StoreInUse) as failure:
            return request.exchange.refusal(InvalidOperation(str(failure)))
        except StoreError as failure:
            do_now = "repair the disk, restart the broker, and look at its namespaces"
            log.error("a namespace cannot be made or deleted", {"reason": str(failure), "do": do_now})
            return request.exchange.refusal(InvalidOperation(f"{failure}: {do_now}."))
        if served is None:
            return Response(status)
        return _json(status, {**self._view(served), **self._connection_string(request, served)})

    def _connection_string(self, request: PageRequest, served: ServedNamespace) -> dict[str, str]:
        """Return the connection string of a new namespace, by the host that the request has used."""
        key = served.first_key
        if key is None:
            return {}
        host = host_in(request.headers.get("host", "")) or "localhost"
        endpoint, _, more = self._endpoint_of(host).partition(";")
        shown = f"SharedAccessKeyName={served.name};SharedAccessKey={key};"
        return {"connectionString": f"{endpoint};{shown}{more}"}

    async def connect(self, request: PageRequest) -> Response:
        """Return a connection string with all rights, for commands on this machine."""
        own = self._own
        key = own.authority_manager.connection_string_key if own.is_default else ""
        if not key:
            rule = await self._rule_that_manages()
            if rule is None:
                why = "No key of this namespace has Manage: a client needs a web token."
                return request.exchange.refusal(InvalidOperation(why))
            key = f"SharedAccessKeyName={rule.name};SharedAccessKey={rule.primary_key};"
        endpoint, _, more = self._endpoint_of(shown_host(own.settings.host)).partition(";")
        return _json(200, {"connectionString": f"{endpoint};{key}{more}"})

    async def _rule_that_manages(self) -> SasRule | None:
        keys = self._own.keys
        if keys is None:
            first = self._own.first_key
            return None if first is None else SasRule(self._own.name, first)
        rules = await asyncio.to_thread(keys.load) if isinstance(keys, GivenKeyFile) else keys.rules()
        return next((rule for rule in rules if Right.MANAGE in rule.rights), None)

    async def move_clock(self, request: PageRequest) -> Response:
        """Move the clock of a namespace forwards by the `advance` of the body, such as PT5M."""
        served = self._found(request)
        if served is None:
            return self._missing(request)
        if served.clock is None:
            return request.exchange.refusal(InvalidOperation(_NO_TEST))
        try:
            ms = _advance_ms(request.body)
        except ValueError as failure:
            return request.exchange.refusal(ArgumentInvalid(f"{failure}."))
        return _json(200, {"nowMs": await advance(served, ms)})

    async def reset(self, request: PageRequest) -> Response:
        """Remove what tests have left in a namespace; `keep=entities` in the query keeps the entities."""
        served = self._found(request)
        if served is None:
            return self._missing(request)
        if served.clock is None:
            return request.exchange.refusal(InvalidOperation(_NO_TEST))
        kept = request.query.get("keep", [])
        if kept not in ([], ["entities"]):
            return request.exchange.refusal(ArgumentInvalid("keep: only 'entities' can be kept."))
        try:
            await reset(served, keep_entities=bool(kept))
        except ServiceBusError as failure:
            return request.exchange.refusal(failure)
        return Response(204)

    def _found(self, request: PageRequest) -> ServedNamespace | None:
        found = self._registry.get(request.argument)
        return found if self._own.is_default or found is self._own else None

    def _missing(self, request: PageRequest) -> Response:
        return request.exchange.refusal(NotHere(f"There is no namespace '{request.argument[:64]}' here."))

    def _view(self, served: ServedNamespace) -> dict[str, Any]:
        lease = self._throw_away.lease_of(served)
        return {
            "name": served.name,
            "kind": served.kind,
            "durability": served.settings.durability,
            "connections": len(served.connections),
            "tier": TIERS[served.settings.tier].name,
            "properties": write_limits(served.limits),
            **({} if lease is None else {"lease": format_duration(round(lease.seconds * 1000))}),
        }

    def _view_elsewhere(self, wanted: Wanted) -> dict[str, Any]:
        """Return what is shown of a namespace that another node owns, or none."""
        settings = self._own.settings
        return {
            "name": wanted.name,
            "kind": wanted.kind,
            "durability": settings.durability,
            "connections": None,
            "tier": TIERS[wanted.limits.tier or settings.tier].name,
            "properties": write_limits(wanted.limits),
        }


_NO_TEST = (
    "This is offered in development mode, and for namespaces made for tests: make one with "
    "POST /$api/v1/namespaces."
)


def _json(status: int, value: Any) -> Response:
    return Response(status, JSON, to_json(value), (("Cache-Control", "no-store"),))


def _lease_s(request: PageRequest) -> float | None:
    """Return the lease that the query asks for, s. Raises: ValueError."""
    given = request.query.get("lease")
    if given is None:
        return None
    ms = parse_duration(given[0])
    if ms <= 0:
        raise ValueError(f"lease: {given[0]!r} is not a time to wait, such as PT10M")
    return ms / 1000


def _advance_ms(body: bytes) -> int:
    """Return how far the clock is to go, ms. Raises: ValueError."""
    given = json.loads(body or b"null")
    text = given.get("advance") if isinstance(given, dict) else None
    if not isinstance(text, str):
        raise ValueError('the body must be {"advance": "PT5M"}, with any ISO 8601 duration')
    ms = parse_duration(text)
    if not 0 < ms <= ADVANCE_MS_MAX:
        raise ValueError(f"advance: {text!r} is not a time forwards of at most ten years")
    return ms
