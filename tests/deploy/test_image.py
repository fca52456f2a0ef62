"""The image: its Dockerfile, and in its root file system each row of what makes it a drop-in."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from peeklock.cli.settings_table import SETTINGS
from tests.deploy.image import Container, Dockerfile, build, own_network

ROOT = Path(__file__).parents[2]
READY_LINE = "Emulator Service is Successfully Up!"
LAYER_BYTES_MAX = 30_000_000
"""Of what the image adds to its base, compressed: with the base's 45 MB it stays below 80."""


# The Dockerfile


def test_the_process_is_started_without_a_shell_by_a_user_that_is_not_root() -> None:
    dockerfile = Dockerfile()
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", dockerfile.user)  # Kubernetes checks numbers
    assert dockerfile.command == ["/opt/peeklock/bin/peeklock", "serve"]
    assert dockerfile.health_check == ["/opt/peeklock/bin/peeklock", "health", "--ready"]


def test_no_step_depends_on_the_architecture() -> None:
    for instruction, value in Dockerfile().steps:
        assert not re.search(r"amd64|x86_64|arm64|aarch64|linux-gnu", value), (instruction, value)


def test_each_variable_is_a_setting_or_one_of_python() -> None:
    others = {"PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"}
    assert set(Dockerfile().environment) <= others | {setting.variable for setting in SETTINGS}


def test_spring_finds_the_service_by_its_label() -> None:
    """Source: spring-cloud-azure-docker-compose, the name of its connection details for Service Bus."""
    found = Dockerfile().labels["org.springframework.boot.service-connection"]
    assert found == "azure-messaging/servicebus-emulator"


