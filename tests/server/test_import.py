"""`peeklock import` into a running broker, from files and from another broker as the live namespace.

Req: A-02.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from peeklock.client import BlockingConnection, ConnectionString, Properties, encode_message, scan
from peeklock.config.file import parse_config
from peeklock.config.form import ConfigError
from peeklock.demo.broker import BrokerProcess, program
from peeklock.moving.copying import peek
from tests.server.waiting import until

FILES = Path(__file__).parents[1] / "templates/files"


def run(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the program; return its output and status."""
    command = [program(), *map(str, arguments)]
    environment = {**os.environ, **environ}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("source"), ["--durability=os"]) as running:
        yield running


@pytest.fixture
def target(tmp_path: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "target").mkdir()
    with BrokerProcess(tmp_path / "target", ["--durability=os"]) as running:
        yield running


def exported(broker: BrokerProcess, kind: str = "config") -> str:
    done = run("export", broker.data, "--format", kind)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_template_is_planned_then_made_then_agrees(target: BrokerProcess) -> None:
    arguments = ("import", FILES / "classic.json", "--parameter", "busName=b", "--data", target.data)
    before = exported(target)
    planned = run(*arguments, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "create  subscription  news-sport/Subscriptions/goals" in planned.stdout.splitlines()
    assert exported(target) == before
    done = run(*arguments)
    assert (done.returncode, done.stdout.splitlines()) == (0, [planned.stdout.splitlines()[-1], "done"])
    assert done.stderr.splitlines() == [
        "not offered: resources[0].resources[1]: the key 'app' of the namespace is not imported; make one "
        "with `peeklock keys add DIR app --rights Send,Listen`",
        "not offered: resources[3]: left out, since its condition is not true",
    ]
    again = run(*arguments)
    assert again.stdout.splitlines() == ["plan: 4 agree already", "nothing to do"]


def test_an_export_as_a_template_makes_the_same_elsewhere(
    broker: BrokerProcess, target: BrokerProcess, tmp_path: Path
) -> None:
    assert run("import", FILES / "state.json", "--data", broker.data).returncode == 0
    template = tmp_path / "template.json"
    template.write_text(exported(broker, "arm"))
    done = run("import", template, "--data", target.data)
    assert done.returncode == 0, done.stderr
    [made], [wanted] = (parse_config(exported(each).encode()) for each in (target, broker))
    assert {each.name: each.description for each in made.entities} == {
        each.name: each.description for each in wanted.entities
    }


def test_a_file_is_written_without_a_broker(tmp_path: Path) -> None:
    output = tmp_path / "Config.json"
    done = run("import", FILES / "bicep.json", "--output", output)
    assert done.returncode == 0, done.stderr
    [config] = parse_config(output.read_bytes())
    assert config.limits.tier == "premium"
    assert len(config.entities) == 5
    assert run("import", FILES / "bicep.json", "--output", "-").stdout == output.read_text()


def test_a_live_namespace_moves_with_its_keys_and_messages(
    broker: BrokerProcess, target: BrokerProcess
) -> None:
    assert run("import", FILES / "state.json", "--data", broker.data).returncode == 0
    connection = BlockingConnection(ConnectionString.parse(broker.connection_string, timeout_s=10))
    sender = connection.sender("orders")
    for number in range(30):
        sender.send(encode_message(properties=Properties(group_id="s"), data=f"{number}".encode()))
    sender.flush()
    before = peek(connection, "orders", 0, 100)
    arguments = ("import", "--messages", "--connection-string", target.connection_string)
    planned = run(*arguments, "--dry-run", PEEKLOCK_IMPORT_FROM=broker.connection_string)
    assert planned.stdout.splitlines()[-1] == "copy    messages      orders -> browse/queues/orders"
    done = run(*arguments, "--from", broker.connection_string)
    assert done.returncode == 0, done.stderr
    assert "copied 30 messages of 'orders' to 'browse/queues/orders'" in done.stdout
    assert peek(connection, "orders", 0, 100) == before
    connection.close()
    copies = BlockingConnection(ConnectionString.parse(target.connection_string, timeout_s=10))
    found = [scan(each).decode_body()[0][1] for each in peek(copies, "browse/queues/orders", 0, 100)]
    copies.close()
    assert found == [f"{number}".encode() for number in range(30)]
    again = run(*arguments, "--from", broker.connection_string)
    assert "copied 0 messages of 'orders' to 'browse/queues/orders', after sequence number 30" in again.stdout
    assert "nothing to do" in again.stdout
    key = (
        f"Endpoint=sb://localhost:{target.amqp_port};SharedAccessKeyName=worker;SharedAccessKey=Zmlyc3Qta2V5"
    )
    worker = BlockingConnection(ConnectionString.parse(f"{key};UseDevelopmentEmulator=true", timeout_s=5))
    assert peek(worker, "orders", 0, 1) == []
    worker.close()


# What goes wrong


def test_mistakes_change_nothing(target: BrokerProcess, tmp_path: Path) -> None:
    before = exported(target)
    queue = {"type": "Microsoft.ServiceBus/namespaces/queues", "name": "n/good"}
    bad = {**queue, "name": "n/bad", "properties": {"lockDuration": "PT1H"}}
    astray = {**queue, "name": "n/astray", "properties": {"forwardTo": "nowhere"}}
    file = tmp_path / "t.json"
    for wrong, place, said in (
        (bad, "properties", "LockDuration"),
        (astray, "properties.forwardTo", "there is no queue or topic 'nowhere'"),
    ):
        file.write_text(json.dumps({"contentVersion": "1", "resources": [queue, wrong]}))
        done = run("import", file, "--data", target.data)
        assert done.returncode == 1
        assert done.stderr.startswith(f"peeklock: resources[1].{place}: ")
        assert said in done.stderr
    assert exported(target) == before


@contextmanager
def cutting(bytes_after: int, upstream: int, connections: int = 1 << 30) -> Iterator[int]:
    """Pass connections on to a port, and cut each answer after so many bytes; yield the port.

    After so many `connections` all are closed at once.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        left = connections
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            left -= 1
            if left < 0:
                client.close()
                continue
            with client, socket.create_connection(("127.0.0.1", upstream)) as beyond:
                pump = threading.Thread(target=pass_on, args=(client, beyond, 1 << 30))
                pump.start()
                pass_on(beyond, client, bytes_after)
                pump.join()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def pass_on(of: socket.socket, to: socket.socket, count: int) -> None:
    """Pass bytes on until one side ends or so many have passed; then end both."""
    with suppress(OSError):
        while count > 0 and (data := of.recv(65_536)):
            to.sendall(data[:count])
            count -= len(data)
    for each in (of, to):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def test_a_live_namespace_that_is_cut_is_named_and_nothing_changes(
    broker: BrokerProcess, target: BrokerProcess
) -> None:
    before = exported(target)
    with cutting(500, broker.http_port) as port:
        cut = broker.connection_string.replace(str(broker.amqp_port), str(port))
        done = run("import", "--from", cut, "--data", target.data)
    assert done.returncode == 1
    assert f"cannot ask the broker at localhost:{port}: IncompleteRead" in done.stderr
    assert exported(target) == before


def test_wrong_options_are_named(broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "Config.json"
    names = [{"Name": "one"}, {"Name": "two"}]
    file.write_text(json.dumps({"UserConfig": {"Namespaces": names}}))
    text = broker.connection_string
    for arguments, said in (
        ((), "give a FILE, or --from"),
        ((file, "--from", text), "give a FILE or --from, not both"),
        ((file, "--messages"), "--messages copies from a live namespace"),
        (("--from", text, "--parameter", "a=b"), "are of an ARM template"),
        (("--from", text, "--connection-string", text), "name the same namespace"),
        (("--from", text, "--data", broker.data, "--messages"), "--messages needs the --connection-string"),
        ((file, "--data", broker.data), "say with --namespace which one to import: 'one', 'two'"),
        ((file, "--namespace", "three", "--data", broker.data), "'one', 'two'"),
        ((file, "--parameter", "ab"), "'ab' is not NAME=VALUE"),
    ):
        done = run("import", *arguments)
        assert (done.returncode, said in done.stderr) == (2, True), (arguments, done.stderr)
    assert run("import", file, "--namespace", "TWO", "--data", broker.data).stdout.startswith("plan: ")


def test_a_broker_that_does_not_run_is_named(tmp_path: Path) -> None:
    done = run("import", FILES / "exported.json", "--data", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no broker runs on" in done.stderr


def test_what_is_no_configuration_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("{}")
    with pytest.raises(ConfigError):
        parse_config(b"{}")
    done = run("import", file, "--output", "-")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"peeklock: {file}: an object is not a Config.json, an ARM template")


def test_an_import_that_broke_off_goes_on(target: BrokerProcess, tmp_path: Path) -> None:
    """The connection to the target fails after some steps; the next run does the others."""
    file = tmp_path / "Config.json"
    queues = [{"Name": f"q{number}"} for number in range(12)]
    file.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "n", "Queues": queues}]}}))
    with cutting(1 << 20, target.http_port, connections=9) as port:
        text = target.connection_string.replace(str(target.amqp_port), str(port))
        done = run("import", file, "--connection-string", text)
    assert done.returncode == 1
    steps = re.search(
        r"peeklock: UserConfig\S*: .*\. (\d+) of 12 steps are done; run the command again", done.stderr
    )
    assert steps is not None, done.stderr
    made = len(json.loads(exported(target))["UserConfig"]["Namespaces"][0]["Queues"])
    assert 0 < made == int(steps[1]) < 12
    again = run("import", file, "--data", target.data)
    assert again.stdout.splitlines() == [
        f"plan: {12 - made} queues to create, {made} agree already", "done"
    ]  # fmt: skip


def test_a_copy_that_was_killed_goes_on_without_a_gap_or_a_copy_twice(
    broker: BrokerProcess, target: BrokerProcess, tmp_path: Path
) -> None:
    queues = {"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "many"}]}]}}
    (tmp_path / "Config.json").write_text(json.dumps(queues))
    assert run("import", tmp_path / "Config.json", "--data", broker.data).returncode == 0
    source = BlockingConnection(ConnectionString.parse(broker.connection_string, timeout_s=30))
    copies = BlockingConnection(ConnectionString.parse(target.connection_string, timeout_s=30))
    sender = source.sender("many")
    for number in range(5_000):
        sender.send(encode_message(data=f"{number}".encode()))
    sender.flush()
    arguments = ["--from", broker.connection_string, "--connection-string", target.connection_string]
    command = subprocess.Popen([program(), "import", "--messages", *arguments], stdout=subprocess.DEVNULL)
    until(lambda: has_queue(target, "browse/queues/many") and peek(copies, "browse/queues/many", 300, 1))
    command.kill()
    command.wait()
    left = run("import", "--messages", *arguments)
    assert left.returncode == 0, left.stderr
    assert "after sequence number" in left.stdout
    found: list[str] = []
    while more := peek(copies, "browse/queues/many", len(found) + 1, 100):
        found += [scan(each).decode_body()[0][1].decode() for each in more]
    assert found == [f"{number}" for number in range(5_000)]
    source.close()
    copies.close()


def has_queue(broker: BrokerProcess, name: str) -> bool:
    found = json.loads(exported(broker))["UserConfig"]["Namespaces"][0]["Queues"]
    return name in (queue["Name"] for queue in found)
