"""Dead letters by group, the jobs that put them right, and why a message did not arrive."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.explorer.brokers import ExploredBroker
from tests.explorer.conftest import OpenPage, Visit
from tests.explorer.places import faults_in_both_themes

pytestmark = pytest.mark.page

HOSTILE = "<b onmouseover=\"document.title='run'\">refused</b>\u202e"


def with_dead_letters(broker: ExploredBroker, name: str, reasons: dict[str, int]) -> str:
    """Make a queue with so many dead letters of each reason; return its name."""
    broker.api("PUT", f"entities/{name}", {"kind": "queue"})
    all_reasons = [(reason, "because") for reason, count in reasons.items() for _ in range(count)]
    bodies = [{"body": json.dumps({"n": n, "kind": f"k{n % 2}"})} for n in range(len(all_reasons))]
    broker.send(name, bodies)
    broker.dead_letter(name, all_reasons)
    return name


def counts_of(broker: ExploredBroker, name: str) -> tuple[int, int]:
    """Return the active messages and the dead letters of a queue."""
    counts = broker.api("GET", f"entities/{name}")["counts"]
    return counts["active"], counts["deadLetter"]


def wait_for_counts(broker: ExploredBroker, names: set[str]) -> None:
    """Wait until the counts, which may be 2 s old, have the dead letters of some queues.

    The view of all dead letters reads those that have some when it is opened.
    """
    ends_at = time.monotonic() + 30
    while True:
        listed = broker.api("GET", "counts")["entities"]
        if names <= {one["name"] for one in listed if one.get("deadLetter")}:
            return
        assert time.monotonic() < ends_at
        time.sleep(0.1)


def groups(page: Page) -> Locator:
    return page.get_by_role("grid", name="Groups")


def jobs_of(broker: ExploredBroker, name: str) -> list[dict[str, Any]]:
    return [job for job in broker.api("GET", "jobs")["jobs"] if job["entity"].startswith(f"{name}/")]


@pytest.mark.parametrize("place", ["entities/orders/dead-letters", "dead-letters"])
def test_a_count_is_stopped_and_begun_again(broker: ExploredBroker, visit: Visit, place: str) -> None:
    wait_for_counts(broker, {"orders"})
    page = visit(broker.url)
    held: list[Route] = []
    page.route("**/groups", lambda route: held.append(route))
    page.goto(broker.at(place))
    expect(page.get_by_role("progressbar", name="Counting")).to_be_visible()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_text("The count was stopped")).to_be_visible()
    page.unroute("**/groups")
    page.get_by_role("button", name="Count again").click()
    expect(page.get_by_role("row").filter(has_text="PaymentRefused")).to_be_visible()


def test_a_group_is_looked_at_and_sent_back_and_what_fails_again_is_counted(
    broker: ExploredBroker, visit: Visit
) -> None:
    name = with_dead_letters(broker, "returns", {"Late": 3, HOSTILE: 2})
    page = visit(broker.at(f"entities/{name}/dead-letters"))
    row = groups(page).get_by_role("row").filter(has_text="Late")
    expect(row).to_contain_text("3")
    expect(groups(page).get_by_role("row").filter(has_text="onmouseover")).to_contain_text("\\u202e")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("3 messages, the oldest enqueued")
    assert faults_in_both_themes(page) == []
    expect(dialog.get_by_role("region", name="Message", exact=False).first).to_contain_text("because")
    dialog.get_by_role("button", name="Send back").click()
    page.get_by_role("dialog").get_by_role("button", name="Send back 3").click()
    expect(page.get_by_text("3 messages sent back.")).to_be_visible()
    assert counts_of(broker, name) == (3, 2)
    [job] = jobs_of(broker, name)
    assert (job["state"], job["done"], job["to"]) == ("done", 3, name)
    page.get_by_role("button", name="Close").last.click()
    expect(row).to_have_count(0)
    broker.dead_letter(name, [("Late", "again")] * 2)
    page.keyboard.press("r")
    expect(row).to_contain_text("22")  # two messages, and two that failed again
    assert "run" not in page.title()


def test_groups_by_a_json_path_are_deleted_and_moved_elsewhere(broker: ExploredBroker, visit: Visit) -> None:
    name = with_dead_letters(broker, "drops", {"Late": 5})
    broker.api("PUT", "entities/elsewhere", {"kind": "queue"})
    page = visit(broker.at(f"entities/{name}/dead-letters"))
    page.get_by_role("button", name="JSON path").click()
    page.get_by_label("JSON path").fill("$.kind")
    expect(groups(page)).to_contain_text("k1")
    page.get_by_role("button", name="Delete the group k1").click()
    expect(page.get_by_role("dialog")).to_contain_text(
        "The messages in the group “k1” of drops/$deadletterqueue"
    )
    page.get_by_role("dialog").get_by_role("button", name="Delete 2").click()
    expect(page.get_by_text("2 messages deleted.")).to_be_visible()
    page.get_by_role("button", name="Close").last.click()
    expect(groups(page)).not_to_contain_text("k1")
    page.get_by_role("button", name="Move…").click()
    page.get_by_role("dialog").get_by_label("To", exact=True).fill("elsewhere")
    page.get_by_role("dialog").get_by_role("button", name="Move 3").click()
    expect(page.get_by_text("3 messages moved.")).to_be_visible()
    assert counts_of(broker, name) == (0, 0)
    assert counts_of(broker, "elsewhere") == (3, 0)


def test_all_dead_letters_are_shown_by_reason_with_their_entities(
    broker: ExploredBroker, open_page: OpenPage
) -> None:
    name = with_dead_letters(broker, "one-more", {"PaymentRefused": 2})
    wait_for_counts(broker, {name, "orders"})
    page = open_page(broker.at("dead-letters"))
    row = page.get_by_role("grid", name="Reasons").get_by_role("row").filter(has_text="PaymentRefused")
    expect(page.get_by_role("status").filter(has_text="dead letters in")).to_be_visible()
    expect(row).to_contain_text("8")
    row.click(position={"x": 10, "y": 10})
    page.get_by_role("dialog").get_by_role("link", name=name).click()
    expect(page.locator("h1")).to_contain_text(name)
    expect(page.get_by_role("navigation", name="Main").locator("[aria-current]")).to_have_count(0)


def test_a_row_that_moves_under_the_mouse_is_the_one_that_is_clicked(
    broker: ExploredBroker, open_page: OpenPage
) -> None:
    with_dead_letters(broker, "few", {"First": 20})
    with_dead_letters(broker, "many", {"Second": 30})
    wait_for_counts(broker, {"few", "many"})
    page = open_page("about:blank")
    held: list[Route] = []

    def hold(route: Route) -> None:
        if "many/" in (route.request.post_data or ""):
            held.append(route)
        else:
            route.fallback()

    page.route("**/groups", hold)
    page.goto(broker.at("dead-letters"))
    grid = page.get_by_role("grid", name="Reasons")
    row = grid.get_by_role("row").filter(has_text="First")
    expect(page.get_by_text("Reading the reasons, entity by entity")).to_be_visible()
    expect(row).to_contain_text("20")
    place = row.bounding_box()
    assert place is not None
    page.mouse.move(place["x"] + 10, place["y"] + 10)
    page.mouse.down()
    held[0].fallback()
    expect(grid.get_by_role("row").filter(has_text="Second")).to_be_visible()
    expect(page.get_by_text("Reading the reasons, entity by entity")).to_be_hidden()
    page.mouse.up()
    expect(page.get_by_role("dialog")).to_contain_text("20 messages")


def test_a_job_is_stopped_resumed_interrupted_by_a_restart_and_forgotten(
    broker: ExploredBroker, visit: Visit
) -> None:
    name = with_dead_letters(broker, "long-work", {"Late": 12})
    order = {"work": "resubmit", "entity": f"{name}/$deadletterqueue", "rate": 4}
    job = broker.api("POST", "jobs", order)["id"]
    page = visit(broker.at("jobs"), expected=("ERR_", "503"))
    row = page.get_by_role("grid", name="Jobs").get_by_role("row").filter(has_text=name)
    expect(row).to_contain_text("at work")
    row.click()
    expect(page.get_by_text("Exactly once")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("h1")).to_contain_text("stopped")
    done = broker.api("GET", f"jobs/{job}")["done"]
    assert done < 12
    assert faults_in_both_themes(page) == []
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("h1")).to_contain_text("at work")
    broker.kill()
    broker.start()
    expect(page.locator("h1")).to_contain_text("interrupted")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("h1")).to_contain_text("done")
    active, dead = counts_of(broker, name)
    assert (active, dead) == (12, 0)  # each exactly once
    page.get_by_role("button", name="Forget").click()
    page.get_by_role("dialog").get_by_role("button", name="Forget it").click()
    expect(page.get_by_role("grid", name="Jobs")).to_be_visible()
    assert jobs_of(broker, name) == []


def test_each_rule_says_why_it_did_or_did_not_match(broker: ExploredBroker, visit: Visit) -> None:
    page = visit(broker.at("entities/events/match"))
    page.get_by_label("Name of the property").fill("amount")
    page.get_by_label("Type of the property").select_option("number")
    page.get_by_label("Value of the property").fill("5")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="1 subscription of 2 gets it")).to_be_visible()
    billing = page.get_by_role("region", name="Subscription billing")
    expect(billing).to_contain_text("does not get it")
    expect(billing).to_contain_text("amount")
    assert faults_in_both_themes(page) == []
    page.get_by_role("button", name="Get it 1", exact=True).click()
    expect(billing).to_have_count(0)


def test_a_message_that_is_somewhere_is_checked_against_the_rules(
    broker: ExploredBroker, visit: Visit
) -> None:
    [message] = broker.api("GET", "entities/events%2Fsubscriptions%2Fbilling/messages?limit=1")["messages"]
    page = visit(broker.at("entities/events/match"), expected=("404",))
    page.get_by_role("button", name="A message that is somewhere").click()
    page.get_by_label("Entity", exact=True).fill("events/subscriptions/billing")
    page.get_by_label("Sequence number").fill("999999")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("999999")
    page.get_by_label("Sequence number").fill(str(message["sequenceNumber"]))
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="2 subscriptions of 2 get it")).to_be_visible()
