"""The pages of a cluster: `/owner`, and `/$api/v1/cluster` with its nodes and namespaces."""

from __future__ import annotations

from typing import Any

from peeklock.admin.exchange import Response
from peeklock.api.access import Access
from peeklock.api.exchange import JSON, to_json
from peeklock.api.problems import NotHere
from peeklock.broker.vocabulary.errors import InvalidOperation
from peeklock.cluster.placing import fit_nodes, place
from peeklock.server import log
from peeklock.server.cluster.member import Member
from peeklock.server.disk import store_name
from peeklock.server.namespaces.served import ServedNamespace
from peeklock.server.net.operator_pages import Page, PageRequest
from peeklock.store.base import StoreError


def cluster_pages(member: Member, served: ServedNamespace) -> list[Page]:
    """Return the rows of the table of pages, for the pages of one namespace."""
    pages = ClusterPages(member, served)
    rows = [Page("/owner", Access.ANYBODY, pages.owner)]
    if served.is_default:
        rows += [
            Page("/$api/v1/cluster", Access.MANAGE, pages.show),
            Page("/$api/v1/cluster/", Access.MANAGE, pages.move, "POST"),
        ]
    return rows


class ClusterPages:
    """Shows who owns what, and moves namespaces."""

    def __init__(self, member: Member, served: ServedNamespace) -> None:
        self._member = member
        self._store = store_name(served.name, is_default=served.is_default)
        self._name = served.name

    async def owner(self, request: PageRequest) -> Response:
        """Return which node owns the namespace of the page: 503 while none does."""
        found = self._member.owner_of(self._store)
        node = None if found is None else found[1].name
        value = {"namespace": self._name, "owner": node, "node": self._member.nodes.name}
        return _json(503 if found is None else 200, value)

    async def show(self, request: PageRequest) -> Response:
        """Return all nodes and namespaces."""
        member = self._member
        view, stores = member.view, member.directory.by_store
        fit, wanted = set(fit_nodes(view)), place(view, stores)
        nodes = [
            {
                "name": node.name,
                "address": node.address,
                "version": node.version,
                "state": _state(node.is_live, node.is_leaving, node.name in fit),
                "startedS": round(node.started_s),
                "lagS": round(max(node.seen_s, 0.0), 1),
                "unreached": sorted(node.unreached),
            }
            for node in sorted(view.nodes.values(), key=lambda node: node.name)
        ]
        namespaces = []
        for store, one in sorted(stores.items()):
            lease = view.lease(store)
            namespaces.append(
                {
                    "name": one.name,
                    "owner": lease.owner if lease.is_valid else None,
                    "next": wanted.get(store),
                    "chosen": lease.place,
                    "epoch": lease.epoch,
                    "leaseS": round(lease.left_s, 1) if lease.is_valid else 0,
                }
            )
        unreached_s = member.unreached_s()
        value = {
            "node": member.nodes.name,
            "databaseUnreachedS": None if unreached_s is None else round(unreached_s, 1),
            "ageS": round(member.view_age_s(), 1),
        }
        return _json(200, {**value, "nodes": nodes, "namespaces": namespaces})

    async def move(self, request: PageRequest) -> Response:
        """Move a namespace to the node `to` of the query, empty = to any node."""
        member = self._member
        named = request.argument.lower()
        stores = [store for store, one in member.directory.by_store.items() if one.name.lower() == named]
        if not stores:
            return request.exchange.refusal(
                NotHere(f"There is no namespace '{request.argument[:64]}' in this cluster.")
            )
        to = request.query.get("to", [""])[0]
        fit = fit_nodes(member.view)
        if to and to not in fit:
            there = ", ".join(fit) or "none"
            text = f"There is no node '{to[:64]}' that may own a namespace: {there} may."
            return request.exchange.refusal(InvalidOperation(text))
        try:
            await member.move(stores[0], to or None)
        except StoreError as failure:
            return request.exchange.refusal(InvalidOperation(f"{failure}."))
        log.info("the operator moves a namespace", {"name": request.argument, "to": to or "any node"})
        return Response(204)


def _state(is_live: bool, is_leaving: bool, is_fit: bool) -> str:
    if not is_live:
        return "lost"
    if is_leaving:
        return "leaving"
    return "live" if is_fit else "unreachable"


def _json(status: int, value: Any) -> Response:
    return Response(status, JSON, to_json(value), (("Cache-Control", "no-store"),))
