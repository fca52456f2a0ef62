"""Requests for topics, subscriptions and rules as a playbook: requests in, commands or answers out."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from peeklock.admin.api import Pending, Response
from peeklock.auth import generate
from peeklock.broker.vocabulary.commands import (
    Address,
    AddRule,
    CreateEntity,
    DeleteEntity,
    FindRule,
    ListEntities,
    ListRules,
    LookUp,
    RemoveRule,
    UpdateEntity,
    UpdateRule,
)
from peeklock.broker.vocabulary.descriptions import (
    EntityKind,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.effects import (
    Done,
    EntitiesFound,
    EntityFound,
    EntityView,
    Failed,
    RulesFound,
)
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    EntityAlreadyExists,
    EntityNotFound,
    InvalidOperation,
    RuleAlreadyExists,
    RuleNotFound,
)
from peeklock.rules.filters import SqlFilter, TrueFilter
from tests.admin.asking import ATOM, CONNECT, NOW_MS, PYTHON_ENTRY, REPLY_TO, Client, detail, links

TOPIC = PYTHON_ENTRY.format("<TopicDescription />")
SUBSCRIPTION = PYTHON_ENTRY.format("<SubscriptionDescription />")
RULE = PYTHON_ENTRY.format(
    '<RuleDescription><Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression></Filter>'
    '<Action i:type="EmptyRuleAction" /><Name>r</Name></RuleDescription>'
)


@pytest.fixture
def client() -> Client:
    return Client()


def view(description: Any) -> EntityView:
    return EntityView(1, description, NOW_MS, NOW_MS + 1, 0, 0, 0, 0, 0, 0)


def found(description: Any) -> EntityFound:
    return EntityFound(REPLY_TO, view(description))


def entry(response: Response) -> ElementTree.Element:
    root = ElementTree.fromstring(response.body)
    assert root.tag == f"{ATOM}entry"
    return root


# Topics


def test_the_content_says_whether_a_queue_or_a_topic_is_created(client: Client) -> None:
    """Req: A-01."""
    command = client.command("PUT", "/News%2Feu", TOPIC)
    assert command == CreateEntity(TopicDescription("News/eu"), REPLY_TO)
    queue = client.command("PUT", "/News%2Feu", PYTHON_ENTRY.format("<QueueDescription />"))
    assert queue == CreateEntity(QueueDescription("News/eu"), REPLY_TO)


def test_what_is_there_is_shown_as_what_it_is(client: Client) -> None:
    """Req: A-01. A queue and a topic are looked up in the same way."""
    for description, kind in (
        (QueueDescription("news"), "QueueDescription"),
        (TopicDescription("news"), "TopicDescription"),
    ):
        answer = entry(client.answer("GET", "/news", effect=found(description)))
        assert answer.find(f"{ATOM}content/{CONNECT}{kind}") is not None
        assert answer.findtext(f"{ATOM}title") == "news"


def test_a_topic_is_updated_at_once_when_nothing_is_left_out(client: Client) -> None:
    """Req: A-01, A-07."""
    body = PYTHON_ENTRY.format(
        "<TopicDescription><RequiresDuplicateDetection>true</RequiresDuplicateDetection>"
        "<EnablePartitioning>false</EnablePartitioning><AuthorizationRules/></TopicDescription>"
    )
    assert client.command("PUT", "/news", body, if_match="*") == UpdateEntity(
        TopicDescription("news", requires_duplicate_detection=True), REPLY_TO
    )
    assert (
        client.answer("PUT", "/news", body, if_match="*", effect=found(TopicDescription("news"))).status
        == 200
    )


def test_a_topic_is_looked_up_for_what_an_update_leaves_out(client: Client) -> None:
    """Req: A-01, A-07."""
    first = client.ask("PUT", "/news", TOPIC, if_match="*")
    assert isinstance(first, Pending)
    assert first.command == LookUp(Address("news"), REPLY_TO)
    effect = found(TopicDescription("news", enable_partitioning=True, max_size_mb=2048))
    second = first.render(effect)
    assert isinstance(second, Pending)
    topic = TopicDescription("news", enable_partitioning=True, support_ordering=False)
    assert second.command == UpdateEntity(topic, REPLY_TO, (effect.entity.version,))


@pytest.mark.parametrize("version", ["2017-04", "2021-05", "2024-05"])
def test_counts_of_filters_are_answered_whatever_the_version(client: Client, version: str) -> None:
    """Req: C45. The .NET client asks by 2024-05 for them; who asks by an older one passes over them."""
    about = view(TopicDescription("news"))
    about.sql_filter_count, about.correlation_filter_count = 12, 13
    answer = client.answer("GET", f"/news?api-version={version}", effect=EntityFound(REPLY_TO, about))
    counts = b"<SqlFilterCount>12</SqlFilterCount><CorrelationFilterCount>13</CorrelationFilterCount>"
    assert (answer.status, answer.body.count(counts)) == (200, 1)


def test_topics_are_listed_by_page(client: Client) -> None:
    """Req: A-01."""
    assert client.command("GET", "/$Resources/Topics?$skip=2&$top=1") == ListEntities(
        EntityKind.TOPIC, 2, 1, REPLY_TO
    )
    effect = EntitiesFound(REPLY_TO, [view(TopicDescription("news"))], more=True)
    answer = client.answer("GET", "/$Resources/topics?$skip=2&$top=1", effect=effect)
    assert links(answer)[1].endswith("/$Resources/topics?api-version=2021-05&%24skip=3&%24top=1")
    assert b"<TopicDescription" in answer.body


# Subscriptions


def test_a_subscription_is_created_below_its_topic(client: Client) -> None:
    """Req: A-01."""
    for path in ("/News%2Feu/subscriptions/a", "/News/eu/Subscriptions/a", "/News/eu/SUBSCRIPTIONS/a/"):
        assert client.command("PUT", path, SUBSCRIPTION) == CreateEntity(
            SubscriptionDescription("News/eu", "a"), REPLY_TO
        )


def test_a_subscription_is_created_with_a_rule_of_its_own(client: Client) -> None:
    """Req: A-01, P-03."""
    body = PYTHON_ENTRY.format(
        "<SubscriptionDescription><RequiresSession>true</RequiresSession><DefaultRuleDescription>"
        '<Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression></Filter>'
        '<Action i:type="EmptyRuleAction"/><Name>mine</Name></DefaultRuleDescription>'
        "</SubscriptionDescription>"
    )
    assert client.command("PUT", "/news/subscriptions/a", body) == CreateEntity(
        SubscriptionDescription("news", "a", requires_session=True),
        REPLY_TO,
        RuleDescription("mine", SqlFilter("a = 1")),
    )


def test_a_subscription_is_shown_under_a_capitalised_path(client: Client) -> None:
    """Req: A-01. Source: wire contract 7.2: JavaScript matches `/Subscriptions/` in the id; title = name."""
    description = SubscriptionDescription("news/the eu", "a")
    for method, body, status in (("GET", "", 200), ("PUT", SUBSCRIPTION, 201)):
        answer = client.answer(method, "/news/subscriptions/a", body, effect=found(description))
        assert answer.status == status
        root = entry(answer)
        assert root.findtext(f"{ATOM}title") == "a"
        assert (
            root.findtext(f"{ATOM}id")
            == "https://localhost:5300/news/the%20eu/Subscriptions/a?api-version=2021-05"
        )
        assert root.find(f"{ATOM}content/{CONNECT}SubscriptionDescription") is not None


def test_a_subscription_is_looked_up_updated_and_deleted_by_its_path(client: Client) -> None:
    """Req: A-01, A-07."""
    path = "/news/subscriptions/a"
    assert client.command("GET", path) == LookUp(Address("news/Subscriptions/a"), REPLY_TO)
    assert client.command("DELETE", path) == DeleteEntity("news/Subscriptions/a", REPLY_TO)
    body = PYTHON_ENTRY.format(
        "<SubscriptionDescription><RequiresSession>false</RequiresSession></SubscriptionDescription>"
    )
    assert client.command("PUT", path, body, if_match="*") == UpdateEntity(
        SubscriptionDescription("news", "a"), REPLY_TO
    )
    first = client.ask("PUT", path, SUBSCRIPTION, if_match="*")
    assert isinstance(first, Pending)
    assert first.command == LookUp(Address("news/Subscriptions/a"), REPLY_TO)
    effect = found(SubscriptionDescription("news", "a", requires_session=True))
    second = first.render(effect)
    assert isinstance(second, Pending)
    subscription = SubscriptionDescription("news", "a", requires_session=True)
    assert second.command == UpdateEntity(subscription, REPLY_TO, (effect.entity.version,))


def test_a_topic_s_subscriptions_are_listed_by_page(client: Client) -> None:
    """Req: A-01. Source: wire contract 7.1."""
    for path in ("/News%2Feu/subscriptions", "/News/eu/Subscriptions/"):
        assert client.command("GET", f"{path}?$skip=1&$top=2") == ListEntities(
            EntityKind.SUBSCRIPTION, 1, 2, REPLY_TO, "News/eu"
        )
    entities = [view(SubscriptionDescription("news", name)) for name in "ab"]
    answer = client.answer(
        "GET", "/news/subscriptions?$skip=1&$top=2", effect=EntitiesFound(REPLY_TO, entities, more=True)
    )
    assert links(answer) == [
        "https://localhost:5300/news/Subscriptions?api-version=2021-05&%24skip=1&%24top=2",
        "https://localhost:5300/news/Subscriptions?api-version=2021-05&%24skip=3&%24top=2",
    ]
    titles = ElementTree.fromstring(answer.body).findall(f"{ATOM}entry/{ATOM}title")
    assert [title.text for title in titles] == ["a", "b"]


def test_forwarding_from_a_subscription_needs_send_on_its_target(client: Client) -> None:
    """Req: R-04, F-01."""
    own = generate("https://localhost/news", "root", "key", NOW_MS + 60_000)
    last = generate("sb://localhost/last", "watcher", "key", NOW_MS + 60_000)
    body = PYTHON_ENTRY.format(
        "<SubscriptionDescription><ForwardTo>last</ForwardTo></SubscriptionDescription>"
    )
    path = "/news/subscriptions/a"
    assert client.answer("PUT", path, body, authorization=own).status == 401
    asked = client.ask("PUT", path, body, authorization=own, servicebussupplementaryauthorization=last)
    assert isinstance(asked, Pending)


# Rules


def test_a_rule_is_added_and_updated(client: Client) -> None:
    """Req: A-01, P-03. The name is the path's, decoded."""
    rule = RuleDescription("my r/%", SqlFilter("a = 1"))
    path = "/News%2Feu/subscriptions/a/rules/my%20r%2F%25"
    where = "News/eu/Subscriptions/a"
    assert client.command("PUT", path, RULE) == AddRule(where, rule, REPLY_TO)
    assert client.command("PUT", path, RULE, if_match="*") == UpdateRule(where, rule, REPLY_TO)
    effect = RulesFound(REPLY_TO, [rule])
    assert client.answer("PUT", path, RULE, effect=effect).status == 201
    assert client.answer("PUT", path, RULE, if_match="*", effect=effect).status == 200


