"""Which ports a broker opens, what it says of them, and the options for TLS, with a broker process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import json
import os
import random
import shutil
import socket
import ssl
import stat
import struct
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from peeklock.demo.broker import BrokerFailed, BrokerProcess, program
from peeklock.server.net.listener import AMQP_TLS_HEADER, Listener
from peeklock.server.net.ports import Ports
from peeklock.server.settings import Settings, StartFailed
from peeklock.server.system.authority import values_of
from peeklock.server.system.store import folder_of
from peeklock.server.tls.certificates import make_pair, names_in
from peeklock.server.tls.kept_authority import Pair
from tests.server.system.asking import opened


def peeklock(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program(), *map(str, arguments)], capture_output=True, text=True, timeout=30)


def health(port: int, authority: Path) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=str(authority))
    with urllib.request.urlopen(f"https://localhost:{port}/health", timeout=10, context=context) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def lines(broker: BrokerProcess, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in broker.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("ports"), ["--durability=os"]) as process:
        yield process
        assert process.stop() == 0


def test_the_authority_is_there_without_a_tls_client(broker: BrokerProcess) -> None:
    """Req: R-04"""
    authority = broker.authority()
    for port in (broker.amqp_port, broker.http_port):
        assert health(port, authority)["status"] == "ok"
    assert stat.S_IMODE((broker.data / "tls" / "key.pem").stat().st_mode) == 0o600


def test_ca_says_where_the_authority_is_and_prints_it(broker: BrokerProcess) -> None:
    authority = broker.authority()
    shown = peeklock("ca", broker.data)
    assert (shown.returncode, shown.stderr) == (0, "")
    first, mark, *_ = shown.stdout.splitlines()
    assert first.split() == ["certificate", str(authority)]
    assert len(mark.split()[1].split(":")) == 32
    assert "Copy this file to each client" in shown.stdout
    assert "REQUESTS_CA_BUNDLE and SSL_CERT_FILE replace all other authorities" in shown.stdout
    printed = peeklock("ca", broker.data, "--print")
    assert printed.stdout == authority.read_text()


def test_ca_makes_the_authority_of_a_store_that_has_none(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.stop()
        shutil.rmtree(broker.data / "tls")
        assert peeklock("ca", broker.data).returncode == 0
        authority = (broker.data / "tls" / "ca.pem").read_bytes()
        broker.start()
        assert health(broker.http_port, broker.authority())["status"] == "ok"
        assert broker.authority().read_bytes() == authority


def test_ca_makes_nothing_in_a_folder_that_is_no_brokers(tmp_path: Path) -> None:
    shown = peeklock("ca", tmp_path)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr == (
        f"peeklock: {tmp_path} is not a data folder; give the one of `peeklock serve --data`, after its "
        "first start\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files for others")
def test_what_root_makes_belongs_to_whom_the_folder_belongs(tmp_path: Path) -> None:
    (tmp_path / "peeklock.db").touch()
    os.chown(tmp_path, 12345, 12345)
    assert peeklock("ca", tmp_path).returncode == 0
    assert {file.stat().st_uid for file in [tmp_path / "tls", *(tmp_path / "tls").iterdir()]} == {12345}


def test_the_authority_is_replaced_while_the_broker_is_stopped(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        before = broker.authority().read_text()
        refused = peeklock("ca", broker.data, "--replace")
        assert refused.returncode == 1
        assert "stop the broker" in refused.stderr
        broker.stop()
        replaced = peeklock("ca", broker.data, "--replace", "--print")
        assert replaced.returncode == 0
        assert replaced.stdout != before
        broker.start()
        assert broker.authority().read_text() == replaced.stdout
        assert health(broker.http_port, broker.authority())["status"] == "ok"


def test_a_damaged_copy_of_the_certificate_is_replaced(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        before = broker.authority().read_bytes()
        broker.stop()
        broker.authority().write_text("nonsense")
        broker.start()
        assert broker.authority().read_bytes() == before
        assert health(broker.http_port, broker.authority())["status"] == "ok"


CERTIFICATE = "the certificate of the authority in the system store"


def damage_authority(data: Path) -> None:
    async def story() -> None:
        async with opened(folder_of(data)) as system:
            await system.put(values_of(Pair(b"nonsense", None)))

    asyncio.run(story())


def test_a_damaged_authority_is_told_and_plain_connections_go_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.stop()
        damage_authority(broker.data)
        broker.start()
        (told,) = until(lambda: lines(broker, "no TLS connection can be accepted"))
        assert told["level"] == "error"
        assert told["reason"].startswith(f"{CERTIFICATE} is not a PEM certificate; put sound copies")
        with pytest.raises(urllib.error.URLError, match=r"(?i)alert internal error"):
            health(broker.http_port, broker.data / "tls" / "certificate.pem")
        with urllib.request.urlopen(f"http://localhost:{broker.http_port}/health", timeout=10) as answer:
            figures = json.load(answer)
        assert (figures["status"], figures["failed_handshakes"]) == ("ok", 1)
        assert figures["tls"] == "no TLS connection can be accepted; the log says why"
        (line,) = lines(broker, "a TLS hand-shake failed")
        assert line["reason"].startswith(f"{CERTIFICATE} is not a PEM certificate")


def test_the_tls_files_are_there_when_the_broker_is_ready(tmp_path: Path) -> None:
    """Req: R-04."""
    with BrokerProcess(tmp_path) as broker:
        found = {file.name for file in (broker.data / "tls").iterdir()}
        assert found == {"ca.p12", "ca.pem", "certificate.pem", "key.pem"}


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_tls_files_are_there_before_a_port_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """Req: R-04. No name is looked up for them, which may take seconds."""
    found: list[set[str]] = []
    bind = Listener.bind

    def looked_at(self: Listener, host: str, port: int) -> int:
        found.append({file.name for file in (tmp_path / "tls").glob("*")})
        return bind(self, host, port)

    asked: list[object] = []

    async def story() -> None:
        settings = Settings(tmp_path, None, host, 0, 0, "os", None, None, "standard", None)
        ports = Ports(settings, asyncio.Protocol, asyncio.Protocol, lambda _: 0.0, lambda *_: None)
        with monkeypatch.context() as patched:
            patched.setattr(Listener, "bind", looked_at)
            patched.setattr("peeklock.server.tls.contexts._in_time", asked.append)
            await ports.open()
        ports.close()

    asyncio.run(story())
    assert found == [{"ca.p12", "ca.pem", "ca-key.pem", "certificate.pem", "key.pem"}] * 2
    assert asked == []


def test_a_full_name_that_is_told_later_is_in_the_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: R-04. It is looked up beside the loop once the ports are open."""
    monkeypatch.setattr(socket, "gethostname", lambda: "somewhere")
    monkeypatch.setattr(socket, "getfqdn", lambda _: "somewhere.example")

    async def story() -> None:
        settings = Settings(tmp_path, None, "127.0.0.1", 0, 0, "os", None, None, "standard", None)
        ports = Ports(settings, asyncio.Protocol, asyncio.Protocol, lambda _: 0.0, lambda *_: None)
        await ports.open()
        certificate = tmp_path / "tls" / "certificate.pem"
        assert "somewhere" in names_in(certificate)
        assert "somewhere.example" not in names_in(certificate)
        following = asyncio.get_running_loop().create_task(ports.follow_tls())
        async with asyncio.timeout(10):
            while True:
                await asyncio.sleep(0)
                if "somewhere.example" in names_in(certificate):
                    break
        following.cancel()
        ports.close()

    asyncio.run(story())


