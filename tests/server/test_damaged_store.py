"""A broker on a damaged store, as a process: it refuses to start, and goes on where it is told to."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from peeklock.cli import main
from peeklock.demo.broker import BrokerProcess
from peeklock.store.sqlite import wal
from tests.server.test_process import create_queue, run_serve


def test_a_damaged_log_stops_the_start_until_the_loss_is_accepted(tmp_path: Path) -> None:
    """Each commit was answered, so none of them may go without a word. Req: R-03."""
    broker = BrokerProcess(tmp_path)
    broker.start()
    for number in range(10):
        create_queue(broker, f"queue-{number}")
    broker.kill()
    log = tmp_path / "data" / "peeklock.db-wal"
    data = bytearray(log.read_bytes())
    data[wal.HEAD.size + len(data) // 10 // 4120 * 4120 + 100] ^= 1
    log.write_bytes(data)

    refused = run_serve(f"--data={tmp_path / 'data'}", "--amqp-port=0", "--http-port=0")
    assert refused.returncode == 1
    assert "cannot be read in order" in refused.stderr
    assert "--accept-loss" in refused.stderr
    assert log.read_bytes() == data

    with BrokerProcess(tmp_path, ["--accept-loss"]) as broker:
        said = broker.log.read_text()
        assert "the store is damaged; --accept-loss continues behind the damage" in said
        assert "kept: 10 entities" in said
        assert "all batches up to 10 were found, including those after the damage" in said
        create_queue(broker, "queue-10")


@pytest.mark.parametrize("options", [[], ["--accept-loss"]])
def test_a_start_without_its_database_names_each_way_on_once(tmp_path: Path, options: list[str]) -> None:
    """Only those that work: there is nothing that could be read. Req: R-03."""
    broker = BrokerProcess(tmp_path)
    broker.start()
    create_queue(broker, "orders")
    broker.kill()
    data = tmp_path / "data"
    (data / "peeklock.db").unlink()

    refused = run_serve(f"--data={data}", "--amqp-port=0", "--http-port=0", *options)
    assert refused.returncode == 1
    assert refused.stderr.lower().count("put back a copy") == 1
    assert refused.stderr.count("peeklock.witness") == 1
    assert "or start with --accept-loss" not in refused.stderr

    asked = CliRunner().invoke(main, ["check", "--repair", str(data)])
    assert asked.exit_code == 1
    assert "--repair is for damaged bodies, and this is other damage; nothing was changed\n" in asked.output
    assert "--accept-loss" not in asked.output
