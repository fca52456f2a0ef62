"""The broker's authority follows the file of the keys and the rules of the entities."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from peeklock.auth import Authority, KeyRefused, Right, SignatureInvalid, generate
from peeklock.broker.vocabulary.changes import EntityRemoved, EntityStored
from peeklock.broker.vocabulary.descriptions import AuthorizationRule, QueueDescription, TopicDescription
from peeklock.broker.vocabulary.effects import EntityView
from peeklock.server import log
from peeklock.server.follow import Outcome
from peeklock.server.keys.authority_manager import AuthorityManager, is_loopback
from peeklock.server.keys.rules import KeysRefused
from peeklock.server.origins import OriginPolicy
from tests.kept_keys import write_keys

NOW = 1_700_000_000_000
ROOT = "RootManageSharedAccessKey"
SENDER = AuthorizationRule("sender", ("Send",), "key-1", "key-2")


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    lines: list[tuple[str, Any]] = []
    for level in ("info", "warning", "error"):
        monkeypatch.setattr(log, level, lambda event, fields: lines.append((event, fields)))
    return lines


@pytest.mark.parametrize("modes", [(), ("development",)])
def test_development_mode_knows_the_emulator_s_key_and_says_what_it_is(modes: tuple[Any, ...]) -> None:
    """Req: R-04."""
    guard = AuthorityManager(frozenset(modes), None)
    assert guard.authority.authorize_key(ROOT, "SAS_KEY_VALUE").rights == set(Right)
    assert "everybody knows" in guard.warning
    assert "SAS_KEY_VALUE" in guard.connection_string_key


def test_with_keys_of_its_own_the_well_known_one_is_refused(tmp_path: Path) -> None:
    """Req: R-04. And no key is shown."""
    guard = AuthorityManager(frozenset({"sas"}), None)
    with pytest.raises(KeyRefused):
        guard.authority.authorize_key(ROOT, "SAS_KEY_VALUE")
    (root,) = write_keys(tmp_path)
    guard.set_rules([root])
    assert guard.authority.authorize_key(ROOT, root.primary_key).rights == set(Right)
    assert (guard.warning, guard.connection_string_key) == ("", "")


def test_without_signatures_no_key_is_taken() -> None:
    """Req: R-04."""
    guard = AuthorityManager(frozenset({"jwt"}), None)
    guard.take([EntityStored(7, QueueDescription("orders", authorization_rules=(SENDER,)), NOW, NOW)])
    with pytest.raises(KeyRefused):
        guard.authority.authorize_key("sender", "key-1")


def test_off_lets_everybody_in_and_says_so() -> None:
    """Req: R-04."""
    guard = AuthorityManager(frozenset({"off"}), None)
    assert guard.authority.anybody is not None
    assert "every client that reaches" in guard.warning


@pytest.mark.parametrize("modes", [frozenset(), frozenset({"off"})])
def test_where_no_secret_is_asked_for_only_known_hosts_are_served(modes: frozenset[Any]) -> None:
    """Req: R-04. Else a page whose name is rebound to this machine reads and empties queues."""
    assert not AuthorityManager(modes, None).asks_for_secret
    policy = OriginPolicy(["broker.lan"], is_namespace={"tests.localhost": 1}.get)
    assert policy.knows(["tests.localhost"])
    assert policy.knows(["localhost:5300"])
    assert policy.knows(["broker.lan"])
    assert not policy.knows(["rebound.example"])
    assert policy.refusal_of_origin("https://evil.example", ["localhost"]) is not None


@pytest.mark.parametrize("modes", [frozenset({"sas"}), frozenset({"jwt"}), frozenset({"sas", "jwt"})])
def test_where_a_secret_is_asked_for_any_host_is_served(modes: frozenset[Any]) -> None:
    """Req: R-04."""
    assert AuthorityManager(modes, None).asks_for_secret
    assert AuthorityManager(frozenset(), Authority.development()).asks_for_secret
    policy = OriginPolicy()
    assert policy.knows(["rebound.example"])
    assert policy.refusal_of_origin("https://shop.example.com", ["localhost"]) is None


def test_it_follows_the_file_of_the_keys(tmp_path: Path, logged: list[tuple[str, Any]]) -> None:
    """Req: R-04."""
    (root,) = write_keys(tmp_path)
    guard = AuthorityManager(frozenset({"sas"}), None, keys=tmp_path / "keys.json")
    assert asyncio.run(guard.look(False)) is Outcome.UNCHANGED
    assert logged == []
    (rotated,) = write_keys(tmp_path)
    guard.authority.authorize_key(ROOT, root.primary_key)
    assert asyncio.run(guard.look(False)) is Outcome.FOLLOWED
    with pytest.raises(KeyRefused):
        guard.authority.authorize_key(ROOT, root.primary_key)
    guard.authority.authorize_key(ROOT, rotated.primary_key)
    assert [event for event, _ in logged] == ["keys followed"]
    assert not any(key in json.dumps(logged) for key in (*root.keys, *rotated.keys))


@pytest.mark.parametrize("bad", ["{}", None, "open"])
def test_a_file_that_cannot_be_used_changes_nothing_and_is_told_once(
    tmp_path: Path, logged: list[tuple[str, Any]], bad: str | None
) -> None:
    """Req: R-04."""
    (root,) = write_keys(tmp_path)
    path = tmp_path / "keys.json"
    guard = AuthorityManager(frozenset({"sas"}), None, keys=path)
    if bad is None:
        path.unlink()
    elif bad == "open":
        path.chmod(0o644)
    else:
        path.write_text(bad)
    for _ in range(5):
        assert asyncio.run(guard.look(False)) is Outcome.REFUSED
    assert [event for event, _ in logged] == ["the keys stay as they were"]
    guard.authority.authorize_key(ROOT, root.primary_key)


def test_a_given_file_that_is_missing_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(KeysRefused, match="is missing"):
        AuthorityManager(frozenset({"sas"}), None, keys=tmp_path / "keys.json")


def view(entity_id: int, description: QueueDescription | TopicDescription) -> EntityView:
    return EntityView(entity_id, description, 0, 0, 0, 0, 0, 0, 0, 0)


def may(authority: Authority, path: str, key: str = "key-1") -> bool:
    token = generate(f"sb://localhost/{path}", "sender", key, NOW + 60_000)
    try:
        return authority.authorize(token, path, NOW).rights == {Right.SEND}
    except SignatureInvalid:
        return False


def test_it_follows_the_rules_of_entities() -> None:
    """Req: R-04, A-01. From the facts that are durable, also those of before the start."""
    guard = AuthorityManager(frozenset(), None)
    guard.begin(
        [
            view(7, QueueDescription("Orders", authorization_rules=(SENDER,))),
            view(9, TopicDescription("events")),
        ]
    )
    authority = guard.authority
    assert may(authority, "orders")
    assert may(authority, "orders", "key-2")
    assert not may(authority, "events")
    guard.take([EntityStored(9, TopicDescription("events", authorization_rules=(SENDER,)), NOW, NOW)])
    assert may(authority, "events/Subscriptions/all")
    granted = authority.authorize_key("sender", "key-1")
    guard.take([EntityStored(7, QueueDescription("Orders"), NOW, NOW), EntityRemoved(9)])
    assert not may(authority, "orders")
    assert not may(authority, "events")
    assert not authority.upholds(granted)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.0.0.7", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("no such host", False),
    ],
)
def test_what_only_this_machine_can_reach(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback
