"""The command line works with any Service Bus: all ways of keys, all transports, Azure's operations alone."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from peeklock.cli import main
from peeklock.demo.broker import BrokerProcess
from tests.client.test_credentials import Credential
from tests.interop.commands import Run, entities, messages, put_right, received, runner
from tests.interop.witness import Witness
from tests.kept_keys import KeptKeys
from tests.server.issuer import Issuer

EMULATOR = "UseDevelopmentEmulator=true"

TRANSPORTS = ("plain", "tls", "ws", "wss")
AUTHS = ("development", "sas", "jwt")


AZURE_OPERATIONS = {
    "put-token",
    *(
        f"com.microsoft:{name}"
        for name in (
            "renew-lock", "peek-message", "schedule-message", "cancel-scheduled-message",
            "receive-by-sequence-number", "update-disposition", "batch-delete-messages", "renew-session-lock",
            "get-session-state", "set-session-state", "get-message-sessions", "add-rule", "remove-rule",
            "enumerate-rules",
        )
    ),
}  # fmt: skip
"""Source: wire contract 1.7, 5.2."""
AZURE_LINK_PROPERTIES = {
    "com.microsoft:receiver-name",
    "com.microsoft:timeout",
    "com.microsoft:entity-type",
    "com.microsoft:client-type",
    "com.microsoft:transfer-destination-address",
}
"""Source: wire contract 2.5."""
AZURE_FILTERS = {"com.microsoft:session-filter"}
"""Source: wire contract 2.6."""
AZURE_ANNOTATIONS = {
    "x-opt-scheduled-enqueue-time",
    "x-opt-partition-key",
    "x-opt-via-partition-key",
}
"""Those that a sender may set. Source: wire contract 3.2."""


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as serving:
        yield serving


@pytest.fixture(scope="module")
def brokers(
    tmp_path_factory: pytest.TempPathFactory, issuer: Issuer
) -> Iterator[Callable[[str], BrokerProcess]]:
    """Return the broker of a way of keys, or of a tier; it is started when it is asked for."""
    running: dict[str, BrokerProcess] = {}

    def broker(kind: str) -> BrokerProcess:
        if kind not in running:
            folder = tmp_path_factory.mktemp(kind)
            arguments = ["--durability=os"]
            if kind == "jwt":
                (folder / "jwt.toml").write_text(f'issuer = "{issuer.url}"\n[roles]\nboss = "Manage"\n')
                arguments.append(f"--jwt={folder / 'jwt.toml'}")
            arguments.append("--tier=premium" if kind == "premium" else f"--auth={kind}")
            running[kind] = BrokerProcess(folder, arguments)
            running[kind].start()
        return running[kind]

    yield broker
    for each in running.values():
        assert each.stop() == 0


@pytest.fixture
def log_in(
    brokers: Callable[[str], BrokerProcess], issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Run]:
    """Return what keeps a login for a broker and a transport, and runs commands with it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    identity: Any = ModuleType("azure.identity")
    identity.DefaultAzureCredential = lambda: Credential(issuer, "boss")
    monkeypatch.setitem(sys.modules, "azure.identity", identity)

    def made(kind: str, transport: str, port: int = 0) -> Run:
        broker = brokers(kind)
        parts = [f"Endpoint=sb://localhost:{port or broker.amqp_port}"]
        if kind == "sas":
            root = KeptKeys(broker.data).load()[0]
            parts += [f"SharedAccessKeyName={root.name}", f"SharedAccessKey={root.primary_key}"]
        elif kind != "jwt":
            parts += ["SharedAccessKeyName=RootManageSharedAccessKey", "SharedAccessKey=SAS_KEY_VALUE"]
        if transport in ("plain", "ws"):
            parts.append(EMULATOR)
        options = ["--entra"] * (kind == "jwt") + ["--websocket"] * (transport in ("ws", "wss"))
        words = ["logins", "add", "anywhere", "--connection-string", ";".join(parts), *options]
        added = CliRunner().invoke(main, [*words, "--ca", str(broker.authority())])
        assert added.exit_code == 0, added.output
        return runner("anywhere")

    return made


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("auth", AUTHS)
def test_all_commands_work(
    auth: str, transport: str, log_in: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Req: R-04, T-09, T-11."""
    run = log_in(auth, transport)
    entities(run, transport)
    messages(run, f"{transport}-messages", monkeypatch)
    received(run, transport)
    put_right(run, f"{transport}-wrong", monkeypatch, tmp_path)


def test_commands_ask_for_nothing_that_azure_lacks(
    brokers: Callable[[str], BrokerProcess], log_in: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The official clients' frames are the measure: what the wire contract lists of them. Req: T-11."""
    with Witness(brokers("development").amqp_port) as witness:
        run = log_in("development", "plain", witness.port)
        entities(run, "witnessed")
        messages(run, "witnessed", monkeypatch)
        received(run, "witnessed")
        asked = witness.read()
    assert asked.mechanisms == {"ANONYMOUS"}
    assert asked.performatives <= {
        "sasl-init", "open", "begin", "attach", "flow", "transfer", "disposition", "detach", "end", "close",
    }  # fmt: skip
    assert {"com.microsoft:receive-by-sequence-number", "put-token"} <= asked.operations <= AZURE_OPERATIONS
    assert asked.properties <= AZURE_LINK_PROPERTIES
    assert asked.filters == AZURE_FILTERS
    assert asked.annotations == {"x-opt-scheduled-enqueue-time", "x-opt-partition-key"} <= AZURE_ANNOTATIONS
    assert asked.capabilities == set()
    assert (
        {"accepted", "modified", "rejected"}
        <= asked.outcomes
        <= {"accepted", "modified", "rejected", "released"}
    )
    nodes = {
        "": ("", "/$management", "/$DeadLetterQueue/$management"),
        "-work": ("", "/$management", "/$DeadLetterQueue"),
        "-chats": ("", "/$management"),
    }
    assert asked.addresses == {
        "$cbs",
        *(f"witnessed{queue}{node}" for queue, all_of_it in nodes.items() for node in all_of_it),
    }
    targets = {(method, target.partition("?")[0]) for method, target in asked.requests}
    entity = r"/witnessed-(queue|topic(/Subscriptions(/sport(/Rules(/goals)?)?)?)?)|/witnessed(-work|-chats)?"
    lists = r"/\$Resources/(queues|topics)"
    odd = {each for each in targets if not re.fullmatch(f"{entity}|{lists}", each[1], re.IGNORECASE)}
    assert odd == {("GET", "/metrics/entities")}  # asked for, but not needed: it is hidden here
    assert {method for method, _ in targets} == {"GET", "PUT", "DELETE"}
    assert all("api-version=20" in target for _, target in asked.requests if "metrics" not in target)


def test_jobs_ask_for_nothing_that_azure_lacks(
    brokers: Callable[[str], BrokerProcess],
    log_in: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Req: T-11."""
    with Witness(brokers("development").amqp_port) as witness:
        put_right(log_in("development", "plain", witness.port), "watched", monkeypatch, tmp_path)
        asked = witness.read()
    assert {"com.microsoft:cancel-scheduled-message"} <= asked.operations <= AZURE_OPERATIONS
    assert asked.properties <= AZURE_LINK_PROPERTIES
    assert asked.filters <= AZURE_FILTERS
    assert asked.annotations <= AZURE_ANNOTATIONS
    assert asked.capabilities == set()
    assert asked.outcomes <= {"accepted", "rejected", "released", "transactional-state"}


@pytest.mark.parametrize(
    ("tier", "fits", "limit"), [("development", 250_000, 262_144), ("premium", 1_000_000, 1_048_576)]
)
def test_a_message_over_the_limit_of_the_tier_is_refused_with_the_limit(
    tier: str, fits: int, limit: int, log_in: Callable[..., Run], tmp_path: Path
) -> None:
    """Req: T-10."""
    run = log_in(tier, "plain")
    run("queues", "create", "large")
    file = tmp_path / "body"
    file.write_bytes(b"x" * fits)
    assert run("send", "large", "--file", str(file)).output == "1 message sent to large\n"
    file.write_bytes(b"x" * limit)
    refused = run("send", "large", "--file", str(file), status=1)
    assert f"the limit is {limit}" in refused.stderr
    assert "Send a smaller message" in refused.stderr
    line = json.dumps({"body": "x" * limit}) + "\n"
    assert f"the limit is {limit}" in run("send", "large", status=1, given=line).stderr
    assert run("peek", "large", "--json").output.count("\n") == 1
    run("queues", "delete", "large", "--yes")
