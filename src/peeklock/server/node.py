"""This process as a node of a cluster: its member, its port for other nodes, its relay, in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from peeklock.cluster.key import ClusterKey
from peeklock.server.cluster.member import Member
from peeklock.server.cluster.stand_in import stand_in
from peeklock.server.line_limits import Note
from peeklock.server.namespaces.lifecycle import Lifecycle
from peeklock.server.namespaces.registry import Registry
from peeklock.server.namespaces.served import Process, ServedNamespace
from peeklock.server.net.node_port import NodePort
from peeklock.server.net.probing import Prober
from peeklock.server.net.protocols import Protocols
from peeklock.server.net.relay import Relay
from peeklock.server.settings import Settings
from peeklock.server.system.shared import SharedSystemStore

if TYPE_CHECKING:
    from peeklock.config.file import Config


class NodeParts:
    """The parts of one node; the calls come in the order of the methods."""

    def __init__(self, settings: Settings) -> None:
        """Listen for other nodes, without answering yet. Raises: StartFailed."""
        self._settings = settings
        self._port = NodePort(settings)
        self.address = self._port.address
        """Where other nodes reach this one."""
        self._key: ClusterKey
        self.member: Member
        self.relay: Relay

    def stand_in(self, name: str, process: Process) -> ServedNamespace:
        """Return what is in the place of the default namespace. Raises: KeysRefused."""
        return stand_in(name, process)

    def join(
        self,
        process: Process,
        registry: Registry,
        lifecycle: Lifecycle,
        configs: Sequence[Config],
    ) -> Member:
        """Make the member, which owns nothing yet. Raises: StartFailed."""
        assert process.stores is not None
        assert process.stores.nodes is not None
        assert process.stores.cluster_key is not None
        assert isinstance(process.system, SharedSystemStore)
        self._key = process.stores.cluster_key
        self.member = Member(
            process.stores.nodes,
            registry,
            lifecycle,
            process.system,
            configs,
            self._settings.own_names,
            process.on_failure,
        )
        return self.member

    async def open(self, protocols: Protocols, now_ms: Callable[[], int], note: Note) -> Relay:
        """Take clients of other nodes; return what leads those of this one."""
        from peeklock.server.tls.between_nodes import node_contexts

        contexts = await asyncio.to_thread(node_contexts, self._key)
        self.relay = Relay(self.member, protocols, contexts.connecting, now_ms, note)
        self._port.open(self.relay, contexts.listening)
        return self.relay

    async def probe(self, port: int) -> None:
        """Probe this node at the port of its clients, and others, for as long as it runs."""
        await Prober(self.member, self.relay.context, self._settings.host, port).run()

    async def give_back(self) -> None:
        """Give all namespaces back, whose clients were told, and have what is carried read."""
        await self.member.give_all()
        await asyncio.gather(self.member.end_logs(), self.relay.until_closed())

    def close(self) -> None:
        """Take no client any more, and end those that are carried."""
        self._port.close()
        self.relay.close()
