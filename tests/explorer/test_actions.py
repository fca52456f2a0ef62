"""What is done to chosen messages: asked first, then done, and what others were faster at is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.explorer.brokers import ExploredBroker
from tests.explorer.conftest import OpenPage, Visit
from tests.explorer.signing import connection_string
from tests.kept_keys import KeptKeys

pytestmark = pytest.mark.page

REFUSED = ("401 (Unauthorized)", "403 (Forbidden)", "404 (Not Found)", "409 (Conflict)")
"""Chromium writes each refusal to its console."""


class Queue:
    """A queue of a broker that a test fills and looks into."""

    def __init__(self, broker: ExploredBroker, name: str) -> None:
        self.broker = broker
        self.name = name
        broker.api("PUT", f"entities/{name}", {"kind": "queue"})

    def fill(self, count: int, **message: Any) -> list[int]:
        return self.broker.send(self.name, [{"body": f"body {n}", **message} for n in range(count)])

    def held(self, part: str = "") -> dict[int, dict[str, Any]]:
        found = self.broker.api("GET", f"entities/{self.name}{part}/messages?limit=250")["messages"]
        return {message["sequenceNumber"]: message for message in found}

    def states(self, part: str = "") -> dict[int, str]:
        return {number: message["state"] for number, message in self.held(part).items()}

    def change(self, number: int, body: dict[str, Any]) -> None:
        self.broker.api("PATCH", f"entities/{self.name}/messages/{number}", body)

    def delete(self, number: int) -> None:
        self.broker.api("DELETE", f"entities/{self.name}/messages/{number}")

    def lock(self, count: int) -> list[int]:
        found = self.broker.api("POST", f"entities/{self.name}/locks", {"max": count})["deliveries"]
        return [delivery["message"]["sequenceNumber"] for delivery in found]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExploredBroker]:
    """Return a broker that asks for a key."""
    with ExploredBroker(tmp_path_factory.mktemp("keyed"), ["--auth=sas"]) as started:
        yield started


@pytest.fixture
def queue(broker: ExploredBroker, request: pytest.FixtureRequest) -> Queue:
    """Return a queue of the test's own."""
    return Queue(broker, request.node.name.split("[")[0].removeprefix("test_")[:50])


def row(page: Page, number: int) -> Locator:
    """Return the row of the message with a sequence number."""
    link = page.get_by_role("link", name=str(number), exact=True)
    return page.locator(".table-rows > .row").filter(has=link)


def choose(page: Page, numbers: list[int]) -> None:
    """Choose rows."""
    for number in numbers:
        row(page, number).get_by_role("checkbox").check()


def begin(page: Page, action: str) -> Locator:
    """Ask for an action on the chosen rows; return its dialog."""
    page.get_by_role("toolbar", name="Chosen messages").get_by_role("button", name=action, exact=True).click()
    return page.get_by_role("dialog")


def confirm(dialog: Locator) -> None:
    """Say yes."""
    dialog.locator("button[type=submit]").click()


def test_chosen_messages_are_completed(queue: Queue, visit: Visit) -> None:
    numbers = queue.fill(5)
    page = visit(queue.broker.at(f"entities/{queue.name}/messages"))
    choose(page, numbers[:3])
    dialog = begin(page, "Complete")
    expect(dialog).to_contain_text("3 messages")
    expect(dialog).to_contain_text("body 0")
    assert len(queue.held()) == 5
    confirm(dialog)
    expect(dialog).to_be_hidden()
    assert [*queue.held()] == numbers[3:]
    expect(row(page, numbers[0])).to_contain_text("completed")


def test_chosen_messages_are_dead_lettered(queue: Queue, visit: Visit) -> None:
    numbers = queue.fill(3)
    page = visit(queue.broker.at(f"entities/{queue.name}/messages"))
    choose(page, numbers[:2])
    dialog = begin(page, "Dead-letter")
    dialog.get_by_label("Reason").fill("Broken")
    dialog.get_by_label("Description").fill("twice")
    confirm(dialog)
    expect(dialog).to_be_hidden()
    found = queue.held("%2F$deadletterqueue")
    assert [*found] == numbers[:2]
    properties = found[numbers[0]]["properties"]
    assert properties == {"DeadLetterReason": "Broken", "DeadLetterErrorDescription": "twice"}