def test_a_rule_is_found_and_removed(client: Client) -> None:
    """Req: A-01, P-03."""
    path = "/news/Subscriptions/a/Rules/$Default"
    where = "news/Subscriptions/a"
    assert client.command("GET", path) == FindRule(where, "$Default", REPLY_TO)
    assert client.command("DELETE", path.replace("$", "%24")) == RemoveRule(where, "$Default", REPLY_TO)
    assert client.answer("DELETE", path, effect=Done(REPLY_TO)).status == 200


def test_a_rule_is_shown_under_a_capitalised_path(client: Client) -> None:
    """Req: A-01. Source: wire contract 7.2: JavaScript matches `/Rules/` in the id."""
    effect = RulesFound(REPLY_TO, [RuleDescription("my r", TrueFilter(), None, NOW_MS)])
    root = entry(client.answer("GET", "/news/subscriptions/a/rules/my%20r", effect=effect))
    assert root.findtext(f"{ATOM}title") == "my r"
    where = "https://localhost:5300/news/Subscriptions/a/Rules/my%20r?api-version=2021-05"
    assert root.findtext(f"{ATOM}id") == where
    assert root.findtext(f"{ATOM}published") == "2024-01-01T00:00:00.500Z"
    assert root.find(f"{ATOM}content/{CONNECT}RuleDescription") is not None


