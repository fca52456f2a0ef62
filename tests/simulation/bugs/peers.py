"""Planted bugs in the defence against hostile peers: in the gateway, the AMQP engine and the turns."""

from __future__ import annotations

import sys

from peeklock.amqp.errors import INTERNAL_ERROR, RemoteProtocolError
from peeklock.amqp.frames import Limits
from peeklock.amqp.link import Link, ReassemblyBudget
from peeklock.amqp.serial import distance
from peeklock.gateway import connection as gateway_module
from peeklock.gateway.connection import Gateway
from peeklock.server.loop.turns import Turns, Worker, _Share
from tests.simulation.world.sizes import Patch


def _take_any_credit(link: Link, delivery_count: int | None, credit: int) -> None:
    """Accept a delivery-count that is ahead of ours: credit passes 32 bits."""
    ahead = 0 if delivery_count is None else distance(link.delivery_count, delivery_count)
    link.granted = max(link.counted + ahead + credit, link.counted)


UNBOUND_CREDIT: tuple[Patch, ...] = ((Link, "granted_by_peer", _take_any_credit),)


def _forget_partial(link: Link) -> None:
    """Drop an unfinished delivery, whose bytes stay counted."""
    link.partial = None


LEAKED_PARTIALS: tuple[Patch, ...] = ((Link, "drop_partial", _forget_partial),)

UNBOUND_STRANGERS: tuple[Patch, ...] = ((gateway_module, "STRANGER_LIMITS", Limits()),)


def _take_alone(budget: ReassemblyBudget, chunk: bytes) -> None:
    """Count a chunk, and check the bound of its connection only."""
    shared, size = budget.shared, len(chunk) + budget.CHUNK_OVERHEAD
    if budget.used + size > budget.limit:
        raise RemoteProtocolError(INTERNAL_ERROR, "too much on this connection")
    budget.used += size
    if shared is not None:
        shared.used += size


UNSHARED_BOUND: tuple[Patch, ...] = ((ReassemblyBudget, "take", _take_alone),)


class Borderless(Gateway):
    """Lets a defect escape."""

    def _break(self, defect: Exception) -> None:
        raise defect


class Unbudgeted(Turns):
    """Works on a whole read in one turn."""

    def _work(self, worker: Worker, units: int, until_s: float) -> None:
        super()._work(worker, sys.maxsize, until_s)


class GenerousTurns(Turns):
    """Takes each peer for a client."""

    def _share_of(self, worker: Worker) -> _Share:
        return self._clients


class StubbornTurns(Turns):
    """Serves the first waiting connection until it is done, and only then the next."""

    def _serve_queues(self) -> None:
        shares = self._clients, self._strangers
        others = [list(share.queue)[1:] for share in shares]
        for share, behind in zip(shares, others, strict=True):
            for worker in behind:
                del share.queue[worker]
        super()._serve_queues()
        for behind in others:
            for worker in behind:
                self._enqueue(worker)
