"""The largest message of the premium tier, 1 MiB, with every client: the feature `largest` at another limit.

Give no `-n`: clients are tried side by side already.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess
from tests.interop.builds import build, clients
from tests.interop.program import Outcome, Program
from tests.interop.results import read_results, showing
from tests.kept_keys import KeptKeys

LIMIT = 1_048_576

WITH_ONE = showing("largest")
"""The clients that have shown the feature in the standard tier."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Return the outcome of the feature with each client that this machine has the tools for."""
    with BrokerProcess(tmp_path_factory.mktemp("premium"), ("--auth", "sas", "--tier", "premium")) as broker:
        rule = KeptKeys(broker.data).load()[0]
        root = (
            f"Endpoint=sb://localhost:{broker.amqp_port}"
            f";SharedAccessKeyName={rule.name};SharedAccessKey={rule.primary_key}"
        )
        told = {"PEEKLOCK_CA": str(broker.authority()), "PEEKLOCK_MESSAGE_BYTES_MAX": str(LIMIT)}

        def try_it(name: str) -> Outcome:
            folder: Path = tmp_path_factory.mktemp(name)
            with Program(clients()[name], build(clients()[name]), folder, root, told) as program:
                return program.try_feature("largest")

        here = [name for name in WITH_ONE if not clients()[name].missing]
        with ThreadPoolExecutor(max(1, len(here))) as pool:
            return dict(zip(here, pool.map(try_it, here), strict=True))


@pytest.mark.clients
@pytest.mark.timeout(400)  # the first waits for all builds
@pytest.mark.parametrize("name", WITH_ONE)
def test_a_message_of_1_mib_arrives(name: str, request: pytest.FixtureRequest) -> None:
    """Req: T-10, C24."""
    if missing := clients()[name].missing:
        pytest.skip(missing)  # the reason: the machine lacks a tool of the client's language
    outcomes: dict[str, Outcome] = request.getfixturevalue("outcomes")
    found = outcomes[name]
    assert found == read_results(name)["largest"], found.how
