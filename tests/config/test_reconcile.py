"""What a configuration file asks of the broker."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.broker.entities.validation import checked
from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.commands import (
    AddRule,
    Command,
    CreateEntity,
    LockToken,
    RemoveRule,
    ReplyTo,
    UpdateEntity,
    UpdateRule,
)
from peeklock.broker.vocabulary.descriptions import (
    UNLIMITED_MS,
    AuthorizationRule,
    Description,
    EntityStatus,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.effects import Done, EntityFound, EntityView, RulesFound
from peeklock.broker.vocabulary.quotas import BASIC, PREMIUM, STANDARD, TierLimits
from peeklock.config.file import Config, format_config, parse_config
from peeklock.config.form import ConfigError
from peeklock.config.hosts import HostNames
from peeklock.config.reconcile import EntityStep, counted, reconcile
from peeklock.rules.filters import (
    AsGiven,
    CorrelationFilter,
    FalseFilter,
    Filter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)

REPLY_TO = ReplyTo(0, 0, 1)
HOSTS = HostNames(["broker.lan"])
QUEUE = "UserConfig.Namespaces[0].Queues[0]"
TOPIC = "UserConfig.Namespaces[0].Topics[0]"
SUBSCRIPTION = f"{TOPIC}.Subscriptions[0]"


def read(*queues: Any, topics: Iterable[Any] = ()) -> Config:
    namespace = {"Name": "ns", "Queues": list(queues), "Topics": list(topics)}
    return parse_config(json.dumps({"UserConfig": {"Namespaces": [namespace]}}).encode())[0]


def read_subscription(**about: Any) -> Config:
    return read(topics=[{"Name": "news", "Subscriptions": [{"Name": "all", **about}]}])


def sql(name: str, expression: str) -> dict[str, Any]:
    """Return the entry of a rule."""
    return {
        "Name": name,
        "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}},
    }


def with_property(key: str, value: Any) -> Config:
    return read({"Name": "orders", "Properties": {key: value}})


def queue(**settings: Any) -> EntityView:
    return view_of(QueueDescription(**settings))


def view_of(description: Description) -> EntityView:
    return EntityView(1, description, 0, 0, 0, 0, 0, 0, 0, 0)


def empty_namespace(tier: TierLimits) -> Namespace:
    return Namespace(limits=tier, tokens=lambda: LockToken(b""), digest_key=b"")


def start(namespace: Namespace, config: Config, tier: TierLimits) -> int:
    """Have the broker do what the file asks for; answer how many commands that took."""
    views = namespace.entity_views()
    steps = reconcile(config, views, rules_of(namespace), tier, HOSTS)
    for step in steps:
        (answer,) = namespace.apply(step(REPLY_TO), now_ms=1)[1]
        assert isinstance(answer, EntityFound | RulesFound | Done)
    return len(steps)


def rules_of(namespace: Namespace) -> dict[str, list[RuleDescription]]:
    return {
        view.description.name.lower(): namespace.rules(view.description.name)
        for view in namespace.entity_views()
        if isinstance(view.description, SubscriptionDescription)
    }


def test_missing_queues_are_created() -> None:
    """Req: A-02."""
    config = read({"Name": "a", "Properties": {"ForwardTo": "b"}}, {"Name": "b"})
    steps = reconcile(config, [], {}, STANDARD, HOSTS)
    assert [step(REPLY_TO) for step in steps] == [
        CreateEntity(QueueDescription("b"), REPLY_TO),
        CreateEntity(QueueDescription("a", forward_to="b"), REPLY_TO),
    ]
    assert [step.path for step in steps] == [f"UserConfig.Namespaces[0].Queues[{n}]" for n in (1, 0)]


def test_a_queue_that_agrees_is_left_alone_whatever_its_name_s_case() -> None:
    """Req: A-02, L-12. An update would cost the held locks."""
    old = queue(name="Orders", max_delivery_count=5)
    assert reconcile(with_property("MaxDeliveryCount", 5), [old], {}, STANDARD, HOSTS) == []


def test_a_difference_is_applied_and_all_else_stays() -> None:
    """Req: A-02."""
    old = queue(
        name="Orders",
        max_delivery_count=5,
        lock_duration_ms=5_000,
        status=EntityStatus.SEND_DISABLED,
        user_metadata="made by hand",
    )
    steps = reconcile(with_property("MaxDeliveryCount", 7), [old], {}, STANDARD, HOSTS)
    assert [step(REPLY_TO) for step in steps] == [
        UpdateEntity(
            QueueDescription(
                "Orders",
                max_delivery_count=7,
                lock_duration_ms=5_000,
                status=EntityStatus.SEND_DISABLED,
                user_metadata="made by hand",
            ),
            REPLY_TO,
        )
    ]


def test_authorization_rules_stay_whatever_the_file_changes() -> None:
    """Req: A-02, R-04. The file has no place for them."""
    rules = (AuthorizationRule("a", ("Send",), "first", "second"),)
    existing = queue(name="orders", authorization_rules=rules)
    assert reconcile(with_property("MaxDeliveryCount", 10), [existing], {}, STANDARD, HOSTS) == []
    [step] = reconcile(with_property("MaxDeliveryCount", 7), [existing], {}, STANDARD, HOSTS)
    assert step(REPLY_TO) == UpdateEntity(
        QueueDescription("orders", max_delivery_count=7, authorization_rules=rules), REPLY_TO
    )


def test_a_difference_in_what_cannot_be_changed_refuses_the_start() -> None:
    """Req: A-02."""
    with pytest.raises(ConfigError) as refused:
        reconcile(
            with_property("RequiresDuplicateDetection", True), [queue(name="orders")], {}, STANDARD, HOSTS
        )
    assert str(refused.value) == (
        f"{QUEUE}.Properties.RequiresDuplicateDetection: is false on the existing queue 'orders' and "
        "cannot be changed; correct the file, or delete the queue first"
    )
    for key, field in (
        ("RequiresSession", "requires_session"),
        ("EnablePartitioning", "enable_partitioning"),
    ):
        with pytest.raises(ConfigError, match=f"{key}: is true on the existing queue"):
            reconcile(with_property(key, False), [queue(name="orders", **{field: True})], {}, STANDARD, HOSTS)


# Forwards


def forwarding(*forwards: tuple[str, str | None, str | None]) -> Config:
    """Name, ForwardTo and ForwardDeadLetteredMessagesTo of each queue; None = not in the file."""
    queues = []
    for name, to, dead_to in forwards:
        properties = {"ForwardTo": to, "ForwardDeadLetteredMessagesTo": dead_to}
        given_ones = {key: target for key, target in properties.items() if target is not None}
        queues.append({"Name": name, "Properties": given_ones})
    return read(*queues)


def order(config: Config, *existing: EntityView) -> list[str]:
    steps = reconcile(config, existing, {}, STANDARD, HOSTS)
    return [step.description.name for step in steps if isinstance(step, EntityStep)]


def test_a_queue_may_forward_to_one_below_it_in_the_file() -> None:
    """Req: A-02, F-01. The broker takes a forward only to a queue that is there."""
    config = forwarding(("a", "B", "d"), ("b", "c", None), ("c", None, "d"), ("d", None, None))
    assert order(config) == ["d", "c", "b", "a"]
    assert order(config, queue(name="c", forward_dead_lettered_to="d")) == ["d", "b", "a"]


def test_a_namespace_made_by_the_file_agrees_with_it_at_the_next_start() -> None:
    """Req: A-02, F-01. The broker takes each command in its turn, and nothing is left to do."""
    namespace = empty_namespace(STANDARD)
    chain = forwarding(("a", "B", "d"), ("b", "c", None), ("c", None, "d"), ("d", None, None))
    assert start(namespace, chain, STANDARD) == 4
    assert start(namespace, chain, STANDARD) == 0
    turned = forwarding(("a", "", ""), ("b", "a", None), ("c", "b", ""), ("d", "c", None))
    assert start(namespace, turned, STANDARD) == 4
    assert start(namespace, turned, STANDARD) == 0


@pytest.mark.parametrize(
    "circle",
    [
        [("a", "A", None)],
        [("a", None, "b"), ("b", "a", None)],
        [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")],
    ],
)
def test_a_circle_in_the_file_is_made_and_agrees_at_the_next_start(circle: list[Any]) -> None:
    """Req: A-02, F-01. Source: wire contract C15. Each queue counts once."""
    namespace = empty_namespace(STANDARD)
    steps = reconcile(forwarding(*circle), [], {}, STANDARD, HOSTS)
    assert counted(steps) == {("queue", False): len(circle)}
    start(namespace, forwarding(*circle), STANDARD)
    made = {
        view.description.name: (view.description.forward_to, view.description.forward_dead_lettered_to)
        for view in namespace.entity_views()
    }
    assert made == {name: (to, dead_to) for name, to, dead_to in circle}
    assert start(namespace, forwarding(*circle), STANDARD) == 0


def test_turning_a_forward_round_closes_no_circle_on_the_way() -> None:
    """Req: A-02, F-01."""
    old = [queue(name="a", forward_to="b"), queue(name="b")]
    assert order(forwarding(("b", "a", None), ("a", "", None)), *old) == ["a", "b"]


def test_a_forward_to_a_queue_from_before_needs_no_entry_in_the_file() -> None:
    """Req: A-02, F-01."""
    assert order(forwarding(("a", "Kept", None)), queue(name="kept")) == ["a"]


def test_a_forward_whose_target_was_deleted_since_may_stay_as_it_is() -> None:
    """Req: A-02. The file still says what is so: nothing is to be done."""
    assert order(forwarding(("a", "gone", None)), queue(name="a", forward_to="gone")) == []


@pytest.mark.parametrize(
    ("forwards", "existing", "problems"),
    [
        (
            [("a", "gone", None), ("b", None, "lost")],
            [],
            [
                "Queues[0].Properties.ForwardTo: there is no queue or topic 'gone', "
                "in the file or from before",
                "Queues[1].Properties.ForwardDeadLetteredMessagesTo: there is no queue or topic 'lost', "
                "in the file or from before",
            ],
        ),
        (
            [("a", "gone", None)],
            [queue(name="a", forward_to="b"), queue(name="b")],
            [
                "Queues[0].Properties.ForwardTo: there is no queue or topic 'gone', "
                "in the file or from before",
            ],
        ),
    ],
)
def test_a_forward_that_leads_nowhere_is_told_by_its_path(
    forwards: list[Any], existing: list[EntityView], problems: list[str]
) -> None:
    """Req: A-02, F-01."""
    with pytest.raises(ConfigError) as refused:
        order(forwarding(*forwards), *existing)
    assert list(refused.value.problems) == [f"UserConfig.Namespaces[0].{problem}" for problem in problems]


FORWARDS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("abcdef"), max_size=6)


@given(FORWARDS, FORWARDS)
def test_no_command_comes_before_its_targets(before: dict[str, str], after: dict[str, str]) -> None:
    """Req: A-02, F-01. From any forwards to any others, in a file in any order."""
    names = sorted({*after, *after.values()})
    exist = {*before, *before.values()}
    config = forwarding(*((name, after.get(name, ""), None) for name in names))
    existing = [queue(name=name, forward_to=before.get(name)) for name in exist]
    now = dict.fromkeys(exist) | dict(before)
    for step in reconcile(config, existing, {}, STANDARD, HOSTS):
        command = step(REPLY_TO)
        assert isinstance(command, CreateEntity | UpdateEntity)
        name, target = command.description.name, command.description.forward_to
        assert isinstance(command, UpdateEntity) == (name in now)
        now[name] = target
        assert target is None or target in now
    assert now == dict.fromkeys(exist) | dict(before) | {name: after.get(name) for name in names}


def test_a_chain_through_a_queue_that_stays_as_it_is_closes_no_circle_on_the_way() -> None:
    """Req: A-02, F-01. Before: b -> a, kept; a forwards only once c, to which it leads, no longer does."""
    old = [queue(name="b", forward_to="c"), queue(name="c", forward_to="a"), queue(name="a")]
    assert order(forwarding(("a", "b", None), ("b", "c", None), ("c", "", None)), *old) == ["c", "a"]


def test_a_queue_that_forwards_to_a_topic_comes_after_the_topic_s_subscriptions() -> None:
    """Req: A-02, F-01. Before, q got the topic's messages; now the topic gets q's, and s takes its own."""
    topic = {"Name": "t", "Subscriptions": [{"Name": "s", "Properties": {"ForwardTo": "end"}}]}
    queues = [{"Name": "q", "Properties": {"ForwardTo": "t"}}, {"Name": "end"}]
    config = read(*queues, topics=[topic])
    old = [
        view_of(description)
        for description in (
            QueueDescription("q"),
            TopicDescription("t"),
            SubscriptionDescription("t", "s", forward_to="q"),
        )
    ]
    assert order(config, *old) == ["end", "t/Subscriptions/s", "q"]
    assert order(config) == ["t", "end", "t/Subscriptions/s", "q"]


@pytest.mark.parametrize("target", ["t", "q"])
def test_a_circle_through_a_topic_is_made_and_agrees_at_the_next_start(target: str) -> None:
    """Req: A-02, F-01. Source: wire contract C15."""
    topic = {"Name": "t", "Subscriptions": [{"Name": "s", "Properties": {"ForwardTo": target}}]}
    config = read({"Name": "q", "Properties": {"ForwardTo": "t"}}, topics=[topic])
    namespace = empty_namespace(STANDARD)
    start(namespace, config, STANDARD)
    assert start(namespace, config, STANDARD) == 0
    made = {view.description.name: view.description.forward_to for view in namespace.entity_views()}
    assert made == {"q": "t", "t": None, "t/Subscriptions/s": target}


def test_a_forward_may_be_an_address_of_this_broker() -> None:
    """Req: A-02, F-01. Source: wire contract C14, C41. It is kept as it stands in the file."""
    given_ones = {
        "ForwardTo": "http://Broker.LAN:8080/A%2Fb/",
        "ForwardDeadLetteredMessagesTo": "sb://[::1]/dead",
    }
    config = read({"Name": "a/b"}, {"Name": "dead"}, {"Name": "orders", "Properties": given_ones})
    namespace = empty_namespace(STANDARD)
    assert start(namespace, config, STANDARD) == 3
    made = namespace.entity_views()[-1].description
    assert (made.forward_to, made.forward_dead_lettered_to) == ("A/b", "dead")
    exported = format_config([view.description for view in namespace.entity_views()], {})
    for text in given_ones.values():
        assert f'"{text}"' in exported
    assert start(namespace, config, STANDARD) == 0
    assert start(namespace, parse_config(exported.encode())[0], STANDARD) == 0
    bare = with_property("ForwardTo", "a/b")
    [step] = reconcile(bare, namespace.entity_views(), {}, STANDARD, HOSTS)
    command: Any = step(REPLY_TO)
    assert command.description.forward_to_given is None


def test_a_forward_to_another_host_is_told_by_its_path_unless_it_is_there_already() -> None:
    """Req: A-02, F-01. Source: wire contract C14."""
    config = with_property("ForwardTo", "sb://elsewhere.example/other")
    other = queue(name="other")
    old = queue(name="orders", forward_to="other", forward_to_given="sb://elsewhere.example/other")
    for existing in ([other], [other, queue(name="orders", forward_to="other")]):
        with pytest.raises(ConfigError) as refused:
            reconcile(config, existing, {}, STANDARD, HOSTS)
        assert str(refused.value) == (
            f"{QUEUE}.Properties.ForwardTo: the host in 'sb://elsewhere.example/other' is not known as this "
            "broker's; give the name alone, or start with --host-name"
        )
    assert reconcile(config, [other, old], {}, STANDARD, HOSTS) == []


def test_nothing_forwards_to_a_subscription() -> None:
    """Req: A-02, F-01."""
    topic = {"Name": "t", "Subscriptions": [{"Name": "s"}]}
    with pytest.raises(ConfigError, match="there is no queue or topic 't/Subscriptions/s'"):
        order(read({"Name": "q", "Properties": {"ForwardTo": "t/Subscriptions/s"}}, topics=[topic]))


# Topics, subscriptions, rules


def commands(config: Config, existing: Iterable[Description], *rules: RuleDescription) -> list[Command]:
    """Return the commands over these entities, where news/Subscriptions/all has these rules."""
    steps = reconcile(config, map(view_of, existing), {"news/subscriptions/all": rules}, STANDARD, HOSTS)
    return [step(REPLY_TO) for step in steps]


NEWS: list[Description] = [TopicDescription("News"), SubscriptionDescription("News", "All")]


def test_missing_topics_subscriptions_and_rules_are_created() -> None:
    """Req: A-02, P-03. The first rule comes with its subscription, which so never has the default one."""
    created = [
        CreateEntity(TopicDescription("news"), REPLY_TO),
        CreateEntity(
            SubscriptionDescription("news", "all"), REPLY_TO, RuleDescription("a", SqlFilter("x = 1"))
        ),
        AddRule("news/Subscriptions/all", RuleDescription("b", SqlFilter("x = 2")), REPLY_TO),
    ]
    config = read_subscription(Rules=[sql("a", "x = 1"), sql("b", "x = 2")])
    assert commands(config, []) == created
    assert commands(config, [TopicDescription("news")]) == created[1:]


def test_a_new_subscription_without_rules_gets_the_default_one() -> None:
    """Req: A-02, P-03."""
    assert commands(read_subscription(), NEWS[:1]) == [
        CreateEntity(SubscriptionDescription("news", "all"), REPLY_TO)
    ]


def test_a_new_subscription_that_is_to_have_no_rules_takes_no_message_at_any_time() -> None:
    """Req: A-02, P-03."""
    assert commands(read_subscription(Rules="None"), NEWS[:1]) == [
        CreateEntity(
            SubscriptionDescription("news", "all"), REPLY_TO, RuleDescription("$Default", FalseFilter())
        ),
        RemoveRule("news/Subscriptions/all", "$Default", REPLY_TO),
    ]


def test_steps_are_counted_by_kind_with_the_rules_that_come_with_a_subscription() -> None:
    """Req: A-02."""
    subscriptions = [
        {"Name": "all", "Rules": [sql("a", "x = 1"), sql("b", "x = 2")]},
        {"Name": "default"},
        {"Name": "none", "Rules": "None"},
    ]
    config = read(topics=[{"Name": "news", "Subscriptions": subscriptions}])
    created = {("topic", False): 1, ("subscription", False): 3, ("rule", False): 2}
    assert counted(reconcile(config, [], {}, STANDARD, HOSTS)) == created
    assert config.counts() == {"topic": 1, "subscription": 3, "rule": 2}

    config = read_subscription(
        Rules=[sql("a", "x = 1"), sql("b", "x = 2")], Properties={"LockDuration": "PT9S"}
    )
    rules = {"news/subscriptions/all": [RuleDescription("a", SqlFilter("x = 0"))]}
    steps = reconcile(config, map(view_of, NEWS), rules, STANDARD, HOSTS)
    assert counted(steps) == {("subscription", True): 1, ("rule", True): 1, ("rule", False): 1}


def test_rules_that_differ_are_changed_and_those_that_the_file_does_not_name_stay() -> None:
    """Req: A-02, P-03. Names are found without regard to case."""
    config = read_subscription(Rules=[sql("A", "x = 1"), sql("b", "x = 2"), sql("c", "x = 3")])
    assert commands(
        config,
        NEWS,
        RuleDescription("a", SqlFilter("x = 1"), created_at_ms=17),
        RuleDescription("B", SqlFilter("x = 0"), created_at_ms=17),
        RuleDescription("$Default", created_at_ms=17),
    ) == [
        UpdateRule("news/Subscriptions/all", RuleDescription("b", SqlFilter("x = 2")), REPLY_TO),
        AddRule("news/Subscriptions/all", RuleDescription("c", SqlFilter("x = 3")), REPLY_TO),
    ]


@pytest.mark.parametrize("rules", [{}, {"Rules": []}, {"Rules": "None"}])
def test_the_rules_of_a_subscription_that_exists_are_never_removed(rules: dict[str, Any]) -> None:
    """Req: A-02. Nothing is ever deleted by the file."""
    assert commands(read_subscription(**rules), NEWS, RuleDescription("kept", SqlFilter("x = 1"))) == []


def test_how_a_value_was_given_is_no_difference() -> None:
    """Req: C35, A-02. The file does not say it; following it leaves the rule as its client wrote it."""
    filtered = {
        "FilterType": "Correlation",
        "CorrelationFilter": {"Properties": {"size": 5}},
        "Action": {"SqlExpression": "SET a = @p", "Parameters": {"@p": 5}},
    }
    given = (AsGiven("d:short", "+5"),)
    filter = CorrelationFilter(properties=(("size", 5),), as_given=given)
    old = RuleDescription("r", filter, SqlAction("SET a = @p", (("@p", 5),), given))
    config = read_subscription(Rules=[{"Name": "r", "Properties": filtered}])
    assert commands(config, NEWS, old) == []


def test_rules_differ_when_their_values_are_of_different_types() -> None:
    """Req: A-02, P-02. In Python 1 and True are equal."""
    entry = {
        "Name": "r",
        "Properties": {"FilterType": "Correlation", "CorrelationFilter": {"Properties": {"a": True}}},
    }
    old = RuleDescription("r", CorrelationFilter(properties=(("a", 1),)))
    (command,) = commands(read_subscription(Rules=[entry]), NEWS, old)
    assert isinstance(command, UpdateRule)


def test_a_value_whose_type_alone_changes_is_changed_and_agrees_at_the_next_start() -> None:
    """Req: A-02, P-02. In Python 1 and True are equal."""
    namespace = empty_namespace(STANDARD)
    for value, steps in ((1, 2), (True, 1), (True, 0), (1.0, 1)):
        filtered = {"FilterType": "Correlation", "CorrelationFilter": {"Properties": {"a": value}}}
        config = read_subscription(Rules=[{"Name": "r", "Properties": filtered}])
        assert start(namespace, config, STANDARD) == steps


def test_a_wrong_expression_is_told_by_its_path_before_anything_is_run() -> None:
    """Req: A-02, P-02."""
    wrong = sql("b", "x = ")
    wrong["Properties"]["Action"] = {"SqlExpression": "SET"}
    empty = {"Name": "c", "Properties": {"FilterType": "Correlation", "CorrelationFilter": {}}}
    config = read_subscription(Rules=[sql("a", "x = 1"), wrong, empty])
    with pytest.raises(ConfigError) as refused:
        commands(config, [])
    assert [problem.partition(": ")[0] for problem in refused.value.problems] == [
        f"{SUBSCRIPTION}.Rules[1].Properties.SqlFilter.SqlExpression",
        f"{SUBSCRIPTION}.Rules[1].Properties.Action.SqlExpression",
        f"{SUBSCRIPTION}.Rules[2].Properties.CorrelationFilter",
    ]


def test_what_is_a_queue_cannot_be_made_a_topic() -> None:
    """Req: A-02."""
    with pytest.raises(ConfigError) as refused:
        commands(read_subscription(), [QueueDescription("News")])
    assert str(refused.value) == (
        f"{TOPIC}: 'News' is a queue; choose another name, or delete the queue first"
    )


def test_a_difference_of_a_topic_or_subscription_is_applied_or_refused() -> None:
    """Req: A-02."""
    subscription = {"Name": "all", "Properties": {"LockDuration": "PT7S", "RequiresSession": False}}
    topic = {"Name": "news", "Properties": {"Status": "SendDisabled"}, "Subscriptions": [subscription]}
    assert commands(read(topics=[topic]), NEWS) == [
        UpdateEntity(TopicDescription("News", status=EntityStatus.SEND_DISABLED), REPLY_TO),
        UpdateEntity(SubscriptionDescription("News", "All", lock_duration_ms=7_000), REPLY_TO),
    ]
    topic["Properties"] = {"RequiresDuplicateDetection": True}
    with pytest.raises(ConfigError) as refused:
        commands(
            read(topics=[topic]), [NEWS[0], SubscriptionDescription("News", "All", requires_session=True)]
        )
    assert str(refused.value) == (
        f"{TOPIC}.Properties.RequiresDuplicateDetection: is false on the existing topic 'News' and cannot be "
        "changed; correct the file, or delete the topic first\n"
        f"{SUBSCRIPTION}.Properties.RequiresSession: is true on the existing subscription "
        "'News/Subscriptions/All' and cannot be changed; correct the file, or delete the subscription first"
    )


def test_a_topic_in_the_basic_tier_is_told_by_its_path() -> None:
    """Req: A-02, A-05."""
    with pytest.raises(ConfigError) as refused:
        reconcile(read(topics=[{"Name": "news"}]), [], {}, BASIC, HOSTS)
    assert str(refused.value) == f"{TOPIC}.Properties: 'news' is a topic: tier Basic has no topics"


def test_the_emulator_s_file_is_taken_and_agrees_at_the_next_start() -> None:
    """Req: A-02, P-03."""
    [config] = parse_config((Path(__file__).parent / "emulator_config.json").read_bytes())
    namespace = empty_namespace(STANDARD)
    assert start(namespace, config, STANDARD) == 6
    assert start(namespace, config, STANDARD) == 0
    assert {path: [rule.name for rule in rules] for path, rules in rules_of(namespace).items()} == {
        "topic.1/subscriptions/subscription.1": ["app-prop-filter-1"],
        "topic.1/subscriptions/subscription.2": ["user-prop-filter-1"],
        "topic.1/subscriptions/subscription.3": ["$Default"],
        "topic.1/subscriptions/subscription.4": ["sql-filter-1"],
    }


def test_queues_that_the_file_does_not_name_stay() -> None:
    """Req: A-02."""
    assert reconcile(read(), [queue(name="kept")], {}, STANDARD, HOSTS) == []


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("LockDuration", "P25D", "LockDuration of 'orders' is P25D; allowed: PT5S to PT5M"),
        ("LockDuration", "PT4.5S", "LockDuration of 'orders' is PT4.5S; allowed: PT5S to PT5M"),
        ("MaxDeliveryCount", 0, "MaxDeliveryCount of 'orders' is 0; allowed: 1 to 2147483647"),
        (
            "DuplicateDetectionHistoryTimeWindow",
            "PT19S",
            "DuplicateDetectionHistoryTimeWindow of 'orders' is PT19S; allowed: PT20S to P7D",
        ),
        ("AutoDeleteOnIdle", "PT1M", "AutoDeleteOnIdle of 'orders' is PT1M; allowed: PT5M or longer"),
        (
            "DefaultMessageTimeToLive",
            "PT0S",
            "DefaultMessageTimeToLive of 'orders' is PT0S; allowed: PT1S or longer",
        ),
    ],
)
@pytest.mark.parametrize("exists", [False, True])
def test_a_value_out_of_range_is_told_by_its_path_before_anything_is_run(
    key: str, value: Any, reason: str, exists: bool
) -> None:
    """Req: A-02, A-05."""
    config = read({"Name": "orders", "Properties": {key: value}}, {"Name": "other"})
    with pytest.raises(ConfigError) as refused:
        reconcile(config, [queue(name="orders")] if exists else [], {}, STANDARD, HOSTS)
    assert str(refused.value) == f"{QUEUE}.Properties: {reason}"


def test_a_duration_beyond_the_tier_s_is_told_with_both_ends() -> None:
    """Req: A-02, A-05."""
    with pytest.raises(ConfigError) as refused:
        reconcile(with_property("DefaultMessageTimeToLive", "P15D"), [], {}, BASIC, HOSTS)
    assert str(refused.value) == (
        f"{QUEUE}.Properties: DefaultMessageTimeToLive of 'orders' is P15D; allowed: PT1S to P14D"
    )


def test_what_the_tier_makes_of_a_value_is_no_difference_at_the_next_start() -> None:
    """Req: A-02, A-05. In the basic tier "unlimited" means 14 days."""
    config = with_property("DefaultMessageTimeToLive", "P10675199DT2H48M5.4775807S")
    (created,) = reconcile(config, [], {}, BASIC, HOSTS)
    assert isinstance(created, EntityStep)
    assert created.description.default_ttl_ms == 14 * 86_400_000
    assert reconcile(config, [view_of(created.description)], {}, BASIC, HOSTS) == []


# A file that was written by the broker


@st.composite
def descriptions(draw: st.DrawFn, name: str, targets: list[str], tier: TierLimits) -> QueueDescription:
    """A queue as the broker keeps it, which forwards to some of the targets."""
    target = st.sampled_from([None, *targets]) if tier.forwarding else st.none()
    settings: dict[str, Any] = {
        "lock_duration_ms": draw(st.integers(5_000, 300_000)),
        "max_size_mb": draw(st.sampled_from(range(1024, tier.max_size_mb_max + 1, tier.size_mb_step))),
        "requires_duplicate_detection": draw(st.booleans()) and tier.duplicate_detection,
        "requires_session": draw(st.booleans()) and tier.sessions,
        "default_ttl_ms": draw(st.integers(1_000, tier.ttl_ms_max)),
        "dead_lettering_on_expiration": draw(st.booleans()),
        "duplicate_window_ms": draw(st.integers(20_000, 604_800_000)),
        "max_delivery_count": draw(st.integers(1, 2**31 - 1)),
        "enable_batched_operations": draw(st.booleans()),
        "status": draw(st.sampled_from(EntityStatus)),
        "forward_to": draw(target),
        "forward_dead_lettered_to": draw(target),
        "user_metadata": draw(st.none() | st.text(min_size=1, max_size=40)),
        "auto_delete_on_idle_ms": UNLIMITED_MS,
        "enable_partitioning": draw(st.booleans()) and tier.partitioning,
        "enable_express": draw(st.booleans()),
    }
    if tier.idle_deletion:
        settings["auto_delete_on_idle_ms"] = draw(st.integers(300_000, UNLIMITED_MS))
    if tier is PREMIUM:
        settings["max_message_size_kb"] = draw(st.none() | st.integers(1024, tier.message_size_kb_max))
    left_out = draw(st.sets(st.sampled_from(sorted(settings))))
    given_ones = {field: value for field, value in settings.items() if field not in left_out}
    return checked(QueueDescription(name, **given_ones), tier)


def subscriptions(topic: str, name: str, targets: list[str]) -> st.SearchStrategy[SubscriptionDescription]:
    """A subscription as the broker keeps it, which forwards to some of the targets."""
    return st.builds(
        SubscriptionDescription,
        st.just(topic),
        st.just(name),
        lock_duration_ms=st.integers(5_000, 300_000),
        default_ttl_ms=st.just(UNLIMITED_MS) | st.integers(1_000, UNLIMITED_MS),
        dead_lettering_on_filter_errors=st.booleans(),
        max_delivery_count=st.integers(1, 2**31 - 1),
        status=st.sampled_from(EntityStatus),
        forward_to=st.sampled_from([None, *targets]),
        forward_dead_lettered_to=st.sampled_from([None, *targets]),
        user_metadata=st.none() | st.text(min_size=1, max_size=40),
    )


VALUES = st.integers(-9, 9) | st.booleans() | st.text(max_size=4) | st.floats(-9, 9) | st.uuids()
FILTERS: st.SearchStrategy[Filter] = st.one_of(
    st.just(TrueFilter()),
    st.just(FalseFilter()),
    st.builds(lambda value: SqlFilter("a = @a", (("@a", value),)), VALUES),
    st.builds(lambda value: CorrelationFilter(label="x", properties=(("a", value),)), VALUES),
)
ACTIONS = st.none() | st.builds(lambda value: SqlAction("SET b = @b", (("@b", value),)), VALUES)
RULES = st.lists(
    st.builds(RuleDescription, st.sampled_from(["$Default", "a", "B-2", "c"]), FILTERS, ACTIONS),
    max_size=3,
    unique_by=lambda rule: rule.name,
)


@given(st.data(), st.sampled_from([BASIC, STANDARD, PREMIUM]), st.permutations(["a", "B/b", "c-1", "D"]))
def test_a_file_that_was_exported_changes_nothing_where_it_came_from_and_makes_the_same_elsewhere(
    data: st.DataObject, tier: TierLimits, names: list[str]
) -> None:
    """Req: A-02, P-03. Export, read: no commands over the same entities; over none, entities and rules that
    are equal."""
    entities: list[Description] = []
    rules: dict[str, list[RuleDescription]] = {}
    for name in names:
        entities.append(data.draw(descriptions(name, [entity.name for entity in entities], tier)))
    if tier.topics:
        topic = TopicDescription("T", support_ordering=data.draw(st.booleans()))
        entities.append(topic)
        for name in ("s", "S-2"):
            entities.append(data.draw(subscriptions("T", name, names)))
            rules[entities[-1].name] = data.draw(RULES)
    [config] = parse_config(format_config(entities, rules).encode())
    by_path = {path.lower(): found for path, found in rules.items()}
    assert reconcile(config, map(view_of, entities), by_path, tier, HOSTS) == []
    namespace = empty_namespace(tier)
    start(namespace, config, tier)
    made = {found.description.name: found.description for found in namespace.entity_views()}
    assert made == {entity.name: entity for entity in entities}
    assert reconcile(config, namespace.entity_views(), rules_of(namespace), tier, HOSTS) == []
    for path, wanted in rules.items():
        found = {rule.name: repr((rule.filter, rule.action)) for rule in namespace.rules(path)}
        assert found == {rule.name: repr((rule.filter, rule.action)) for rule in wanted}
