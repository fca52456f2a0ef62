"""What HTTP connections use of one namespace: its administration, its pages, its requests that wait.

Its modules are imported with the first connection: `http` and `admin` take 100 ms.
"""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peeklock.admin.api import Administration
from peeklock.admin.exchange import AdminContext
from peeklock.api.access import Access
from peeklock.api.count_board import CountBoard
from peeklock.api.exchange import ApiContext
from peeklock.auth import Authority, OpenAuthority
from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.rest.receives import Receives
from peeklock.server.line_limits import Note
from peeklock.server.namespaces.served import ServedNamespace
from peeklock.server.net.backup_pages import BackupPages, Stores
from peeklock.server.net.cluster_pages import cluster_pages
from peeklock.server.net.config_page import ConfigPage
from peeklock.server.net.connection_pages import ConnectionPages
from peeklock.server.net.explorer_pages import explorer_pages
from peeklock.server.net.http_dispatch import HttpContext
from peeklock.server.net.hub import ApiHub, Hub
from peeklock.server.net.key_pages import KeyPages
from peeklock.server.net.metrics_pages import MetricsPages
from peeklock.server.net.namespace_pages import NamespacePages
from peeklock.server.net.operator_pages import OperatorPages, Page
from peeklock.server.net.probes import ProbePages
from peeklock.server.origins import OriginPolicy
from peeklock.server.shard.vitals import Vitals
from peeklock.server.system.jobs import JobFacts
from peeklock.server.workers.hub import WorkHub
from peeklock.server.workers.jobs import Jobs, NoFacts
from peeklock.store.backup.format import SYSTEM, Role, StoreHead
from peeklock.store.backup.verifying import key_of
from peeklock.store.base import StoreReader

if TYPE_CHECKING:
    from peeklock.server.net.protocols import Protocols

RULE_KEY_BYTES = 32
"""Random bytes in the key of an entity's authorization rule without one. Source: wire contract 7.3."""


