"""Rules that change while what they granted is in use."""

from __future__ import annotations

import pytest

from peeklock.auth import (
    Authority,
    Grant,
    KeyRefused,
    OpenAuthority,
    Right,
    SasRule,
    SignatureInvalid,
    TokenMalformed,
    TokenTypeUnsupported,
    generate,
)
from peeklock.auth.rights import TokenProof, scopes, within

NOW_MS = 1_700_000_000_000
SEND = frozenset({Right.SEND})
LISTEN = frozenset({Right.LISTEN})


def token(name: str, key: str, resource: str = "sb://localhost/orders") -> str:
    return generate(resource, name, key, NOW_MS + 60_000)


def test_the_entity_s_own_rule_comes_before_the_namespace_s_of_the_same_name() -> None:
    """Req: R-04. And where its key does not fit, the namespace's rule still may. Source: wire contract
    1.8."""
    authority = Authority([SasRule("r", "of-all"), SasRule("r", "of-orders", rights=SEND, path="Orders")])
    assert authority.authorize(token("r", "of-orders"), "sb://localhost/orders", NOW_MS).rights == SEND
    assert authority.authorize(token("r", "of-all"), "sb://localhost/orders", NOW_MS).rights == set(Right)
    with pytest.raises(SignatureInvalid):
        authority.authorize(token("r", "of-orders", "sb://localhost/"), "sb://localhost/invoices", NOW_MS)


def test_a_rule_of_a_topic_holds_for_its_subscriptions_and_no_other_topic() -> None:
    """Req: R-04."""
    authority = Authority([SasRule("r", "key", rights=LISTEN, path="t/events")])
    below = "sb://localhost/T/Events/Subscriptions/all/$DeadLetterQueue"
    assert authority.authorize(token("r", "key", "sb://localhost/t"), below, NOW_MS).rights == LISTEN
    for other in ("sb://localhost/t", "sb://localhost/t/events2", "sb://localhost/"):
        with pytest.raises(SignatureInvalid):
            authority.authorize(token("r", "key", "sb://localhost/"), other, NOW_MS)


def test_a_rule_is_not_for_another_entity_whose_name_begins_like_its_own() -> None:
    """Req: R-04. Names may have slashes, so that an entity may seem to be below another."""
    authority = Authority([SasRule("r", "key", rights=SEND, path="a")])
    for grant in (
        authority.authorize(token("r", "key", "sb://localhost/a"), "sb://localhost/A", NOW_MS),
        authority.authorize_key("r", "key"),
    ):
        for mine in ("a", "a/$deadletterqueue", "a/subscriptions/s", "a/subscriptions/s/$management"):
            assert grant.covers(mine)
        for other in ("a/b", "a/subscriptions2/s", "ab", "", "b"):
            assert not grant.covers(other)
    for other in ("a/b", "a/b/$deadletterqueue", "a/b/subscriptions/s"):
        with pytest.raises(SignatureInvalid):
            authority.authorize(token("r", "key", "sb://localhost/a"), other, NOW_MS)


def test_what_a_removed_rule_granted_is_not_upheld() -> None:
    """Req: R-04."""
    authority = Authority([SasRule("r", "key", path="orders"), SasRule("r", "key")])
    grant = authority.authorize(token("r", "key"), "sb://localhost/orders", NOW_MS)
    by_key = Authority([SasRule("R", "key", path="Orders")])
    shown = by_key.authorize_key("r", "key")
    version = authority.version
    authority.set_rules("ORDERS", [])
    by_key.set_rules("orders", [])
    assert authority.version > version
    assert not authority.upholds(grant)
    assert not by_key.upholds(shown)
    with pytest.raises(KeyRefused):
        by_key.authorize_key("r", "key")
    again = authority.authorize(token("r", "key"), "sb://localhost/orders", NOW_MS)
    assert authority.upholds(again)


def test_a_rotation_leaves_those_who_came_by_the_other_key() -> None:
    """Req: R-04."""
    authority = Authority([SasRule("r", "first", "second")])
    first = authority.authorize(token("r", "first"), "orders", NOW_MS)
    second = authority.authorize(token("r", "second"), "orders", NOW_MS)
    authority.set_rules("", [SasRule("r", "third", "first")])
    assert authority.upholds(first)
    assert not authority.upholds(second)
    authority.set_rules("", [SasRule("r", "fourth", "fifth")])
    assert not authority.upholds(first)


def test_a_rule_that_loses_a_right_takes_back_what_it_granted() -> None:
    """Req: R-04. One that gains a right does not."""
    authority = Authority([SasRule("r", "key", rights=SEND | LISTEN)])
    grant = authority.authorize(token("r", "key"), "orders", NOW_MS)
    authority.set_rules("", [SasRule("r", "key", rights=frozenset(Right))])
    assert authority.upholds(grant)
    authority.set_rules("", [SasRule("r", "key", rights=LISTEN)])
    assert not authority.upholds(grant)


def test_the_version_tells_only_of_what_may_take_something_back() -> None:
    authority = Authority([SasRule("r", "key")])
    version = authority.version
    authority.set_rules("orders", [SasRule("new", "key")])
    authority.set_rules("", [SasRule("r", "key"), SasRule("new", "key")])
    authority.set_rules("nowhere", [])
    assert authority.version == version


