"""The list of messages: any state, sub-queue and session, from any number, followed live."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.explorer.brokers import ExploredBroker
from tests.explorer.conftest import OpenPage, Visit

pytestmark = pytest.mark.page

MANY = 1200


def row(page: Page, number: int) -> Locator:
    """Return the row of the message with a sequence number."""
    link = page.get_by_role("link", name=str(number), exact=True)
    return page.locator(".table-rows > .row").filter(has=link)


def numbers(page: Page) -> list[str]:
    """Return the sequence numbers of the rows that are drawn."""
    return page.locator(".message-number").all_inner_texts()


def press_end(page: Page, first: Locator) -> None:
    """Go to the last row with the keyboard."""
    page.keyboard.press("j")
    expect(first).to_be_focused()
    page.keyboard.press("End")


@pytest.fixture(scope="module")
def queues(broker: ExploredBroker) -> ExploredBroker:
    """Return the broker with more queues."""
    for name in ("long", "live", "mixed"):
        broker.api("PUT", f"entities/{name}", {"kind": "queue"})
    for first in range(0, MANY, 400):
        broker.send("long", [{"body": f"line {n}", "messageId": f"m{n}"} for n in range(first, first + 400)])
    return broker


def settle(
    broker: ExploredBroker, entity: str, outcome: dict[str, Any] | None = None, count: int = 1
) -> None:
    """Receive the next messages of a queue, and complete them, or settle them otherwise."""
    path = f"entities/{entity}/locks"
    for delivery in broker.api("POST", path, {"max": count})["deliveries"]:
        method = "DELETE" if outcome is None else "PATCH"
        broker.api(method, f"{path}/{delivery['lock']['token']}", outcome)


def test_a_long_queue_is_read_page_by_page_and_from_any_number(queues: ExploredBroker, visit: Visit) -> None:
    page = visit(queues.at("entities/long/messages"))
    expect(row(page, 1)).to_be_visible()
    assert len(numbers(page)) < 60
    held: list[Route] = []
    page.route("**/messages?from=251*", lambda route: held.append(route))
    with page.expect_request("**/messages?from=251*"):
        press_end(page, row(page, 1))
    expect(row(page, 250)).to_be_focused()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    held[0].continue_()
    expect(page.locator(".table-foot")).to_contain_text("500 listed · more follow")
    expect(row(page, 250)).to_be_in_viewport()
    page.get_by_label("From number").fill("700")
    expect(row(page, 700)).to_be_visible()
    assert "1" not in numbers(page)
    page.get_by_role("button", name="Newest").click()
    expect(row(page, MANY)).to_be_visible()


def test_a_state_is_asked_for_and_not_looked_for(queues: ExploredBroker, visit: Visit) -> None:
    queues.api("PUT", "entities/aside", {"kind": "queue"})
    for _ in range(2):
        queues.send("aside", [{"body": "active"}] * (MANY // 2))
    for number in (1100, 1150):
        queues.api("PATCH", f"entities/aside/messages/{number}", {"to": "deferred"})
    page = visit(queues.url)
    asked: set[str] = set()
    page.on("request", lambda request: asked.update(re.findall(r"/messages\?from=(\d+)", request.url)))
    page.goto(queues.at("entities/aside/messages?state=deferred"))
    expect(page.locator(".table-foot")).to_have_text("2 listed")
    queues.api("PATCH", "entities/aside/messages/1120", {"to": "deferred"})
    expect(row(page, 1120)).to_be_visible()
    queues.api("PATCH", "entities/aside/messages/1180", {"to": "deferred"})
    expect(row(page, 1180)).to_be_visible()
    assert asked <= {"0", "1151", "1181"}
    page.get_by_role("button", name="Newest").click()
    expect(row(page, 1180)).to_be_visible()


def test_a_long_search_for_a_state_shows_how_far_it_is(queues: ExploredBroker, visit: Visit) -> None:
    page = visit(queues.url)
    held: list[Route] = []
    some = {"messages": [], "next": "a cursor", "nextNumber": 601}
    page.route("**/messages?from=0&*", lambda route: route.fulfill(json=some))
    page.route("**/messages?from=601&*", lambda route: held.append(route))
    with page.expect_request("**/messages?from=601&*"):
        page.goto(queues.at("entities/long/messages?state=active"))
    expect(page.get_by_text("Looked at those before number 601")).to_be_visible()
    held[0].continue_()
    expect(row(page, 601)).to_be_visible()
    page.unroute_all()


def test_new_messages_are_appended_and_the_place_is_kept(queues: ExploredBroker, visit: Visit) -> None:
    page = visit(queues.at("entities/live/messages"))
    expect(page.get_by_text("No messages", exact=True)).to_be_visible()
    queues.send("live", [{"body": f"{n}"} for n in range(100)])
    expect(row(page, 1)).to_be_visible()
    scroller = page.locator(".table-scroll")
    scroller.evaluate("element => { element.scrollTop = 500 }")
    expect(row(page, 20)).to_be_visible()
    queues.send("live", [{"body": "new"}] * 3)
    expect(page.locator(".table-foot")).to_contain_text("103 listed")
    assert scroller.evaluate("element => element.scrollTop") == 500
    scroller.evaluate("element => { element.scrollTop = element.scrollHeight }")
    expect(row(page, 103)).to_be_visible()
    queues.send("live", [{"body": "newer"}])
    expect(row(page, 104)).to_be_in_viewport()


def test_what_left_stays_in_grey_until_it_is_hidden(queues: ExploredBroker, visit: Visit) -> None:
    queues.send("mixed", [{"body": f"{n}"} for n in range(4)])
    settle(queues, "mixed")
    page = visit(queues.at("entities/mixed/messages"))
    expect(row(page, 2)).to_be_visible()
    expect(row(page, 1)).to_be_hidden()
    settle(queues, "mixed")
    settle(queues, "mixed", {"outcome": "deadLetter", "reason": "TooOld"})
    settle(queues, "mixed", {"outcome": "defer"})
    expect(row(page, 2)).to_contain_text("completed")
    expect(row(page, 3)).to_contain_text("dead lettered")
    expect(row(page, 4)).to_contain_text("deferred")
    assert "faint" in (row(page, 2).get_attribute("class") or "")
    expect(row(page, 2).get_by_role("checkbox")).to_be_disabled()
    page.get_by_label("Choose all 1", exact=True).check()
    expect(page.get_by_role("toolbar", name="Chosen messages")).to_contain_text("1 message chosen")
    page.keyboard.press("Escape")
    page.get_by_label("Those that left").select_option("all known")
    expect(row(page, 1)).to_contain_text("completed")
    page.get_by_label("Those that left").select_option("hidden")
    expect(row(page, 2)).to_be_hidden()
    expect(row(page, 4)).to_be_visible()
    page.get_by_label("State").select_option("active")
    expect(page.get_by_text("No message matches")).to_be_visible()
    page.get_by_label("State").select_option("deferred")
    expect(row(page, 4)).to_be_visible()
    page.locator(".chip", has_text="Dead letters").click()
    expect(row(page, 3)).to_contain_text("TooOld")
    queues.send("mixed", [{"body": "another"}])
    settle(queues, "mixed", {"outcome": "deadLetter", "reason": "AlsoOld"})
    expect(row(page, 5)).to_contain_text("AlsoOld")


def test_a_session_and_scheduled_messages_are_listed(queues: ExploredBroker, visit: Visit) -> None:
    page = visit(queues.at("entities/invoices/messages"))
    page.get_by_label("Session").fill("invoice-2")
    expect(page.locator(".table-foot")).to_contain_text("4 listed")
    expect(row(page, 3)).to_contain_text("invoice-2")
    at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    (number,) = queues.send("events", [{"body": "later", "scheduledEnqueueTime": at}])
    page.goto(queues.at("entities/events/messages"))
    expect(row(page, number)).to_contain_text("scheduled")


def test_the_keyboard_is_enough(queues: ExploredBroker, visit: Visit) -> None:
    page = visit(queues.at("entities/long/messages"))
    expect(row(page, 1)).to_be_visible()
    for key in ("j", "j", "x", "j", "x"):
        page.keyboard.press(key)
    expect(page.get_by_role("toolbar", name="Chosen messages")).to_contain_text("2 messages chosen")
    row(page, 4).get_by_role("checkbox").check()
    page.keyboard.press("x")
    expect(page.get_by_role("toolbar", name="Chosen messages")).to_contain_text("2 messages chosen")
    page.keyboard.press("Escape")
    expect(page.get_by_role("toolbar", name="Chosen messages")).to_be_hidden()
    page.keyboard.press("k")
    expect(row(page, 3)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Message 3", exact=True)).to_be_visible()
    page.keyboard.press("j")
    expect(page.get_by_role("heading", name="Message 4", exact=True)).to_be_visible()
    page.keyboard.press("k")
    expect(page.get_by_role("heading", name="Message 3", exact=True)).to_be_visible()
    page.keyboard.press("u")
    expect(row(page, 3)).to_be_visible()


def test_what_left_keeps_what_was_shown_of_it(queues: ExploredBroker, visit: Visit) -> None:
    """After a restart the history has no subject of a message that is only in the store."""
    queues.api("PUT", "entities/kept", {"kind": "queue"})
    (number,) = queues.send("kept", [{"body": "one", "subject": "a subject", "messageId": "an id"}])
    queues.api("PATCH", f"entities/kept/messages/{number}", {"to": "deferred"})
    queues.kill()
    queues.start()
    page = visit(queues.at("entities/kept/messages"))
    expect(row(page, number)).to_contain_text("deferred")
    received = queues.api("POST", "entities/kept/locks", {"sequenceNumbers": [number]})["deliveries"]
    queues.api("DELETE", f"entities/kept/locks/{received[0]['lock']['token']}")
    expect(row(page, number)).to_contain_text("completed")
    for text in ("a subject", "an id", "one"):
        expect(row(page, number)).to_contain_text(text)


@pytest.mark.parametrize(("zone", "offset"), [("Asia/Kolkata", "+05:30"), ("UTC", "UTC")])
def test_times_say_their_zone(queues: ExploredBroker, open_page: OpenPage, zone: str, offset: str) -> None:
    page = open_page(queues.at("entities/reminders/messages?state=scheduled"), timezone_id=zone)
    due = page.locator(".table-rows time").first
    expect(due).to_have_text(re.compile(rf"^\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{{3}} {re.escape(offset)}$"))
    page.get_by_role("button", name="Move the schedule…").click()
    expect(page.get_by_role("dialog")).to_contain_text(f"In your zone, {offset}.")


def test_a_choice_moves_nothing(queues: ExploredBroker, visit: Visit) -> None:
    page = visit(queues.at("entities/long/messages"))
    expect(row(page, 1)).to_be_visible()
    places = (row(page, 3), page.locator(".table-scroll"), page.locator(".table-foot"))
    before = [place.bounding_box() for place in places]
    row(page, 1).get_by_role("checkbox").check()
    expect(page.get_by_role("toolbar", name="Chosen messages")).to_be_visible()
    assert [place.bounding_box() for place in places] == before


def test_a_key_acts_on_what_the_key_before_it_chose(queues: ExploredBroker, visit: Visit) -> None:
    """However fast they come: the next one does not wait until the page is painted."""
    page = visit(queues.at("entities/long/messages"))
    expect(row(page, 1)).to_be_visible()
    page.evaluate(
        "async () => {"
        "  for (const key of ['j', 'x', 'c']) {"
        "    const pressed = new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true });"
        "    document.activeElement.dispatchEvent(pressed);"
        "    await new Promise((resolve) => {"
        "      const channel = new MessageChannel();"
        "      channel.port1.onmessage = resolve;"
        "      channel.port2.postMessage(0);"
        "    });"
        "  }"
        "}"
    )
    expect(page.get_by_role("dialog", name="Complete")).to_contain_text("1 message")


def test_the_list_goes_on_after_a_restart(queues: ExploredBroker, visit: Visit) -> None:
    page = visit(queues.at("entities/live/messages"), expected=("ERR_CONNECTION_REFUSED", "ERR_EMPTY", "503"))
    expect(row(page, 1)).to_be_visible()
    queues.kill()
    expect(page.get_by_role("alert").first).to_contain_text("does not answer")
    queues.start()
    expect(page.get_by_role("alert")).to_have_count(0, timeout=20_000)
    (number,) = queues.send("live", [{"body": "after the restart"}])
    page.locator(".table-scroll").evaluate("element => { element.scrollTop = element.scrollHeight }")
    expect(row(page, number)).to_be_visible(timeout=10_000)