def test_rules_are_listed_by_page(client: Client) -> None:
    """Req: A-01, P-03."""
    path = "/news/subscriptions/a/rules"
    command = client.command("GET", f"{path}?$skip=1&$top=2")
    assert command == ListRules("news/Subscriptions/a", 1, 2, REPLY_TO)
    rules = [RuleDescription("$Default"), RuleDescription("r")]
    answer = client.answer("GET", f"{path}?$skip=1&$top=2", effect=RulesFound(REPLY_TO, rules, more=True))
    assert links(answer)[1] == (
        "https://localhost:5300/news/Subscriptions/a/Rules?api-version=2021-05&%24skip=3&%24top=2"
    )
    titles = ElementTree.fromstring(answer.body).findall(f"{ATOM}entry/{ATOM}title")
    assert [title.text for title in titles] == ["$Default", "r"]
    empty = client.answer("GET", path, effect=RulesFound(REPLY_TO, []))
    assert b"<entry" not in empty.body
    assert len(links(empty)) == 1


def test_an_expression_s_error_is_a_400_with_its_place(client: Client) -> None:
    """Req: A-01, P-02."""
    failure = Failed(REPLY_TO, ArgumentInvalid("rule 'r': expected a value at position 5 of 'a = '"))
    answer = client.answer("PUT", "/news/subscriptions/a/rules/r", RULE, effect=failure)
    assert answer.status == 400
    assert detail(answer).startswith("rule 'r': expected a value at position 5 of 'a = '. TrackingId:")


