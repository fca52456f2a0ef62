"""Fixtures for tests of programs that use Service Bus; pytest finds them by itself.

    @pytest.mark.servicebus(config="Config.json")
    def test_an_order_is_shipped(servicebus_namespace):
        ship(servicebus_namespace.connection_string)
        servicebus_namespace.wait_for("shipped")

`servicebus` is one broker for the tests of a process, `servicebus_namespace` a namespace for each test, and
`servicebus_clock` moves its clock. With pytest-xdist each worker has a broker of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from peeklock.testing.program_tests import BrokerForTests, Config, NamespaceForTests, make_namespace

if TYPE_CHECKING:
    from peeklock.testing.served import ServedBroker

IN_PROCESS = "in-process"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add where the broker runs."""
    parser.addini(
        "servicebus_broker",
        "Where the broker of the fixture `servicebus` runs: process (default), or in-process, in a thread.",
        default="process",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker."""
    config.addinivalue_line(
        "markers",
        "servicebus(config): the Config.json of its namespace: a value, text, or a file beside the test.",
    )


@pytest.fixture(scope="session")
def servicebus(pytestconfig: pytest.Config) -> Iterator[BrokerForTests | ServedBroker]:
    """One broker for all tests of this process; `servicebus_namespace` isolates them."""
    where = pytestconfig.getini("servicebus_broker")
    if where not in ("process", IN_PROCESS):
        raise pytest.UsageError(f"servicebus_broker is {where!r}, and must be process or {IN_PROCESS}")
    if where == IN_PROCESS:
        from peeklock.testing.served import ServedBroker  # the broker's code, which pytest need not load

        with ServedBroker() as served:
            yield served
        return
    with BrokerForTests() as broker:
        yield broker


@pytest.fixture
def servicebus_config(request: pytest.FixtureRequest) -> Config | None:
    """The Config.json of the test's namespace, from the marker; override it for a whole module."""
    marker = request.node.get_closest_marker("servicebus")
    given = None if marker is None else marker.kwargs.get("config", *marker.args[:1])
    if isinstance(given, str) and not given.lstrip().startswith("{"):
        given = Path(given)
    if isinstance(given, Path):
        return Path(request.path.parent, given)
    return given


@pytest.fixture
def servicebus_namespace(
    servicebus: BrokerForTests | ServedBroker, servicebus_config: Config | None
) -> Iterator[NamespaceForTests]:
    """A namespace for this test alone, which ends with it."""
    made = make_namespace(servicebus.port, servicebus_config)
    yield made
    made.end()


class Clock:
    """The clock of a test's namespace."""

    def __init__(self, namespace: NamespaceForTests) -> None:
        self.advance = namespace.advance
        """Move it forwards by a `timedelta`; see `NamespaceForTests.advance`."""


@pytest.fixture
def servicebus_clock(servicebus_namespace: NamespaceForTests) -> Clock:
    """The clock of the test's namespace."""
    return Clock(servicebus_namespace)
