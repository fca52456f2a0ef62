"""`serve --trace-frames` and `peeklock trace`: an official client breaks the protocol, its frames stay."""

from __future__ import annotations

import json
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from peeklock.demo.broker import BrokerProcess
from tests.server.test_operate import command
from tests.server.waiting import until

SECRET = "the body of a message"
CONFIG = {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [{"Name": "orders"}]}]}}


def test_a_client_that_breaks_the_protocol_leaves_its_frames(tmp_path: Path) -> None:
    traces, config = tmp_path / "traces", tmp_path / "Config.json"
    config.write_text(json.dumps(CONFIG))
    arguments = ["--durability=os", f"--trace-frames={traces}", f"--config={config}"]
    with BrokerProcess(tmp_path, arguments) as broker:
        with (
            ServiceBusClient.from_connection_string(broker.connection_string) as client,
            client.get_queue_sender("orders") as sender,
        ):
            sender.send_messages(ServiceBusMessage(SECRET))
            connection = sender._handler._connection
            assert connection is not None
            connection._transport.write(b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x77\x45")
            (file,) = until(lambda: list(traces.glob("*.jsonl")))
        assert broker.stop() == 0
        log = [json.loads(line) for line in broker.log.read_text().splitlines()]
    (line,) = [line for line in log if line["event"] == "frames written"]
    assert line["file"] == str(file)
    assert line["tracking_id"] in file.name

    text = file.read_text()
    for secret in (SECRET, SECRET.encode().hex(), "SharedAccessSignature", b"SharedAccessSignature".hex()):
        assert secret not in text
    status, shown = command("trace", str(file))
    assert status == 0
    lines = shown.splitlines()
    assert "client azsdk-python-servicebus " in lines[0]
    assert lines[1] == "ended by the broker: amqp:decode-error: 119 is not a performative"
    for direction, name in (
        ("->", "open"),
        ("<-", "open"),
        ("->", "attach"),
        ("->", "transfer"),
        ("<-", "disposition"),
        ("->", "unreadable"),
        ("<-", "close"),
    ):
        assert [each for each in lines if f" {direction} " in each and f" {name} " in each], (direction, name)
    status, shown = command("trace", "--json", str(file))
    assert status == 0
    assert json.loads(shown)["trackingId"] == line["tracking_id"]