# Names and paths


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/t/subscriptions/subscriptions", LookUp(Address("t/Subscriptions/subscriptions"), REPLY_TO)),
        ("/t/subscriptions/s/rules/rules", FindRule("t/Subscriptions/s", "rules", REPLY_TO)),
        ("/t/subscriptions/s/rules/subscriptions", FindRule("t/Subscriptions/s", "subscriptions", REPLY_TO)),
        (
            "/t/subscriptions/subscriptions/s",
            LookUp(Address("t/subscriptions/Subscriptions/s"), REPLY_TO),
        ),
        ("/t/subscriptions/a%2Fb", LookUp(Address("t/Subscriptions/a/b"), REPLY_TO)),
        ("/subscriptions", LookUp(Address("subscriptions"), REPLY_TO)),
        ("/subscriptions/a", LookUp(Address("subscriptions/a"), REPLY_TO)),
        ("/t/rules/r", LookUp(Address("t/rules/r"), REPLY_TO)),
    ],
)
def test_names_that_look_like_routes_are_names(client: Client, path: str, command: Any) -> None:
    """Req: A-01. Only a topic's name may have a slash in it."""
    assert client.command("GET", path) == command


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "queue or topic"),
        ("/news/subscriptions/", "subscription"),
        ("/news/subscriptions/a/rules", "rule"),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_an_empty_name_is_a_400(client: Client, method: str, path: str, kind: str) -> None:
    """Req: A-01."""
    answer = client.answer(method, path, TOPIC)
    assert answer.status == 400
    assert detail(answer).startswith(f"The name of a {kind} must not be empty. TrackingId:")


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/news", SUBSCRIPTION, "'SubscriptionDescription', not a QueueDescription or TopicDescription"),
        ("/news/subscriptions/a", TOPIC, "'TopicDescription', not a SubscriptionDescription"),
        ("/news/subscriptions/a/rules/r", TOPIC, "'TopicDescription', not a RuleDescription"),
    ],
)
def test_content_of_another_kind_is_a_400(client: Client, path: str, body: str, reason: str) -> None:
    """Req: A-01."""
    for headers in ({}, {"if_match": "*"}):
        answer = client.answer("PUT", path, body, **headers)
        assert answer.status == 400
        assert detail(answer).startswith(f"The content is a {reason}. TrackingId:")


# What the broker refuses


def test_a_look_up_of_an_absent_topic_gives_an_empty_feed(client: Client) -> None:
    """Req: A-01. Source: wire contract 7.2, absent entity."""
    answer = client.answer("GET", "/news", effect=Failed(REPLY_TO, EntityNotFound("gone")))
    assert answer.status == 200
    assert b"Publicly Listed Services" in answer.body


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/news/subscriptions/a", EntityNotFound("gone")),
        ("/news/subscriptions/a/rules/r?enrich=true", RuleNotFound("gone")),
        ("/news/subscriptions/a/rules/r", EntityNotFound("gone")),
    ],
)
def test_a_look_up_of_an_absent_subscription_or_rule_is_a_404(client: Client, path: str, error: Any) -> None:
    """The Java client reads nothing but an entry there; all others take either.

    Req: A-01. Source: azure-messaging-servicebus 7.17.20, `SubscriptionsImpl`, `RulesImpl`.
    """
    assert client.answer("GET", path, effect=Failed(REPLY_TO, error)).status == 404


@pytest.mark.parametrize(
    ("method", "path", "error", "status"),
    [
        ("GET", "/news/subscriptions", EntityNotFound("gone"), 404),
        ("GET", "/news/subscriptions/a/rules", EntityNotFound("gone"), 404),
        ("DELETE", "/news", EntityNotFound("gone"), 404),
        ("DELETE", "/news/subscriptions/a", EntityNotFound("gone"), 404),
        ("DELETE", "/news/subscriptions/a/rules/r", RuleNotFound("gone"), 404),
        ("DELETE", "/news/subscriptions/a", InvalidOperation("locked"), 409),
        ("PUT", "/news/subscriptions/a", EntityNotFound("no such topic"), 404),
        ("PUT", "/news/subscriptions/a", EntityAlreadyExists("taken"), 409),
        ("PUT", "/news/subscriptions/a/rules/r", RuleAlreadyExists("taken"), 409),
    ],
)
def test_a_refusal_has_its_status(client: Client, method: str, path: str, error: Any, status: int) -> None:
    """Req: A-01. Source: wire contract 7.2."""
    body = RULE if "rules" in path else SUBSCRIPTION
    assert client.answer(method, path, body, effect=Failed(REPLY_TO, error)).status == status


def test_a_token_for_a_topic_will_do_for_what_belongs_to_it(client: Client) -> None:
    """Req: R-04."""
    token = generate("https://localhost/news", "root", "key", NOW_MS + 60_000)
    for path in ("/news", "/news/subscriptions/a", "/news/subscriptions/a/rules/r"):
        assert isinstance(client.ask("GET", path, authorization=token), Pending)
    for path in ("/newsletter", "/other/subscriptions/a", "/$Resources/topics"):
        assert client.answer("GET", path, authorization=token).status == 401