def test_a_private_key_of_ours_that_others_can_read_ends_the_start(tmp_path: Path) -> None:
    """Req: R-04"""
    with BrokerProcess(tmp_path) as broker:
        file = broker.data / "tls" / "key.pem"
        until(lambda: [*broker.data.glob("tls/certificate.pem")])
        broker.stop()
        file.chmod(0o640)
        with pytest.raises(BrokerFailed) as refused:
            broker.start()
        assert f"{file} can be read by others than its owner: run `chmod 600 {file}`" in str(refused.value)
        file.chmod(0o600)
        broker.start()


def test_both_options_may_name_one_port(tmp_path: Path) -> None:
    port = free_port()
    # The last one of an option counts.
    with BrokerProcess(tmp_path, [f"--amqp-port={port}", f"--http-port={port}"]) as broker:
        assert (broker.amqp_port, broker.http_port) == (port, port)
        assert health(port, broker.authority())["status"] == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may listen on port 443 everywhere")
def test_the_usual_ports_are_listened_on_when_asked_for(tmp_path: Path) -> None:
    """Req: C38"""
    for port in (80, 443, 5671):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.77", port)) == 0:
                pytest.skip(f"port {port} is taken")
    with BrokerProcess(tmp_path, ["--usual-ports", "--host=127.0.0.77"]) as broker:
        context = ssl.create_default_context(cafile=str(broker.authority()))
        for port in (443, 5671):
            with (
                socket.create_connection(("127.0.0.77", port), timeout=10) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.77") as encrypted,
            ):
                encrypted.sendall(b"AMQP\x03\x01\x00\x00")
                assert encrypted.recv(8) == b"AMQP\x03\x01\x00\x00"
        (ready,) = until(lambda: lines(broker, "ready"))
        assert ready["ports"] == sorted({80, 443, 5671, broker.amqp_port, broker.http_port})
        plain_http = http.client.HTTPConnection("127.0.0.77", 80, timeout=10)
        plain_http.request("GET", "/$Resources/queues?api-version=2021-05")
        assert plain_http.getresponse().status in (200, 401)
        plain_http.close()


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (OSError(errno.EADDRINUSE, "Address already in use"), "stop the program that listens there"),
        (PermissionError(errno.EACCES, "Permission denied"), "ip_unprivileged_port_start=80"),
    ],
)
def test_port_80_that_cannot_be_had_is_told_and_done_without(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: OSError,
    told: str,
) -> None:
    """Req: C38. A web server often has it."""

    def bind(self: Listener, host: str, port: int) -> int:
        if port == 80:
            raise failure
        return port

    async def ports() -> list[int]:
        settings = Settings(
            tmp_path, None, "127.0.0.1", 1, 2, "os", None, None, "standard", None, usual_ports=True
        )
        made = Ports(settings, asyncio.Protocol, asyncio.Protocol, lambda _: 0.0, lambda *_: None)
        await made.open()
        return made.opened

    monkeypatch.setattr(Listener, "bind", bind)
    assert asyncio.run(ports()) == [1, 2, 443, 5671]
    [record] = [one for one in caplog.records if one.message == "a usual port is not listened on"]
    fields = record.fields  # type: ignore[attr-defined]  # `log` adds it
    assert (fields["port"], fields["reason"]) == (80, failure.strerror)
    assert told in fields["do"]


