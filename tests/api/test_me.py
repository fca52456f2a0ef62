"""What a token may do, over the API."""

from __future__ import annotations

import pytest

from peeklock.auth import Authority, OpenAuthority, SasRule
from peeklock.auth.rights import Right
from peeklock.broker.record.history import History
from tests.api.asking import ApiBroker


@pytest.fixture
def broker() -> ApiBroker:
    rules = [
        SasRule("root", "r" * 44),
        SasRule("Reader", "a" * 44, rights=frozenset({Right.LISTEN})),
        SasRule("of-q", "c" * 44, path="q", rights=frozenset({Right.SEND, Right.LISTEN})),
    ]
    return ApiBroker(authority=Authority(rules))


def test_a_key_of_the_namespace_is_shown_with_its_rights(broker: ApiBroker) -> None:
    """Req: R-04."""
    assert broker.ok("GET", "/me", token=broker.token("root", "r" * 44)) == {
        "name": "root",
        "namespace": "peeklock",
        "path": "",
        "rights": ["Send", "Listen", "Manage"],
        "isDevelopment": False,
        "has": {"history": False, "eventLog": False, "jobs": False, "namespaces": False},
    }
    found = broker.ok("GET", "/me", token=broker.token("reader", "a" * 44))
    assert (found["name"], found["rights"]) == ("Reader", ["Listen"])


@pytest.mark.parametrize(
    ("name", "key", "path"),
    [("of-q", "c", "/q"), ("of-q", "c", "/Q/$deadletterqueue"), ("root", "r", "/q/"), ("root", "r", "/a/b")],
)
def test_a_token_for_an_entity_is_shown_with_its_path(
    broker: ApiBroker, name: str, key: str, path: str
) -> None:
    """Req: R-04."""
    found = broker.ok("GET", "/me", token=broker.token(name, key * 44, path))
    assert (found["name"], found["path"]) == (name, path.strip("/").lower())


def test_a_token_that_is_refused_elsewhere_is_refused_here(broker: ApiBroker) -> None:
    for token in (
        "",
        broker.token("root", "x" * 44),
        broker.token("of-q", "c" * 44),
        "SharedAccessSignature",
    ):
        assert broker.http("GET", "/me", token=token).status == 401
    expired = broker.token("root", "r" * 44)
    broker.clock.now_ms += 3_600_000
    assert broker.http("GET", "/me", token=expired).problem == "token-expired"


def test_without_authorization_anybody_has_all_rights() -> None:
    found = ApiBroker(authority=OpenAuthority()).ok("GET", "/me", token="")
    assert (found["name"], found["path"], len(found["rights"])) == ("", "", 3)


def test_what_the_broker_has_is_shown() -> None:
    about = {"is_development": True, "has_event_log": True, "has_jobs": True, "has_namespaces": True}
    found = ApiBroker(about, history=History(10)).ok("GET", "/me")
    assert found["isDevelopment"]
    assert found["has"] == dict.fromkeys(("history", "eventLog", "jobs", "namespaces"), True)