def test_the_compose_file_is_this_machine_s_alone_and_its_root_read_only() -> None:
    service = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["peeklock"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert json.loads(service["environment"]["CONFIG_JSON"])["UserConfig"]["Namespaces"]


@pytest.mark.long
def test_wheels_of_all_dependencies_are_there_for_arm64(tmp_path: Path) -> None:
    """Nothing is compiled in the image, on either architecture."""
    import tomllib

    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(tmp_path)]
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (17, 28, 34)]
    options = ["--only-binary=:all:", "--python-version=3.13", *platforms, "--platform=manylinux2014_aarch64"]
    done = subprocess.run(
        [*command, *options, *needs], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert any("aarch64" in file.name for file in tmp_path.iterdir())


# The root file system

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root, for namespaces and mounts"
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    folder.chmod(0o755)
    for parent in folder.parents[:3]:
        if parent != Path("/tmp"):
            parent.chmod(0o755)
    build(folder)
    return folder


@pytest.fixture
def run(root: Path, tmp_path: Path) -> Iterator[Callable[..., Container]]:
    """Return what starts the image on one data folder, in a network of its own."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    os.chown(data, 10001, 10001)
    started: list[Container] = []

    def start(environment: Mapping[str, str] | None = None, **options: Any) -> Container:
        started.append(Container(root, options.pop("data", data), environment, **options))
        return started[-1]

    with own_network():
        yield start
        for container in started:
            container.__exit__()


def config(*queues: str) -> str:
    named = [{"Name": name} for name in queues]
    return json.dumps({"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": named}]}})


def config_file(folder: Path, *queues: str) -> Path:
    """Return a file that the image's user can read."""
    file = folder / "Config.json"
    file.write_text(config(*queues))
    file.chmod(0o644)
    return file


def connection_string(key: str = "SAS_KEY_VALUE") -> str:
    return (
        "Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
        f"SharedAccessKey={key};UseDevelopmentEmulator=true;"
    )


def send(queue: str, key: str = "SAS_KEY_VALUE") -> None:
    with (
        ServiceBusClient.from_connection_string(connection_string(key), retry_total=0) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(ServiceBusMessage("hello"))


def receive(queue: str) -> str:
    with (
        ServiceBusClient.from_connection_string(connection_string()) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        (message,) = receiver.receive_messages(max_wait_time=10)
        receiver.complete_message(message)
    return str(message)


def health(port: int = 5300, host: str = "localhost") -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/health", headers={"Host": host})
    with urllib.request.urlopen(request, timeout=5) as answer:
        status: int = answer.status
    return status


@pytest.mark.long
@needs_root
def test_what_the_image_adds_is_small(root: Path) -> None:
    packed = subprocess.run(["tar", "-C", str(root), "-cz", "opt"], capture_output=True, check=True).stdout
    print(f"{len(packed) / 1e6:.1f} MB compressed")
    assert len(packed) <= LAYER_BYTES_MAX


@pytest.mark.long
@needs_root
def test_it_stands_in_for_the_emulator(run: Callable[..., Container], tmp_path: Path) -> None:
    """Ready line, ports, connection string, Config.json in its place, ignored variables, health, port 80."""
    file = config_file(tmp_path, "queue.1")
    ignored = {
        "SQL_WAIT_INTERVAL": "0",
        "SQL_SERVER": "mssql",
        "MSSQL_SA_PASSWORD": "Passw0rd!",
        "ACCEPT_EULA": "Y",
    }
    began_s = time.monotonic()
    container = run(ignored, config=file)
    told = container.lines_until("administration: port")
    took_s = time.monotonic() - began_s
    assert READY_LINE in told
    print(f"ready after {took_s:.2f} s")
    assert health() == 200
    assert health(80) == 200
    assert health(5300, "servicebus-emulator") == 200  # as another container calls it
    send("queue.1")
    with pytest.raises(ServiceBusError):
        send("queue.1", key="d3Jvbmc=")
    check = subprocess.run(
        ["chroot", f"/proc/{container.first}/root", *Dockerfile().health_check],
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert check.returncode == 0, check.stderr
    status = Path(f"/proc/{container.first}/status").read_text()
    assert re.search(r"^Uid:\t10001\t10001", status, re.MULTILINE)
    assert _has_read_only_root(container.first)
    ended, within_s = container.stop()
    assert ended == 0
    assert within_s < 5
    again = run({}, config=file)
    again.lines_until(READY_LINE)
    assert receive("queue.1") == "hello"


def _has_read_only_root(pid: int) -> bool:
    mounts = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return any(line.split()[4] == "/" and "ro" in line.split()[5].split(",") for line in mounts)


@pytest.mark.long
@needs_root
def test_configuration_and_port_come_from_variables(run: Callable[..., Container]) -> None:
    container = run({"CONFIG_JSON": config("from-variable"), "EMULATOR_HTTP_PORT": "5301"})
    container.lines_until("administration: port 5301")
    assert health(5301) == 200
    send("from-variable")


@pytest.mark.long
@needs_root
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"CONFIG_JSON": "{"}, "CONFIG_JSON: line 1 column 2: not JSON"),
        ({"EMULATOR_HTTP_PORT": "http"}, "EMULATOR_HTTP_PORT is 'http', and must be a port"),
        ({"PEEKLOCK_AMQ_PORT": "1"}, "PEEKLOCK_AMQ_PORT is not a setting, did you mean PEEKLOCK_AMQP_PORT?"),
        ({"PEEKLOCK_TLS_PFX_BASE64": "eA=="}, "the PFX of PEEKLOCK_TLS_PFX_BASE64 cannot be read"),
    ],
)
def test_a_wrong_variable_is_told(
    run: Callable[..., Container], environment: Mapping[str, str], said: str
) -> None:
    status, told = run(environment).failed()
    assert status in (1, 2)
    assert said in re.sub(r"\s+", " ", told)


@pytest.mark.long
@needs_root
def test_a_file_beside_the_variable_is_refused(run: Callable[..., Container], tmp_path: Path) -> None:
    file = config_file(tmp_path, "q")
    status, told = run({"CONFIG_JSON": config("q")}, config=file).failed()
    assert status == 2
    assert "CONFIG_JSON is set beside a configuration file, /ServiceBus_Emulator/ConfigFiles/Config.json" in (
        re.sub(r"\s+", " ", told)
    )


@pytest.mark.long
@needs_root
@pytest.mark.parametrize("how", ["another owner", "read-only"])
def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(
    run: Callable[..., Container], tmp_path: Path, how: str
) -> None:
    data = tmp_path / "other"
    data.mkdir(mode=0o755)
    if how == "read-only":
        os.chown(data, 10001, 10001)
    status, told = run(data=data, read_only_data=how == "read-only").failed()
    print(told)
    assert status == 1
    assert "/data" in told
    assert "user 10001" in told if how == "another owner" else "read-only" in told


@pytest.mark.long
@needs_root
def test_a_taken_port_is_named(run: Callable[..., Container]) -> None:
    with socket.create_server(("0.0.0.0", 5672)):
        status, told = run().failed()
    assert status == 1
    assert "cannot listen on 0.0.0.0:5672: Address already in use" in told
