"""Every client on every feature: what its program shows has to be what the page says.

One test for each client and feature. The tests of a client share one program and one broker, so they belong
into one process: with xdist give `--dist loadgroup`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.interop.builds import BuildFailed, build, clients, features
from tests.interop.program import Program
from tests.interop.results import read_results


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Program]]:
    """Give a client's program, built and started when first asked for; it ends when the next one is."""
    current: dict[str, Program] = {}
    unbuilt: dict[str, BuildFailed] = {}
    with ExitStack() as stack:

        def give(name: str) -> Program:
            client = clients()[name]
            if client.missing:
                pytest.skip(client.missing)
            if name in unbuilt:
                raise unbuilt[name]
            if name not in current:
                stack.close()
                current.clear()
                try:
                    built = build(client)
                except BuildFailed as error:
                    unbuilt[name] = error
                    raise
                started = Program(client, built, tmp_path_factory.mktemp(name))
                current[name] = stack.enter_context(started)
            return current[name]

        yield give


@pytest.mark.clients
@pytest.mark.timeout(900)  # the first test of a client builds its program
@pytest.mark.parametrize(
    ("name", "feature"),
    [
        pytest.param(name, feature, id=f"{name}-{feature}", marks=pytest.mark.xdist_group(name))
        for name in clients()
        for feature in features()
    ],
)
def test_the_client_does_as_the_page_says(program: Callable[[str], Program], name: str, feature: str) -> None:
    """Req: T-03, T-11"""
    outcome = program(name).try_feature(feature)
    assert outcome.status != "failed", outcome.how
    written = read_results(name).get(feature)
    assert outcome == written, (
        f"{name} {feature} came out as {outcome}; written down is {written or 'nothing'}: "
        f"run `./run interop {name}` and look at what it changes in tests/interop/results/{name}.json"
    )
