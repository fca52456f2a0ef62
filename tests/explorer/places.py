"""The places of the page that every test of its look visits."""

from __future__ import annotations

from playwright.sync_api import Page

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
    "sessions": "entities/invoices/sessions",
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
