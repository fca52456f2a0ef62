"""The overview: its table of many entities, by mouse and by keys."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from tests.explorer.brokers import CONFIG, ExploredBroker
from tests.explorer.conftest import Visit

pytestmark = pytest.mark.page

QUEUES = 10_000
FOLLOWED_S_MAX = 120.0
"""Our choice: many times what it takes on a quiet machine."""


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExploredBroker]:
    """A broker with 10,000 queues."""
    folder = tmp_path_factory.mktemp("crowded")
    broker = ExploredBroker(folder)
    config = json.loads(json.dumps(CONFIG))
    config["UserConfig"]["Namespaces"][0]["Queues"] = [{"Name": f"queue-{n:05}"} for n in range(QUEUES)]
    with broker:
        (folder / "Config.json").write_text(json.dumps(config))  # followed without the limit of a start
        ends_at = time.monotonic() + FOLLOWED_S_MAX
        while broker.api("GET", "counts")["totals"]["entities"] < QUEUES:
            assert time.monotonic() < ends_at
            time.sleep(0.5)
        broker.send("queue-07777", [{"body": "x"}] * 3)
        broker.dead_letter("queue-07777", [("Reason", "")])
        yield broker


def first_names(page: Page, count: int) -> list[str]:
    names = page.locator(".table-rows .entity-name")
    names.first.wait_for()
    return [text.strip() for text in names.all_inner_texts()[:count]]


def test_ten_thousand_entities_are_searched_and_sorted(crowded: ExploredBroker, visit: Visit) -> None:
    page = visit(crowded.url)
    page.wait_for_selector(".table-rows .row:nth-child(1):has-text('queue-07777')")  # counts may be 2 s old
    assert first_names(page, 3) == ["queue-07777", "alerts", "alerts / on-call"]
    assert page.locator(".table-rows .row").count() < 60
    assert page.get_by_role("grid").get_attribute("aria-rowcount") == str(QUEUES + 10 + 1)
    page.keyboard.press("/")
    page.keyboard.type("0123")
    page.wait_for_function("() => document.querySelector('.table-rows').children.length === 11")
    assert first_names(page, 2) == ["queue-00123", "queue-01230"]
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.press("Delete")
    page.get_by_role("button", name="Name").click()
    page.get_by_role("button", name="Name").click()
    page.wait_for_selector(".table-rows .row:nth-child(1):has-text('shipping')")
    page.get_by_role("button", name="With dead letters").click()
    page.wait_for_function("() => document.querySelector('.table-rows').children.length === 1")
    assert page.locator(".table-rows .count.bad").inner_text() == "1"


def test_keys_move_through_the_table(crowded: ExploredBroker, visit: Visit) -> None:
    page = visit(crowded.url)
    first_names(page, 1)
    for key in "jjjjk":
        page.keyboard.press(key)
    page.wait_for_selector(".row:focus:has-text('on-call')")
    page.keyboard.press("End")
    page.wait_for_selector(".row:focus:has-text('shipping')")
    page.keyboard.press("Home")
    page.wait_for_selector(".row:focus:has-text('queue-07777')")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('queue-07777')")


def test_a_count_changes_while_it_is_shown(crowded: ExploredBroker, visit: Visit) -> None:
    page = visit(crowded.url)
    page.get_by_role("button", name="Active").click()
    first_names(page, 1)
    crowded.send("queue-00042", [{"body": "x"}] * 41)
    page.wait_for_selector(".row:has-text('queue-00042'):has-text('41')")
    assert first_names(page, 1) == ["queue-00042"]


def test_the_palette_goes_to_any_of_them(crowded: ExploredBroker, visit: Visit) -> None:
    page = visit(crowded.at("connect"))
    page.wait_for_selector("h1:has-text('Connect')")
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("4321")
    page.wait_for_selector("[role=option]:has-text('queue-04321')")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('queue-04321')")
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.wait_for_selector("h1:has-text('Overview')")


def test_a_broker_that_comes_back_is_shown_again(crowded: ExploredBroker, visit: Visit) -> None:
    page = visit(crowded.url, expected=("ERR_CONNECTION", "ERR_EMPTY", "ERR_SOCKET", "503"))
    first_names(page, 1)
    crowded.kill()
    page.wait_for_selector(".refusal:has-text('does not answer')")
    crowded.start()
    page.wait_for_selector(".refusal", state="detached")
    assert first_names(page, 1) == ["queue-07777"]