def test_many_entities_with_a_rule_of_one_name_are_told_apart() -> None:
    authority = Authority()
    for number in range(1000):
        authority.set_rules(f"queue-{number}", [SasRule("worker", f"key-{number}", rights=SEND)])
    grant = authority.authorize(token("worker", "key-777", "sb://localhost/"), "queue-777", NOW_MS)
    assert (grant.path, grant.rights) == ("queue-777", SEND)
    assert authority.authorize_key("worker", "key-999").path == "queue-999"
    with pytest.raises(SignatureInvalid):
        authority.authorize(token("worker", "key-777", "sb://localhost/"), "queue-778", NOW_MS)


def test_a_path_is_within_itself_and_what_it_lies_below() -> None:
    assert list(scopes("a/b/c")) == ["a/b/c", "a/b", "a", ""]
    assert list(scopes("")) == [""]
    assert list(scopes("/a//b/")) == ["/a//b/", "/a//b", "/a/", "/a", ""]
    for path in ("a/b/c", "/a//b/", "a"):
        assert all(within(path, scope) for scope in scopes(path))


def test_a_path_longer_than_any_there_is_costs_nothing() -> None:
    """Req: R-05. One request with 16,000 slashes would stop the others for 40 ms."""
    path = "a/" * 16_000
    assert list(scopes(path)) == [""]
    authority = Authority([SasRule("worker", "key", rights=SEND), SasRule("worker", "own", path="a")])
    assert authority.authorize(token("worker", "key", "sb://localhost/"), path, NOW_MS).rights == SEND
    with pytest.raises(SignatureInvalid):
        authority.authorize(token("worker", "own", "sb://localhost/"), path, NOW_MS)


def test_a_key_shown_directly_is_looked_up_among_the_rules_of_now() -> None:
    """Req: R-04."""
    authority = Authority([SasRule("worker", "old", "kept", rights=SEND)])
    authority.set_rules("orders", [SasRule("Worker", "own", rights=SEND)])
    assert authority.authorize_key("WORKER", "old").path == ""
    assert authority.authorize_key("worker", "own").path == "orders"
    authority.set_rules("", [SasRule("worker", "new", "kept", rights=SEND)])
    authority.set_rules("orders", [])
    for gone in ("old", "own", ""):
        with pytest.raises(KeyRefused):
            authority.authorize_key("worker", gone)
    assert authority.authorize_key("worker", "new").rights == SEND
    assert authority.authorize_key("worker", "kept").rights == SEND
    authority.set_rules("", [])
    with pytest.raises(KeyRefused):
        authority.authorize_key("worker", "kept")


class _WebTokens:
    def authorize(self, token: str, audience: str, now_ms: int) -> Grant:
        return Grant(SEND, "orders", now_ms + 1)

    def upholds(self, grant: Grant, proof: TokenProof) -> bool:
        return True


def test_kinds_of_token_can_be_switched_off() -> None:
    """Req: R-04."""
    rules = [SasRule("r", "key")]
    web_alone = Authority(rules, signatures=False, web_tokens=_WebTokens())
    with pytest.raises(TokenTypeUnsupported):
        web_alone.authorize(token("r", "key"), "orders", NOW_MS)
    with pytest.raises(KeyRefused):
        web_alone.authorize_key("r", "key")
    granted = web_alone.authorize("a.b.c", "orders", NOW_MS, "jwt")
    assert web_alone.upholds(granted)
    both = Authority(rules, web_tokens=_WebTokens())
    assert both.authorize("a.b.c", "orders", NOW_MS, "jwt") == granted
    assert both.authorize(token("r", "key"), "orders", NOW_MS, "jwt").rights == set(Right)
    with pytest.raises(TokenTypeUnsupported):
        Authority(rules).authorize("a.b.c", "orders", NOW_MS, "jwt")
    with pytest.raises(TokenMalformed):
        Authority(rules).authorize("a.b.c", "orders", NOW_MS)
    with pytest.raises(TokenTypeUnsupported):
        both.authorize("a.b.c", "orders", NOW_MS, "kerberos")


def test_an_open_authority_asks_for_nothing() -> None:
    """Req: R-04."""
    authority = OpenAuthority()
    assert Authority().anybody is None
    assert authority.anybody.rights == set(Right)
    assert authority.anybody.covers("any/queue")
    for grant in (
        authority.authorize("whatever", "sb://host/Orders", NOW_MS, "anything"),
        authority.authorize_key("nobody", "nothing"),
    ):
        assert grant.rights == set(Right)
        assert grant.covers("orders")
        assert authority.upholds(grant)


def test_rules_that_are_set_on_a_path_are_that_entity_s() -> None:
    """Req: R-04. Whatever they said of it themselves: what is granted by them is upheld there and nowhere
    else."""
    authority = Authority()
    authority.set_rules("Orders", [SasRule("r", "key", rights=SEND)])
    grant = authority.authorize(token("r", "key"), "sb://localhost/orders", NOW_MS)
    assert authority.upholds(grant)
    assert grant.covers("orders/$deadletterqueue")
    assert not grant.covers("orders/other")
    authority.set_rules("Orders", [SasRule("r", "another", rights=SEND)])
    assert not authority.upholds(grant)
