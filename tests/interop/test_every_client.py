"""Every client on every feature: the outcome must be the recorded one.

One test for each client and feature. Clients run side by side, in threads, from the first test on, and each
test waits for its own outcome. So give no `-n`: a process of xdist, which has a few of the tests, runs each
of them alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.interop.builds import clients
from tests.interop.program import Outcome
from tests.interop.results import read_results
from tests.interop.trials import Trials


@pytest.fixture(scope="module")
def outcome(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str, str], Outcome]]:
    """Return the outcome of a feature with a client; all selected tests are run ahead."""

    def try_alone(name: str, feature: str) -> Outcome:
        with Trials({clients()[name]: [feature]}, tmp_path_factory.mktemp("alone")) as trials:
            return trials.outcomes[name, feature].result()

    if "PYTEST_XDIST_WORKER" in os.environ:
        yield try_alone
        return
    wanted: dict[str, list[str]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.module is request.module:
            params: dict[str, Any] = dict(item.callspec.params)
            wanted.setdefault(params["name"], []).append(params["feature"])
    chosen = {clients()[name]: these for name, these in wanted.items() if not clients()[name].missing}
    with Trials(chosen, tmp_path_factory.mktemp("clients")) as trials:
        yield lambda name, feature: trials.outcomes[name, feature].result()


@pytest.mark.clients
@pytest.mark.timeout(400)  # the first test of a client waits for its build, and for its turn
@pytest.mark.parametrize(
    ("name", "feature"),
    [
        pytest.param(name, feature, id=f"{name}-{feature}")
        for name in clients()
        for feature in clients()[name].tried
    ],
)
def test_the_client_does_as_the_page_says(
    outcome: Callable[[str, str], Outcome], name: str, feature: str
) -> None:
    """Req: A-01, T-03, T-09, T-11"""
    if missing := clients()[name].missing:
        pytest.skip(missing)  # the reason: the machine lacks a tool of the client's language
    found = outcome(name, feature)
    assert found.status != "failed", found.how
    written = read_results(name).get(feature)
    assert found == written, (
        f"{name} {feature} came out as {found}; recorded is {written or 'nothing'}: "
        f"run `./run interop {name}` and check what it changes in tests/interop/results/{name}.json"
    )
