"""The commands of `peeklock ca` make each language trust the broker, and without them none does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess, program

OF_TRUST = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "JAVA_TOOL_OPTIONS",
)

PYTHON = """
import asyncio, os, sys
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient as AioClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AioAdministration
from azure.servicebus.management import ServiceBusAdministrationClient

port, kinds, trust = sys.argv[1], sys.argv[2].split(","), eval(f"dict({sys.argv[3]})")
key = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"
data = dict(
    custom_endpoint_address=f"sb://localhost:{port}", transport_type=TransportType.Amqp, retry_total=0
)

def connect(client, endpoint, **settings):
    return client.from_connection_string(f"Endpoint=sb://{endpoint};{key}", **settings, **trust)

if "administration" in kinds:
    with connect(ServiceBusAdministrationClient, f"localhost:{port}", retry_total=0) as administration:
        administration.get_namespace_properties()
if "data" in kinds:
    with connect(ServiceBusClient, "localhost", **data) as client, client.get_queue_sender("trust") as sender:
        sender.send_messages(ServiceBusMessage("x"))

async def aio():
    if "aio administration" in kinds:
        async with connect(AioAdministration, f"localhost:{port}", retry_total=0) as administration:
            await administration.get_namespace_properties()
    if "aio data" in kinds:
        async with connect(AioClient, "localhost", **data) as client:
            async with client.get_queue_sender("trust") as sender:
                await sender.send_messages(ServiceBusMessage("x"))

asyncio.run(aio())
"""

NODE = """
const https = require("https"), tls = require("tls"), port = process.argv[2];
https.get(`https://localhost:${port}/health`, (answer) => {
  const socket = tls.connect(port, "localhost", { servername: "localhost" }, () => {
    console.log(answer.statusCode, socket.authorized);
    process.exit(0);
  });
}).on("error", (failure) => { console.error(failure.message); process.exit(1); });
"""

JAVA = """
import java.net.URI;
import java.net.http.*;
public class Trust {
  public static void main(String[] arguments) throws Exception {
    var request = HttpRequest.newBuilder(URI.create("https://localhost:" + arguments[0] + "/health")).build();
    var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
    System.out.println(answer.statusCode());
  }
}
"""

GO = """
package main
import ("crypto/tls"; "fmt"; "net/http"; "os")
func main() {
  // As the client for messages has it, with the port of its connection string.
  connection, failure := tls.Dial("tcp", "localhost:" + os.Args[1], &tls.Config{ServerName: "localhost:5671"})
  if failure != nil { fmt.Println(failure); os.Exit(1) }
  connection.Close()
  answer, failure := http.Get("https://localhost:" + os.Args[1] + "/health")
  if failure != nil { fmt.Println(failure); os.Exit(1) }
  fmt.Println(answer.StatusCode)
}
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("it's trusted")  # a name that needs quotes
    config = folder / "Config.json"
    config.write_text(
        '{"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [{"Name": "trust"}]}],'
        ' "Logging": {"Type": "File"}}}'
    )
    options = [f"--config={config}", "--tls-name=localhost:5671"]  # which must not confuse a client
    with BrokerProcess(folder, options) as process:
        yield process
        assert process.stop() == 0


@pytest.fixture(scope="module")
def page(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> str:
    done = subprocess.run(
        [program(), "ca", broker.data],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path_factory.mktemp("stores"),
    )
    return done.stdout


def lines(page: str, heading: str) -> list[str]:
    """Return the commands under a heading that begins so."""
    (block,) = re.findall(rf"^{re.escape(heading)}.*(?:\n(?! ).*)*?\n((?:    .*\n)+)", page, re.MULTILINE)
    return [line.strip() for line in str(block).splitlines()]


def python(broker: BrokerProcess, kinds: str, trust: str, *shell: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PYTHON, str(broker.http_port), kinds, trust]
    return run(command, *shell)


def run(command: list[str], *shell: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell after these lines."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_TRUST}
    script = "\n".join(["set -e", *shell, 'exec "$@"'])
    return subprocess.run(
        ["sh", "-c", script, "sh", *command], capture_output=True, text=True, timeout=60, env=environment
    )


EVERY_KIND = "data,administration,aio data,aio administration"


def test_python_in_the_code(broker: BrokerProcess, page: str) -> None:
    """Req: R-04"""
    (line,) = lines(page, "Python, in the code")
    done = python(broker, EVERY_KIND, line)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", EVERY_KIND.split(","))
def test_python_without_it_does_not_connect(broker: BrokerProcess, kind: str) -> None:
    done = python(broker, kind, "")
    assert done.returncode == 1
    assert "certificate verify failed" in done.stderr.lower()


def test_python_by_the_bundle_of_certifi(broker: BrokerProcess, page: str, tmp_path: Path) -> None:
    (line,) = lines(page, "Python, without changing the code")
    # A copy of the module, so that this installation does not keep trusting the broker.
    import certifi

    shutil.copytree(Path(certifi.__file__).parent, tmp_path / "certifi")
    shell = [f'export PYTHONPATH="{tmp_path}"', line.replace("python -m", f"{sys.executable} -m")]
    done = python(broker, "data,administration,aio data", "", *shell)
    assert done.returncode == 0, done.stderr


def test_python_administration_by_the_environment(broker: BrokerProcess, page: str) -> None:
    by_requests, by_aiohttp = lines(page, "Python, administration clients only")
    assert python(broker, "administration", "", by_requests).returncode == 0
    assert python(broker, "aio administration", "", by_aiohttp).returncode == 0


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_javascript(broker: BrokerProcess, page: str, tmp_path: Path) -> None:
    program = tmp_path / "trust.js"
    program.write_text(NODE)
    command = ["node", str(program), str(broker.amqp_port)]
    done = run(command, *lines(page, "JavaScript"))
    assert (done.stdout, done.stderr) == ("200 true\n", "")
    assert run(command).returncode == 1


@pytest.mark.skipif(not (shutil.which("java") and shutil.which("keytool")), reason="no JDK is installed")
def test_java(broker: BrokerProcess, page: str, tmp_path: Path) -> None:
    program = tmp_path / "Trust.java"
    program.write_text(JAVA)
    command = ["java", str(program), str(broker.amqp_port)]
    done = run(command, *lines(page, "Java, with the trust store"))
    assert done.stdout.splitlines()[-1] == "200", done.stderr
    without = run(command)
    assert without.returncode == 1
    assert "unable to find valid certification path" in without.stderr


@pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")
def test_go(broker: BrokerProcess, page: str, tmp_path: Path) -> None:
    (tmp_path / "main.go").write_text(GO)
    built = tmp_path / "trust"
    subprocess.run(["go", "build", "-o", built, tmp_path / "main.go"], check=True, timeout=120)
    command = [str(built), str(broker.amqp_port)]
    assert run(command, *lines(page, "Go, on Linux")).stdout == "200\n"
    assert "certificate signed by unknown authority" in run(command).stdout
