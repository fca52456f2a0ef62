"""Sending from the page: all properties, copies, schedules, files, templates, and a message again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.explorer.brokers import ExploredBroker
from tests.explorer.conftest import OpenPage, Visit
from tests.explorer.places import faults_in_both_themes

pytestmark = pytest.mark.page

FIELDS = {
    "Subject": ("subject", "a subject"),
    "Message id": ("messageId", "id-1"),
    "Session": ("sessionId", "session-1"),
    "Correlation id": ("correlationId", "c-1"),
    "Content type": ("contentType", "text/plain"),
    "To": ("to", "somewhere"),
    "Reply to": ("replyTo", "answers"),
    "Reply to session": ("replyToSessionId", "answers-1"),
    "Partition key": ("partitionKey", "session-1"),
    "Time to live": ("timeToLive", 90),
}


def held(broker: ExploredBroker, entity: str) -> list[dict[str, Any]]:
    """Return the messages that an entity holds."""
    path = entity.replace("/", "%2F")
    return list(broker.api("GET", f"entities/{path}/messages?limit=250")["messages"])


def opened(page: Page, place: str) -> Page:
    """Open the dialog that sends."""
    page.goto(place)
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    return page


def send(page: Page) -> None:
    """Send, and wait for the dialog to close."""
    page.get_by_role("dialog").locator("button[type=submit]").click()
    expect(page.get_by_role("dialog")).to_be_hidden()


@pytest.fixture(scope="module")
def queues(broker: ExploredBroker) -> ExploredBroker:
    """Return the broker with more queues."""
    for name in ("all", "copies", "lines", "again", "limited"):
        broker.api("PUT", f"entities/{name}", {"kind": "queue"})
    return broker


def test_a_message_is_sent_with_all_its_properties(queues: ExploredBroker, visit: Visit) -> None:
    page = opened(visit(queues.url), queues.at("entities/all/messages"))
    page.get_by_role("textbox", name="Body", exact=True).fill("the body")
    for label, (_, value) in FIELDS.items():
        page.locator(".form-grid").get_by_label(label, exact=True).fill(str(value))
    properties = [
        ("text", "text", "a \u202e text"),
        ("large", "whole number", "9007199254740993"),
        ("rate", "decimal number", "5"),
        ("yes", "true / false", "true"),
        ("none", "null", None),
    ]
    for number, (name, kind, value) in enumerate(properties, 1):
        page.get_by_role("button", name="Add a property").click()
        page.get_by_label(f"Name of property {number}").fill(name)
        page.get_by_label(f"Type of property {number}").select_option(kind)
        if kind not in ("null", "true / false"):
            page.get_by_label(f"Value of property {number}").fill(str(value))
    send(page)
    (message,) = held(queues, "all")
    assert message["body"] == "the body"
    assert {member: message[member] for member, _ in FIELDS.values()} == dict(FIELDS.values())
    found = queues.api("GET", f"entities/all/messages/{message['sequenceNumber']}?sections=true")
    assert found["sections"]["applicationProperties"] == {
        "text": {"type": "string", "value": "a \u202e text"},
        "large": {"type": "long", "value": "9007199254740993"},
        "rate": {"type": "double", "value": 5.0},
        "yes": {"type": "boolean", "value": True},
        "none": {"type": "null", "value": None},
    }
    expect(page.locator(".message-number").first).to_have_text(str(message["sequenceNumber"]))


def test_axe_finds_nothing_in_the_dialogs(queues: ExploredBroker, visit: Visit) -> None:
    page = opened(visit(queues.url), queues.at("entities/orders/messages"))
    page.get_by_role("button", name="Add a property").click()
    for tab in ("A message", "From a file"):
        page.get_by_role("tab", name=tab).click()
        assert faults_in_both_themes(page) == []
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Move…").click()
    page.get_by_label("To", exact=True).fill("letters")
    expect(page.get_by_role("dialog")).to_contain_text("will be moved")
    assert faults_in_both_themes(page) == []
    page.keyboard.press("Escape")
    page.locator(".table-rows > .row").first.get_by_role("checkbox").check()
    page.get_by_role("toolbar", name="Chosen messages").get_by_role("button", name="Dead-letter").click()
    assert faults_in_both_themes(page) == []


def test_what_is_wrong_is_said_and_nothing_is_sent(queues: ExploredBroker, visit: Visit) -> None:
    page = opened(visit(queues.url), queues.at("entities/limited/messages"))
    page.get_by_role("textbox", name="Body", exact=True).fill("{'no': 'json'}")
    page.get_by_label("sent as").select_option("JSON")
    expect(page.get_by_role("alert")).to_contain_text("This is not JSON")
    page.get_by_role("button", name="Add a property").click()
    page.get_by_label("Type of property 1").select_option("whole number")
    page.get_by_label("Name of property 1").fill("n")
    page.get_by_label("Value of property 1").fill("1.5")
    page.get_by_role("dialog").locator("button[type=submit]").click()
    expect(page.get_by_text("No whole number of 64 bits.")).to_be_visible()
    assert held(queues, "limited") == []


def test_copies_are_scheduled_with_ids_of_their_own(queues: ExploredBroker, open_page: OpenPage) -> None:
    page = opened(open_page(queues.url, timezone_id="Asia/Tokyo"), queues.at("entities/copies/messages"))
    page.get_by_role("textbox", name="Body", exact=True).fill('{"n": 1}')
    page.get_by_label("sent as").select_option("JSON")
    page.get_by_label("Message id").fill("copy")
    page.get_by_label("Enqueue at").fill("2099-01-02T12:00:00")
    page.get_by_label("Copies").fill("450")
    send(page)
    assert queues.api("GET", "entities/copies")["counts"]["scheduled"] == 450
    first = held(queues, "copies")[0]
    assert first["messageId"] == "copy-1"
    assert first["scheduledEnqueueTime"].startswith("2099-01-02T03:00:00")
    assert first["contentType"] == "application/json"


def test_a_file_of_lines_is_sent_but_what_is_no_message(
    queues: ExploredBroker, visit: Visit, tmp_path: Path
) -> None:
    lines = [
        '{"body": "first", "properties": {"rate": 5.0, "large": 9007199254740993}, "sequenceNumber": 77}',
        "no message",
        '{"body": "cut", "bodyTruncated": true}',
        '{"bodyBase64": "/wA=", "bodyType": "data", "state": "active", "timeToLive": 60.0}',
    ]
    file = tmp_path / "messages.jsonl"
    file.write_text("\n".join(lines + [json.dumps({"body": "x" * 3000})] * 500))
    page = opened(visit(queues.url), queues.at("entities/lines/messages"))
    page.get_by_role("tab", name="From a file").click()
    page.get_by_label("File with messages").set_input_files(file)
    expect(page.get_by_role("dialog")).to_contain_text("502 messages will be sent")
    expect(page.get_by_role("dialog")).to_contain_text("line 2: it is not JSON")
    expect(page.get_by_role("dialog")).to_contain_text("line 3: its body is cut")
    page.get_by_role("button", name="Send 502 messages").click()
    expect(page.get_by_text("All are sent")).to_be_visible()
    assert queues.api("GET", "entities/lines")["counts"]["active"] == 502
    first, second = held(queues, "lines")[:2]
    assert first["properties"] == {"rate": 5.0, "large": 9007199254740993}
    assert second["bodyBase64"] == "/wA="


def test_templates_are_kept_in_the_tab_and_in_a_file(queues: ExploredBroker, open_page: OpenPage) -> None:
    page = opened(open_page(queues.url), queues.at("entities/limited/messages"))
    page.get_by_role("textbox", name="Body", exact=True).fill("of a template")
    page.get_by_label("Name of the template").fill("mine")
    page.get_by_role("button", name="Save", exact=True).click()
    with page.expect_download() as begun:
        page.get_by_role("button", name="Download the templates").click()
    page.goto("about:blank")
    opened(page, queues.at("entities/limited/messages"))
    expect(page.get_by_label("Use a template")).to_be_disabled()
    page.get_by_label("File with templates").set_input_files(begun.value.path())
    page.get_by_label("Use a template").select_option("mine")
    expect(page.get_by_role("textbox", name="Body", exact=True)).to_have_value("of a template")
    page.get_by_label("File with templates").set_input_files(
        {"name": "t.json", "mimeType": "", "buffer": b'{"templates": [{"name": "x"}]}'}
    )
    expect(page.get_by_text("The file is not read")).to_be_visible()


def test_a_message_is_edited_and_sent_again(queues: ExploredBroker, visit: Visit) -> None:
    properties = {"DeadLetterReason": "not kept", "large": 2**60, "n": 1}
    message = {"body": "before", "subject": "s", "messageId": "m", "properties": properties}
    (number,) = queues.send("again", [message])
    page = visit(queues.at(f"entities/again/messages/{number}"))
    page.get_by_role("button", name="Edit and send").click()
    page.get_by_role("textbox", name="Body", exact=True).fill("after")
    send(page)
    first, second = held(queues, "again")
    assert first["body"] == "before"
    assert second["body"] == "after"
    assert (second["subject"], second["messageId"]) == ("s", "m")
    assert second["properties"] == {"large": 2**60, "n": 1}


def test_a_send_that_is_refused_is_shown_and_can_be_tried_again(queues: ExploredBroker, visit: Visit) -> None:
    queues.api("PATCH", "entities/limited", {"settings": {"status": "SendDisabled"}})
    page = opened(visit(queues.url, expected=("409",)), queues.at("entities/limited/messages"))
    page.get_by_role("textbox", name="Body", exact=True).fill("refused, then sent")
    page.get_by_role("dialog").locator("button[type=submit]").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("isabled")
    queues.api("PATCH", "entities/limited", {"settings": {"status": "Active"}})
    send(page)
    assert [message["body"] for message in held(queues, "limited")] == ["refused, then sent"]
