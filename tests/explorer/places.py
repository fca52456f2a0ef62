"""The places of the page that every test of its look visits."""

from __future__ import annotations

from pathlib import Path

import axe_playwright_python
from playwright.sync_api import Page

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
RUN = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.map((fault) => [fault.id, fault.nodes.map((node) => node.html)]);
}"""
"""All rules; what they find nothing in is not described, which takes as long as to find it."""

VIEWS = {
    "overview": "",
    "search": "search",
    "jobs": "jobs",
    "connections": "connections",
    "namespaces": "namespaces",
    "keys": "keys",
    "connect": "connect",
    "create": "create",
    "subscriptions": "entities/events/subscriptions",
    "messages": "entities/orders/messages",
    "message": "entities/orders/messages/20",
    "dead-letter": "entities/orders%2F$deadletterqueue/messages/2",
    "search-one": "entities/orders/search?jsonPath=$.amount > 500",
    "dead-letters": "entities/orders/dead-letters",
    "dead-letters-all": "dead-letters",
    "sessions": "entities/invoices/sessions?session=invoice-1",
    "rules": "entities/events%2Fsubscriptions%2Fbilling/rules",
    "match": "entities/events/match",
    "settings": "entities/orders/settings",
}
"""Place by the name of its screenshot. The broker is `ExploredBroker` after `fill`."""


def shown(page: Page) -> Page:
    """Wait until a view is drawn."""
    page.wait_for_selector("h1")
    page.wait_for_function("() => !document.querySelector('main [aria-busy=true]')")
    return page


def faults(page: Page) -> list[tuple[str, list[str]]]:
    """Return what axe finds in a page: the rule, and the elements."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    return [(rule, elements) for rule, elements in page.evaluate(RUN)]


def faults_in_both_themes(page: Page) -> list[tuple[str, list[str]]]:
    """Return what axe finds in a page in its light and its dark theme."""
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found += faults(page)
    return found
