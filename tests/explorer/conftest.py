"""A real broker and a real Chromium. An error of the console or a violation of the policy fails a test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.explorer.brokers import ExploredBroker
from tests.explorer.chromium import launch, watch

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
"""The shell draws no window of its own around each page, which costs more than the page does."""

TEXT_MAX = 2000
"""Characters of a page that a failure shows."""

OpenPage = Callable[..., Page]

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
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        watch(page, faults, expected)
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        for page in context.pages:  # pytest shows it if the test fails
            print(page.url, page.locator("body").inner_text()[:TEXT_MAX], sep="\n")
        context.close()
    assert faults == []
