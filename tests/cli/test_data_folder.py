"""Commands over messages that are named a broker by its data folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from peeklock.cli import main
from peeklock.demo.broker import BrokerProcess


def run(*words: object, given: str | None = None) -> Result:
    return CliRunner().invoke(main, [*map(str, words)], input=given, env={"SERVICEBUS_CONNECTION_STRING": ""})


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((), id="development"),
        pytest.param(("--auth=sas",), id="keys"),
        pytest.param(("--auth=sas", "--host=0.0.0.0"), id="keys, TLS for other machines"),
    ],
)
def test_a_data_folder_names_the_broker_that_runs_on_it(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with BrokerProcess(tmp_path, arguments) as broker:
        at = ("--data", broker.data)
        assert run("queues", "create", "orders", *at).exit_code == 0
        sent = run("send", "orders", "1 pizza", *at)
        assert (sent.exit_code, sent.output) == (0, "1 message sent to orders\n")
        shown = run("peek", "orders", "--json", *at)
        assert json.loads(shown.stdout)["body"] == "1 pizza"
        taken = run("receive", "orders", "--then", "dead-letter", "--json", *at)
        assert taken.exit_code == 0
        moved = run("dead-letters", "resubmit", "orders", *at)
        assert "1 message sent to orders" in moved.stdout, moved.output
    gone = run("peek", "orders", *at)
    assert (gone.exit_code, "no broker runs on" in gone.stderr) == (1, True)
