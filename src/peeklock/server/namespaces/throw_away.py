"""Namespaces for tests: made in memory within milliseconds, and ended when nobody has used them for a while.

One is made by a request, or with `--namespaces on-use` by the first token whose key name no namespace has. So
a test is isolated by a GUID in its connection string, in any language.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from peeklock.auth import DEVELOPMENT_KEY, Authority, KeyRefused, NamespaceFull, SasRule, SasToken
from peeklock.config.hosts import HOST_LABEL_RULE, is_host_label
from peeklock.server import log
from peeklock.server.loop.tasks import tell_failure
from peeklock.server.namespaces.registry import NamespaceThere, Registry
from peeklock.server.namespaces.served import Process, ServedNamespace, run_now

DEVELOPMENT_MAX = 1_000
"""At a time, in development mode. Our choice: an empty one takes 100 KB."""

KEY_BYTES = 32

ENDED_MAX = 100
"""Ended namespaces whose memory is not free yet. Our choice: 5 MB if they are empty. Their objects refer to
each other in circles, and a full collection takes 50 ns for each object of the process, all in one turn."""

ENDED = "The namespace '{}' has ended: {}."


@dataclass(slots=True)
class Lease:
    """How long a namespace stays without use."""

    seconds: float
    used_s: float
    """When it was used last, of the monotonic clock."""


class ThrowAway:
    """Makes and ends them."""

    def __init__(
        self,
        registry: Registry,
        process: Process,
        close: Callable[[ServedNamespace, str], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with none; `close` closes the connections of a namespace, and tells them why."""
        settings = process.settings
        self._registry = registry
        self._process = process
        self._close = close
        self._clock_s = clock_s
        default = DEVELOPMENT_MAX if settings.is_development else 0
        self.most = default if settings.throw_away is None else settings.throw_away
        """How many there may be."""
        self._leases: dict[ServedNamespace, Lease] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._ended = 0
        """Since the memory of such was freed."""
        if settings.namespaces == "on-use":
            registry.on_use = self._on_use

    def __len__(self) -> int:
        return len(self._leases)

    def lease_of(self, served: ServedNamespace) -> Lease | None:
        """Return the lease of a namespace; None = it is none of these."""
        return self._leases.get(served)

    def make(self, name: str | None = None, lease_s: float | None = None) -> ServedNamespace:
        """Make an empty namespace; `name` None = a GUID.

        Raises: NamespaceFull, NamespaceThere, KeyRefused.
        """
        if self._process.settings.node is not None:  # another node may own one of the name
            raise NamespaceFull(
                "A node of a cluster makes no throw-away namespaces: start a broker without --node for tests."
            )
        name = uuid.uuid4().hex if name is None else name
        if not is_host_label(name):
            raise KeyRefused(f"'{name[:64]}' is not {HOST_LABEL_RULE}.")
        self._registry.require_free(name)
        if len(self._leases) >= self.most:
            raise NamespaceFull(
                f"The broker has {len(self._leases)} throw-away namespaces, the most it may have: end some, "
                "or start it with a larger --throw-away."
                if self.most
                else "The broker makes no throw-away namespaces: start it with --throw-away N."
            )
        settings = self._process.settings
        own = replace(settings, data=None, durability="memory", keys=None, capture=None)
        key = None
        if not settings.is_development and "off" not in settings.auth:
            key = base64.b64encode(os.urandom(KEY_BYTES)).decode()
        authority = None if key is None else Authority([SasRule(name, key)])
        served = ServedNamespace(name, self._process, own, "throw-away", authority=authority)
        served.first_key = DEVELOPMENT_KEY if key is None else key
        run_now(served.open())
        served.follow_definitions()
        self._registry.add(served)
        lease_s = settings.throw_away_lease_s if lease_s is None else lease_s
        self._leases[served] = Lease(lease_s, self._clock_s())
        log.info("throw-away namespace made", {"name": name, "lease_s": lease_s})
        return served

    def _on_use(self, key_name: str, token: str) -> ServedNamespace | None:
        """Make the namespace that a well-signed token names. Raises: NamespaceFull, KeyRefused."""
        try:
            self._registry.require_free(key_name)
        except NamespaceThere:  # it has no such key: it refuses it
            return None
        if not SasToken.parse(token).signed_with(DEVELOPMENT_KEY):
            return None
        return self.make(key_name)

    def end(self, served: ServedNamespace, why: str) -> None:
        """End one; its clients are told why."""
        del self._leases[served]
        self._registry.remove(served)
        log.info("throw-away namespace ended", {"name": served.name, "why": why})
        self._close(served, ENDED.format(served.name, why))
        task = asyncio.get_running_loop().create_task(self._stop(served))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        task.add_done_callback(tell_failure)

    async def _stop(self, served: ServedNamespace) -> None:
        await served.retire()
        self._ended += 1

    def tick(self) -> None:
        """End those whose lease is over; call about once a second."""
        now_s = self._clock_s()
        for served, lease in list(self._leases.items()):
            if served.connections or served.used:
                served.used = False
                lease.used_s = now_s
            elif now_s - lease.used_s >= lease.seconds:
                self.end(served, f"nobody used it for {lease.seconds:g} s")
        if self._ended >= ENDED_MAX or (self._ended and not self._leases):
            self._ended = 0
            gc.collect()

    async def stop(self) -> None:
        """Wait for those that are ending."""
        if self._ending:
            await asyncio.wait(set(self._ending))