class HttpEndpoint:
    """One namespace, over HTTP."""

    def __init__(self, served: ServedNamespace, protocols: Protocols, metrics: MetricsPages) -> None:
        """Serve nothing yet. `protocols` has what all namespaces share."""
        self._served = served
        self._protocols = protocols
        self._metrics = metrics
        self.context = self._make_context()
        """For connections that show a key."""
        self.control = replace(
            self.context,
            administration=partial(self._administration, OpenAuthority()),
            pages=self._pages(asks_for_keys=False, has_stores=served.is_default),
            origin_policy=OriginPolicy(),
            bears_refusal=lambda address: True,
        )
        """For the control socket: all rights, without a key."""

    @property
    def hubs(self) -> list[Any]:
        """The requests that wait."""
        found = (self.context.receives, self.context.api, self.context.works)
        return [hub for hub in found if hub is not None]

    def stop(self) -> None:
        """End all waits for messages."""
        for hub in self.hubs:
            hub.stop()
        if self.context.jobs is not None:
            self.context.jobs.stop()

    def _make_context(self) -> HttpContext:
        served, shared = self._served, self._protocols
        shard, new_id, on_defect = served.shard, shared.new_id, shared.defects.add
        return HttpContext(
            submit=shard.submit,
            submit_for=shard.ask,
            administration=partial(self._administration, served.authority),
            pages=self._pages(asks_for_keys=served.authority_manager.asks_for_secret),
            now_ms=shared.clock.wall_ms,
            origin_policy=shared.origin_policy,
            stops=shared.stops,
            amqp=partial(shared.amqp_in, served),
            turns=shared.turns,
            bears_refusal=shared.bears_refusal,
            bodies=shared.bodies,
            receives=Hub(Receives, new_id, shard, on_defect),
            api=ApiHub(new_id, shard, on_defect),
            api_context=ApiContext(
                CountBoard(
                    shard.count_figures, lambda: shard.counters, uuid.uuid4().hex[:8], lambda: shard.mark
                ),
                served.history,
                self._identities_of,
                is_development=not served.authority_manager.asks_for_secret,
                has_jobs=True,
                has_event_log=served.settings.capture is not None,
                has_namespaces=served.is_default,
            ),
            works=WorkHub(served.name, shared.children, partial(shared.attach, served), self._event_log()),
            jobs=self._make_jobs(),
        )

    def _event_log(self) -> Path | None:
        served = self._served
        if served.settings.capture is None:
            return None
        from peeklock.server.capture import folder_of

        folder = folder_of(served.settings.capture, served.name.lower(), is_default=served.is_default)
        return folder.absolute()

    def _make_jobs(self) -> Jobs:
        served, shared = self._served, self._protocols
        facts = NoFacts() if served.kind == "throw-away" else JobFacts(shared.process.system, served.name)
        jobs = Jobs(served.name, shared.children, partial(shared.attach, served), facts, shared.clock.wall_ms)
        served.authority_manager.on_gone = jobs.disown
        return jobs

    def _identities_of(self, connection_id: int) -> list[str]:
        connection = self._served.connections.get(connection_id)
        return [] if connection is None else connection.view().identities

    def _administration(self, authority: Authority, note: Note) -> Administration:
        served = self._served
        return Administration(
            AdminContext(
                authority,
                tracking=lambda: str(uuid.uuid4()),
                keys=lambda: base64.b64encode(os.urandom(RULE_KEY_BYTES)).decode(),
                owns=self._protocols.registry.owns(served),
                log=note,
                name=served.name,
                limits=TIERS[served.settings.tier],
                created_at_ms=served.created_at_ms,
            )
        )

    def _vitals(self) -> Vitals:
        found, member = self._served.shard.vitals(), self._protocols.member
        return found if member is None else replace(found, is_cut_off=member.unreached_s() is not None)

    def _pages(self, *, asks_for_keys: bool, has_stores: bool = False) -> OperatorPages:
        """Make the table of the operator's pages: a row for each.

        Those of the default namespace show the whole process, those of another one its own part.
        `has_stores`: with the pages for `peeklock backup`.
        """
        served, shared = self._served, self._protocols
        probes = ProbePages(partial(shared.health, served), self._vitals, shared.stops)
        connections = ConnectionPages(
            shared.connections if served.is_default else served.connections,
            shared.namespace_of,
            shared.clock.now_ms,
            shared.turns,
        )
        keys = KeyPages(served.keys)
        tier = TIERS[served.settings.tier].name
        config = ConfigPage(served.shard.definitions, lambda: served.limits, tier)
        namespaces = NamespacePages(
            shared.registry, shared.lifecycle, shared.throw_away, served, shared.endpoint_of, shared.member
        )
        rows = [
            Page("/live", Access.ANYBODY, probes.live),
            Page("/ready", Access.ANYBODY, probes.ready),
            Page("/health", Access.ANYBODY, probes.health),
            Page("/metrics", Access.FIGURES, self._metrics.totals),
            Page("/metrics/entities", Access.FIGURES, self._metrics.entities),
            Page("/connections", Access.MANAGE, connections.show),
            Page("/connections/", Access.MANAGE, connections.close, "DELETE"),
            *_namespace_rows(namespaces),
            Page("/$api/v1/connection-string", Access.MANAGE, namespaces.connect),
            Page("/$api/v1/config", Access.MANAGE, config.show),
            Page("/$api/v1/keys", Access.MANAGE, keys.show),
            Page("/$api/v1/keys/", Access.MANAGE, keys.add, "PUT"),
            Page("/$api/v1/keys/", Access.MANAGE, keys.rotate, "POST"),
            Page("/$api/v1/keys/", Access.MANAGE, keys.remove, "DELETE"),
        ]
        rows += [] if shared.member is None else cluster_pages(shared.member, served)
        if shared.settings.explorer == "on":
            rows += explorer_pages(asks_for_secret=served.authority_manager.asks_for_secret)
        if has_stores:
            data = served.settings.data
            backup = BackupPages(self._stores, None if data is None else str(data))
            rows += [
                Page("/$api/v1/backup", Access.MANAGE, backup.show),
                Page("/$api/v1/backup", Access.MANAGE, backup.open, "POST"),
                Page("/$api/v1/backup/", Access.MANAGE, backup.read),
            ]
        return OperatorPages(rows, asks_for_keys=asks_for_keys)

    def _stores(self) -> Stores:
        """Return the stores of the process but those of namespaces for tests, which end without a trace."""
        found: list[tuple[StoreHead, Callable[[], StoreReader]]] = [
            (StoreHead(SYSTEM, "system", 0), self._protocols.process.system.reader)
        ]
        for served in self._protocols.registry:
            if served.kind != "throw-away":
                role: Role = "default" if served.is_default else "namespace"
                found.append((StoreHead(served.name, role, 0), served.shard.reader))
        return {key_of(head): (head, reader) for head, reader in found}


def _namespace_rows(namespaces: NamespacePages) -> list[Page]:
    return [
        Page("/$api/v1/namespaces", Access.MANAGE, namespaces.show_all),
        Page("/$api/v1/namespaces", Access.MANAGE, namespaces.make, "POST", takes_body=True),
        Page("/$api/v1/namespaces/", Access.MANAGE, namespaces.show),
        Page("/$api/v1/namespaces/", Access.MANAGE, namespaces.create, "PUT", takes_body=True),
        Page("/$api/v1/namespaces/", Access.MANAGE, namespaces.delete, "DELETE"),
        Page("/$api/v1/namespaces/*/clock", Access.MANAGE, namespaces.move_clock, "POST", takes_body=True),
        Page("/$api/v1/namespaces/*/reset", Access.MANAGE, namespaces.reset, "POST"),
    ]
