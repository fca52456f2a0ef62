"""The .NET client's scenarios, one by one: in memory, over TCP, over TLS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from peeklock.demo.broker import BrokerProcess
from tests.interop.dotnet.drivers import play_in_memory, play_over_wire, write_configuration
from tests.interop.dotnet.scenario import Scenario, load, names

KINDS = ("tcp", "tls")
SCENARIOS = {name: load(name) for name in names()}
WIRED = [name for name, scenario in SCENARIOS.items() if not scenario.moved]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with the entities of all scenarios."""
    folder = tmp_path_factory.mktemp("dotnet")
    config = folder / "config.json"
    scenarios: list[Scenario] = [SCENARIOS[name] for name in WIRED]
    write_configuration(scenarios, KINDS, config)
    with BrokerProcess(folder, ["--durability=os", f"--config={config}"]) as made:
        yield made
        assert made.stop() == 0
    log = made.log.read_text()
    assert "Traceback" not in log
    assert '"level": "error"' not in log


@pytest.mark.parametrize("name", SCENARIOS)
def test_in_memory(name: str) -> None:
    """Req: T-11, C24, C25, C26, C28, C30, C34, C43, C48"""
    play_in_memory(SCENARIOS[name])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WIRED)
def test_over_a_wire(name: str, kind: str, process: BrokerProcess) -> None:
    """Req: T-11"""
    play_over_wire(SCENARIOS[name], process, kind)
