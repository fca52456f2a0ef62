"""The search, and jobs that follow from it: checked as it is typed, streamed, previewed, run."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.explorer.brokers import ExploredBroker
from tests.explorer.conftest import OpenPage, Visit

pytestmark = pytest.mark.page

MANY = 1500
JOB_S_MAX = 60.0


@pytest.fixture(scope="module")
def queues(broker: ExploredBroker) -> ExploredBroker:
    """Return the broker with a long queue and empty ones."""
    for name in ("long", "moved", "shelf", "trash", "kept"):
        broker.api("PUT", f"entities/{name}", {"kind": "queue"})
    for first in range(0, MANY, 500):
        broker.send(
            "long",
            [
                {"body": json.dumps({"n": n, "text": f"Line {n}"}), "properties": {"n": n}}
                for n in range(first, first + 500)
            ],
        )
    return broker


def count(broker: ExploredBroker, entity: str) -> int:
    """Return how many active messages an entity has."""
    return int(broker.api("GET", f"entities/{entity}")["counts"]["active"])


def search(page: Page, place: str, **fields: str) -> None:
    """Search by some criteria, by their labels."""
    page.goto(place)
    for label, text in fields.items():
        page.get_by_label(label.replace("_", " "), exact=True).fill(text)
    page.keyboard.press("Enter")


def wait_for_job(broker: ExploredBroker) -> dict[str, Any]:
    """Return the newest job once it has ended."""
    ends_at = time.monotonic() + JOB_S_MAX
    while (job := broker.api("GET", "jobs")["jobs"][0])["state"] == "running":
        assert time.monotonic() < ends_at, job
        time.sleep(0.1)
    return dict(job)


CRITERIA = (
    ({"Filter": "n >= 1490"}, 10),
    ({"Body_contains": "Line 77"}, 11),
    ({"Regular_expression": "Line 1[0-4]9[^0-9]", "JSON_path": "$.n > 110"}, 4),
    ({"Filter": "n < 10", "Body_contains": "nowhere"}, 0),
)
"""What is typed, and how many messages it finds."""


def test_each_criterion_finds_what_it_should(queues: ExploredBroker, visit: Visit) -> None:
    page = visit(queues.url)
    for fields, found in CRITERIA:
        page.goto(queues.url)
        search(page, queues.at("entities/long/search"), **fields)
        expect(page.locator(".table-foot")).to_have_text(f"{found} messages found in 1,500")
        expect(page.locator(".table-rows > .row")).to_have_count(found)
    page.reload()
    expect(page.locator(".table-foot")).to_have_text("0 messages found in 1,500")


def test_an_address_that_is_edited_is_searched(queues: ExploredBroker, visit: Visit) -> None:
    page = visit(queues.at("entities/long/search?filter=n+<+3"))
    expect(page.locator(".table-foot")).to_contain_text("3 messages found")
    page.evaluate("location.hash = '#/entities/long/search?filter=n+<+5'")
    expect(page.locator(".table-foot")).to_contain_text("5 messages found")
    expect(page.get_by_label("Filter", exact=True)).to_have_value("n < 5")
    page.go_back()
    expect(page.locator(".table-foot")).to_contain_text("3 messages found")
    page.get_by_label("Filter", exact=True).fill("n < 4")
    page.keyboard.press("Enter")
    expect(page.locator(".table-foot")).to_contain_text("4 messages found")
    page.evaluate("location.hash = '#/entities/long/search'")
    expect(page.get_by_label("Filter", exact=True)).to_have_value("")
    expect(page.locator(".table-foot")).to_have_count(0)


def test_all_entities_are_searched_with_their_dead_letters(queues: ExploredBroker, visit: Visit) -> None:
    page = visit(queues.url)
    search(page, queues.at("search"), Body_contains='"order": 3')
    expect(page.locator(".table-rows > .row").first).to_be_visible()
    expect(page.get_by_text("orders/$deadletterqueue")).to_have_count(1)
    page.locator(".table-rows > .row").first.click()
    expect(page.get_by_role("heading", name="Message", exact=False).last).to_be_visible()
    page.go_back()
    expect(page.locator(".table-rows > .row").first).to_be_visible()


def test_what_is_wrong_with_a_search_is_said(queues: ExploredBroker, visit: Visit) -> None:
    page = visit(queues.at("entities/long/search"), expected=("400 (Bad Request)",))
    below = page.get_by_label("Body contains")
    place = below.bounding_box()
    page.get_by_label("Filter").fill("n >")
    expect(page.get_by_role("alert")).to_contain_text("at character 4")
    assert below.bounding_box() == place
    expect(page.get_by_role("button", name="Search", exact=True)).to_be_disabled()
    page.keyboard.press("Enter")
    expect(page.locator(".table-foot")).to_have_count(0)
    page.get_by_label("Filter").fill("n > 1")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_role("button", name="Search", exact=True)).to_be_enabled()
    states = page.get_by_role("group", name="States")
    expect(states).to_contain_text("None is chosen: all states")
    states.get_by_role("button", name="active").click()
    expect(states).not_to_contain_text("None is chosen")
    page.get_by_label("Regular expression").fill("(unfinished")
    expect(page.get_by_role("alert")).to_contain_text("unfinished")
    page.keyboard.press("Enter")
    expect(page.locator(".refusal")).to_contain_text("regex")


def test_a_search_is_stopped(queues: ExploredBroker, visit: Visit) -> None:
    page = visit(queues.url)
    search(page, queues.at("entities/long/search"), Regular_expression="(L|Li|Lin)+e [0-9]+")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Search", exact=True)).to_be_visible()


def test_what_is_found_is_downloaded_as_lines(queues: ExploredBroker, visit: Visit) -> None:
    page = visit(queues.url)
    search(page, queues.at("entities/long/search"), Filter="n >= 1498")
    with page.expect_download() as begun:
        page.get_by_role("button", name="Download all").click()
    lines = [json.loads(line) for line in begun.value.path().read_text().splitlines()]
    assert [json.loads(line["body"])["n"] for line in lines] == [1498, 1499]


def test_messages_that_match_are_moved_by_a_job_that_outlives_the_tab(
    queues: ExploredBroker, open_page: OpenPage
) -> None:
    page = open_page(queues.at("entities/long/messages"))
    page.get_by_role("button", name="Move…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To", exact=True).fill("moved")
    dialog.get_by_label("Filter").fill("n < < 200")
    expect(dialog.get_by_role("alert")).to_contain_text("at character 5")
    expect(dialog.get_by_role("alert")).to_have_count(1)
    dialog.get_by_label("Filter").fill("n < 200")
    expect(dialog).to_contain_text("200 messages will be moved")
    expect(dialog).to_contain_text("Exactly once")
    assert count(queues, "moved") == 0
    dialog.get_by_label("At most per second").fill("100")
    dialog.get_by_role("button", name="Move 200").click()
    expect(dialog).to_contain_text("The broker goes on when this tab is closed")
    page.close()
    assert wait_for_job(queues)["done"] == 200
    assert count(queues, "moved") == 200
    assert count(queues, "long") == MANY - 200


def test_chosen_messages_are_moved(queues: ExploredBroker, visit: Visit) -> None:
    numbers = queues.send("kept", [{"body": f"{n}"} for n in range(3)])
    page = visit(queues.at("entities/kept/messages"))
    page.get_by_label("Follow").uncheck()
    for number in numbers[:2]:
        link = page.get_by_role("link", name=str(number), exact=True)
        page.locator(".table-rows > .row").filter(has=link).get_by_role("checkbox").check()
    bar = page.get_by_role("toolbar", name="Chosen messages")
    bar.get_by_role("button", name="Move", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To", exact=True).fill("shelf")
    expect(dialog).to_contain_text("2 chosen messages of kept, if still active.")
    dialog.get_by_role("button", name="Move 2").click()
    expect(dialog).to_contain_text("2 messages moved.")
    dialog.get_by_role("button", name="Close").last.click()
    assert (count(queues, "shelf"), count(queues, "kept")) == (2, 1)
    expect(page.locator(".table-foot")).to_contain_text("1 listed · 2 left")


def test_found_messages_that_are_moved_are_shown_as_left(queues: ExploredBroker, visit: Visit) -> None:
    queues.api("PUT", "entities/found", {"kind": "queue"})
    queues.send("found", [{"body": f"{n}"} for n in range(3)])
    page = visit(queues.at("entities/found/search?text=1"))
    row = page.locator(".table-rows > .row")
    row.get_by_role("checkbox").check()
    page.get_by_role("toolbar", name="Chosen messages").get_by_role("button", name="Move").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To", exact=True).fill("shelf")
    dialog.get_by_role("button", name="Move 1 message").click()
    expect(dialog).to_contain_text("1 message moved.")
    dialog.get_by_role("button", name="Close").last.click()
    expect(row).to_contain_text("left")
    expect(row.get_by_role("checkbox")).to_be_disabled()


def test_a_list_is_read_anew_when_a_job_ends_whose_dialog_is_closed(
    queues: ExploredBroker, visit: Visit
) -> None:
    queues.api("PUT", "entities/slow", {"kind": "queue"})
    queues.send("slow", [{"body": f"{n}"} for n in range(4)])
    page = visit(queues.at("entities/slow/messages"))
    page.get_by_label("Follow").uncheck()
    page.get_by_role("button", name="Move…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To", exact=True).fill("shelf")
    dialog.get_by_label("At most per second").fill("2")
    dialog.get_by_role("button", name="Move 4 messages").click()
    expect(dialog).to_contain_text("The broker goes on")
    dialog.get_by_role("button", name="Close").last.click()
    expect(page.get_by_role("status").filter(has_text="4 messages moved")).to_be_visible()
    expect(page.get_by_text("No messages", exact=True)).to_be_visible()


def test_messages_that_match_are_deleted_after_a_preview(queues: ExploredBroker, visit: Visit) -> None:
    queues.send("trash", [{"body": f"{n}", "properties": {"n": n}} for n in range(30)])
    page = visit(queues.at("entities/trash/messages"))
    page.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Filter").fill("n >= 10")
    expect(dialog).to_contain_text("The messages of trash that match.")
    expect(dialog).to_contain_text("20 messages will be deleted")
    expect(dialog).to_contain_text("There is no way back")
    dialog.get_by_role("button", name="Delete 20").click()
    expect(dialog).to_contain_text("20 messages deleted.")
    assert count(queues, "trash") == 10


def test_scheduled_messages_that_match_are_moved_in_time_and_cancelled(
    queues: ExploredBroker, open_page: OpenPage
) -> None:
    at = "2077-01-01T00:00:00Z"
    plan = [{"body": "later", "scheduledEnqueueTime": at, "properties": {"n": n}} for n in range(5)]
    queues.send("shelf", plan)
    page = open_page(queues.at("entities/shelf/messages?state=scheduled"), timezone_id="UTC")
    page.get_by_role("button", name="Move the schedule…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Filter").fill("n >= 2")
    dialog.get_by_label("Enqueue at").fill("2088-02-03T04:05:06")
    dialog.get_by_role("button", name="Move 3").click()
    expect(dialog).to_contain_text("3 messages moved in time.")
    dialog.get_by_role("button", name="Close").last.click()
    found = queues.api("GET", "entities/shelf/messages?state=scheduled")["messages"]
    assert [message["scheduledEnqueueTime"][:4] for message in found] == ["2077"] * 2 + ["2088"] * 3
    page.get_by_role("button", name="Cancel the schedule…").click()
    expect(dialog).to_contain_text("All scheduled messages of shelf.")
    expect(dialog.get_by_role("button", name="Keep the messages")).to_be_visible()
    dialog.get_by_role("button", name="Cancel 5 messages").click()
    expect(dialog).to_contain_text("5 messages cancelled.")
    assert queues.api("GET", "entities/shelf")["counts"]["scheduled"] == 0


def test_dead_letters_are_sent_back(queues: ExploredBroker, visit: Visit) -> None:
    before = count(queues, "orders")
    page = visit(queues.at("entities/orders%2F$deadletterqueue/messages"))
    page.get_by_label("Follow").uncheck()
    page.get_by_role("button", name="Send back…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Dead-letter reason").fill("PaymentRefused")
    dialog.get_by_role("button", name="Send back 6").click()
    expect(dialog).to_contain_text("6 messages sent back.")
    assert count(queues, "orders") == before + 6
    assert queues.api("GET", "entities/orders")["counts"]["deadLetter"] == 6
    dialog.get_by_role("button", name="Close").last.click()
    expect(page.locator(".table-foot")).to_contain_text("6 listed")