def test_a_port_that_needs_a_permission_is_told_with_how_to_give_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bind(self: Listener, host: str, port: int) -> int:
        if port == 443:
            raise PermissionError(errno.EACCES, "Permission denied")
        return port

    async def ports() -> None:
        settings = Settings(
            tmp_path, None, "127.0.0.1", 1, 1, "os", None, None, "standard", None, usual_ports=True
        )
        await Ports(settings, asyncio.Protocol, asyncio.Protocol, lambda _: 0.0, lambda *_: None).open()

    monkeypatch.setattr(Listener, "bind", bind)
    with pytest.raises(StartFailed, match=r"ip_unprivileged_port_start=443.*CAP_NET_BIND_SERVICE"):
        asyncio.run(ports())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may listen on port 443 everywhere")
def test_a_usual_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.78", 443))
        except OSError:
            pytest.skip("port 443 is taken")
        other.listen()
        with pytest.raises(BrokerFailed) as refused:
            BrokerProcess(tmp_path, ["--usual-ports", "--host=127.0.0.78"]).start()
        assert (
            "cannot listen on 127.0.0.78:443: Address already in use; leave --usual-ports out, or stop the "
            "program that listens there"
        ) in str(refused.value)


NO_PORTS = (
    "a:",
    "a:0",
    "a:65536",
    "a:x",
    ":5671",
    "*.a:5671",
    "a b:1",
    "[a]:1",
    "[127.0.0.1]:1",
    "[::1]",
    "a:1:1",
)


