"""Rules of subscriptions through the official clients: what they choose, and what their actions change."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from peeklock.amqp.types import Described, Int, Long, ULong
from peeklock.broker.vocabulary.descriptions import subscription_path
from peeklock.demo.broker import BrokerProcess
from tests.interop.clients import Links
from tests.interop.helpers import assert_empty, bodies, publish, take, take_one
from tests.interop.own_client import OwnClient

DEAD = ServiceBusSubQueue.DEAD_LETTER
DAY = dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC)
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


@pytest.fixture
def looker(broker: BrokerProcess) -> Iterator[OwnClient]:
    """A client that browses many subscriptions over one connection, which the official one cannot."""
    with OwnClient(broker.amqp_port) as client:
        yield client


def set_rules(administration: Any, topic: str, **filters: Any) -> None:
    """Make a subscription with one rule for each filter, both of the same name."""
    for name, one in filters.items():
        administration.create_subscription(topic, name)
        administration.create_rule(topic, name, "only", filter=one)
        administration.delete_rule(topic, name, "$Default")


# What filters choose


def test_every_kind_of_filter_chooses_what_it_says(
    any_client: Links, make_topic: Callable[..., str], administration: Any, looker: OwnClient
) -> None:
    """Req: P-01, P-02, P-03"""
    topic = make_topic("every")
    properties: dict[Any, Any] = {"color": "red", "size": 3}
    set_rules(
        administration,
        topic,
        true=TrueRuleFilter(),
        false=FalseRuleFilter(),
        color=CorrelationRuleFilter(properties={"color": "red"}),
        color_and_size=CorrelationRuleFilter(properties=properties),
        label_and_color=CorrelationRuleFilter(label="news", properties={"color": "red"}),
        text_for_number=CorrelationRuleFilter(properties={"size": "3"}),
        sql=SqlRuleFilter("color = 'red' AND size > 2"),
        like=SqlRuleFilter("sys.Label LIKE 'ne%' OR color IN ('green', 'blue')"),
        missing=SqlRuleFilter("color IS NULL"),
        exists=SqlRuleFilter("EXISTS(size) AND NOT size % 2 = 0"),
        unknown=SqlRuleFilter("NOT color = 'red'"),
    )
    administration.create_subscription(topic, "nothing")
    administration.delete_rule(topic, "nothing", "$Default")
    with any_client.get_topic_sender(topic) as sender:
        sender.send_messages(
            [
                ServiceBusMessage("red 3", application_properties=properties),
                ServiceBusMessage(
                    "red 2 news", subject="news", application_properties=properties | {"size": 2}
                ),
                ServiceBusMessage("Red", application_properties={"color": "Red"}),
                ServiceBusMessage("news", subject="news"),
            ]
        )
    chosen = {
        about.name: looker.browse(subscription_path(topic, about.name))
        for about in administration.list_subscriptions(topic)
    }
    everything = ["red 3", "red 2 news", "Red", "news"]
    assert chosen == {
        "every": everything,
        "true": everything,
        "false": [],
        "nothing": [],
        "color": ["red 3", "red 2 news"],
        "color_and_size": ["red 3"],
        "label_and_color": ["red 2 news"],
        "text_for_number": [],
        "sql": ["red 3"],
        "like": ["red 2 news", "news"],
        "missing": ["news"],
        "exists": ["red 3"],
        "unknown": ["Red"],
    }


def test_each_system_property_can_be_asked_for(
    any_client: Links, make_topic: Callable[..., str], administration: Any, looker: OwnClient
) -> None:
    """By a correlation filter and in SQL; one that differs is not chosen.

    Req: P-02
    """
    topic = make_topic()
    values: dict[str, Any] = {
        "message_id": "m",
        "correlation_id": "c",
        "to": "t",
        "reply_to": "r",
        "label": "l",
        "session_id": "s",
        "reply_to_session_id": "rs",
        "content_type": "text/plain",
    }
    spelt = {name: "sys." + "".join(map(str.title, name.split("_"))) for name in values}
    set_rules(
        administration,
        topic,
        **{f"is-{name}": CorrelationRuleFilter(**{name: value}) for name, value in values.items()},
        **{f"not-{name}": CorrelationRuleFilter(**{name: value + "?"}) for name, value in values.items()},
        **{f"sql-{name}": SqlRuleFilter(f"{spelt[name]} = '{value}'") for name, value in values.items()},
        ttl=SqlRuleFilter("sys.TimeToLive > @span", parameters={"@span": dt.timedelta(minutes=5)}),
        arrived=SqlRuleFilter("sys.EnqueuedTimeUtc > @day", parameters={"@day": DAY}),
    )
    renamed = {("subject" if name == "label" else name): value for name, value in values.items()}
    publish(any_client, topic, "message", time_to_live=dt.timedelta(minutes=10), **renamed)
    chosen = {
        about.name: looker.browse(subscription_path(topic, about.name))
        for about in administration.list_subscriptions(topic)
    }
    assert len(chosen) == 3 * len(values) + 2
    for name, messages in chosen.items():
        assert messages == ([] if name.startswith("not-") else ["message"]), name


def test_parameters_and_properties_have_types(
    any_client: Links, make_topic: Callable[..., str], administration: Any, looker: OwnClient
) -> None:
    """Each value is found by its own parameter and by a correlation filter, and by no other's but where two
    numbers are the same.

    Req: P-02, A-01
    """
    topic = make_topic()
    values: dict[str, Any] = {
        "text": "1",
        "int": 1,
        "float": 1.5,
        "true": True,
        "date": DAY,
        "id": ID,
    }
    with_parameter = [name for name in values if name != "id"]  # the administration client has none of that
    filters: dict[str, Any] = {}
    for name in with_parameter:
        filters[f"sql-{name}"] = SqlRuleFilter("v = @v", parameters={"@v": values[name]})
        filters[f"correlation-{name}"] = CorrelationRuleFilter(properties={"v": values[name]})
    set_rules(administration, topic, **filters)
    with any_client.get_topic_sender(topic) as sender:
        for name, value in (values | {"one": 1.0}).items():
            sender.send_messages(ServiceBusMessage(name, application_properties={"v": value}))
    expected = {name: [name] for name in with_parameter} | {"int": ["int", "one"]}
    for kind in ("sql", "correlation"):
        assert {
            name: looker.browse(subscription_path(topic, f"{kind}-{name}")) for name in with_parameter
        } == expected


# Several rules, and actions


def test_rules_without_action_give_one_copy_and_each_with_one_its_own(
    client: Links, make_topic: Callable[..., str], administration: Any
) -> None:
    """An action's copy bears the name of its rule; all of them have numbers of their own, and are settled
    each for itself.

    Req: P-01, P-02, S-01
    """
    topic = make_topic("s")
    administration.create_rule(topic, "s", "also", filter=SqlRuleFilter("color = 'red'"))
    administration.create_rule(
        topic, "s", "cheap", filter=SqlRuleFilter("price < 10"), action=SqlRuleAction("SET class = 'cheap'")
    )
    administration.create_rule(
        topic,
        "s",
        "red",
        filter=CorrelationRuleFilter(properties={"color": "red"}),
        action=SqlRuleAction("SET price = price * 2; REMOVE color; SET sys.Label = @l", {"@l": "changed"}),
    )
    with (
        client.get_topic_sender(topic) as sender,
        client.get_subscription_receiver(topic, "s") as receiver,
    ):
        about: dict[Any, Any] = {"color": "red", "price": 4}
        sender.send_messages(ServiceBusMessage("1", subject="as sent", application_properties=about))
        sender.send_messages(ServiceBusMessage("2", application_properties={"price": 40}))
        messages = take(receiver, 4)
        assert sorted(message.sequence_number for message in messages) == [1, 2, 3, 4]
        assert [message.enqueued_sequence_number for message in messages] == [1, 1, 1, 2]
        by_rule = {message.application_properties.get(b"RuleName"): message for message in messages[:3]}
        plain, cheap, red = by_rule[None], by_rule[b"cheap"], by_rule[b"red"]
        assert (plain.subject, plain.application_properties) == ("as sent", {b"color": b"red", b"price": 4})
        assert cheap.application_properties == {
            b"color": b"red",
            b"price": 4,
            b"class": b"cheap",
            b"RuleName": b"cheap",
        }
        assert (red.subject, red.application_properties) == ("changed", {b"price": 8, b"RuleName": b"red"})
        assert {str(message) for message in messages[:3]} == {"1"}
        receiver.complete_message(plain)
        receiver.abandon_message(red)
        again = take_one(receiver)
        assert (again.sequence_number, again.subject) == (red.sequence_number, "changed")
        receiver.dead_letter_message(again, reason="test")
        receiver.complete_message(cheap)
        with client.get_subscription_receiver(topic, "s", sub_queue=DEAD) as of_dead:
            dead = take_one(of_dead)
            assert (dead.subject, dead.application_properties[b"RuleName"]) == ("changed", b"red")


def test_an_action_decides_what_the_subscription_goes_by(
    any_client: Links, make_topic: Callable[..., str], make_queue: Callable[..., str], administration: Any
) -> None:
    """The session that a copy is in, its time-to-live, and all that its receiver sees of the rest.

    Req: P-02, G-01, E-01, F-01
    """
    topic, queue = make_topic(), make_queue(requires_session=True)
    action = SqlRuleAction(
        "SET sys.SessionId = customer; SET sys.TimeToLive = @ttl; SET sys.MessageId = 'id'; "
        "SET sys.CorrelationId = 'c'; SET sys.To = 't'; SET sys.ReplyTo = 'r'; SET sys.ContentType = 'ct'; "
        "SET sys.ReplyToSessionId = 'rs'; SET n = n + 1; SET twice = n * 2; REMOVE unwanted",
        parameters={"@ttl": dt.timedelta(minutes=7)},
    )
    for name, settings in (("own", {"requires_session": True}), ("on", {"forward_to": queue})):
        administration.create_subscription(topic, name, **settings)
        administration.create_rule(topic, name, "act", action=action)
        administration.delete_rule(topic, name, "$Default")
    about = {"customer": "ann", "n": 1, "unwanted": True}
    publish(any_client, topic, "1", message_id="as sent", application_properties=about)
    with (
        any_client.get_subscription_receiver(topic, "own", session_id="ann") as own,
        any_client.get_queue_receiver(queue, session_id="ann") as forwarded,
    ):
        for receiver in (own, forwarded):
            message = take_one(receiver)
            assert message.session_id == "ann"
            assert message.time_to_live == dt.timedelta(minutes=7)
            assert (message.message_id, message.correlation_id, message.to) == ("id", "c", "t")
            assert (message.reply_to, message.content_type) == ("r", "ct")
            assert message.reply_to_session_id == "rs"
            assert message.application_properties == {
                b"customer": b"ann",
                b"n": 2,
                b"twice": 4,
                b"RuleName": b"act",
            }


@pytest.mark.parametrize("kind", ["filter", "action"])
def test_what_a_rule_cannot_judge_is_a_dead_letter_where_the_subscription_says_so(
    any_client: Links, make_topic: Callable[..., str], administration: Any, kind: str
) -> None:
    """It goes there once, whatever other rules say; elsewhere the rule counts as not matching.

    Req: P-04, L-17, L-09
    """
    topic = make_topic()
    divisions: dict[str, dict[str, Any]] = {
        "filter": {"filter": SqlRuleFilter("10 / n = 5")},
        "action": {"filter": SqlRuleFilter("EXISTS(n)"), "action": SqlRuleAction("SET share = 10 / n")},
    }
    for name in ("strict", "lenient"):
        administration.create_subscription(
            topic, name, dead_lettering_on_filter_evaluation_exceptions=name == "strict"
        )
        administration.create_rule(topic, name, "divide", **divisions[kind])
    with any_client.get_topic_sender(topic) as sender:
        sender.send_messages(ServiceBusMessage("bad", application_properties={"n": 0}))
        sender.send_messages(ServiceBusMessage("good", application_properties={"n": 5}))
    expected = {"filter": ["good"], "action": ["good", "good"]}[kind]
    with (
        any_client.get_subscription_receiver(topic, "strict") as strict,
        any_client.get_subscription_receiver(topic, "strict", sub_queue=DEAD) as of_dead,
        any_client.get_subscription_receiver(topic, "lenient") as lenient,
        any_client.get_subscription_receiver(topic, "lenient", sub_queue=DEAD) as none,
    ):
        dead = take_one(of_dead)
        assert (str(dead), dead.dead_letter_reason) == ("bad", "FilterEvaluationException")
        assert "'divide'" in dead.dead_letter_error_description
        assert dead.enqueued_sequence_number == 1
        assert bodies(take(strict, len(expected))) == expected
        assert bodies(take(lenient, len(expected) + 1)) == ["bad", *expected]
        assert_empty(none)


def test_what_rules_make_a_dead_letter_of_goes_where_dead_letters_are_forwarded(
    any_client: Links, make_topic: Callable[..., str], make_queue: Callable[..., str], administration: Any
) -> None:
    """What could not be evaluated, and what has no session id any more, by an action, where one is required.

    Req: P-04, P-02, F-01, G-01
    """
    topic, graves = make_topic(), make_queue()
    administration.create_subscription(
        topic, "s", requires_session=True, forward_dead_lettered_messages_to=graves
    )
    action = SqlRuleAction("REMOVE sys.SessionId; SET share = 10 / n")
    administration.create_rule(topic, "s", "act", action=action)
    administration.delete_rule(topic, "s", "$Default")
    with any_client.get_topic_sender(topic) as sender, any_client.get_queue_receiver(graves) as visitor:
        for n in (0, 2):
            sender.send_messages(ServiceBusMessage(str(n), session_id="s", application_properties={"n": n}))
        failed, changed = take(visitor, 2)
    assert (str(failed), failed.dead_letter_reason) == ("0", "FilterEvaluationException")
    assert (str(changed), changed.dead_letter_reason) == ("2", "Session ID is null.")
    assert b"share" not in failed.application_properties
    assert (changed.application_properties[b"share"], changed.application_properties[b"RuleName"]) == (
        5,
        b"act",
    )
    assert {one.dead_letter_source for one in (failed, changed)} == {f"{topic}/Subscriptions/s"}


# Changes


def test_a_rule_holds_from_its_answer_until_that_of_its_end(
    any_client: Links, make_topic: Callable[..., str], administration: Any
) -> None:
    """While a client sends: all messages after the answer are chosen, none before the request is, and none
    between the first and the last is left out.

    Req: P-03, P-01, A-07
    """
    topic = make_topic("s")
    administration.update_rule(topic, "s", _changed(administration, topic, FalseRuleFilter()))
    answered = 0
    stop = threading.Event()

    def send() -> None:
        nonlocal answered
        while not stop.is_set():
            sender.send_messages(ServiceBusMessage(str(answered + 1)))
            answered += 1

    def after(count: int) -> int:
        until = answered + count
        while answered < until:
            assert thread.is_alive()
            stop.wait(0.001)
        return answered

    with (
        any_client.get_topic_sender(topic) as sender,
        any_client.get_subscription_receiver(topic, "s") as one,
    ):
        one.opened()
        thread = threading.Thread(target=send)
        thread.start()
        try:
            before = after(20)
            administration.create_rule(topic, "s", "all", filter=SqlRuleFilter("1 = 1"))
            first = answered + 2  # one may be in flight
            last = after(20)
            administration.delete_rule(topic, "s", "all")
            beyond = answered + 2
            after(20)
        finally:
            stop.set()
            thread.join()
        chosen = administration.get_subscription_runtime_properties(topic, "s").active_message_count
        numbers = [int(str(message)) for message in take(one, chosen)]
    assert before < numbers[0] <= first
    assert last <= numbers[-1] < beyond
    assert numbers == list(range(numbers[0], numbers[-1] + 1))


def _changed(administration: Any, topic: str, new_filter: Any) -> Any:
    rule = administration.get_rule(topic, "s", "$Default")
    rule.filter = new_filter
    return rule


def test_a_bad_rule_is_refused_and_says_where_it_is_wrong(
    make_topic: Callable[..., str], administration: Any, any_client: Links
) -> None:
    """The old one holds on.

    Req: P-02, P-03, A-01
    """
    topic = make_topic("s")
    for bad, position in (("color = ", 8), ("a = 1 AND AND b = 2", 11), ("sys.Nonsense = 1", 1)):
        with pytest.raises(HttpResponseError) as refused:
            administration.create_rule(topic, "s", "bad", filter=SqlRuleFilter(bad))
        assert refused.value.status_code == 400
        assert f"at position {position}," in refused.value.message
        assert "bad" in refused.value.message
    with pytest.raises(HttpResponseError) as refused:
        administration.create_rule(topic, "s", "bad", action=SqlRuleAction("SET sys.SequenceNumber = 1"))
    assert refused.value.status_code == 400
    with pytest.raises(HttpResponseError):
        administration.update_rule(topic, "s", _changed(administration, topic, SqlRuleFilter("(")))
    with pytest.raises(ResourceExistsError):
        administration.create_rule(topic, "s", "$Default")
    with pytest.raises(ResourceNotFoundError):
        administration.delete_rule(topic, "s", "bad")
    assert [rule.name for rule in administration.list_rules(topic, "s")] == ["$Default"]
    publish(any_client, topic, "1")
    assert administration.get_subscription_runtime_properties(topic, "s").active_message_count == 1


def test_rules_are_managed_over_the_subscriptions_management_node(
    any_client: Links, make_topic: Callable[..., str], looker: OwnClient, administration: Any
) -> None:
    """Added, listed and removed, the first one too; the administration sees the same. The official Python
    client has no calls for it; others have, and read these described types.

    Source: wire contract 5.2

    Req: P-03, P-02
    """
    topic = make_topic("s")
    path = f"{topic}/Subscriptions/s"

    def ask(operation: str, **body: Any) -> tuple[int, str | None, Any]:
        named = {name.replace("_", "-"): value for name, value in body.items()}
        return looker.ask(path, f"com.microsoft:{operation}", named)

    red = {
        "correlation-filter": {"label": "red", "properties": {"n": Long(1)}},
        "sql-rule-action": {"expression": "SET marked = true"},
    }
    assert ask("add-rule", rule_name="red", rule_description=red)[0] == 200
    assert ask("remove-rule", rule_name="$Default")[0] == 200
    exists = "com.microsoft:entity-already-exists"
    assert ask("add-rule", rule_name="red", rule_description=red)[:2] == (409, exists)
    status, condition, _ = ask("remove-rule", rule_name="missing")
    assert (status, condition) == (404, "amqp:not-found")
    wrong = {"sql-filter": {"expression": "a ="}}
    assert ask("add-rule", rule_name="wrong", rule_description=wrong)[:2] == (
        400,
        "com.microsoft:argument-error",
    )
    status, _, answer = ask("enumerate-rules", top=Int(100), skip=Int(0))
    assert status == 200
    (described,) = (one["rule-description"] for one in answer["rules"])
    assert isinstance(described, Described)
    assert described.descriptor == ULong(0x13700000004)
    one_filter, action, name = described.value[:3]
    assert (one_filter.descriptor, action.descriptor, name) == (0x1370000009, 0x13700000006, "red")
    assert one_filter.value[4] == "red"
    assert ask("enumerate-rules", top=Int(100), skip=Int(1))[0] == 204
    (seen,) = administration.list_rules(topic, "s")
    assert (seen.name, seen.filter.label, seen.filter.properties) == ("red", "red", {"n": 1})
    with (
        any_client.get_topic_sender(topic) as sender,
        any_client.get_subscription_receiver(topic, "s") as one,
    ):
        sender.send_messages(ServiceBusMessage("1", subject="red", application_properties={"n": 1}))
        sender.send_messages(ServiceBusMessage("2", subject="red", application_properties={"n": 2}))
        assert take_one(one).application_properties[b"marked"] is True
        assert_empty(one)