def test_messages_are_deferred_received_and_completed(queue: Queue, visit: Visit) -> None:
    first, second, third = queue.fill(3)
    page = visit(queue.broker.at(f"entities/{queue.name}/messages"))
    choose(page, [first, second])
    dialog = begin(page, "Defer")
    confirm(dialog)
    expect(dialog).to_be_hidden()
    assert queue.states() == {first: "deferred", second: "deferred", third: "active"}
    for outcome, left in (("Release", 3), ("Complete", 1)):
        expect(row(page, first)).to_contain_text("deferred")
        choose(page, [first, second])
        dialog = begin(page, "Receive")
        confirm(dialog)
        expect(dialog).to_contain_text("You hold the locks of 2 messages")
        assert "lockedUntil" in queue.held()[first]
        dialog.get_by_role("button", name=outcome, exact=True).click()
        expect(dialog).to_be_hidden()
        assert len(queue.held()) == left


def test_a_schedule_is_moved_and_cancelled(queue: Queue, open_page: OpenPage) -> None:
    at = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    first, second = queue.fill(2, scheduledEnqueueTime=at)
    page = open_page(queue.broker.at(f"entities/{queue.name}/messages"), timezone_id="UTC")
    choose(page, [first, second])
    dialog = begin(page, "Move the schedule")
    dialog.get_by_label("Enqueue at").fill("2088-05-06T07:08:09")
    confirm(dialog)
    expect(dialog).to_be_hidden()
    assert {each["scheduledEnqueueTime"][:19] for each in queue.held().values()} == {"2088-05-06T07:08:09"}
    choose(page, [first])
    dialog = begin(page, "Cancel the schedule")
    assert dialog.locator(".dialog-foot button").all_inner_texts() == [
        "Keep the messages",
        "Cancel the messages",
    ]
    confirm(dialog)
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert [*queue.held()] == [second]


def test_chosen_messages_are_downloaded(queue: Queue, open_page: OpenPage) -> None:
    first, _, third = queue.fill(3, properties={"large": 2**60})
    page = open_page(queue.broker.at(f"entities/{queue.name}/messages"))
    choose(page, [first, third])
    with page.expect_download() as begun:
        page.get_by_role("toolbar", name="Chosen messages").get_by_role("button", name="Download").click()
    lines = [json.loads(line) for line in begun.value.path().read_text().splitlines()]
    assert [line["sequenceNumber"] for line in lines] == [first, third]
    assert lines[0]["properties"] == {"large": 2**60}


def test_others_who_were_faster_are_told_of(queue: Queue, visit: Visit) -> None:
    numbers = queue.fill(4)
    page = visit(queue.broker.at(f"entities/{queue.name}/messages"), expected=REFUSED)
    choose(page, numbers)
    dialog = begin(page, "Complete")
    [locked] = queue.lock(1)
    queue.delete(numbers[1])
    confirm(dialog)
    expect(dialog).to_contain_text("2 messages completed.")
    expect(dialog).to_contain_text("1 message was not there any more: someone else was faster")
    expect(dialog).to_contain_text("1 message was not free")
    dialog.get_by_role("button", name="Close").last.click()
    assert [*queue.held()] == [locked]


def test_a_restart_in_mid_action_is_shown_and_nothing_is_done_twice(queue: Queue, visit: Visit) -> None:
    numbers = queue.fill(3)
    page = visit(queue.broker.at(f"entities/{queue.name}/messages"), expected=("net::ERR", "503", *REFUSED))
    choose(page, numbers[:2])
    dialog = begin(page, "Complete")
    queue.broker.kill()
    confirm(dialog)
    expect(dialog.get_by_role("alert")).to_contain_text("does not answer")
    expect(dialog).to_contain_text("0 messages completed.")
    dialog.get_by_role("button", name="Close").last.click()
    queue.broker.start()
    assert [*queue.held()] == numbers


