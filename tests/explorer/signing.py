"""Signing in to the page of a broker that asks for keys."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.explorer.brokers import ExploredBroker
from tests.explorer.conftest import OpenPage


def connection_string(broker: ExploredBroker, key_name: str) -> str:
    """Return the connection string of a key of the broker's."""
    keys = {key["name"]: key["primaryKey"] for key in broker.api("GET", "keys")["keys"]}
    return (
        f"Endpoint=sb://localhost:{broker.http_port}/;SharedAccessKeyName={key_name};"
        f"SharedAccessKey={keys[key_name]};UseDevelopmentEmulator=true"
    )


def open_signed_in(
    open_page: OpenPage,
    broker: ExploredBroker,
    place: str,
    key_name: str = "RootManageSharedAccessKey",
    expected: tuple[str, ...] = (),
) -> Page:
    """Open a place of the page, signed in with a key."""
    page = open_page(broker.at(place), expected=expected)
    page.get_by_label("Connection string or token").fill(connection_string(broker, key_name))
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("main h1")).to_be_visible()
    return page