def test_names_given_are_in_the_certificate(tmp_path: Path) -> None:
    names = ("broker.example.org", "192.0.2.7", "go.example.org:5671", "[2001:db8::7]:5671", "2001:db8::8")
    with BrokerProcess(tmp_path, [f"--tls-name={name}" for name in names]) as broker:
        context = ssl.create_default_context(cafile=str(broker.authority()))
        in_it = names_in(broker.data / "tls" / "certificate.pem")
        assert {*names, "go.example.org", "2001:db8::7"} <= set(in_it)
        assert "" not in in_it
        for name in ("broker.example.org", "192.0.2.7", "go.example.org", "2001:db8::7", "localhost"):
            with socket.create_connection(("127.0.0.1", broker.amqp_port), timeout=10) as plain:
                context.wrap_socket(plain, server_hostname=name).close()


def test_other_machines_are_met_with_a_certificate_for_this_one_s_addresses(tmp_path: Path) -> None:
    """Req: R-04. The log and `peeklock ca` say for which names it is good."""
    address = _other_address()
    with BrokerProcess(tmp_path, ["--host=0.0.0.0", "--auth=sas"]) as broker:
        context = ssl.create_default_context(cafile=str(broker.authority()))
        with socket.create_connection((address, broker.amqp_port), timeout=10) as plain:
            context.wrap_socket(plain, server_hostname=address).close()
        (line,) = until(lambda: lines(broker, "the certificate is good for these names alone"))
        assert {"localhost", address} <= set(line["names"])
        assert broker.connection_string == f"Endpoint=sb://localhost:{broker.amqp_port};"
        assert "--tls-name" in line["do"]
        assert f", {address}" in peeklock("ca", broker.data).stdout.split("Python")[0]


@pytest.mark.parametrize(
    "name", ["", "a b", "-a", "bücher.example", "a..b", "*", "a.*.b", "x" * 64, *NO_PORTS]
)
def test_what_is_no_name_is_refused_at_the_start(tmp_path: Path, name: str) -> None:
    done = peeklock("serve", "--data", tmp_path / "data", "--tls-name", name)
    assert done.returncode == 2
    assert "is neither a DNS name" in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_pair_of_ones_own_has_its_names_already(tmp_path: Path) -> None:
    file = tmp_path / "x.pem"
    file.touch()
    given = [f"--tls-cert={file}", f"--tls-key={file}", "--tls-name=x"]
    done = peeklock("serve", "--data", tmp_path / "data", *given)
    assert done.returncode == 2
    assert "--tls-name is for the certificate that peeklock makes" in done.stderr


def test_what_is_open_to_others_is_told_and_plain_text_refused(tmp_path: Path) -> None:
    """Req: R-04"""
    with BrokerProcess(tmp_path, ["--host=0.0.0.0", "--auth=off"]) as broker:
        (line,) = lines(broker, "other machines can connect")
        assert line["ports"] == sorted({broker.amqp_port, broker.http_port})
        assert line["without_tls"] == "refused"
        assert "UseDevelopmentEmulator" not in broker.connection_string, "plain text is refused"
        with socket.create_connection(("127.0.0.1", broker.amqp_port), timeout=10) as here:
            here.sendall(b"AMQP\x03\x01\x00\x00")
            assert here.recv(8) == b"AMQP\x03\x01\x00\x00"
        address = _other_address()
        for _ in range(30):
            with socket.create_connection((address, broker.amqp_port), timeout=10) as far:
                far.sendall(b"AMQP\x03\x01\x00\x00")
                assert far.recv(8) == AMQP_TLS_HEADER
                assert far.recv(8) == b""
        assert health(broker.http_port, broker.authority())["refused_plaintext"] == 30
        refused = lines(broker, "a connection without TLS was refused")
        assert len(refused) == 20, "not a line for each"
        assert "leave UseDevelopmentEmulator=true out" in refused[0]["do"]


