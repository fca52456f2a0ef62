"""The compose file of a cluster: its nodes as a broker reads settings, its scripts with Debian's PostgreSQL.

No engine runs it here.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from peeklock.cli.options import host_and_port, node_name
from peeklock.cli.settings_table import SETTINGS
from tests.postgres_server import PostgresServer, binaries, free_port, require_postgres

FILE = Path(__file__).parents[2] / "deploy/compose-cluster.yaml"
NODES = ("node-1", "node-2", "node-3")
OTHERS = {"CONFIG_JSON", "PGPASSWORD"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())  # merges the shared parts
    return found


def test_each_node_has_a_name_an_address_and_a_volume_of_its_own(compose: dict[str, Any]) -> None:
    volumes = set()
    for name in NODES:
        node = compose["services"][name]
        environment = node["environment"]
        assert set(environment) <= OTHERS | {setting.variable for setting in SETTINGS}
        assert node_name(environment["PEEKLOCK_NODE"]) == node["hostname"] == name
        assert host_and_port(environment["PEEKLOCK_NODE_ADDRESS"]) == f"{name}:5673"
        (volume,) = node["volumes"]
        volumes.add(volume)
    assert len(volumes) == len(NODES)


def test_the_nodes_share_the_key_the_database_and_the_configuration(compose: dict[str, Any]) -> None:
    for name in NODES:
        node = compose["services"][name]
        assert node["environment"]["PEEKLOCK_CLUSTER_KEY"] == f"/run/secrets/{node['secrets'][0]}"
        assert set(node["secrets"]) == set(compose["secrets"])
        assert node["environment"]["PEEKLOCK_STORE"] == "postgresql://peeklock@primary,standby/peeklock"
        assert node["environment"]["PEEKLOCK_DURABILITY"] == "replicated"
        assert len(json.loads(node["environment"]["CONFIG_JSON"])["UserConfig"]["Namespaces"]) == 2


def test_the_ports_are_this_machine_s_alone_and_the_nodes_hardened(compose: dict[str, Any]) -> None:
    ports = [port for name in NODES for port in compose["services"][name]["ports"]]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports)
    assert not any("ports" in compose["services"][name] for name in ("primary", "standby"))
    for name in NODES:
        assert compose["services"][name]["read_only"] is True
        assert compose["services"][name]["cap_drop"] == ["ALL"]


def test_the_primary_waits_for_its_standby(compose: dict[str, Any]) -> None:
    assert "synchronous_standby_names = '*'" in compose["configs"]["primary"]["content"]
    assert "pg_basebackup" in compose["configs"]["standby"]["content"]


QUICK = "recovery_init_sync_method=syncfs"
"""Else PostgreSQL opens and syncs each file of a new standby by itself."""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of its own: the script changes its settings."""
    require_postgres()
    made = PostgresServer()
    try:
        made.start()
        yield made
    finally:
        made.remove()


def test_the_scripts_make_a_primary_and_its_synchronous_standby(
    compose: dict[str, Any], server: PostgresServer
) -> None:
    """As in a new volume, the folder of the standby is there, empty, and open to all."""
    made = server.popen(*_shell(server, compose["configs"]["primary"]["content"], server.folder / "data"))
    assert made.wait(30) == 0
    server.stop()  # as the image stops the server of the first script
    server.start()
    folder, port = server.folder / "standby", free_port()
    assert server.popen("mkdir", "--mode=1777", str(folder)).wait(30) == 0
    script = compose["configs"]["standby"]["content"].replace(
        "host=primary", f"host=127.0.0.1 port={server.port}"
    )
    standby = server.popen(
        *_shell(server, script.replace("exec postgres", f"exec postgres -p {port} -c {QUICK}"), folder)
    )
    try:
        until_s = time.monotonic() + 30
        while not server.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"):
            assert time.monotonic() < until_s
            assert standby.poll() is None
            time.sleep(0.05)
        assert server.execute("SHOW synchronous_standby_names") == [("*",)]
        owners = (
            "SELECT rolname FROM pg_database JOIN pg_roles r ON datdba = r.oid WHERE datname = 'peeklock'"
        )
        assert server.execute(owners) == [("peeklock",)]
    finally:
        standby.send_signal(signal.SIGQUIT)
        try:
            standby.wait(30)
        finally:
            standby.kill()


def _shell(server: PostgresServer, script: str, data: Path) -> tuple[str, ...]:
    """Return the command that runs a script with the variables of the container."""
    variables = {
        "PATH": f"{binaries()}:/usr/bin:/bin",
        "PGDATA": str(data),
        "PGHOST": str(server.folder),  # of the socket
        "PGPORT": str(server.port),
        "PGPASSWORD": "a 'password'",
        "POSTGRES_PASSWORD": "a 'password'",
    }
    given = [f"{name}={value}" for name, value in variables.items()]
    return ("env", *given, "sh", "-c", script.replace("$$", "$"))  # as compose does


def test_the_image_can_use_a_database() -> None:
    assert ".[otel,postgres]" in FILE.parents[1].joinpath("Dockerfile").read_text()
