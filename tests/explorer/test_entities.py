"""Rules, settings, entities and their sessions: each action in the page, and its effect on the broker."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.management import CorrelationRuleFilter, ServiceBusAdministrationClient
from playwright.sync_api import Page, expect

from tests.explorer.brokers import ExploredBroker
from tests.explorer.conftest import OpenPage, Visit
from tests.explorer.places import faults_in_both_themes

pytestmark = pytest.mark.page

BILLING = "events/subscriptions/billing"
GUID = "6a0ba7a6-2ae8-4a8d-a8ad-93e1bd8ba9ff"
HOSTILE = "<img src=x onerror=\"document.title='run'\">\u202egnp\u0000"


def path_of(entity: str) -> str:
    return f"entities/{quote(entity, safe='')}"


def settings_of(broker: ExploredBroker, entity: str) -> dict[str, object]:
    return dict(broker.api("GET", path_of(entity))["settings"])


def rules_of(broker: ExploredBroker, entity: str) -> dict[str, dict[str, object]]:
    rules = broker.api("GET", f"{path_of(entity)}/rules")["rules"]
    return {
        rule["name"]: {name: rule[name] for name in ("filter", "action") if name in rule} for rule in rules
    }


def open_rules(visit: Visit, broker: ExploredBroker, entity: str = BILLING) -> Page:
    return visit(broker.at(f"{path_of(entity)}/rules"))


def test_a_rule_is_checked_while_it_is_typed_and_decides_once_it_is_added(
    broker: ExploredBroker, visit: Visit
) -> None:
    page = open_rules(visit, broker)
    page.get_by_role("button", name="New rule").click()
    page.get_by_label("Name of the rule").fill("north")
    page.get_by_role("button", name="SQL filter").click()
    page.get_by_label("Filter", exact=True).fill("region = 'nördlich' AND (amount > > 100)")
    place = page.locator(".place")
    expect(place).to_contain_text("character 35")
    expect(place.locator("mark")).to_have_text(">")
    expect(page.get_by_role("button", name="Add the rule")).to_be_disabled()
    place.click()
    selected = "[document.activeElement.selectionStart, document.activeElement.selectionEnd]"
    assert page.evaluate(selected) == [34, 35]
    page.get_by_label("Filter", exact=True).fill("region = 'nördlich'")
    page.get_by_label("Action (optional)").fill("SET noted = ")
    expect(page.locator(".place")).to_be_visible()
    page.get_by_label("Action (optional)").fill("SET noted = 1")
    expect(page.get_by_text("the rule is good")).to_be_visible()
    page.get_by_role("button", name="Add the rule").click()
    expect(page.get_by_role("region", name="Rule north")).to_contain_text("region = 'nördlich'")
    expected = {"filter": {"sql": "region = 'nördlich'"}, "action": "SET noted = 1"}
    assert rules_of(broker, BILLING)["north"] == expected
    before = broker.api("GET", path_of(BILLING))["counts"]["active"]
    broker.send("events", [{"body": "a", "properties": {"region": "nördlich"}}])
    assert broker.api("GET", path_of(BILLING))["counts"]["active"] == before + 1


def test_a_rule_becomes_a_correlation_filter_with_values_of_other_types(
    broker: ExploredBroker, open_page: OpenPage
) -> None:
    broker.api("PUT", f"{path_of('alerts/subscriptions/on-call')}/rules/mine", {"filter": {"sql": "a = 1"}})
    page = open_rules(open_page, broker, "alerts/subscriptions/on-call")
    rule = page.get_by_role("region", name="Rule mine")
    rule.get_by_role("button", name="Edit").click()
    page.get_by_role("button", name="Correlation filter").click()
    page.get_by_label("Subject").fill("alarm")
    for name, kind, value in (
        ("level", "number", "3"),
        ("id", "guid", "6a0ba7a6-2ae8-4a8d-a8ad-93e1bd8ba9ff"),
    ):
        page.get_by_role("button", name="Add a property").click()
        page.get_by_label("Name of the property").last.fill(name)
        page.get_by_label("Type of the property").last.select_option(kind)
        page.get_by_label("Value of the property").last.fill(value)
    page.get_by_role("button", name="Save").click()
    expect(rule).to_contain_text("'alarm'")
    expect(rule).to_contain_text(f"{GUID} (guid)")
    administration = broker.connection_string.replace(f":{broker.amqp_port};", f":{broker.http_port};")
    with ServiceBusAdministrationClient.from_connection_string(
        administration, connection_verify=str(broker.authority())
    ) as client:
        found = client.get_rule("alerts", "on-call", "mine").filter
    assert isinstance(found, CorrelationRuleFilter)
    assert found.label == "alarm"
    assert {name: str(value) for name, value in (found.properties or {}).items()} == {
        "level": "3",
        "id": GUID,
    }


def test_a_rule_of_somebody_who_was_faster_is_not_replaced_unseen(
    broker: ExploredBroker, visit: Visit
) -> None:
    page = open_rules(visit, broker)
    page.get_by_role("button", name="New rule").click()
    page.get_by_label("Name of the rule").fill("both")
    expect(page.get_by_text("the rule is good")).to_be_visible()
    broker.api("PUT", f"{path_of(BILLING)}/rules/both", {"filter": {"sql": "theirs = 1"}})
    page.get_by_role("button", name="Add the rule").click()
    expect(page.get_by_role("dialog").get_by_role("alert").first).to_be_visible()
    assert rules_of(broker, BILLING)["both"] == {"filter": {"sql": "theirs = 1"}}
    page.keyboard.press("Escape")
    rule = page.get_by_role("region", name="Rule both")
    rule.get_by_role("button", name="Edit").click()
    page.get_by_label("Filter", exact=True).fill("mine = 1")
    broker.api("PUT", f"{path_of(BILLING)}/rules/both", {"filter": {"sql": "theirs = 2"}})
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("Somebody else was faster")
    assert rules_of(broker, BILLING)["both"] == {"filter": {"sql": "theirs = 2"}}
    page.get_by_role("button", name="Save").click()
    expect(rule).to_contain_text("mine = 1")
    assert rules_of(broker, BILLING)["both"] == {"filter": {"sql": "mine = 1"}}


def test_the_last_rule_is_deleted_with_a_warning(broker: ExploredBroker, visit: Visit) -> None:
    broker.api("PUT", path_of("alerts/subscriptions/once"), {"kind": "subscription"})
    page = open_rules(visit, broker, "alerts/subscriptions/once")
    page.get_by_role("region", name="Rule $Default").get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("It is the last rule")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("The subscription gets no messages.")).to_be_visible()
    assert rules_of(broker, "alerts/subscriptions/once") == {}


def test_a_rule_is_added_with_the_keyboard_alone(broker: ExploredBroker, visit: Visit) -> None:
    page = open_rules(visit, broker, "alerts/subscriptions/on-call")
    expect(page.get_by_role("button", name="New rule")).to_be_visible()
    page.keyboard.press("n")
    expect(page.get_by_label("Name of the rule")).to_be_focused()
    page.keyboard.type("by-key")
    for _ in range(2):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # "SQL filter"
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.type("x = 1")
    expect(page.get_by_text("the rule is good")).to_be_visible()
    page.get_by_label("Name of the rule").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Rule by-key")).to_be_visible()
    assert rules_of(broker, "alerts/subscriptions/on-call")["by-key"] == {"filter": {"sql": "x = 1"}}


def test_a_queue_is_made_with_its_settings_and_deleted_by_its_name(
    broker: ExploredBroker, visit: Visit
) -> None:
    page = visit(broker.at("create"))
    page.get_by_label("Name", exact=True).fill("made/here")
    page.get_by_label("Lock duration", exact=True).fill("30")
    page.get_by_label("Unit of Lock duration").select_option("1")
    page.get_by_label("Unit of Default time to live").select_option("86400")
    page.get_by_label("Default time to live", exact=True).fill("14")
    page.get_by_label("Require sessions").check()
    page.get_by_label("Detect duplicates").check()
    page.get_by_label("Window", exact=True).fill("5")
    page.get_by_label("Forward dead letters to").fill("letters")
    page.get_by_label("Note").fill(HOSTILE.replace("\u0000", ""))
    page.get_by_role("button", name="Create the queue").click()
    expect(page.locator("h1")).to_contain_text("made/here")
    found = settings_of(broker, "made/here")
    expected = {
        "lockDuration": 30,
        "defaultTimeToLive": 14 * 86400,
        "requiresSession": True,
        "requiresDuplicateDetection": True,
        "duplicateDetectionWindow": 300,
        "forwardDeadLetteredTo": "letters",
        "userMetadata": HOSTILE.replace("\u0000", ""),
    }
    assert {name: found[name] for name in expected} == expected
    page.get_by_role("link", name="Settings").click()
    expect(page.get_by_label("Note")).to_have_value(HOSTILE.replace("\u0000", ""))
    expect(page.get_by_label("Require sessions")).to_be_disabled()
    page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    confirm = dialog.get_by_role("button", name="Delete it for good")
    dialog.get_by_role("textbox").fill("made/her")
    expect(confirm).to_be_disabled()
    dialog.get_by_role("textbox").fill("made/here")
    confirm.click()
    expect(page.locator("h1")).to_have_text("Overview")
    assert "made/here" not in [one["name"] for one in broker.api("GET", "entities")["entities"]]


def test_a_name_that_is_taken_is_refused_and_leads_to_its_entity(
    broker: ExploredBroker, visit: Visit
) -> None:
    page = visit(broker.at("create"), expected=("409",))
    page.get_by_role("button", name="Topic Each").click()
    page.get_by_label("Name", exact=True).fill("orders")
    page.get_by_role("button", name="Create the topic").click()
    expect(page.get_by_role("alert")).to_contain_text("orders")
    page.get_by_role("link", name="Open orders").click()
    expect(page.locator("h1")).to_contain_text("orders")


def test_a_subscription_is_made_with_its_first_rule(broker: ExploredBroker, visit: Visit) -> None:
    page = visit(broker.at("entities/events/subscriptions"))
    page.get_by_role("link", name="New subscription").click()
    page.get_by_label("Name", exact=True).fill("large")
    page.get_by_role("button", name="SQL filter").click()
    page.get_by_label("Filter", exact=True).fill("amount > @least")
    page.get_by_role("button", name="Add a parameter").click()
    page.get_by_label("Name of the parameter").fill("@least")
    page.get_by_label("Type of the parameter").select_option("number")
    page.get_by_label("Value of the parameter").fill("1000")
    expect(page.get_by_text("the rule is good")).to_be_visible()
    page.get_by_role("button", name="Create the subscription").click()
    expect(page.locator("h1")).to_contain_text("large")
    expected = {"$Default": {"filter": {"sql": "amount > @least", "parameters": {"@least": 1000}}}}
    assert rules_of(broker, "events/subscriptions/large") == expected
    page.get_by_role("link", name="events", exact=True).click()
    expect(page.get_by_role("grid", name="Subscriptions")).to_contain_text("large")


def test_a_setting_is_changed_and_who_was_faster_is_told(broker: ExploredBroker, visit: Visit) -> None:
    page = visit(broker.at("entities/letters/settings"), expected=("400",))
    count = page.get_by_label("Maximum delivery count")
    count.fill("7")
    expect(page.get_by_role("group", name="Changes")).to_contain_text("Maximum delivery count 10 → 7")
    broker.api("PATCH", "entities/letters", {"settings": {"maxDeliveryCount": 5, "lockDuration": 20}})
    expect(page.get_by_text("Meanwhile somebody has set it to: 5.")).to_be_visible()
    page.get_by_label("Unit of Delete when idle").select_option("60")
    page.get_by_role("button", name="Save").click()  # one minute is too short
    expect(page.get_by_role("group", name="Changes").get_by_role("alert")).to_contain_text("AutoDeleteOnIdle")
    assert settings_of(broker, "letters")["maxDeliveryCount"] == 5
    page.get_by_label("Delete when idle", exact=True).fill("10")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("group", name="Changes")).to_be_hidden()
    found = settings_of(broker, "letters")
    assert (found["maxDeliveryCount"], found["lockDuration"], found["autoDeleteOnIdle"]) == (7, 20, 600)
    page.get_by_label("Unit of Delete when idle").select_option("unlimited")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("group", name="Changes")).to_be_hidden()
    assert "autoDeleteOnIdle" not in settings_of(broker, "letters")


def test_the_sessions_show_what_they_have_and_hostile_ids_as_text(
    broker: ExploredBroker, open_page: OpenPage
) -> None:
    broker.send("invoices", [{"body": HOSTILE, "subject": HOSTILE, "sessionId": HOSTILE}])
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver("invoices", session_id="invoice-3") as receiver,
    ):
        receiver.session.set_state(b'{"step": 3}')
        page = open_page(broker.at("entities/invoices/sessions"))
        grid = page.get_by_role("grid", name="Sessions")
        expect(grid.get_by_role("row").filter(has_text="invoice-3")).to_contain_text("4 active")
        grid.get_by_text("invoice-3").click()
        session = page.get_by_role("region", name="Session", exact=True)
        expect(session).to_contain_text("RootManageSharedAccessKey on connection")
        expect(page.get_by_role("region", name="State", exact=True).first).to_contain_text('"step": 3')
        page.get_by_role("tab", name="Hex").click()
        expect(page.get_by_role("region", name="State", exact=True).first).to_contain_text("7b 22 73 74")
        expect(page.get_by_role("button", name="Edit")).to_have_count(0)
        session.get_by_role("link").click()
        expect(page.get_by_role("dialog").get_by_role("grid", name="Links")).to_contain_text("invoice-3")
        page.go_back()
    grid.get_by_text("onerror").click()
    expect(page.get_by_role("region", name="Messages", exact=True)).to_contain_text("\\u202egnp\\x00")
    assert "run" not in page.title()
    expect(page.locator("main img")).to_have_count(0)


def test_a_state_is_set_by_who_has_seen_the_last_one_and_cleared(
    broker: ExploredBroker, visit: Visit
) -> None:
    path = "entities/invoices/sessions/invoice-4"
    broker.api("PUT", f"{path}/state", {"state": "one"})
    page = visit(broker.at("entities/invoices/sessions?session=invoice-4"))
    state = page.get_by_role("region", name="State", exact=True).first
    state.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("State", exact=True)).to_have_value("one")
    broker.api("PUT", f"{path}/state", {"state": "two"})
    dialog.get_by_label("State", exact=True).fill('{"mine": 1}')
    expect(dialog).to_contain_text("It is JSON.")
    dialog.get_by_role("button", name="Save the state").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Somebody else was faster")
    assert broker.api("GET", path)["state"] == {"body": "two"}
    dialog.get_by_role("button", name="Base64").click()
    expect(dialog.get_by_label("State", exact=True)).to_have_value("eyJtaW5lIjogMX0=")
    dialog.get_by_role("button", name="Save the state").click()
    expect(state).to_contain_text('"mine": 1')
    assert broker.api("GET", path)["state"] == {"body": '{"mine": 1}'}
    state.get_by_role("button", name="Clear").click()
    page.get_by_role("dialog").get_by_role("button", name="Clear").click()
    expect(state).to_contain_text("None is set.")
    assert "state" not in broker.api("GET", path)


def test_a_form_outlives_a_restart_of_the_broker(broker: ExploredBroker, visit: Visit) -> None:
    page = visit(broker.at("entities/reminders/settings"), expected=("ERR_", "503", "Failed to load"))
    page.get_by_label("Maximum delivery count").fill("4")
    broker.kill()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("group", name="Changes").get_by_role("alert")).to_contain_text("does not answer")
    broker.start()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("group", name="Changes")).to_be_hidden()
    assert settings_of(broker, "reminders")["maxDeliveryCount"] == 4


def test_the_dialogs_are_for_everybody(broker: ExploredBroker, visit: Visit) -> None:
    page = open_rules(visit, broker)
    page.get_by_role("button", name="New rule").click()
    page.get_by_role("button", name="Correlation filter").click()
    page.get_by_role("button", name="Add a property").click()
    assert faults_in_both_themes(page) == []
    page.get_by_role("button", name="SQL filter").click()
    page.get_by_label("Filter", exact=True).fill("a = = 1")
    expect(page.locator(".place")).to_be_visible()
    assert faults_in_both_themes(page) == []
    page.keyboard.press("Escape")
    page.evaluate("location.hash = '#/entities/letters/settings'")
    page.get_by_label("Maximum delivery count").fill("8")
    page.get_by_role("button", name="Delete").click()
    assert faults_in_both_themes(page) == []
