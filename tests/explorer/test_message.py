"""One message in full: its body in each form, what is known of it, and content that means harm."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties
from peeklock.amqp.types import Symbol
from peeklock.client.connection import BlockingConnection
from peeklock.client.connection_string import ConnectionString
from tests.explorer.brokers import ExploredBroker
from tests.explorer.conftest import Visit

pytestmark = pytest.mark.page

SCRIPT = "<img src=x onerror=\"document.title='harmed'\"><script>document.title='harmed'</script>"
BIDI = "left \u202e right"
LOG_S_MAX = 30.0
"""The event log is written in intervals, and read by a process that yields to all others."""
GONE = "404 (Not Found)"
"""Chromium tells the console that a message is not there any more."""


def one(broker: ExploredBroker, **message: object) -> str:
    """Send a message; return its place."""
    (number,) = broker.send("letters", [message])
    return broker.at(f"entities/letters/messages/{number}")


def body_of(page: Page) -> str:
    """Return the body that is shown."""
    return page.locator(".code pre").inner_text()


def send_encoded(broker: ExploredBroker, payload: bytes, entity: str = "letters") -> str:
    """Send an encoded message over AMQP; return its place."""
    settings = ConnectionString.parse(broker.connection_string)
    with closing(BlockingConnection(settings)) as connection:
        sender = connection.sender(entity)
        sender.send(payload)
        sender.flush()
    found = broker.api("GET", f"entities/{entity}/messages?limit=250&bodyBytesMax=0")["messages"]
    return broker.at(f"entities/{entity}/messages/{found[-1]['sequenceNumber']}")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExploredBroker]:
    """Return a broker that takes large messages, and keeps an event log."""
    folder = tmp_path_factory.mktemp("broker")
    options = ["--tier=premium", f"--capture={folder / 'log'}", "--capture-interval=1"]
    with ExploredBroker(folder, options) as started:
        large = {"kind": "queue", "settings": {"maxMessageSizeKilobytes": 102_400}}
        started.api("PUT", "entities/large", large)
        yield started


FORMS: tuple[tuple[str, dict[str, str], str, str], ...] = (
    ('{"a":1.50,"b":[]}', {}, "JSON", '"a": 1.50,'),
    ("<a><b>1</b><c/></a>", {}, "XML", "  <b>1</b>"),
    ("plain", {}, "Text", "plain"),
    ("{'no': 'json'}", {"contentType": "application/json"}, "JSON", "{'no': 'json'}"),
    ("<open>", {"contentType": "text/xml"}, "XML", "<open>"),
)
"""A body, what is sent with it, the form that it is shown in, and what is seen then."""


def test_the_form_of_a_body_is_found(broker: ExploredBroker, visit: Visit) -> None:
    page = visit(broker.url)
    for body, more, form, shown in FORMS:
        page.goto(one(broker, body=body, **more))
        expect(page.locator(".code pre")).to_contain_text(shown.strip())
        expect(page.get_by_role("tab", name=form)).to_have_attribute("aria-selected", "true")
        assert shown in body_of(page)
        expect(page.get_by_text("This is no valid")).to_have_count(int(bool(more)))
        page.get_by_role("tab", name="Bytes").click()
        assert body_of(page).startswith(f"00000000  {body.encode()[:4].hex(' ')}")


def test_bytes_are_shown_in_lines_that_do_not_wrap(broker: ExploredBroker, visit: Visit) -> None:
    page = visit(one(broker, body="0123456789abcdef" * 4))
    page.get_by_role("tab", name="Bytes").click()
    shown = page.get_by_role("region", name="Bytes of the body")
    expect(shown.locator(".code-line")).to_have_count(4)
    heights = shown.locator(".code-line").evaluate_all("lines => lines.map((line) => line.clientHeight)")
    assert max(heights) < 30
    assert shown.evaluate("element => element.scrollWidth <= element.clientWidth")


def test_bytes_that_are_no_text_are_shown_as_such(broker: ExploredBroker, visit: Visit) -> None:
    page = visit(one(broker, bodyBase64="/wABiVBORw=="))
    expect(page.get_by_role("tab", name="Bytes")).to_have_attribute("aria-selected", "true")
    assert "ff 00 01 89 50 4e 47" in body_of(page)
    page.get_by_role("tab", name="Text").click()
    expect(page.get_by_text("no text in UTF-8")).to_be_visible()


def test_a_body_of_many_megabytes_is_cut_and_downloaded_whole(broker: ExploredBroker, visit: Visit) -> None:
    body = b'{"text": "' + b"0123456789" * 500_000 + b'"}'
    place = send_encoded(broker, encode_message(data=body), "large")
    page = visit(place)
    expect(page.get_by_text("The first 256 KiB of 4.8 MiB are shown.")).to_be_visible()
    with page.expect_download() as begun:
        page.get_by_role("region", name="Body of the message").get_by_role("button", name="Download").click()
    assert begun.value.path().read_bytes() == body
    page.get_by_role("button", name="Show all of it").click()
    expect(page.get_by_text("The first 256 KiB")).to_be_hidden()
    expect(page.get_by_role("button", name="Show all 5,0")).to_be_visible()


def test_every_section_is_shown_with_types(broker: ExploredBroker, visit: Visit) -> None:
    encoded = encode_message(
        properties=Properties(message_id=UUID(int=7), subject="typed"),
        message_annotations={Symbol("x-own"): "noted"},
        application_properties={"id": UUID(int=1), "large": 2**60, "rate": 5.0, "none": None},
        sequence=["first", 2],
        footer={"sum": b"\x01\x02"},
    )
    page = visit(send_encoded(broker, encoded))
    page.get_by_text("AMQP sections").click()
    sections = page.get_by_role("region", name="AMQP sections")
    for text in ("Message annotations", "Footer", "a sequence of values", "x-own", "noted"):
        expect(sections).to_contain_text(text)
    known = page.get_by_role("region", name="Application properties")
    expect(known).to_contain_text("1152921504606846976 long")
    expect(known).to_contain_text("00000000-0000-0000-0000-000000000001 uuid")
    expect(known).to_contain_text("5.0 double")
    expect(known).to_contain_text("null null")


def test_ten_thousand_properties_are_listed(broker: ExploredBroker, visit: Visit) -> None:
    properties = {chr(0x4E00 + number): None for number in range(10_000)}
    page = visit(send_encoded(broker, encode_message(application_properties=properties, data=b"many")))
    expect(page.get_by_role("heading", name="Application properties 10,000")).to_be_visible()
    assert page.locator(".table-rows > .row").count() < 100


def test_nothing_in_a_message_is_executed_or_turned_round(broker: ExploredBroker, visit: Visit) -> None:
    text = f"{SCRIPT} {BIDI}"
    names = ("messageId", "subject", "sessionId", "correlationId", "to", "replyTo", "replyToSessionId")
    fields = dict.fromkeys(names, text[:128])
    message = {**fields, "body": f"<html><body>{text}</body></html>", "properties": {text: text}}
    page = visit(one(broker, **message, contentType="text/html"))
    expect(page.get_by_role("region", name="Properties", exact=True)).to_contain_text("<img src=x")
    assert "\\u202e" in page.get_by_role("region", name="Application properties").inner_text()
    for form in ("XML", "JSON", "Text"):
        page.get_by_role("tab", name=form).click()
        assert "\\u202e" in body_of(page)
    assert "\u202e" not in page.content()
    page.get_by_text("All messages").click()
    expect(page.locator(".table-rows > .row").last).to_be_visible()
    assert "\u202e" not in page.content()
    assert page.title() != "harmed"
    assert page.locator("main img, main script").count() == 0


def test_a_dead_letter_says_why_and_where_from(broker: ExploredBroker, visit: Visit) -> None:
    (number,) = broker.send("orders", [{"body": "an order", "messageId": "death"}])
    broker.dead_letter("orders", [("NoStock", "nothing is left")])
    page = visit(broker.at(f"entities/orders/messages/{number}"), expected=(GONE,))
    expect(page.get_by_role("heading", name="It was dead lettered")).to_be_visible()
    page.get_by_role("link", name=f"orders/$deadletterqueue, message {number}").click()
    death = page.get_by_role("region", name="Why it is a dead letter")
    expect(death).to_contain_text("NoStock")
    expect(death).to_contain_text("nothing is left")


def test_the_life_of_a_message_is_told(broker: ExploredBroker, visit: Visit) -> None:
    (number,) = broker.send("orders", [{"body": "a life"}])
    broker.dead_letter("orders", [("TheEnd", "of it")])
    page = visit(broker.at(f"entities/orders/messages/{number}"), expected=(GONE,))
    page.get_by_role("button", name="Show what happened to it").click()
    life = page.get_by_role("region", name="Life")
    expect(life).to_contain_text("The log has")
    expect(life.get_by_role("button", name="Look again")).to_be_visible()
    ends_at = time.monotonic() + LOG_S_MAX
    while "TheEnd" not in life.inner_text() and time.monotonic() < ends_at:
        life.get_by_role("button", name="Look again").click()
        page.wait_for_timeout(500)
    assert [kind for kind in ("enqueued", "delivered", "dead lettered") if kind in life.inner_text()] == [
        "enqueued",
        "delivered",
        "dead lettered",
    ]
    expect(life.get_by_role("link", name=f"orders/$deadletterqueue, message {number}")).to_be_visible()


def test_a_lock_is_seen_while_it_lasts(broker: ExploredBroker, visit: Visit) -> None:
    page = visit(one(broker, body="locked in a moment"), expected=(GONE,))
    number = int(page.url.rpartition("/")[2])
    expect(page.get_by_role("heading", name=f"Message {number}")).to_be_visible()
    while True:
        (delivery,) = broker.api("POST", "entities/letters/locks")["deliveries"]
        if delivery["message"]["sequenceNumber"] == number:
            break
    expect(page.get_by_role("region", name="Times and state")).to_contain_text("Locked until")
    broker.api("DELETE", f"entities/letters/locks/{delivery['lock']['token']}")
    expect(page.get_by_role("heading", name="It was completed")).to_be_visible()


def test_a_message_that_never_was_is_said_so(broker: ExploredBroker, visit: Visit) -> None:
    page = visit(broker.at("entities/letters/messages/999999"), expected=(GONE,))
    expect(page.get_by_role("alert")).to_contain_text("has the sequence number 999999")
