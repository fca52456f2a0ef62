"""A real broker and a real Chromium. An error of the console or a violation of the policy fails a test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect, sync_playwright

from tests.explorer.brokers import ExploredBroker
from tests.explorer.chromium import launch, watch

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
"""The shell draws no window of its own around each page, which costs more than the page does."""

TEXT_MAX = 2000
"""Characters of a page that a failure shows."""

SIZE: ViewportSize = {"width": 1280, "height": 800}
OpenPage = Callable[..., Page]
Visit = Callable[..., Page]

expect.set_options(timeout=20_000)  # other tests keep the machine busy


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium, once for all tests."""
    if CHROMIUM is None:
        # The reason: the page needs a browser, which no package of Python brings; CI installs Debian's.
        pytest.skip("no chromium here: apt-get install chromium-headless-shell")
    with sync_playwright() as playwright:
        started = launch(playwright, CHROMIUM)
        yield started
        started.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExploredBroker]:
    """A broker in development mode with some of everything, for the tests of a module."""
    with ExploredBroker(tmp_path_factory.mktemp("broker")) as started:
        started.fill()
        yield started


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open a page at an address; options are of a browser's context. What went wrong in it fails the test."""
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def opened(url: str, *, expected: tuple[str, ...] = (), **options: Any) -> Page:
        context = browser.new_context(**{"viewport": SIZE, **options})
        contexts.append(context)
        page = context.new_page()
        watch(page, faults, expected)
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        for page in context.pages:
            tell(page)
        context.close()
    assert faults == []


class SharedPage:
    """A page that the tests of a module share: to load it takes five times as long as to go on in it."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._page: Page | None = None
        self.faults: list[str] = []
        self.expected: list[str] = []

    def show(self, url: str, expected: tuple[str, ...]) -> Page:
        """Go to a place, as somebody who comes from another one."""
        self.expected += expected
        if self._page is None:
            self._page = self._browser.new_context(viewport=SIZE).new_page()
            watch(self._page, self.faults, self.expected)
        else:
            self._page.goto(f"{url.partition('#')[0]}#/elsewhere")
            self._page.wait_for_selector("text=There is no such page")
        self._page.goto(url)
        return self._page

    def leave(self, *, is_sound: bool) -> None:
        """Make the page what it was; `is_sound`: the test that used it has passed."""
        if self._page is None:
            return
        tell(self._page)
        if is_sound and not self.faults:
            self._page.set_viewport_size(SIZE)
            self._page.emulate_media(color_scheme="null")
            self._page.unroute_all()
        else:
            self.close()
        self.expected.clear()

    def close(self) -> None:
        """Close the page; the next test opens another one."""
        if self._page is not None:
            self._page.context.close()
            self._page = None


@pytest.fixture(scope="module")
def shared_page(browser: Browser) -> Iterator[SharedPage]:
    """The page of a module, for `visit`."""
    shared = SharedPage(browser)
    yield shared
    shared.close()


@pytest.fixture
def visit(shared_page: SharedPage, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """Show a place in the page that the tests of a module share. What went wrong in it fails the test.

    For tests that leave nothing in the tab: who is signed in, a theme, templates. They have `open_page`.
    """
    failed = request.session.testsfailed

    def shown(url: str, *, expected: tuple[str, ...] = ()) -> Page:
        return shared_page.show(url, expected)

    yield shown
    faults = [*shared_page.faults]
    shared_page.leave(is_sound=request.session.testsfailed == failed)
    shared_page.faults.clear()
    assert faults == []


def tell(page: Page) -> None:
    """Print a page: pytest shows it if the test fails."""
    print(page.url, page.locator("body").inner_text()[:TEXT_MAX], sep="\n")
