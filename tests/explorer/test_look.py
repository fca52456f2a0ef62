"""Each view in both themes: axe finds nothing, it fits a narrow window, and it is light to load."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.explorer.brokers import ExploredBroker
from tests.explorer.conftest import OpenPage
from tests.explorer.places import VIEWS

pytestmark = pytest.mark.page

FIRST_VIEW_BYTES_MAX = 150 * 1024


def shown(page: Page) -> Page:
    """Wait until a view is drawn."""
    page.wait_for_selector("h1")
    page.wait_for_function("!document.querySelector('main [aria-busy=true]')")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", VIEWS)
def test_axe_finds_nothing(broker: ExploredBroker, open_page: OpenPage, name: str, scheme: str) -> None:
    page = shown(open_page(broker.at(VIEWS[name]), color_scheme=scheme))
    faults = Axe().run(page).response["violations"]
    assert [(fault["id"], [node["html"] for node in fault["nodes"]]) for fault in faults] == []


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_fits_320_pixels(broker: ExploredBroker, open_page: OpenPage, name: str) -> None:
    page = shown(open_page(broker.at(VIEWS[name]), viewport={"width": 320, "height": 640}))
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    assert page.evaluate("document.querySelector('main').scrollWidth") <= 320


def test_the_first_view_is_light(broker: ExploredBroker, open_page: OpenPage) -> None:
    page = shown(open_page(broker.url))
    sizes = page.evaluate(
        "[...performance.getEntriesByType('resource'), ...performance.getEntriesByType('navigation')]"
        ".map((entry) => entry.transferSize)"
    )
    assert 20_000 < sum(sizes) < FIRST_VIEW_BYTES_MAX
