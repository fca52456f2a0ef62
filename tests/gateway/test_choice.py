"""Which namespace a connection uses: by host, by the key of the first token, else the default one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from peeklock.amqp.connection import Connection
from peeklock.amqp.events import ConnectionClosed, ConnectionOpened, SessionBegun
from peeklock.amqp.performatives import Source, Target
from peeklock.amqp.types import Role
from peeklock.auth import (
    AnotherNamespace,
    Authority,
    NamespaceFull,
    OpenAuthority,
    SasRule,
    SasToken,
    generate,
)
from peeklock.broker.vocabulary.commands import LookUp, OpenSender
from peeklock.gateway.choice import Choice
from peeklock.gateway.connection import Gateway
from peeklock.gateway.context import GatewayLimits
from tests.gateway.harness import CONNECTION_ID, Harness

NOW_MS = 1_700_000_000_000
ROOT = "RootManageSharedAccessKey"


@dataclass
class Hosted:
    """A namespace whose one key has its own name."""

    name: str
    authority: Authority = field(init=False)

    def __post_init__(self) -> None:
        self.authority = Authority([SasRule(self.name, f"key-{self.name}")])


class Several:
    """Namespaces by the first label of a host name, and by their keys."""

    def __init__(self, *names: str) -> None:
        self.hosted = {name: Hosted(name) for name in names}
        self.default = self.hosted[names[0]]
        self.full = False

    def by_host(self, host_name: str) -> Hosted | None:
        return self.hosted.get(host_name.partition(".")[0])

    def by_key(self, key_name: str) -> Hosted | None:
        return self.hosted.get(key_name)

    def by_token(self, token: str) -> Hosted | None:
        return self.by_key(SasToken.parse(token).key_names[-1])

    def chosen(self, hosted: Hosted) -> None:
        if self.full and hosted is not self.default:
            raise NamespaceFull("The namespace is full.")


def token(name: str, entity: str = "orders", *, signed_by: str = "") -> str:
    return generate(f"sb://localhost/{entity}", name, f"key-{signed_by or name}", NOW_MS + 60_000)


class Rig(Harness):
    """A connection to a broker with the namespaces a, which is the default one, and b."""

    def __init__(self, *, open_to_all: bool = False, **options: Any) -> None:
        self.namespaces = Several("a", "b")
        if open_to_all:
            for hosted in self.namespaces.hosted.values():
                hosted.authority = OpenAuthority()
        self.chosen: list[str] = []
        super().__init__(**options)

    def make_gateway(self, limits: GatewayLimits | None) -> Gateway:
        return Gateway(
            CONNECTION_ID,
            namespaces=self.namespaces,
            tracking=lambda: "id",
            log=lambda event, fields: self.logged.append((event, fields)),
            now_ms=NOW_MS,
            on_chosen=self._on_chosen,
        )

    def _on_chosen(self, hosted: Hosted) -> None:
        self.namespaces.chosen(hosted)
        if hosted is not self.namespaces.default:
            self.chosen.append(hosted.name)

    def answer(self, text: str, entity: str = "orders") -> int:
        """Put a token, and return the status of the answer; 0 = the broker is asked for the entity."""
        sender, _ = self.pair("$cbs")
        self.put_token(sender, f"sb://localhost/{entity}", text)
        if any(isinstance(command, LookUp) for command in self.commands):
            return 0
        return int(self.response().status)


def rig(**options: Any) -> Rig:
    made = Rig(mechanism="ANONYMOUS", **options)
    made.clock.now_ms = NOW_MS
    return made


def test_the_host_name_of_open_decides() -> None:
    made = rig(hostname="b.servicebus.windows.net")
    assert made.chosen == ["b"]
    assert made.answer(token("a")) == 401
    assert made.answer(token("b")) == 0


def test_where_the_host_names_none_the_key_of_the_first_token_decides() -> None:
    made = rig()
    assert made.chosen == []
    assert made.answer(token("b")) == 0
    assert made.chosen == ["b"]


def test_a_token_with_a_bad_signature_decides_nothing() -> None:
    made = rig()
    assert made.answer(token("b", signed_by="a")) == 401
    assert made.chosen == []
    assert made.answer(token("a")) == 0


def test_a_key_that_no_namespace_has_is_refused_by_the_default_one() -> None:
    made = rig()
    assert made.answer(token("c")) == 401
    assert made.chosen == []


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
def test_a_second_token_for_another_namespace_is_refused(first: str, second: str) -> None:
    made = rig()
    assert made.answer(token(first)) == 0
    made.commands.clear()
    assert made.answer(token(second)) == 401
    assert f"for the namespace '{first}', and the key is of '{second}'" in str(made.logged[-1])
    assert made.answer(token(first, "other"), "other") == 0


def test_the_key_of_plain_decides() -> None:
    made = Rig(mechanism="PLAIN", response=b"\0b\0key-b")
    assert made.chosen == ["b"]


def test_plain_is_checked_where_the_host_says() -> None:
    made = Rig(mechanism="PLAIN", response=b"\0a\0key-a", hostname="b", opened=False)
    assert not any(isinstance(event, ConnectionOpened) for event in made.events)
    assert Rig(mechanism="PLAIN", response=b"\0b\0key-b", hostname="b").chosen == ["b"]


def test_without_keys_the_first_use_decides() -> None:
    made = rig(open_to_all=True)
    made.attach(Role.SENDER, "orders")
    made.take(OpenSender)
    assert made.answer(token("b")) == 401
    assert made.chosen == []


def test_without_keys_a_token_before_the_first_use_decides() -> None:
    made = rig(open_to_all=True)
    assert made.answer(token("b")) == 0
    assert made.chosen == ["b"]


def test_a_namespace_that_takes_no_connection_refuses_the_token() -> None:
    made = rig()
    made.namespaces.full = True
    assert made.answer(token("b")) == 403
    assert made.answer(token("a")) == 0


def test_links_asked_for_in_one_write_with_a_host_name_that_is_refused_are_left_unanswered() -> None:
    """Req: R-05. The official Python client pipelines open, begin and attach."""
    namespaces = Several("a", "b")
    namespaces.full = True
    gateway = Gateway(
        CONNECTION_ID,
        namespaces=namespaces,
        tracking=lambda: "id",
        log=lambda event, fields: None,
        now_ms=NOW_MS,
        on_chosen=namespaces.chosen,
    )
    client = Connection(
        "client",
        container_id="test",
        hostname="b",
        now_ms=NOW_MS,
        sasl_mechanisms=("ANONYMOUS",),
        sasl_response=b"",
        idle_timeout_ms=None,
    )
    client.open()
    while (up := client.data_to_send()) and b"AMQP\x00\x01\x00\x00" not in up:
        gateway.receive(up, NOW_MS)
        client.receive(gateway.data_to_send(), NOW_MS)
    channel = client.begin()
    client.attach(channel, "cbs", Role.SENDER, Source("$cbs"), Target("$cbs"))
    client.attach(channel, "link", Role.RECEIVER, Source("orders"), Target("here"))
    assert gateway.receive(up + client.data_to_send(), NOW_MS) == []
    events = client.receive(gateway.data_to_send(), NOW_MS)
    assert [type(event) for event in events] == [ConnectionOpened, SessionBegun, ConnectionClosed]
    assert isinstance(events[-1], ConnectionClosed)
    assert events[-1].error is not None
    assert str(events[-1].error.condition) == "amqp:resource-limit-exceeded"


def test_the_host_of_open_may_not_contradict_the_key_of_sasl() -> None:
    """Req: T-11. A sasl-init without a host name is served by its key."""
    namespaces = Several("a", "b")
    choice = Choice(namespaces, lambda hosted: None)
    choice.by_host(None)
    choice.confirm(choice.of_key("b"))
    choice.by_host("b")
    choice.by_host("localhost")
    with pytest.raises(AnotherNamespace, match="the host name means 'a'"):
        choice.by_host("a")
