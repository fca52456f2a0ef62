"""Signing in to a broker with keys: who may, what is offered then, and what happens when a right ends."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Iterator

import pytest

from peeklock.auth import Right, generate
from tests.explorer.brokers import ExploredBroker
from tests.explorer.conftest import OpenPage
from tests.explorer.places import faults_in_both_themes
from tests.kept_keys import KeptKeys, write_keys

pytestmark = pytest.mark.page

ROOT = "RootManageSharedAccessKey"
REFUSED = ("401 (Unauthorized)",)
"""Chromium writes each refusal to its console."""


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExploredBroker]:
    """A broker with keys: of all rights, and of those to send and to listen."""
    broker = ExploredBroker(tmp_path_factory.mktemp("keyed"), ["--auth=sas"])
    broker.data.mkdir()
    write_keys(broker.data, web=[Right.SEND], worker=[Right.LISTEN])
    with broker:
        broker.fill()
        yield broker


def connection_string(broker: ExploredBroker, name: str = ROOT, entity: str = "") -> str:
    [key] = [rule.primary_key for rule in KeptKeys(broker.data).load() if rule.name == name]
    text = f"Endpoint=sb://localhost:{broker.amqp_port}/;SharedAccessKeyName={name};SharedAccessKey={key}"
    return f"{text};EntityPath={entity}" if entity else text


def test_a_connection_string_opens_the_overview(keyed: ExploredBroker, open_page: OpenPage) -> None:
    page = open_page(keyed.url)
    page.wait_for_selector("h1:has-text('Sign in')")
    assert faults_in_both_themes(page) == []
    page.get_by_label("Connection string or token").fill(connection_string(keyed))
    page.keyboard.press("Enter")
    page.wait_for_selector(".entity-name:has-text('orders')")
    assert page.locator(".nav-item:has-text('Keys')").is_visible()
    page.get_by_label("Sign out").click()
    page.wait_for_selector("h1:has-text('Sign in')")
    assert page.get_by_label("Connection string or token").input_value() == ""


@pytest.mark.parametrize("scheme", ["SharedAccessSignature", "Endpoint"])
def test_a_signature_opens_it_too(keyed: ExploredBroker, open_page: OpenPage, scheme: str) -> None:
    [rule] = [rule for rule in KeptKeys(keyed.data).load() if rule.name == ROOT]
    token = generate("sb://localhost/", ROOT, rule.primary_key, int(time.time() + 600) * 1000)
    if scheme == "Endpoint":
        token = f"Endpoint=sb://localhost/;SharedAccessSignature={token}"
    page = open_page(keyed.url)
    page.get_by_label("Connection string or token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector(".entity-name:has-text('orders')")


def test_a_wrong_key_is_refused_with_the_reason(keyed: ExploredBroker, open_page: OpenPage) -> None:
    page = open_page(keyed.url, expected=REFUSED)
    wrong = base64.b64encode(b"wrong" * 7).decode()
    text = f"Endpoint=sb://localhost/;SharedAccessKeyName={ROOT};SharedAccessKey={wrong}"
    page.get_by_label("Connection string or token").fill(text)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector(".refusal:has-text('tracking id')")


def test_what_is_no_key_is_not_sent(keyed: ExploredBroker, open_page: OpenPage) -> None:
    page = open_page(keyed.url)
    asked: list[str] = []
    field = page.get_by_label("Connection string or token")
    field.wait_for()
    page.on("request", lambda request: asked.append(request.url))
    for text, reason in (
        ("hello", "neither a connection string"),
        ("Endpoint=orders;SharedAccessKeyName=a;SharedAccessKey=b", "no Endpoint=sb://HOST/"),
        ("Endpoint=sb://localhost/;SharedAccessKey=b", "no SharedAccessKeyName"),
        ("Endpoint=sb://localhost/;SharedAccessKeyName=a", "no SharedAccessKey."),
    ):
        field.fill(text)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_selector(f".refusal:has-text('{reason}')")
    assert asked == []


@pytest.mark.parametrize("name", ["web", "worker"])
def test_what_a_key_does_not_allow_is_not_offered(
    keyed: ExploredBroker, open_page: OpenPage, name: str
) -> None:
    page = open_page(keyed.url)
    page.get_by_label("Connection string or token").fill(connection_string(keyed, name))
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector("p:has-text('needs a key with Manage')")
    offered = page.locator(".nav-item").all_inner_texts()
    assert [text.strip() for text in offered] == ["Overview", "Jobs", "Connect"]


def test_what_the_command_prints_of_a_key_is_enough(keyed: ExploredBroker, open_page: OpenPage) -> None:
    page = open_page(keyed.url)
    text = connection_string(keyed)
    page.get_by_label("Connection string or token").fill(text[text.index("SharedAccessKeyName=") :])
    page.keyboard.press("Enter")
    page.wait_for_selector(".entity-name:has-text('orders')")


def test_a_key_of_one_entity_opens_that(keyed: ExploredBroker, open_page: OpenPage) -> None:
    page = open_page(keyed.url)
    page.get_by_label("Connection string or token").fill(connection_string(keyed, entity="orders"))
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector("p:has-text('for one entity')")
    page.get_by_role("button", name="Open").click()
    page.wait_for_selector(".crumbs:has-text('orders')")


def test_a_key_that_goes_ends_the_session(keyed: ExploredBroker, open_page: OpenPage) -> None:
    keys = KeptKeys(keyed.data)
    keys.add("passing", ["Manage", "Send", "Listen"])
    page = open_page(keyed.url, expected=REFUSED)
    page.get_by_label("Connection string or token").fill(connection_string(keyed, "passing"))
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector(".entity-name:has-text('orders')")
    keys.remove("passing")
    page.wait_for_selector("h1:has-text('Sign in')")
    page.wait_for_selector(".refusal")


def test_a_browser_without_web_crypto_signs_by_itself(keyed: ExploredBroker, open_page: OpenPage) -> None:
    """As Chromium is for pages that came by plain HTTP from another host."""
    page = open_page("about:blank")
    page.add_init_script("Object.defineProperty(crypto, 'subtle', { value: undefined })")
    page.goto(keyed.url)
    page.get_by_label("Connection string or token").fill(connection_string(keyed))
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector(".entity-name:has-text('orders')")


def test_our_own_hmac_is_that_of_the_standard(keyed: ExploredBroker, open_page: OpenPage) -> None:
    page = open_page(keyed.url)
    for key, text in ((b"", b""), (b"key", b"a" * 55), (b"k" * 64, b"b" * 56), (b"k" * 200, b"c" * 1000)):
        found = page.evaluate(
            "async ([key, text]) => {"
            "  const { ownHmac } = await import('./$explorer/sign.js');"
            "  return [...ownHmac(new Uint8Array(key), new Uint8Array(text))];"
            "}",
            [list(key), list(text)],
        )
        assert bytes(found) == hmac.digest(key, text, hashlib.sha256)


def test_a_key_of_an_entity_has_rights_on_what_belongs_to_it(
    keyed: ExploredBroker, open_page: OpenPage
) -> None:
    """As `belongs` of `peeklock.auth.rights` says: a name with a slash is another entity."""
    page = open_page(keyed.url)
    belonging = page.evaluate(
        "async (paths) => {"
        "  const { can, session } = await import('./$explorer/session.js');"
        "  session.value.me = { path: 'a', rights: ['Listen'] };"
        "  return paths.filter((path) => can('Listen', path));"
        "}",
        ["A", "a/$DeadLetterQueue", "a/Subscriptions/s", "a/b", "a/b/subscriptions/s", "ab", ""],
    )
    assert belonging == ["A", "a/$DeadLetterQueue", "a/Subscriptions/s"]


def test_nothing_is_left_in_the_browser(keyed: ExploredBroker, open_page: OpenPage) -> None:
    page = open_page(keyed.url)
    page.get_by_label("Connection string or token").fill(connection_string(keyed))
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector(".entity-name:has-text('orders')")
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    assert page.context.storage_state() == {"cookies": [], "origins": []}
    page.reload()
    page.wait_for_selector("h1:has-text('Sign in')")
