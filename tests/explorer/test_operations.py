"""Keys, connections and namespaces of a broker that asks for keys; what is not offered without Manage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from playwright.sync_api import expect

from tests.explorer.brokers import ExploredBroker
from tests.explorer.conftest import OpenPage
from tests.explorer.signing import connection_string, open_signed_in

pytestmark = pytest.mark.page


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExploredBroker]:
    with ExploredBroker(tmp_path_factory.mktemp("broker"), ["--auth=sas", "--throw-away=2"]) as started:
        started.fill()
        yield started


def keys_of(broker: ExploredBroker) -> dict[str, dict[str, object]]:
    return {key["name"]: key for key in broker.api("GET", "keys")["keys"]}


def new_key(broker: ExploredBroker, name: str, rights: str) -> str:
    """Make a key over the control socket; return its name."""
    broker.api("PUT", f"keys/{name}?rights={rights}")
    return name


def client_of(broker: ExploredBroker, key_name: str) -> ServiceBusClient:
    named = connection_string(broker, key_name).replace(f":{broker.http_port}/", f":{broker.amqp_port}/")
    return ServiceBusClient.from_connection_string(named, retry_total=0)


def test_a_key_is_made_hidden_shown_rotated_and_removed(broker: ExploredBroker, open_page: OpenPage) -> None:
    page = open_signed_in(open_page, broker, "keys")
    expect(page.get_by_role("button", name="New key")).to_be_visible()
    page.keyboard.press("n")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("reports")
    dialog.get_by_label("Send").uncheck()
    page.keyboard.press("Tab")
    dialog.get_by_role("button", name="Make the key").click()
    shown = page.get_by_role("region", name="Key reports")
    expect(shown).to_be_visible()
    made = keys_of(broker)["reports"]
    assert made["rights"] == ["Listen"]
    primary, secondary = str(made["primaryKey"]), str(made["secondaryKey"])
    assert primary not in page.content()
    shown.get_by_role("button", name="Show the primary key of reports").click()
    expect(shown).to_contain_text(primary)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown.get_by_title("Copy the connection string with the secondary key of reports").click()
    expect(page.get_by_text("Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(f"Endpoint=sb://localhost:{broker.http_port}/;SharedAccessKeyName=reports;")
    assert secondary in copied
    shown.get_by_role("button", name="Rotate").click()
    page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    expect(shown).not_to_contain_text(primary)
    rotated = keys_of(broker)["reports"]
    assert rotated["secondaryKey"] == primary
    assert rotated["primaryKey"] not in (primary, secondary)
    shown.get_by_role("button", name="Remove").click()
    confirm = page.get_by_role("dialog").get_by_role("button", name="Remove")
    expect(confirm).to_be_disabled()
    page.get_by_role("dialog").get_by_role("textbox").fill("reports")
    page.keyboard.press("Enter")
    expect(shown).to_have_count(0)
    assert "reports" not in keys_of(broker)


def test_who_rotates_the_own_key_stays_signed_in(broker: ExploredBroker, open_page: OpenPage) -> None:
    key = new_key(broker, "admin", "Send,Listen,Manage")
    page = open_signed_in(open_page, broker, "keys", key)
    shown = page.get_by_role("region", name=f"Key {key}")
    shown.get_by_role("button", name="Rotate").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("The page goes on with the new one")
    dialog.get_by_label("Replace both keys").check()
    dialog.get_by_role("button", name="Replace both keys").click()
    expect(dialog).to_have_count(0)
    page.evaluate("location.hash = '#/namespaces'")
    expect(page.get_by_role("region", name="Namespace sbemulatorns")).to_be_visible()


def test_what_the_rights_do_not_allow_is_not_offered(broker: ExploredBroker, open_page: OpenPage) -> None:
    key = new_key(broker, "listener", "Listen")
    page = open_signed_in(open_page, broker, "entities/orders/settings", key)
    expect(page.get_by_text("To change them needs Manage.")).to_be_visible()
    expect(page.get_by_label("Maximum delivery count")).to_be_disabled()
    expect(page.get_by_role("button", name="Delete")).to_have_count(0)
    for name in ("Keys", "Namespaces", "Connections"):
        expect(page.get_by_role("navigation", name="Main").get_by_role("link", name=name)).to_have_count(0)
    page.evaluate("location.hash = '#/entities/events%2Fsubscriptions%2Fbilling/rules'")
    expect(page.get_by_text("Rules need a key with Manage on the subscription.")).to_be_visible()
    page.evaluate("location.hash = '#/entities/events/match'")
    expect(page.get_by_text("Rules need a key with Manage on the topic.")).to_be_visible()
    expect(page.get_by_role("link", name="Why did it not arrive?")).to_have_count(0)
    page.evaluate("location.hash = '#/create'")
    expect(page.get_by_text("To create an entity needs a key with Manage.")).to_be_visible()


def test_a_right_that_ends_in_mid_action_signs_out_and_changes_nothing(
    broker: ExploredBroker, open_page: OpenPage
) -> None:
    key = new_key(broker, "passing", "Manage,Send,Listen")
    place = "entities/events%2Fsubscriptions%2Fbilling/rules"
    page = open_signed_in(open_page, broker, place, key, expected=("401",))
    page.get_by_role("region", name="Rule large").get_by_role("button", name="Delete").click()
    broker.api("DELETE", f"keys/{key}")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Sign in to peeklock")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_visible()
    rules = broker.api("GET", f"{place}")["rules"]
    assert [rule["name"] for rule in rules] == ["large"]


def test_a_job_stops_with_the_key_of_who_started_it_and_goes_on_for_another_one(
    broker: ExploredBroker, open_page: OpenPage
) -> None:
    key = new_key(broker, "clerk", "Send,Listen")
    page = open_signed_in(open_page, broker, "entities/orders/dead-letters", key, expected=("401",))
    page.get_by_role("button", name="Send back…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("At most per second").fill("3")
    dialog.get_by_role("button", name="Send back 12").click()
    expect(dialog).to_contain_text("The broker goes on when this tab is closed.")
    broker.api("DELETE", f"keys/{key}")
    expect(page.get_by_role("heading", name="Sign in to peeklock")).to_be_visible()
    page = open_signed_in(open_page, broker, "jobs")
    row = page.get_by_role("grid", name="Jobs").get_by_role("row").filter(has_text=key)
    expect(row).to_contain_text("at most 3.0/s")
    row.click()
    resume = page.get_by_role("button", name="Resume")
    expect(resume).to_be_visible()
    counts = broker.api("GET", "entities/orders")["counts"]
    assert counts["deadLetter"] > 0
    assert counts["deadLetter"] + counts["active"] == 60
    resume.click()
    expect(page.locator("h1")).to_contain_text("done")
    expect(page.get_by_text("RootManageSharedAccessKey").last).to_be_visible()
    counts = broker.api("GET", "entities/orders")["counts"]
    assert (counts["active"], counts["deadLetter"]) == (60, 0)


def test_a_connection_shows_what_it_does_and_is_closed(broker: ExploredBroker, open_page: OpenPage) -> None:
    key = new_key(broker, "worker", "Send,Listen")
    with client_of(broker, key) as client, client.get_queue_sender("letters") as sender:
        sender.send_messages(ServiceBusMessage("a"))
        page = open_signed_in(open_page, broker, "connections")
        row = page.get_by_role("grid", name="Connections").get_by_role("row").filter(has_text="worker")
        expect(row).to_contain_text("letters")
        row.click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("grid", name="Links")).to_contain_text("letters")
        dialog.get_by_role("button", name="Close the connection").click()
        expect(page.get_by_role("dialog")).to_contain_text("amqp:connection:forced")
        page.get_by_role("dialog").get_by_role("button", name="Close it").click()
        expect(row).to_have_count(0)
        expect(page.get_by_text("Nobody is connected")).to_be_visible()


def test_a_namespace_for_tests_is_made_reset_moved_in_time_and_ended(
    broker: ExploredBroker, open_page: OpenPage
) -> None:
    page = open_signed_in(open_page, broker, "namespaces")
    page.get_by_role("button", name="New namespace").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Throw-away, for tests").click()
    dialog.get_by_label("Name", exact=True).fill("tryout")
    dialog.get_by_label("Configuration").fill('{"UserConfig": ')
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("not JSON")
    dialog.get_by_label("Configuration").fill(
        '{"UserConfig": {"Namespaces": [{"Name": "x", "Queues": [{"Name": "inbox"}]}]}}'
    )
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("dialog")).to_contain_text("SharedAccessKeyName=tryout")
    page.get_by_role("button", name="Done").click()
    shown = page.get_by_role("region", name="Namespace tryout")
    expect(shown).to_contain_text("PT10M")
    shown.get_by_role("button", name="Move the clock").click()
    page.get_by_role("dialog").get_by_role("button", name="Move it").click()
    expect(page.get_by_text("Its clock shows")).to_be_visible()
    shown.get_by_role("button", name="Reset").click()
    page.get_by_role("dialog").get_by_role("button", name="Reset").click()
    expect(page.get_by_text("tryout is reset")).to_be_visible()
    own = page.get_by_role("region", name="Namespace sbemulatorns")
    expect(own.get_by_role("button")).to_have_count(0)
    shown.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("tryout")
    page.get_by_role("dialog").get_by_role("button", name="Delete it for good").click()
    expect(shown).to_have_count(0)
    assert [one["name"] for one in broker.api("GET", "namespaces")["namespaces"]] == ["sbemulatorns"]
