"""The shared access signature: every encoder's variant is taken, everything else refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.auth import (
    AudienceNotCovered,
    Authority,
    AuthorizationError,
    Right,
    SasRule,
    SasToken,
    SignatureInvalid,
    TokenExpired,
    TokenMalformed,
    TokenTypeUnsupported,
    generate,
)
from peeklock.auth.sas import TOKEN_LENGTH_MAX, split_resource

NOW_MS = 1_700_000_000_000
LATER_S = 1_700_003_600
KEY = "SAS_KEY_VALUE"
RULE = SasRule("RootManageSharedAccessKey", KEY)


def token(
    raw_resource: str,
    *,
    expiry: str = str(LATER_S),
    name: str = "RootManageSharedAccessKey",
    key: str = KEY,
    signed: str | None = None,
) -> str:
    """Make a token whose `sr` stands exactly as given; `signed` is what was signed instead of it."""
    message = f"{raw_resource if signed is None else signed}\n{expiry}".encode()
    signature = base64.b64encode(hmac.new(key.encode(), message, hashlib.sha256).digest()).decode()
    return f"SharedAccessSignature sr={raw_resource}&sig={quote(signature, safe='')}&se={expiry}&skn={name}"


def authorize(
    text: str, audience: str = "sb://localhost/orders", *, hosts: list[str] | None = None
) -> object:
    return Authority([RULE], hosts=hosts).authorize(text, audience, NOW_MS)


def test_the_token_of_the_documentation_s_recipe_is_taken() -> None:
    """Req: R-04. The signature was computed with openssl: printf '<sr>\\n<se>' | openssl dgst -sha256 -hmac
    KEY."""
    text = (
        "SharedAccessSignature sr=sb%3A%2F%2Flocalhost%2Forders"
        "&sig=yprVgfBOht%2BuLCUY04dKBFpMYSj1QZe2%2FRw2sl6RiSw%3D&se=1700003600&skn=RootManageSharedAccessKey"
    )
    grant = Authority([RULE]).authorize(text, "sb://localhost/orders", NOW_MS)
    assert grant.path == "orders"
    assert grant.expires_at_ms == 1_700_003_600_000
    assert grant.rights == {Right.SEND, Right.LISTEN, Right.MANAGE}


@pytest.mark.parametrize(
    ("raw_resource", "signed"),
    [
        ("sb%3A%2F%2Flocalhost%2Forders", None),
        ("sb%3a%2f%2flocalhost%2forders", None),
        ("sb://localhost/orders", None),
        ("sb%3A%2F%2FLOCALHOST%2FOrders", None),
        ("https%3A%2F%2Flocalhost%2F", None),
        ("http%3a%2f%2flocalhost%2forders%2f", None),
        ("amqps%3A%2F%2Flocalhost%3A5671%2Forders", None),
        ("amqp://localhost:5672/orders", None),
        ("localhost", None),
        ("localhost%2Forders", None),
        # The encoder of the token's text and that of the string to sign differ:
        ("sb://localhost/orders", "sb%3A%2F%2Flocalhost%2Forders"),
        ("sb://localhost/orders", "sb%3a%2f%2flocalhost%2forders"),
        ("sb%3A%2F%2Flocalhost%2Forders", "sb%3a%2f%2flocalhost%2forders"),
        ("sb%3a%2f%2flocalhost%2forders", "sb%3A%2F%2Flocalhost%2Forders"),
        ("sb%3A%2F%2Flocalhost%2Forders", "sb://localhost/orders"),
    ],
)
def test_every_encoder_s_spelling_of_the_resource_is_taken(raw_resource: str, signed: str | None) -> None:
    """Req: R-04. Source: wire contract 1.8, steps 2, 5 and 7."""
    grant = Authority([RULE]).authorize(
        token(raw_resource, signed=signed), "amqps://localhost:5672/orders", NOW_MS
    )
    assert grant.path == "orders"


def test_fields_come_in_any_order_and_the_prefix_in_any_case() -> None:
    fields = token("sb://localhost/").removeprefix("SharedAccessSignature ").split("&")
    assert authorize("sharedAccessSignature " + "&".join(reversed(fields)))


def test_a_doubly_encoded_key_name_is_found() -> None:
    """The Python client quotes the key name and then encodes the whole again. Source: wire contract 1.8, step
    2."""
    rule = SasRule("send only/üñ", KEY, rights=frozenset({Right.SEND}))
    once = quote("send only/üñ", safe="")
    for name in (once, quote_plus(once), quote_plus(quote_plus(once))):
        grant = Authority([rule]).authorize(
            token("sb://localhost/", name=name), "sb://localhost/orders", NOW_MS
        )
        assert grant.rights == {Right.SEND}


def test_a_plus_sign_left_bare_in_the_signature_is_taken() -> None:
    """Some encoders leave `+` as it is, which form decoding turns into a space."""
    found = None
    for number in range(500):
        text = token("sb://localhost/", expiry=str(LATER_S + number))
        if "%2B" in text:
            found = text.replace("%2B", "+")
            break
    assert found is not None
    assert authorize(found)


def test_the_secondary_key_is_as_good_as_the_primary() -> None:
    """Req: R-04."""
    authority = Authority([SasRule("r", "first", "second")])
    for key in ("first", "second"):
        assert (
            authority.authorize(token("sb://localhost/", name="r", key=key), "orders", NOW_MS).path
            == "orders"
        )
    with pytest.raises(SignatureInvalid):
        authority.authorize(token("sb://localhost/", name="r", key=""), "orders", NOW_MS)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", TokenMalformed),
        ("Bearer abc", TokenMalformed),
        ("SharedAccessSignature", TokenMalformed),
        ("SharedAccessSignature sr=a&sig=b&se=1", TokenMalformed),
        ("SharedAccessSignature sr=a&sig=b&skn=d", TokenMalformed),
        ("SharedAccessSignature sr=a&se=1&skn=d", TokenMalformed),
        ("SharedAccessSignature sig=b&se=1&skn=d", TokenMalformed),
        ("SharedAccessSignature sr=&sig=b&se=1&skn=d", TokenMalformed),
        ("SharedAccessSignature sr=a&sig=b&se=soon&skn=d", TokenMalformed),
        ("SharedAccessSignature sr=a&sig=b&se=-1&skn=d", TokenMalformed),
        ("SharedAccessSignature sr=a&sig=b&se=1.x&skn=d", TokenMalformed),
        ("SharedAccessSignature sr=a&sig=b&se=99999999999999999999&skn=d", TokenMalformed),
        ("SharedAccessSignature sr=a&sig=b&se=²&skn=d", TokenMalformed),
        ("SharedAccessSignature sr=a&sig=b&se=1&skn=" + "d" * TOKEN_LENGTH_MAX, TokenMalformed),
        (token("sb://localhost/", key="wrong"), SignatureInvalid),
        (token("sb://localhost/", name="nobody"), SignatureInvalid),
        (token("sb://localhost/", signed="sb://localhost/other"), SignatureInvalid),
        (token("sb://localhost/").replace("sig=", "sig=%FF%00"), SignatureInvalid),
        (token("sb://localhost/", expiry="1699999999"), TokenExpired),
        (token("sb://localhost/", expiry="1700000000"), TokenExpired),
        (token("sb%3A%2F%2Flocalhost%2F", signed="sb://localhost/", expiry="1537300000"), TokenExpired),
        (token("sb://localhost/order"), AudienceNotCovered),
        (token("sb://localhost/orders/$DeadLetterQueue"), AudienceNotCovered),
        (token("sb://localhost/orders-2"), AudienceNotCovered),
    ],
)
def test_everything_else_is_refused_for_its_own_reason(text: str, error: type[Exception]) -> None:
    """Req: R-04. Expiry at exactly now counts as over."""
    with pytest.raises(error):
        authorize(text)


def test_the_refusal_of_an_expired_token_says_until_when_it_was_good() -> None:
    """Req: R-04. Source: wire contract C19."""
    with pytest.raises(TokenExpired) as refused:
        authorize(token("sb://localhost/", expiry="1699996399"))
    assert str(refused.value) == (
        "ExpiredToken: The token is expired. Expiration time: 2023-11-14T21:13:19Z. That was 3,601 s ago by "
        "the broker's clock: make a new token, or compare the clocks."
    )


def test_the_refusal_of_a_signature_names_the_rule_and_no_key() -> None:
    """Req: R-04."""
    with pytest.raises(SignatureInvalid, match=f"no key of a rule '{RULE.name}' that applies here"):
        Authority([RULE]).authorize(generate("sb://h/", RULE.name, "wrong", NOW_MS + 1000), "q", NOW_MS)
    swapped = generate("sb://h/", "a/key+of=", RULE.name, NOW_MS + 1000)
    with pytest.raises(SignatureInvalid) as refused:
        Authority([RULE]).authorize(swapped, "q", NOW_MS)
    assert "a/key" not in str(refused.value)


@pytest.mark.parametrize(("asked", "shown"), [("sb://h/other", "'other'"), ("sb://h/", "the namespace")])
def test_the_refusal_of_a_token_for_something_else_names_both(asked: str, shown: str) -> None:
    """Req: R-04."""
    with pytest.raises(AudienceNotCovered) as refused:
        Authority([RULE]).authorize(token("sb://h/orders"), asked, NOW_MS)
    assert f"The token for 'orders' does not cover {shown}: " in str(refused.value)


def test_an_expiry_with_a_decimal_part_is_taken() -> None:
    parsed = SasToken.parse(token("sb://localhost/", expiry="1700003600.25"))
    assert parsed.expires_at_ms == 1_700_003_600_250
    assert authorize(token("sb://localhost/", expiry="1700003600.25"))


def test_a_scope_covers_what_lies_below_it() -> None:
    """Req: R-04. Source: wire contract 1.8, step 7."""
    text = token("sb://localhost/orders")
    for below in (
        "sb://h/orders",
        "sb://h/Orders/",
        "orders/$management",
        "amqps://h/orders/$DeadLetterQueue/$management",
    ):
        grant = Authority([RULE]).authorize(text, below, NOW_MS)
        assert grant.covers(below.partition("://h/")[2].strip("/").lower() or below)


@pytest.mark.parametrize("signed", ["sb%3A%2F%2Flocalhost%2Forders", "localhost%2Forders", "sb://h/a%2Fb"])
@pytest.mark.parametrize("audience", ["sb://localhost/", "sb://localhost/invoices"])
def test_a_scope_is_not_widened_by_encoding_it_once_more(signed: str, audience: str) -> None:
    """Req: R-04. Whoever was given a token for one entity must not make one for the namespace of it."""
    encoded = signed
    for _ in range(3):
        encoded = quote_plus(encoded)
        with pytest.raises(AuthorizationError):
            authorize(token(encoded, signed=signed), audience)


def test_the_host_is_checked_against_the_names_of_the_namespace() -> None:
    """Req: R-04."""
    hosts = ["ns.example.org", "localhost"]
    assert authorize(token("sb://NS.example.org/"), "sb://localhost:5671/orders", hosts=hosts)
    with pytest.raises(AudienceNotCovered):
        authorize(token("sb://other.example.org/"), hosts=hosts)
    with pytest.raises(AudienceNotCovered):
        authorize(token("sb://localhost/"), "sb://other.example.org/orders", hosts=hosts)
    assert authorize(token("sb://other.example.org/"), "sb://third/orders")  # emulator mode: any host


def test_an_entity_s_rule_serves_its_entity_and_what_is_below_alone() -> None:
    """Req: R-04. The entity's own rule is looked up before the namespace's of the same name."""
    authority = Authority(
        [
            SasRule("r", "of-namespace"),
            SasRule("r", "of-entity", path="Orders", rights=frozenset({Right.LISTEN})),
        ]
    )
    own = token("sb://localhost/", name="r", key="of-entity")
    assert authority.authorize(own, "orders/$DeadLetterQueue", NOW_MS).rights == {Right.LISTEN}
    with pytest.raises(SignatureInvalid):
        authority.authorize(own, "invoices", NOW_MS)
    common = token("sb://localhost/", name="r", key="of-namespace")
    assert authority.authorize(common, "invoices", NOW_MS).rights == set(Right)


def test_manage_implies_send_and_listen() -> None:
    """Req: R-04. Source: wire contract 1.7."""
    authority = Authority([SasRule("m", KEY, rights=frozenset({Right.MANAGE}))])
    assert authority.authorize(token("sb://h/", name="m"), "orders", NOW_MS).rights == set(Right)


def test_other_kinds_of_token_are_refused() -> None:
    """Req: R-04."""
    for kind in ("jwt", "swt"):
        with pytest.raises(TokenTypeUnsupported):
            Authority([RULE]).authorize("eyJ0.e30.x", "sb://localhost/orders", NOW_MS, kind)


def test_our_own_generator_s_tokens_are_taken() -> None:
    text = generate("sb://localhost/orders", RULE.name, KEY, NOW_MS + 5_000)
    grant = Authority([RULE]).authorize(text, "sb://localhost/orders", NOW_MS)
    assert grant.valid_at(NOW_MS + 4_999)
    assert not grant.valid_at(NOW_MS + 5_000)


@pytest.mark.parametrize(
    ("text", "host_first", "parts"),
    [
        ("sb://Host:5672/A/b/", False, ("host", "a/b")),
        ("https://host", False, ("host", "")),
        ("amqps://[::1]:5671/q", False, ("::1", "q")),
        ("queue/$management", False, (None, "queue/$management")),
        ("/queue", False, (None, "queue")),
        ("host/queue", True, ("host", "queue")),
        ("orders", True, (None, "orders")),
        ("/orders/", True, (None, "orders")),
        ("localhost", True, ("localhost", "")),
        ("localhost:5672/", True, ("localhost", "")),
        ("ns.servicebus.windows.net", True, ("ns.servicebus.windows.net", "")),
        ("https://host/queue?api-version=2021-05", False, ("host", "queue")),
        ("sb://host/a%2Fb", False, ("host", "a/b")),
    ],
)
def test_resources_are_split_into_host_and_path(
    text: str, host_first: bool, parts: tuple[str | None, str]
) -> None:
    assert split_resource(text, host_first=host_first) == parts


@given(st.text(max_size=200))
def test_garbage_gives_only_refusals(text: str) -> None:
    """Req: R-05."""
    for given_text in (
        text,
        "SharedAccessSignature " + text,
        "SharedAccessSignature sr=a&sig=b&se=1&skn=" + text,
    ):
        with pytest.raises(AuthorizationError):
            Authority([RULE]).authorize(given_text, text, NOW_MS)
