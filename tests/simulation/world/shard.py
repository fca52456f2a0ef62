"""One namespace in one process: its core, engine and driver, and what they are asked and hand out.

Owns: the parts of a namespace that die with the process, as `server.namespaces.served` and `server.shard`
have them. Must not know: the other namespace, which connections have chosen this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from peeklock.auth.authority import Authority
from peeklock.broker.vocabulary.commands import OWN_CONNECTION_ID, Command, UpdateEntity
from peeklock.broker.vocabulary.descriptions import Description
from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.config.namespace_limits import NO_LIMITS
from peeklock.engine.bodies import BodyCache
from peeklock.engine.driver import Driver
from peeklock.server.keys.authority_manager import AuthorityManager
from peeklock.store.base import Store
from peeklock.testing.pump import finish
from tests.simulation.oracle.records import Violation
from tests.simulation.world.driving import Driving
from tests.simulation.world.http_service import HTTP_CONNECTION_ID, HttpService
from tests.simulation.world.own_requests import OwnRequests
from tests.simulation.world.pieces import Connection
from tests.simulation.world.sizes import BODIES_BYTES_MAX
from tests.simulation.world.topology import in_order, lock_grace_ms, without_forwards
from tests.simulation.world.world import World

if TYPE_CHECKING:
    from tests.simulation.oracle.checker import Checker
    from tests.simulation.world.process import Process
    from tests.simulation.world.tenant import FaultRates, Tenant

SLICE = 2
"""Messages of a batch that are read, and then stored, in one turn: few, so that most batches take several
turns."""


class Shard:
    """One namespace; the `Registry` of the server finds it as it finds a `ServedNamespace`."""

    limits = NO_LIMITS

    def __init__(self, process: Process, tenant: Tenant) -> None:
        """Begin empty."""
        self.process = process
        self.tenant = tenant
        self.world: World = process.node.world_of(tenant)
        self.name: str = tenant.name
        self.authority_manager = AuthorityManager(frozenset(), None, names=(tenant.name,))
        pieces = process.pieces
        self.namespace = pieces.namespace(
            limits=TIERS["standard"],
            tokens=self._token,
            digest_key=b"simulation",
            captures_body=tenant.captures_body,
            slice_items=SLICE,
            lock_grace_ms=lock_grace_ms(tenant.world.seed),
        )
        self.engine = pieces.engine(self.namespace, BodyCache(BODIES_BYTES_MAX))
        self.driver: Driver = pieces.driver(self.engine)
        self.driver.connect(HTTP_CONNECTION_ID)
        self.body = self.driver.body
        self.http = HttpService(self)
        self.own = OwnRequests(self)
        self._driving = Driving(self)
        self.go_on = self._driving.go_on
        """Steps the driver in this turn."""

    def recover(self) -> None:
        """Recover from the store, then create and change entities as they should be."""
        tenant, now_ms = self.tenant, self.process.now_ms
        finish(self.engine.recover(self.store, now_ms))
        self.namespace.check(now_ms)
        known = {
            entity.description.name: entity.description for entity in self.checker.facts.entities.values()
        }
        commands: list[Command] = []
        in_circles: list[Description] = []
        for entity in in_order(tenant.entities):
            if entity.name not in known:
                known[entity.name] = first = without_forwards(entity, known)
                commands.append(tenant.creation(first, self.own.reply_to()))
                if first != entity:
                    in_circles.append(entity)
            elif known[entity.name] != entity:
                commands.append(UpdateEntity(entity, self.own.reply_to()))
        commands += [UpdateEntity(entity, self.own.reply_to()) for entity in in_circles]
        self._driving.start()
        self.offer(commands)

    @property
    def authority(self) -> Authority:
        """What checks its tokens and keys."""
        return self.authority_manager.authority

    @property
    def store(self) -> Store:
        """What it recovers from, and reads."""
        return self.process.node.store_of(self.tenant)

    @property
    def checker(self) -> Checker:
        """What knows the promises to its clients."""
        return self.tenant.checker

    @property
    def fault_rates(self) -> FaultRates:
        """How likely faults are."""
        return self.tenant.fault_rates

    def offer(self, commands: list[Command]) -> None:
        """Apply commands; their effects leave when they are durable."""
        if commands:
            self.driver.offer(commands, self.process.now_ms)
            self.go_on()

    def connection(self, connection_id: int) -> Connection | None:
        """Return a connection, or its stand-in when it is gone. Raises: Violation, if it is not its own."""
        if connection_id == HTTP_CONNECTION_ID:
            return self.http
        if connection_id == OWN_CONNECTION_ID:
            return self.own
        found = self.process.connections.get(connection_id)
        if found is None:
            return None
        if found.shard is not self:
            raise Violation(f"effects of '{self.name}' are for c{connection_id}, of '{found.shard.name}'")
        if found.tenant is not self.tenant:
            meant = found.tenant.name
            raise Violation(
                f"effects of '{self.name}' are for c{connection_id}, whose client means '{meant}'"
            )
        return found

    def _token(self) -> bytes:
        return self.world.random.randbytes(16)
