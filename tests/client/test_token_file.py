"""Web tokens that another program puts into a file, with a broker that accepts nothing else."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from peeklock.amqp.message_writing import encode_message
from peeklock.client.connection import BlockingConnection, wall_ms
from peeklock.client.connection_string import ConnectionString
from peeklock.client.errors import UNAUTHORIZED, OptionError, ServiceBusError
from peeklock.client.token_file import NO_TOKEN, read_token
from peeklock.demo.broker import BrokerProcess
from tests.client.test_connection import PEEK, peek
from tests.server.issuer import Issuer
from tests.spark.relay import Relay

QUEUE = "orders"


class TokenBroker:
    """A broker with one queue, `orders`, that accepts web tokens of one issuer alone."""

    def __init__(self, process: BrokerProcess, issuer: Issuer) -> None:
        self.process = process
        self.connection_string = f"Endpoint=sb://localhost:{process.amqp_port};UseDevelopmentEmulator=true"
        self._issuer = issuer

    def put_token(self, file: Path, valid_s: float, role: str = "worker") -> None:
        """Put a new token into a file, as a whole."""
        new = file.with_suffix(".new")
        new.write_text(self._issuer.token(exp=time.time() + valid_s, roles=[role]) + "\n")
        os.replace(new, file)


@pytest.fixture(scope="module")
def token_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenBroker]:
    folder = tmp_path_factory.mktemp("tokens")
    with Issuer() as issuer:
        (folder / "jwt.toml").write_text(
            f'issuer = "{issuer.url}"\n[roles]\nworker = ["Listen:{QUEUE}", "Send:{QUEUE}"]\n'
        )
        entities = {"UserConfig": {"Namespaces": [{"Name": "shop", "Queues": [{"Name": QUEUE}]}]}}
        (folder / "Config.json").write_text(json.dumps(entities))
        arguments = ("--auth=jwt", f"--jwt={folder / 'jwt.toml'}", f"--config={folder / 'Config.json'}")
        with BrokerProcess(folder, (*arguments, "--durability=os")) as process:
            yield TokenBroker(process, issuer)
            assert process.stop() == 0
            assert "eyJ" not in process.log.read_text()  # how every token begins


def test_a_file_is_read_again_in_the_last_tenth_of_its_token(
    token_broker: TokenBroker, tmp_path: Path
) -> None:
    """A token that is still the old one is not put again. Req: R-04"""
    file = tmp_path / "token"
    token_broker.put_token(file, 3600)
    now_ms = wall_ms()
    with Relay(token_broker.process.amqp_port) as relay:
        text = f"Endpoint=sb://localhost:{relay.port};UseDevelopmentEmulator=true"
        settings = ConnectionString.parse(text, token_file=str(file))
        made = BlockingConnection(settings, now_ms=lambda: now_ms)

        def puts_after(minutes: float) -> int:
            nonlocal now_ms
            now_ms += round(minutes * 60_000)
            peek(made, QUEUE)
            return relay.asked.count(b"put-token")

        first = puts_after(0)  # more than one if the broker waits for the issuer's keys
        assert puts_after(53) == first
        assert puts_after(2) == first, "the file has the same token"
        token_broker.put_token(file, 7200)
        assert puts_after(0.001) == first, "it is read once a second"
        assert puts_after(0.02) == first + 1
        now_ms += 7_200_000
        with pytest.raises(ServiceBusError, match=r"has a token that expired at .*It was retried"):
            made.management(QUEUE).request(PEEK, {}, timeout_s=0.2)
        made.close()


def test_a_connection_outlives_its_tokens(token_broker: TokenBroker, tmp_path: Path) -> None:
    """The broker detaches links whose token expires. Req: R-04"""
    file = tmp_path / "token"
    settings = ConnectionString.parse(token_broker.connection_string, token_file=str(file))
    made = BlockingConnection(settings)
    ends_at = time.monotonic() + 5
    while time.monotonic() < ends_at:
        token_broker.put_token(file, 2)
        assert peek(made, QUEUE) == []
        time.sleep(0.3)  # the tokens expire by the machine's clock
    made.close()


def test_a_process_that_paused_past_its_token_puts_the_next_one(
    token_broker: TokenBroker, tmp_path: Path
) -> None:
    """The broker has detached the links meanwhile. Req: R-04"""
    file = tmp_path / "token"
    settings = ConnectionString.parse(token_broker.connection_string, token_file=str(file))
    made = BlockingConnection(settings)
    sender = made.sender(QUEUE)
    token_broker.put_token(file, 1)
    before = len(peek(made, QUEUE))
    for count in (1, 2):
        sender.send(encode_message(data=b"x"))
        sender.flush()
        token_broker.put_token(file, 1)
        time.sleep(1.2)  # the token expires by the machine's clock
        token_broker.put_token(file, 1)
        assert len(peek(made, QUEUE)) == before + count
    made.close()


def test_a_token_without_the_right_is_told_what_it_needs(token_broker: TokenBroker, tmp_path: Path) -> None:
    file = tmp_path / "token"
    token_broker.put_token(file, 60, role="guest")
    made = BlockingConnection(ConnectionString.parse(token_broker.connection_string, token_file=str(file)))
    with pytest.raises(ServiceBusError, match="a web token needs a role with it") as raised:
        peek(made, QUEUE)
    assert raised.value.condition == UNAUTHORIZED
    made.close()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, r"cannot be read \(No such file"),
        (b"", "has no JSON web token with an expiry"),
        (b"SharedAccessSignature sr=x", "has no JSON web token with an expiry"),
        (b"a.!!.c", "has no JSON web token with an expiry"),
        (b"a.e30.c", "has no JSON web token with an expiry"),  # {}
        (b"a.W10.c", "has no JSON web token with an expiry"),  # []
        (b"a.eyJleHAiOiJ4In0.c", "has no JSON web token with an expiry"),  # {"exp":"x"}
        (b"a.eyJleHAiOjFlOTk5fQ.c", "has no JSON web token with an expiry"),  # 1e999
        (b"\xff", "has no JSON web token"),
        (b"a.eyJleHAiOjF9.c", "expired at 1970-01-01T00:00:01.00:00, and it is 1970-01-01T00:00:02"),
    ],
)
def test_what_is_wrong_with_a_file_is_named_with_its_host(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ServiceBusError, match=says) as raised:
        read_token(str(file), 2000)
    assert f"option tokenFile is '{file}': on host {socket.gethostname()} the file" in str(raised.value)
    assert raised.value.condition == NO_TOKEN
    assert raised.value.retryable == ("expired" in says)


def test_a_token_is_good_to_its_last_millisecond(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"a.eyJleHAiOjF9.c\n")  # {"exp":1}
    assert read_token(str(file), 999).expires_ms == 1000
    with pytest.raises(ServiceBusError, match="expired"):
        read_token(str(file), 1000)


def test_a_token_file_goes_with_no_other_credential() -> None:
    text = "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=k"
    with pytest.raises(OptionError, match="has a key or a signature, and a token file is given"):
        ConnectionString.parse(text, token_file="/token")
    assert ConnectionString.parse("Endpoint=sb://h", token_file="/token").token_file == "/token"
    with pytest.raises(OptionError, match="needs either"):
        ConnectionString.parse("Endpoint=sb://h")
