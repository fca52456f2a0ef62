"""Each view in both themes: axe finds nothing, it fits a narrow window, it is light, nothing jumps."""

from __future__ import annotations

import pytest

from tests.explorer.brokers import ExploredBroker
from tests.explorer.conftest import OpenPage, Visit
from tests.explorer.places import VIEWS, faults_in_both_themes, shown

pytestmark = pytest.mark.page

FIRST_VIEW_BYTES_MAX = 150 * 1024


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_for_everybody(broker: ExploredBroker, visit: Visit, name: str) -> None:
    page = shown(visit(broker.at(VIEWS[name])))
    assert faults_in_both_themes(page) == []
    page.set_viewport_size({"width": 320, "height": 640})
    for element in ("documentElement", "querySelector('main')"):
        assert page.evaluate(f"document.{element}.scrollWidth") <= 320
    page.wait_for_function(
        "() => [...document.querySelectorAll('.table-scroll')]"
        ".every((one) => one.scrollWidth <= one.clientWidth)"
    )
    page.set_viewport_size({"width": 3840, "height": 2160})
    assert page.evaluate("document.documentElement.scrollWidth") <= 3840


@pytest.mark.parametrize(("name", "tab"), [("rules", "Rules"), ("connect", "Python")])
def test_the_current_tab_is_in_sight_and_the_page_at_its_top(
    broker: ExploredBroker, open_page: OpenPage, name: str, tab: str
) -> None:
    page = shown(open_page(broker.at(VIEWS[name]), viewport={"width": 320, "height": 640}))
    found = page.locator(".tab", has_text=tab)
    found.wait_for()
    page.wait_for_function(
        "(tab) => tab.getBoundingClientRect().right <= innerWidth", arg=found.element_handle()
    )
    assert page.evaluate("document.querySelector('main').scrollTop") == 0


@pytest.mark.parametrize("shortcut", ["Control+k", "?"])
def test_a_dialog_is_for_everybody(broker: ExploredBroker, visit: Visit, shortcut: str) -> None:
    page = shown(visit(broker.url))
    page.keyboard.press(shortcut)
    page.wait_for_selector("dialog[open]")
    assert faults_in_both_themes(page) == []
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")


def test_the_first_view_is_light(broker: ExploredBroker, open_page: OpenPage) -> None:
    page = open_page(broker.url)
    page.wait_for_selector(".table-rows .row")
    sizes = page.evaluate(
        "[...performance.getEntriesByType('resource'), ...performance.getEntriesByType('navigation')]"
        ".map((entry) => entry.transferSize)"
    )
    assert 20_000 < sum(sizes) < FIRST_VIEW_BYTES_MAX


def test_nothing_jumps(broker: ExploredBroker, open_page: OpenPage) -> None:
    page = open_page("about:blank")
    page.add_init_script(
        "window.shifts = [];"
        "new PerformanceObserver((list) =>"
        " window.shifts.push(...list.getEntries().map((entry) => entry.value)))"
        ".observe({ type: 'layout-shift', buffered: true });"
    )
    page.goto(broker.url)
    page.wait_for_selector(".table-rows .row")
    broker.send("letters", [{"body": "x"}] * 900)
    page.wait_for_function("() => document.querySelector('.figures').textContent.includes('1,0')")
    assert sum(page.evaluate("window.shifts")) < 0.01
