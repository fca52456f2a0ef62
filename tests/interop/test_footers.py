"""Footers between every pair of clients: one sends, each other reads.

The programs of all clients that offer footers share one broker. Each sends a message with the same footer to
the queue of each, and each reads the messages of its own queue. Give no `-n`: clients run side by side
already.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess
from tests.interop.builds import build, clients
from tests.interop.program import Outcome, Program
from tests.kept_keys import KeptKeys

WITH_FOOTERS = ("python-sync", "python-aio", "javascript", "java", "go", "rhea")
"""The others have no call that sends or shows a footer."""

HERE = [name for name in WITH_FOOTERS if not clients()[name].missing]


def queue_of(name: str) -> str:
    return f"footers-{name}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield a broker with a queue for each client."""
    folder = tmp_path_factory.mktemp("footers")
    namespace = {"Name": "sbemulatorns", "Queues": [{"Name": queue_of(name)} for name in HERE]}
    config = folder / "Config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
    with BrokerProcess(folder, ("--auth", "sas", "--config", str(config))) as served:
        yield served


@pytest.fixture(scope="module")
def outcomes(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    """Return the outcomes of sending and receiving, by client; all have sent before any receives."""
    rule = KeptKeys(broker.data).load()[0]
    root = (
        f"Endpoint=sb://localhost:{broker.amqp_port}"
        f";SharedAccessKeyName={rule.name};SharedAccessKey={rule.primary_key}"
    )

    def program_of(name: str) -> Program:
        told = {
            "PEEKLOCK_CA": str(broker.authority()),
            "PEEKLOCK_FOOTERS_TO": ",".join(map(queue_of, HERE)),
            "PEEKLOCK_FOOTERS_OF": queue_of(name),
        }
        folder: Path = tmp_path_factory.mktemp(name)
        return Program(clients()[name], build(clients()[name]), folder, root, told)

    with ExitStack() as programs, ThreadPoolExecutor(len(HERE)) as pool:
        running = [programs.enter_context(program) for program in pool.map(program_of, HERE)]
        sent = list(pool.map(lambda program: program.try_feature("send-footers"), running))
        received = list(pool.map(lambda program: program.try_feature("receive-footers"), running))
    return {name: list(pair) for name, *pair in zip(HERE, sent, received, strict=True)}


@pytest.mark.clients
@pytest.mark.timeout(400)  # the first waits for all builds
@pytest.mark.parametrize("name", WITH_FOOTERS)
def test_the_footers_of_all_clients_are_read_as_they_were_sent(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Req: T-11. Source: wire contract C5."""
    if missing := clients()[name].missing:
        pytest.skip(missing)  # the reason: the machine lacks a tool of the client's language
    outcomes: dict[str, list[Outcome]] = request.getfixturevalue("outcomes")
    assert outcomes[name] == [Outcome("works"), Outcome("works")]
