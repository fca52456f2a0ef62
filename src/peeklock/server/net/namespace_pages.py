"""The pages `/$api/v1/namespaces`: the namespaces of the process, and what tests ask of them.

Those of the default namespace know all; those of another one know that one alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from peeklock.admin.exchange import Response
from peeklock.api.exchange import JSON, to_json
from peeklock.api.problems import NotHere
from peeklock.auth import AuthorizationError
from peeklock.broker.vocabulary.durations import format_duration, parse_duration
from peeklock.broker.vocabulary.errors import ArgumentInvalid, InvalidOperation, ServiceBusError
from peeklock.config.hosts import host_in
from peeklock.server import configuration
from peeklock.server.namespaces.for_tests import advance, reset
from peeklock.server.namespaces.registry import Registry
from peeklock.server.namespaces.served import ServedNamespace
from peeklock.server.namespaces.throw_away import NamespaceThere, ThrowAway
from peeklock.server.net.operator_pages import PageRequest
from peeklock.server.settings import StartFailed

ADVANCE_MS_MAX = 10 * 365 * 86_400_000
"""Of one request. Our choice: ten years are more than any timer but the largest time to live."""

_OWNER = "its owner ended it"


class NamespacePages:
    """Shows, makes and ends namespaces."""

    def __init__(
        self,
        registry: Registry,
        throw_away: ThrowAway,
        own: ServedNamespace,
        endpoint_of: Callable[[str], str],
    ) -> None:
        """`own` serves the page; `endpoint_of` returns the endpoint of a connection string for a host."""
        self._registry = registry
        self._throw_away = throw_away
        self._own = own
        self._endpoint_of = endpoint_of

    async def show_all(self, request: PageRequest) -> Response:
        """Return all namespaces that may be seen here."""
        shown = self._registry if self._own.is_default else (self._own,)
        return _json(200, {"namespaces": [self._view(served) for served in shown]})

    async def show(self, request: PageRequest) -> Response:
        """Return one namespace."""
        served = self._found(request)
        return self._missing(request) if served is None else _json(200, self._view(served))

    async def make(self, request: PageRequest) -> Response:
        """Make a throw-away namespace; return its connection string. The body may be a Config.json."""
        if not self._own.is_default:
            why = f"Only the default namespace '{self._registry.default.name}' makes others."
            return request.exchange.refusal(InvalidOperation(why))
        try:
            lease_s = _lease_s(request)
            config = configuration.for_tests(request.body) if request.body else None
            served = self._throw_away.make(request.query.get("name", [None])[0], lease_s)
        except (ValueError, StartFailed) as failure:
            return request.exchange.refusal(ArgumentInvalid(f"{failure}."))
        except NamespaceThere as failure:
            return request.exchange.refusal(InvalidOperation(str(failure)))
        except AuthorizationError as failure:
            return request.exchange.refusal(failure)
        if config is not None:
            try:
                await served.configure(config)
            except StartFailed as failure:
                self._throw_away.end(served, "its configuration was refused")
                return request.exchange.refusal(ArgumentInvalid(f"{failure}."))
        host = host_in(request.headers.get("host", "")) or "localhost"
        key = f"SharedAccessKeyName={served.name};SharedAccessKey={served.shown_key};"
        endpoint, _, more = self._endpoint_of(host).partition(";")
        return _json(201, {**self._view(served), "connectionString": f"{endpoint};{key}{more}"})

    async def end(self, request: PageRequest) -> Response:
        """End a throw-away namespace."""
        served = self._found(request)
        if served is None:
            return self._missing(request)
        if self._throw_away.lease_of(served) is None:
            why = f"'{served.name}' is of the configuration: leave it out there, and restart the broker."
            return request.exchange.refusal(InvalidOperation(why))
        self._throw_away.end(served, _OWNER)
        return Response(204)

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
        kind = "default" if served.is_default else "configured" if lease is None else "throw-away"
        return {
            "name": served.name,
            "kind": kind,
            "durability": served.settings.durability,
            "connections": len(served.connections),
            **({} if lease is None else {"lease": format_duration(round(lease.seconds * 1000))}),
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
