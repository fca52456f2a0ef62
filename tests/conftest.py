"""Marks tests by their folder, so that each suite is a step of `./run test`; skips tests of Spark and of
PostgreSQL where they are not installed."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from peeklock import FORM
from peeklock.form import COMPILED
from tests import preloaded
from tests.postgres_server import postgres as postgres  # a fixture for all suites
from tests.pure_only import PURE_ONLY
from tests.spark_session import spark as spark  # likewise

# A slow machine is no failure. A test that hangs ends by pytest's time limit.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

preloaded.install()

# A shell's background job ignores these, and so would what tests start and signal: commands, PostgreSQL.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# pytest-xdist says that its workers have a terminal, which is 80 columns wide.
os.environ.pop("COLUMNS", None)

HERE = Path(__file__).parent
collect_ignore = [] if importlib.util.find_spec("pyspark") else ["capture", "pipeline", "spark"]
if not importlib.util.find_spec("psycopg"):
    collect_ignore += ["store/postgres", "server/test_copying.py"]
SUITES = {"interop", "kill", "simulation"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test below tests/<suite>/ the suite's marker; skip what the compiled form cannot pass."""
    for item in items:
        if FORM == COMPILED:
            for beginning, reason in PURE_ONLY.items():
                if item.nodeid.startswith(beginning):
                    # The reason: each entry of PURE_ONLY names what a test needs that compiled code lacks.
                    item.add_marker(pytest.mark.skip(reason=f"the core is compiled: {reason}"))
        if HERE in item.path.parents:
            suite = item.path.relative_to(HERE).parts[0]
            if suite in SUITES:
                item.add_marker(suite)