def test_a_right_that_is_lost_in_mid_action_ends_it(keyed: ExploredBroker, open_page: OpenPage) -> None:
    queue = Queue(keyed, "lost")
    numbers = queue.fill(3)
    keys = KeptKeys(keyed.data)
    keys.add("passing", ["Listen", "Send"])
    page = open_page(keyed.at("entities/lost/messages"), expected=REFUSED)
    page.get_by_label("Connection string or token").fill(connection_string(keyed, "passing"))
    page.keyboard.press("Enter")
    choose(page, numbers[:2])
    dialog = begin(page, "Complete")
    # What the page asks from time to time waits, so that the action is what is refused.
    page.route("**/$api/v1/**", lambda route: None if route.request.method == "GET" else route.fallback())
    keys.remove("passing")
    confirm(dialog)
    expect(page.get_by_role("heading", name="Sign in to peeklock")).to_be_visible()
    assert [*queue.held()] == numbers


@pytest.mark.parametrize(
    ("rights", "offered"),
    [
        (["Listen"], ["Complete", "Dead-letter", "Defer", "Download", "Choose none"]),
        (["Send"], []),
    ],
)
def test_what_a_key_may_not_do_is_not_offered(
    keyed: ExploredBroker, open_page: OpenPage, rights: list[str], offered: list[str]
) -> None:
    queue = Queue(keyed, f"only-{rights[0].lower()}")
    numbers = queue.fill(1)
    KeptKeys(keyed.data).add(rights[0].lower(), rights)
    page = open_page(keyed.at(f"entities/{queue.name}/messages"))
    page.get_by_label("Connection string or token").fill(connection_string(keyed, rights[0].lower()))
    page.keyboard.press("Enter")
    may_send = "Send" in rights
    expect(page.get_by_text("Not shown")).to_have_count(int(may_send))
    if may_send:
        page.get_by_role("button", name="Send", exact=True).click()
        page.get_by_role("textbox", name="Body", exact=True).fill("blind")
        confirm(page.get_by_role("dialog"))
        expect(page.get_by_role("dialog")).to_be_hidden()
        assert len(queue.held()) == 2
        return
    choose(page, numbers)
    expect(page.get_by_role("button", name="Send", exact=True)).to_have_count(0)
    bar = page.get_by_role("toolbar", name="Chosen messages")
    assert [text.strip() for text in bar.get_by_role("button").all_inner_texts()] == offered


@pytest.mark.parametrize("rights", [["Listen"], ["Listen", "Send"]])
def test_a_topic_offers_what_can_be_done_to_its_schedule(
    keyed: ExploredBroker, open_page: OpenPage, rights: list[str]
) -> None:
    name = "-".join(["topic", *rights]).lower()
    KeptKeys(keyed.data).add(name, rights)
    keyed.send("events", [{"body": "later", "scheduledEnqueueTime": "2088-01-01T00:00:00Z"}])
    page = open_page(keyed.at("entities/events/messages"))
    page.get_by_label("Connection string or token").fill(connection_string(keyed, name))
    page.keyboard.press("Enter")
    expect(page.locator(".table-rows > .row").first).to_contain_text("2088")
    offered = page.locator(".page-actions button").all_inner_texts()
    assert offered == (["Move the schedule…", "Send"] if "Send" in rights else [])
    if offered:
        page.get_by_role("button", name="Move the schedule…").click()
        page.get_by_label("Enqueue at").fill("2089-02-03T04:05:06")
        page.get_by_role("button", name="Move 2 messages").click()
        expect(page.get_by_role("dialog")).to_contain_text("2 messages moved in time.")
        expect(page.locator(".table-rows")).to_contain_text("2089")


def test_the_actions_of_one_message_have_keys(queue: Queue, visit: Visit) -> None:
    first, second = queue.fill(2)
    page = visit(queue.broker.at(f"entities/{queue.name}/messages/{first}"), expected=REFUSED)
    expect(page.get_by_role("heading", name=f"Message {first}", exact=True)).to_be_visible()
    page.keyboard.press("d")
    page.get_by_label("Reason").fill("by keyboard")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="It was dead lettered")).to_be_visible()
    assert [*queue.held()] == [second]
    assert [*queue.held("%2F$deadletterqueue")] == [first]
