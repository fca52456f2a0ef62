"""Rules and direct keys; and that no secret is ever shown."""

from __future__ import annotations

import traceback

import pytest

from peeklock.auth import Authority, AuthorizationError, KeyRefused, Right, SasRule, SasToken, generate

NOW_MS = 1_700_000_000_000


def test_the_development_rule_has_all_rights_for_the_emulator_s_key() -> None:
    """Req: R-04. Source: wire contract 1.2."""
    grant = Authority.development().authorize_key("RootManageSharedAccessKey", "SAS_KEY_VALUE")
    assert grant.rights == set(Right)
    assert grant.covers("any/queue")
    assert grant.valid_at(1 << 60)


def test_a_direct_key_must_belong_to_its_name() -> None:
    """Req: R-04."""
    authority = Authority(
        [SasRule("a", "key-a", "key-a2", frozenset({Right.SEND}), "Orders"), SasRule("b", "key-b")]
    )
    grant = authority.authorize_key("a", "key-a2")
    assert grant.rights == {Right.SEND}
    assert grant.covers("orders/$management")
    assert not grant.covers("orders2")
    for name, key in (("a", "key-b"), ("a", ""), ("b", ""), ("c", "key-a"), ("", "")):
        with pytest.raises(KeyRefused):
            authority.authorize_key(name, key)


def test_no_secret_is_shown() -> None:
    """Req: R-04. Neither representations nor errors quote a key, a signature or a token."""
    rule = SasRule("rule", "TOP-SECRET", "SECOND-SECRET")
    text = generate("sb://localhost/orders", "rule", "TOP-SECRET", NOW_MS + 60_000)
    signature = SasToken.parse(text).signature
    authority = Authority([rule], hosts=["localhost"])
    shown = [repr(rule), repr(SasToken.parse(text)), repr(authority)]
    attempts = [
        (text, "sb://localhost/orders", NOW_MS + 120_000),
        (text, "sb://localhost/invoices", NOW_MS),
        (text, "sb://elsewhere/orders", NOW_MS),
        (text.replace("skn=rule", "skn=other"), "sb://localhost/orders", NOW_MS),
        (text.replace("se=", "se=x"), "sb://localhost/orders", NOW_MS),
        (text[1:], "sb://localhost/orders", NOW_MS),
    ]
    for attempt in attempts:
        with pytest.raises(AuthorizationError) as caught:
            authority.authorize(*attempt)
        shown += [str(caught.value), repr(caught.value)]
    with pytest.raises(KeyRefused) as refused:
        authority.authorize_key("rule", "TOP-SECRET-2")
    shown += ["".join(traceback.format_exception_only(refused.value))]
    assert len(shown) == 3 + 2 * len(attempts) + 1
    for line in shown:
        for secret in ("TOP-SECRET", "SECOND-SECRET", signature):
            assert secret not in line


def test_a_signature_named_jwt_is_taken_for_what_it_is() -> None:
    """Req: R-04. The Python client 7.15 puts shared access signatures with the type `jwt`."""
    token = generate("sb://localhost/q", "RootManageSharedAccessKey", "SAS_KEY_VALUE", NOW_MS + 60_000)
    grant = Authority.development().authorize(token, "amqps://localhost/q", NOW_MS, "jwt")
    assert Right.SEND in grant.rights
