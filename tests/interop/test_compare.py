"""The comparison of two endpoints: what is left out, what agrees, and a program that runs elsewhere."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.interop.builds import Client, clients
from tests.interop.compare import agree, comparable, endpoint_of, main, show
from tests.interop.program import Outcome, Program

WORKS = Outcome("works")
SAYS = """while read -r request; do
echo "{\\"feature\\": \\"send\\", \\"status\\": \\"differs\\", \\"how\\": \\"$SAID\\"}"
done"""


def _shell(tmp_path: Path, run: str) -> Client:
    (tmp_path / "run.sh").write_text(run)
    return Client("shell", "Shell", "sh", tmp_path, (), (), ())


def test_what_is_no_endpoint_is_refused_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["localhost", "fresh"])
    assert refused.value.code == 2
    assert "'localhost' is neither 'fresh' nor a connection string" in capsys.readouterr().err
    assert endpoint_of("fresh") == "fresh"


def test_what_needs_the_tests_own_broker_is_left_out_by_name() -> None:
    told = io.StringIO()
    wanted = comparable(Console(file=told, width=200), list(clients().values()))
    names = {client.name for client in wanted}
    assert names == set(clients()) - {"celery"}
    assert not {"reconnect", "amqp-plain", "missing-right"} & {
        name for these in wanted.values() for name in these
    }
    assert "send" in wanted[clients()["java-retired"]]
    assert "left out: reconnect: " in told.getvalue()
    assert "left out: celery: " in told.getvalue()


def test_outcomes_agree_when_all_that_is_told_is_the_same_and_nothing_failed() -> None:
    assert agree(Outcome("differs", "slowly"), Outcome("differs", "slowly"))
    assert not agree(Outcome("differs", "slowly"), Outcome("differs", "late"))
    assert not agree(WORKS, Outcome("not offered"))
    assert not agree(Outcome("failed", "x"), Outcome("failed", "x"))


def test_where_outcomes_differ_both_are_shown_in_full() -> None:
    told = io.StringIO()
    first = {("go", "send"): WORKS, ("go", "peek"): WORKS}
    second = {("go", "send"): WORKS, ("go", "peek"): Outcome("failed", "nothing came")}
    assert show(Console(file=told, width=200), first, first) == 0
    assert show(Console(file=told, width=200), first, second) == 1
    assert "go peek A works\ngo peek B failed: nothing came\n1 outcomes agree, 1 differ\n" in told.getvalue()


def test_elsewhere_a_program_gets_the_connection_string_alone(tmp_path: Path) -> None:
    said = "$PEEKLOCK_TEST_CONNECTION_STRING ${PEEKLOCK_LISTEN_CONNECTION_STRING:-alone}"
    client = _shell(tmp_path, f'SAID="{said}"\n{SAYS}')
    with Program(client, tmp_path, tmp_path, "Endpoint=sb://there") as shown:
        assert shown.try_feature("send") == Outcome("differs", "Endpoint=sb://there alone")
    assert not (tmp_path / "data").exists()


def test_elsewhere_nothing_is_restarted(tmp_path: Path) -> None:
    client = _shell(tmp_path, 'read -r request; echo \'{"ask": "restart"}\'; read -r done')
    with Program(client, tmp_path, tmp_path, "Endpoint=sb://there") as shown:
        outcome = shown.try_feature("reconnect")
    assert outcome == Outcome("failed", "it asks for a restart of a Service Bus that is not ours")