def test_plain_text_is_taken_from_others_when_asked_for_and_that_is_told(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, ["--host=0.0.0.0", "--auth=off", "--allow-plaintext"]) as broker:
        (line,) = lines(broker, "other machines can connect")
        assert line["without_tls"] == "allowed: keys and messages can be read on the way"
        assert broker.connection_string.endswith("UseDevelopmentEmulator=true;")
        with socket.create_connection((_other_address(), broker.amqp_port), timeout=10) as far:
            far.sendall(b"AMQP\x03\x01\x00\x00")
            assert far.recv(8) == b"AMQP\x03\x01\x00\x00"


def test_half_open_connections_do_not_keep_others_out(tmp_path: Path) -> None:
    """Req: R-05"""
    limit = 400
    with BrokerProcess(tmp_path) as broker:
        broker.stop()
        # What the broker may open is inherited; the hard limit is what it cannot raise.
        command = (
            f"ulimit -n {limit} && exec {program()} serve --data {broker.data} --amqp-port 0 --http-port 0"
        )
        with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            port = int(process.stdout.readline().split("localhost:")[1].partition(";")[0])
            silent = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(limit)]
            started = time.monotonic()
            figures = health(port, broker.data / "tls" / "ca.pem")
            assert time.monotonic() - started < 5
            assert figures["dropped_newcomers"] > 0
            for sock in silent:
                sock.close()
            process.terminate()
            assert process.wait(10) == 0


def _other_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent: it only chooses the address to send from
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("seed", [1, 2])
def test_strangers_who_break_off_anywhere_are_no_defect_of_ours(broker: BrokerProcess, seed: int) -> None:
    """Req: R-05"""
    noise = random.Random(seed)
    hello = _client_hello()
    left_open = []
    for _ in range(300):
        data = bytearray(
            noise.choice([hello, b"AMQP\x03\x01\x00\x00", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01"])
        )
        if noise.random() < 0.5:
            data[noise.randrange(len(data))] = noise.randrange(256)
        data += noise.randbytes(noise.choice([0, 0, 7, 3000]))
        sock = socket.create_connection(("127.0.0.1", broker.amqp_port), timeout=10)
        sock.sendall(data[: noise.randrange(len(data) + 1)])
        if noise.random() < 0.5:
            sock.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )  # the end is a reset
        if noise.random() < 0.2:
            left_open.append(sock)
        else:
            sock.close()
    assert health(broker.http_port, broker.authority())["status"] == "ok"
    for sock in left_open:
        sock.close()
    assert health(broker.http_port, broker.authority())["status"] == "ok"
    assert lines(broker, "defect") == []


def until(found: Callable[[], list[Any]]) -> list[Any]:
    """Wait for log lines that come soon after the start."""
    give_up_at = time.monotonic() + 10
    while not (lines_found := found()):
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
    return lines_found


def _client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_new_connections_get_a_pair_that_was_replaced_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: R-04"""
    monkeypatch.setattr("peeklock.server.net.ports.LOOK_S", 0.01)
    pair = tmp_path / "own.pem", tmp_path / "own-key.pem"

    def put(name: str) -> None:
        for file, pem in zip(pair, make_pair([name], datetime.now(UTC)), strict=True):
            file.write_bytes(pem)

    async def shown_for(name: str, port: int) -> bool:
        context = ssl.create_default_context(cafile=str(pair[0]))
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        except ssl.SSLError:
            return False
        writer.transport.abort()
        return True

    async def story() -> None:
        settings = Settings(None, None, "127.0.0.1", 0, 0, "memory", *pair, "standard", None)
        ports = Ports(
            settings,
            asyncio.Protocol,
            asyncio.Protocol,
            wait_s=lambda address: 0.0,
            note=lambda event, fields: None,
        )
        await ports.open()
        following = asyncio.get_running_loop().create_task(ports.follow_tls())
        try:
            assert await shown_for("first.example", ports.amqp_port)
            put("second.example")
            async with asyncio.timeout(10):
                while True:
                    if await shown_for("second.example", ports.amqp_port):
                        return
        finally:
            following.cancel()
            ports.close()

    put("first.example")
    asyncio.run(story())
