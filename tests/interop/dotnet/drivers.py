"""Transports of a player's bytes: to a broker in memory whose clock moves, or to a process over TCP or TLS.

Owns: transports, entities and time. Must not know scenarios' steps.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peeklock.demo.broker import BrokerProcess
from peeklock.testing.inprocess import InProcessBroker, InProcessConnection
from tests.interop.dotnet.player import Player
from tests.interop.dotnet.scenario import Entity, Scenario
from tests.interop.dotnet.stage import Account, Connect, Cut, Pass, Read, Write

KEY_NAME = "RootManageSharedAccessKey"
KEY = "SAS_KEY_VALUE"
HOST = "localhost"
ANSWER_S_MAX = 10.0
"""How long a loaded machine may take for an answer. A failing scenario takes so long."""

SLICE_MS = 1_000
"""Time in memory passes in steps."""


# In memory


def settings_of(entity: Entity) -> dict[str, Any]:
    """Return the settings of an entity as the broker has them."""
    settings: dict[str, Any] = {}
    if "lock" in entity.settings:
        settings["lock_duration_ms"] = 1_000 * int(entity.settings["lock"].removesuffix("s"))
    if entity.settings.get("sessions") == "true":
        settings["requires_session"] = True
    return settings


def create(broker: InProcessBroker, entities: Iterable[Entity]) -> None:
    """Create the entities of a scenario."""
    for entity in entities:
        settings = settings_of(entity)
        if entity.kind == "queue":
            broker.create_queue(entity.name, **settings)
        elif entity.kind == "topic":
            broker.create_topic(entity.name, **settings)
        else:
            broker.create_subscription(entity.topic, entity.name, **settings)


@dataclass(frozen=True, slots=True)
class Played:
    """The result of a scenario."""

    player: Player
    connections: list[list[bytes]]
    """The client's bytes, write by write."""


def play_in_memory(scenario: Scenario) -> Played:
    """Play a scenario against its own broker. Raises: PlayFailed."""
    broker = InProcessBroker()
    create(broker, scenario.entities)
    player = Player(scenario, Account(HOST, KEY_NAME, KEY, {}), broker.clock)
    wire: InProcessConnection | None = None
    connections: list[list[bytes]] = []
    for action in player.play():
        match action:
            case Connect() | Cut():
                if wire is not None:
                    wire.end()
                    wire = None
                if isinstance(action, Connect):
                    wire = broker.connect()
                    connections.append([])
            case Write() | Read():
                assert wire is not None
                data = player.client.take()
                if data:
                    connections[-1].append(data)
                    wire.write(data)
                if isinstance(action, Read):
                    player.received(wire.read())
                    if wire.gateway.closing:
                        player.ended()
            case Pass(ms):
                # A write is read at once, as by a socket: only then the silence begins.
                for at_ms in range(0, ms, SLICE_MS):
                    broker.advance(min(SLICE_MS, ms - at_ms))
                    if wire is not None and (data := wire.read()):
                        player.received(data)
    if wire is not None:
        wire.end()
    broker.namespace.check(broker.clock.now_ms)
    return Played(player, connections)


# Against a process


def configuration(scenarios: Iterable[Scenario], kinds: Iterable[str]) -> dict[str, Any]:
    """Return a configuration file in which each scenario has its entities once for each kind of wire."""
    queues: list[Any] = []
    topics: list[Any] = []
    for scenario in scenarios:
        for names in (renamed(scenario, kind) for kind in kinds):
            for entity in scenario.entities:
                properties: dict[str, Any] = {}
                if "lock" in entity.settings:
                    properties["LockDuration"] = f"PT{entity.settings['lock'].upper()}"
                if entity.settings.get("sessions") == "true":
                    properties["RequiresSession"] = True
                if entity.kind == "subscription":
                    subscriptions = topics[-1]["Subscriptions"]
                    subscriptions.append({"Name": entity.name, "Properties": properties})
                elif entity.kind == "topic":
                    topics.append({"Name": names[entity.name], "Subscriptions": []})
                else:
                    queues.append({"Name": names[entity.name], "Properties": properties})
    namespace = {"Name": "sbemulatorns", "Queues": queues, "Topics": topics}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}


def renamed(scenario: Scenario, kind: str) -> dict[str, str]:
    """Return the names of a scenario's entities, so that scenarios share only the broker."""
    prefix = f"{kind}-{scenario.name[:2]}-"
    return {
        entity.name: prefix + entity.name for entity in scenario.entities if entity.kind != "subscription"
    }


class Wire:
    """A blocking socket."""

    def __init__(self, port: int, authority: Path | None) -> None:
        """Connect; with the file of an authority, by TLS."""
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S_MAX)
        if authority is not None:
            context = ssl.create_default_context(cafile=str(authority))
            self._socket = context.wrap_socket(self._socket, server_hostname=HOST)

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self, wait_s: float = ANSWER_S_MAX) -> bytes | None:
        """Wait for bytes; return none at the end of the stream, None when nothing came in time."""
        self._socket.settimeout(wait_s)
        try:
            return self._socket.recv(65_536)
        except TimeoutError:
            return None

    def close(self) -> None:
        self._socket.close()


def play_over_wire(scenario: Scenario, broker: BrokerProcess, kind: str) -> None:
    """Play a scenario against a process, over `tcp` or `tls`. Raises: PlayFailed."""
    authority = broker.authority() if kind == "tls" else None
    account = Account(HOST, KEY_NAME, KEY, renamed(scenario, kind))
    player = Player(scenario, account, lambda: time.time_ns() // 1_000_000)
    wire: Wire | None = None
    try:
        for action in player.play():
            match action:
                case Connect() | Cut():
                    if wire is not None:
                        wire.close()
                    wire = Wire(broker.amqp_port, authority) if isinstance(action, Connect) else None
                case Write() | Read():
                    assert wire is not None
                    wire.write(player.client.take())
                    if isinstance(action, Read):
                        read = wire.read()
                        if read == b"":
                            player.ended()
                        else:
                            player.received(read or b"")
                case Pass(ms):
                    time.sleep(ms / 1_000)
    finally:
        if wire is not None:
            wire.close()


def write_configuration(scenarios: Iterable[Scenario], kinds: Iterable[str], file: Path) -> None:
    file.write_text(json.dumps(configuration(scenarios, kinds)))
