"""Topics, subscriptions and rules as a client sees them: a whole broker over AMQP, in one thread."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from peeklock.amqp.errors import AmqpError
from peeklock.amqp.events import DeliveryReceived, DispositionReceived, LinkDetached
from peeklock.amqp.messaging import BATCH_FORMAT, scan
from peeklock.amqp.performatives import ACCEPTED, Modified, Rejected
from peeklock.amqp.types import Array, Described, Int, Long, Role, Symbol, Timestamp, UInt
from peeklock.auth import Authority, Right, SasRule
from peeklock.broker.vocabulary.commands import DeleteEntity
from peeklock.broker.vocabulary.descriptions import RuleDescription
from peeklock.gateway.rewriting import INSTANT_MS_MAX
from peeklock.rules.filters import CorrelationFilter, FalseFilter, SqlAction, SqlFilter
from peeklock.testing.inprocess import InProcessBroker
from tests.gateway.harness import KEY, KEY_NAME, LiveHarness, message_bytes, section
from tests.gateway.live import LOCK_MS, accept, bodies, counts, message, request, send
from tests.gateway.test_transactions_end_to_end import Controller

DUE = Symbol("x-opt-scheduled-enqueue-time")
DEAD = Rejected(AmqpError(Symbol("com.microsoft:dead-letter"), ""))
AUDIT = "events/Subscriptions/audit"
BILLING = "events/Subscriptions/billing"
ALL = {"top": Int(100), "skip": Int(0)}


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    broker = InProcessBroker()
    broker.create_topic("events")
    for name in ("audit", "billing"):
        broker.create_subscription("events", name, lock_duration_ms=LOCK_MS, max_delivery_count=3)
    yield broker
    broker.namespace.check(broker.clock.now_ms)


@pytest.fixture
def rig(broker: InProcessBroker) -> LiveHarness:
    return LiveHarness(broker)


def colored(body: str, **properties: Any) -> bytes:
    return message_bytes(body.encode(), properties=[body], application_properties=properties)


def take(rig: LiveHarness, address: str, credit: int = 100) -> list[DeliveryReceived]:
    """Receive from an address, over a link of its own that stays open."""
    rig.listen(address, credit=credit)
    return rig.deliveries()


def drained(rig: LiveHarness, address: str) -> list[DeliveryReceived]:
    """Receive and delete all that is there, and detach."""
    handle = rig.listen(address, credit=1000, snd_settle_mode=1, rcv_settle_mode=0)
    found = rig.deliveries()
    rig.client.detach(rig.channel, handle)
    rig.pump()
    return found


def complete(rig: LiveHarness, *deliveries: DeliveryReceived) -> None:
    for delivery in deliveries:
        rig.settle(delivery.delivery_id, delivery.delivery_id, ACCEPTED)


def notes_of(delivery: DeliveryReceived) -> dict[str, Any]:
    return scan(delivery.payload).decode_message_annotations()


def properties(delivery: DeliveryReceived) -> dict[str, Any]:
    return scan(delivery.payload).decode_application_properties()


def add_rule(
    rig: LiveHarness, address: str, name: str, filter: dict[str, Any], action: str | None = None
) -> None:
    """Add a rule as the .NET client does."""
    description = {**filter, "sql-rule-action": None if action is None else {"expression": action}}
    response = request(rig, address, "add-rule", {"rule-name": name, "rule-description": description})
    assert response.status == 200, response.description


def remove_rule(rig: LiveHarness, address: str, name: str) -> None:
    assert request(rig, address, "remove-rule", {"rule-name": name}).status == 200


def sql(expression: str) -> dict[str, Any]:
    return {"sql-filter": {"expression": expression}}


# Copies


def test_each_subscription_has_a_copy_of_its_own(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: P-01, S-01. Own numbers, locks and counts; the message id and the body are the sender's."""
    send(rig, *(message(str(number)) for number in range(3)), to="events")
    audit = take(rig, AUDIT)
    billing = take(rig, BILLING)
    for deliveries in (audit, billing):
        assert bodies(deliveries) == ["0", "1", "2"]
        assert [notes_of(event)["x-opt-sequence-number"] for event in deliveries] == [1, 2, 3]
        assert [scan(event.payload).decode_properties().message_id for event in deliveries] == ["0", "1", "2"]
    assert len({event.delivery_tag for event in audit + billing}) == 6
    complete(rig, *audit)
    rig.settle(billing[0].delivery_id, billing[0].delivery_id, Modified(True))
    again = rig.deliveries()
    assert (bodies(again), counts(again)) == (["0"], [1])
    assert broker.subscription("events", "audit").active_count == 0
    assert broker.subscription("events", "billing").active_count == 3
    assert broker.topic("events").subscription_count == 2


def test_a_batch_is_copied_as_its_members(rig: LiveHarness) -> None:
    """Req: P-01, T-07. Each is judged by itself."""
    remove_rule(rig, AUDIT, "$Default")
    add_rule(rig, AUDIT, "red", sql("color = 'red'"))
    members = [colored("a", color="red"), colored("b", color="blue"), colored("c", color="red")]
    batch = b"".join(section(0x75, member) for member in members)
    rig.transfer(rig.sender("events"), batch, message_format=BATCH_FORMAT)
    assert rig.take_event(DispositionReceived).state == ACCEPTED
    assert bodies(take(rig, AUDIT)) == ["a", "c"]
    assert bodies(take(rig, BILLING)) == ["a", "b", "c"]


def test_what_no_rule_chooses_is_accepted_and_gone(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: P-01."""
    for address in (AUDIT, BILLING):
        remove_rule(rig, address, "$Default")
    send(rig, message("1"), to="events")
    assert take(rig, AUDIT) == take(rig, BILLING) == []
    assert broker.topic("events").unmatched_count == 1


@pytest.mark.parametrize("cache_bytes", [1, 1_000_000])
def test_copies_survive_a_restart_with_their_rules(cache_bytes: int) -> None:
    """Req: R-01, P-01, P-03. Whether the body they share is in memory or not."""
    broker = InProcessBroker(body_cache_bytes=cache_bytes)
    broker.create_topic("events")
    for name in ("audit", "billing"):
        broker.create_subscription("events", name)
    broker.add_rule("events", "audit", RuleDescription("red", SqlFilter("1=1"), SqlAction("SET seen = 1")))
    rig = LiveHarness(broker)
    send(rig, *(message(str(number)) for number in range(5)), to="events")
    [first, *_] = take(rig, BILLING)
    complete(rig, first)
    broker.close()
    broker = InProcessBroker(clock=broker.clock, store=broker.store, seed=1, body_cache_bytes=cache_bytes)
    rig = LiveHarness(broker)
    assert bodies(take(rig, BILLING)) == ["1", "2", "3", "4"]
    found = take(rig, AUDIT)
    assert sorted(bodies(found)) == sorted([*"01234", *"01234"])
    assert [properties(event) for event in found].count({"seen": 1, "RuleName": "red"}) == 5
    send(rig, message("new"), to="events")
    assert sorted(bodies(rig.deliveries())) == ["new"] * 3
    broker.namespace.check(broker.clock.now_ms)


# Addresses


@pytest.mark.parametrize(
    "address",
    [
        "amqps://localhost:5671/team/events/Subscriptions/audit",
        "amqps://localhost/team/events/Subscriptions/audit",
        "team/events/Subscriptions/audit",
        "/team/events/Subscriptions/audit",
        "Team/Events/subscriptions/AUDIT",
        "team%2Fevents/Subscriptions/audit",
    ],
)
def test_a_subscription_in_every_sdk_s_spelling(
    rig: LiveHarness, broker: InProcessBroker, address: str
) -> None:
    """Req: T-11. Names of topics may have slashes. Source: wire contract 0.5."""
    broker.create_topic("team/events")
    broker.create_subscription("team/events", "audit")
    send(rig, message("1"), to=address.lower().rpartition("/subscriptions/")[0])
    [delivery] = take(rig, address)
    rig.settle(delivery.delivery_id, delivery.delivery_id, DEAD)
    assert bodies(take(rig, f"{address}/$DeadLetterQueue")) == ["1"]
    assert request(rig, address, "enumerate-rules", ALL).status == 200


@pytest.mark.parametrize(
    ("role", "address", "condition"),
    [
        (Role.RECEIVER, "events", "amqp:not-allowed"),
        (Role.RECEIVER, "events/$DeadLetterQueue", "amqp:not-allowed"),
        (Role.SENDER, AUDIT, "amqp:not-allowed"),
        (Role.SENDER, f"{AUDIT}/$DeadLetterQueue", "amqp:not-allowed"),
        (Role.RECEIVER, "events/Subscriptions/nobody", "amqp:not-found"),
        (Role.RECEIVER, "nothing/Subscriptions/audit", "amqp:not-found"),
        (Role.RECEIVER, "events/audit", "amqp:not-found"),
        (Role.SENDER, "events/Subscriptions/nobody", "amqp:not-found"),
    ],
)
def test_links_that_make_no_sense_are_refused(
    rig: LiveHarness, role: Role, address: str, condition: str
) -> None:
    """Req: T-03. Source: wire contract 2.1."""
    rig.attach(role, address)
    error = rig.refusal()
    assert str(error.condition) == condition
    assert "TrackingId:" in error.description


@pytest.mark.parametrize(
    ("node", "operation", "body", "status", "condition"),
    [
        ("events", "enumerate-rules", ALL, 400, "amqp:not-allowed"),
        (
            "events",
            "add-rule",
            {"rule-name": "r", "rule-description": {"true-filter": {}}},
            400,
            "amqp:not-allowed",
        ),
        ("orders", "enumerate-rules", ALL, 400, "amqp:not-allowed"),
        ("orders", "remove-rule", {"rule-name": "r"}, 400, "amqp:not-allowed"),
        (
            AUDIT,
            "schedule-message",
            {"messages": [{"message": message("1")}]},
            400,
            "amqp:not-allowed",
        ),
    ],
)
def test_requests_that_make_no_sense_are_refused(
    rig: LiveHarness,
    broker: InProcessBroker,
    node: str,
    operation: str,
    body: dict[str, Any],
    status: int,
    condition: str,
) -> None:
    """Req: T-03, S-11. Rules belong to a subscription; it is received from, its topic is sent to."""
    broker.create_queue("orders")
    response = request(rig, node, operation, body)
    assert (response.status, str(response.condition)) == (status, condition)
    assert len(response.description) > 40


def test_the_links_of_a_subscription_end_with_its_topic(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: A-02. Senders and receivers are told."""
    receiver = rig.listen(AUDIT, credit=1)
    sender = rig.sender("events")
    broker.ask(lambda reply_to: DeleteEntity("events", reply_to))
    rig.pump()
    detached = [event for event in rig.events if isinstance(event, LinkDetached)]
    assert {event.handle for event in detached} == {receiver, sender}
    for event in detached:
        assert event.error is not None
        assert str(event.error.condition) == "amqp:resource-deleted"
    rig.events.clear()
    rig.attach(Role.RECEIVER, AUDIT)
    assert str(rig.refusal().condition) == "amqp:not-found"


# Rights


def claimed(broker: InProcessBroker, *audiences: str) -> tuple[LiveHarness, list[int]]:
    """Connect without a claim and put a token for each audience; gives what each is answered."""
    rig = LiveHarness(broker, mechanism="ANONYMOUS")
    sender, _ = rig.pair("$cbs")
    statuses = []
    for audience in audiences:
        rig.put_token(sender, audience)
        statuses.append(rig.response().status)
    rig.events.clear()
    return rig, statuses


@pytest.mark.parametrize(
    "audience",
    [
        "sb://localhost/events",
        "amqps://localhost:5671/Events/",
        "sb://localhost/events/Subscriptions/audit",
        "amqps://localhost/events/subscriptions/audit/$management",
    ],
)
def test_a_key_of_the_topic_covers_its_subscriptions(audience: str) -> None:
    """Req: R-04. Source: wire contract 1.7, 1.8: the path of the key is the beginning of the resource's."""
    authority = Authority([SasRule(KEY_NAME, KEY, path="events")])
    broker = InProcessBroker(authority=authority)
    broker.create_topic("events")
    broker.create_subscription("events", "audit")
    broker.create_topic("eventsource")
    broker.create_subscription("eventsource", "audit")
    rig, statuses = claimed(broker, audience, "sb://localhost/events")
    assert statuses == [202, 202]
    add_rule(rig, AUDIT, "red", sql("color = 'red'"))
    rig.attach(Role.RECEIVER, "eventsource/Subscriptions/audit")
    assert str(rig.refusal().condition) == "amqp:unauthorized-access"


def test_tokens_for_subscriptions_that_are_not_there(broker: InProcessBroker) -> None:
    """Req: R-04. Source: wire contract 1.7."""
    _, statuses = claimed(broker, f"sb://localhost/{AUDIT}", "sb://localhost/events/Subscriptions/nobody")
    assert statuses == [202, 404]


def test_a_token_of_one_subscription_opens_no_other(broker: InProcessBroker) -> None:
    """Req: R-04."""
    rig, _ = claimed(broker, f"sb://localhost/{AUDIT}")
    assert take(rig, AUDIT) == []
    for role, address in ((Role.RECEIVER, BILLING), (Role.SENDER, "events")):
        rig.events.clear()
        rig.attach(role, address)
        assert str(rig.refusal().condition) == "amqp:unauthorized-access"


@pytest.mark.parametrize(("right", "status"), [(Right.SEND, 401), (Right.LISTEN, 200), (Right.MANAGE, 200)])
def test_who_listens_may_look_at_rules_and_change_them(right: Right, status: int) -> None:
    """Req: R-04, P-03. Source: Learn, the pages of the official rule managers."""
    broker = InProcessBroker(authority=Authority([SasRule(KEY_NAME, KEY, rights=frozenset({right}))]))
    broker.create_topic("events")
    broker.create_subscription("events", "audit")
    rig = LiveHarness(broker)
    assert request(rig, AUDIT, "enumerate-rules", ALL).status == status
    body = {"rule-name": "red", "rule-description": {"false-filter": {}}}
    assert request(rig, AUDIT, "add-rule", body).status == status
    assert request(rig, AUDIT, "remove-rule", {"rule-name": "$Default"}).status == status


# Rules


def rules_of(rig: LiveHarness, address: str) -> list[tuple[Any, Any, str]]:
    """Enumerate: (filter, action, name) of each rule."""
    response = request(rig, address, "enumerate-rules", ALL)
    assert response.status in (200, 204)
    found = []
    for item in response.body.get("rules", []):
        described = item["rule-description"]
        assert described.descriptor == 0x13700000004
        filter, action, name, created_at = described.value
        assert created_at > 0
        found.append((filter, action, name))
    return found


EMPTY_ACTION = Described(0x13700000005, [])


def test_rules_change_while_messages_are_sent(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: P-03, P-02. A message is judged by the rules of the moment it is sent."""
    assert rules_of(rig, AUDIT) == [(Described(0x1370000007, []), EMPTY_ACTION, "$Default")]
    sender = rig.sender("events")

    def publish(*messages: bytes) -> None:
        for payload in messages:
            rig.transfer(sender, payload)
            assert rig.take_event(DispositionReceived).state == ACCEPTED

    publish(colored("1", color="blue"))
    add_rule(rig, AUDIT, "red", sql("color = 'red'"))
    publish(colored("2", color="red"), colored("3", color="blue"))
    remove_rule(rig, AUDIT, "$default")
    publish(colored("4", color="red"), colored("5", color="blue"))
    remove_rule(rig, AUDIT, "red")
    publish(colored("6", color="red"))
    assert request(rig, AUDIT, "enumerate-rules", ALL).status == 204
    add_rule(rig, AUDIT, "correlated", {"correlation-filter": {"properties": {"color": "green"}}})
    publish(colored("7", color="green"), colored("8", color="red"))
    assert bodies(take(rig, AUDIT)) == ["1", "2", "3", "4", "7"]
    assert bodies(take(rig, BILLING)) == list("12345678")
    assert rules_of(rig, AUDIT) == [
        (Described(0x1370000009, [None] * 8 + [{"color": "green"}]), EMPTY_ACTION, "correlated")
    ]


def test_rules_are_listed_by_name_in_pages(rig: LiveHarness) -> None:
    """Req: P-03."""
    for name in ("b", "A", "c"):
        add_rule(rig, AUDIT, name, sql(f"x = '{name}'"), "SET y = 1" if name == "c" else None)
    everything = rules_of(rig, AUDIT)
    assert [name for _, _, name in everything] == ["$Default", "A", "b", "c"]
    assert everything[2][0] == Described(0x1370000006, ["x = 'b'", 20])
    assert everything[3][1] == Described(0x13700000006, ["SET y = 1", 20])
    for skip, top, expected in ((0, 1, ["$Default"]), (1, 2, ["A", "b"]), (3, 9, ["c"])):
        response = request(rig, AUDIT, "enumerate-rules", {"top": Int(top), "skip": Int(skip)})
        assert [item["rule-description"].value[2] for item in response.body["rules"]] == expected
    assert request(rig, AUDIT, "enumerate-rules", {"top": Int(9), "skip": Int(4)}).status == 204


@pytest.mark.parametrize(
    ("name", "description", "status", "condition", "said"),
    [
        ("$default", {"true-filter": {}}, 409, "com.microsoft:entity-already-exists", "$default"),
        ("r", sql("color = "), 400, "com.microsoft:argument-error", "r"),
        ("r", sql("color = 'red' AND"), 400, "com.microsoft:argument-error", "r"),
        ("r", {"correlation-filter": {}}, 400, "com.microsoft:argument-error", "r"),
        (
            "r",
            {**sql("1=1"), "sql-rule-action": {"expression": "SET sys.SequenceNumber = 1"}},
            400,
            "com.microsoft:argument-error",
            "r",
        ),
        ("", {"true-filter": {}}, 400, None, ""),
        ("a/b", {"true-filter": {}}, 400, None, "a/b"),
        ("r" * 51, {"true-filter": {}}, 400, None, ""),
    ],
)
def test_a_rule_that_cannot_be_is_refused(
    rig: LiveHarness, name: str, description: Any, status: int, condition: str | None, said: str
) -> None:
    """Req: P-03, T-02. And nothing has changed."""
    before = rules_of(rig, AUDIT)
    response = request(rig, AUDIT, "add-rule", {"rule-name": name, "rule-description": description})
    assert response.status == status
    assert condition in (None, str(response.condition))
    assert said in response.description
    assert rules_of(rig, AUDIT) == before


def test_a_rule_that_is_not_there_cannot_be_removed(rig: LiveHarness) -> None:
    """Req: P-03, T-03."""
    response = request(rig, AUDIT, "remove-rule", {"rule-name": "nobody"})
    # JavaScript retries a condition that it does not know, and recognises the missing by these words.
    assert (response.status, str(response.condition)) == (404, "amqp:not-found")
    assert f"The messaging entity '{AUDIT}/Rules/nobody' could not be found." in response.description
    response = request(rig, AUDIT, "remove-rule", {"rule-name": "$Default"})
    assert response.status == 200


def test_a_correlation_filter_compares_types_and_all_fields(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: P-02, C36. Every kind of property that clients send. Source: wire contract 9.2."""
    wanted: dict[str, Any] = {
        "text": "x",
        "int": Int(3),
        "long": Long(2**40),
        "float": 0.5,
        "flag": True,
        "at": Timestamp(1_700_000_000_000),
        "id": uuid.UUID(int=9),
        "span": Described(Symbol("com.microsoft:timespan"), Long(600_000_000)),
    }
    capitals = {name.upper(): value for name, value in wanted.items()}
    filter = {"correlation-filter": {"message-id": "m", "label": "red", "properties": wanted}}
    remove_rule(rig, AUDIT, "$Default")
    add_rule(rig, AUDIT, "all", filter)

    def sent(body: str, label: str | None = "red", **changed: Any) -> bytes:
        fields = ["m", None, None, label]
        return message_bytes(body.encode(), properties=fields, application_properties={**wanted, **changed})

    send(
        rig,
        sent("same"),
        sent("wider", int=Long(3)),
        sent("label", label="Red"),
        sent("no label", label=None),
        sent("text", int="3"),
        sent("case", text="X"),
        sent("flag", flag=1),
        sent("span", span=Described(Symbol("com.microsoft:timespan"), Long(600_000_010))),
        message_bytes(b"names", properties=["m", None, None, "red"], application_properties=capitals),
        to="events",
    )
    assert bodies(take(rig, AUDIT)) == ["same", "wider", "names"]


# Actions


def test_each_rule_with_an_action_gives_a_copy_of_its_own(rig: LiveHarness) -> None:
    """Req: P-02, P-01. Those without one give one copy together. Source: wire contract 9.1."""
    add_rule(rig, AUDIT, "also-all", sql("1=1"))
    add_rule(rig, AUDIT, "red", sql("color = 'red'"), "SET price = 5")
    add_rule(rig, AUDIT, "cheap", sql("price < 10"), "SET color = 'none'; REMOVE price")
    add_rule(rig, AUDIT, "never", sql("1=0"), "SET x = 1")
    send(rig, colored("1", color="red", price=7), to="events")
    found = [properties(event) for event in take(rig, AUDIT)]
    expected = [
        {"color": "red", "price": 7},
        {"color": "red", "price": 5, "RuleName": "red"},
        {"color": "none", "RuleName": "cheap"},
    ]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert [properties(event) for event in take(rig, BILLING)] == [{"color": "red", "price": 7}]


def test_an_action_changes_what_the_receiver_sees(rig: LiveHarness) -> None:
    """Req: P-02. Fields, annotations and the time-to-live; all else is the sender's. Source: wire contract
    9.4."""
    remove_rule(rig, AUDIT, "$Default")
    action = (
        "SET sys.Label = 'red'; SET sys.To = 'there'; SET sys.ReplyTo = 'here'; SET sys.CorrelationId = 'c';"
        "SET sys.ContentType = 'text/plain'; SET sys.MessageId = 'm'; SET sys.SessionId = 's';"
        "SET sys.PartitionKey = 's'; SET sys.ReplyToSessionId = 'r'; SET total = price * 2; SET 'a b' = 1"
    ).replace("'a b'", '"a b"')
    add_rule(rig, AUDIT, "all", sql("1=1"), action)
    header = [True, None, UInt(60_000)]
    fields = ["old", b"user", None, "blue", None, None, Symbol("x/y"), Symbol("gzip")]
    sent = message_bytes(
        b"body",
        header=header,
        annotations={Symbol("mine"): 1},
        properties=fields,
        application_properties={"price": 4, "Kept": "x"},
    )
    send(rig, sent, to="events")
    [delivery] = take(rig, AUDIT)
    sections = scan(delivery.payload)
    found = sections.decode_properties()
    assert (found.message_id, found.user_id, found.to, found.subject) == ("m", b"user", "there", "red")
    assert (found.reply_to, found.correlation_id, found.content_type) == ("here", "c", "text/plain")
    assert (found.content_encoding, found.group_id, found.reply_to_group_id) == ("gzip", "s", "r")
    assert properties(delivery) == {"price": 4, "Kept": "x", "total": 8, "a b": 1, "RuleName": "all"}
    noted = notes_of(delivery)
    assert (noted["mine"], noted["x-opt-partition-key"]) == (1, "s")
    assert sections.decode_header().durable is True
    assert bodies([delivery]) == ["body"]
    [untouched] = take(rig, BILLING)
    assert untouched.payload[scan(untouched.payload).bare_offset :] == sent[scan(sent).bare_offset :]


def test_an_action_sets_the_time_to_live(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: P-02, E-05. By a parameter, since no literal is a span of time."""
    span = Described(Symbol("com.microsoft:timespan"), Long(50_000_000))
    action = {"expression": "SET sys.TimeToLive = @ttl", "parameters": {"@ttl": span}}
    remove_rule(rig, AUDIT, "$Default")
    description = {**sql("1=1"), "sql-rule-action": action}
    body = {"rule-name": "short", "rule-description": description}
    assert request(rig, AUDIT, "add-rule", body).status == 200
    send(rig, message("1", header=[None, None, UInt(60_000)]), to="events")
    assert [scan(event.payload).decode_header().ttl for event in drained(rig, BILLING)] == [60_000]
    [delivery] = take(rig, AUDIT)
    assert scan(delivery.payload).decode_header().ttl == 5_000
    rig.settle(delivery.delivery_id, delivery.delivery_id, Modified(False))
    [delivery] = rig.deliveries()
    broker.advance(LOCK_MS + 2_000)
    rig.pump()
    assert rig.deliveries() == []
    assert broker.subscription("events", "audit").active_count == 0


def test_what_an_action_changed_stays_changed(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: P-02, L-06, L-09, L-17. Abandoned with properties, deferred, peeked, dead-lettered."""
    remove_rule(rig, AUDIT, "$Default")
    add_rule(rig, AUDIT, "all", sql("1=1"), "SET sys.Label = 'red'; REMOVE gone; SET price = 2")
    send(rig, colored("1", gone="x", price=1), to="events")
    handle = rig.listen(AUDIT, credit=2)
    [first] = rig.deliveries()
    assert properties(first) == {"price": 2, "RuleName": "all"}
    changes = {Symbol("gone"): "back", Symbol("price"): 3}
    rig.settle(first.delivery_id, first.delivery_id, Modified(True, False, changes))
    [second] = rig.deliveries()
    expected = {"price": 3, "RuleName": "all", "gone": "back"}
    assert (properties(second), counts([second])) == (expected, [1])
    rig.settle(second.delivery_id, second.delivery_id, DEAD)
    rig.client.detach(rig.channel, handle)
    dead = f"{AUDIT}/$DeadLetterQueue"
    peeked = request(rig, dead, "peek-message", {"from-sequence-number": Long(0), "message-count": Int(9)})
    [item] = peeked.body["messages"]
    [delivery] = take(rig, dead)
    for payload in (item["message"], delivery.payload):
        sections = scan(payload)
        assert sections.decode_properties().subject == "red"
        assert sections.decode_properties().message_id == "1"
        found = sections.decode_application_properties()
        assert {key: found[key] for key in expected} == expected


def test_a_rule_that_cannot_be_evaluated(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: P-04. Its message is dead-lettered with the reason where the subscription says so, else the rule
    does not match."""
    broker.create_subscription("events", "lenient", dead_lettering_on_filter_errors=False)
    lenient = "events/Subscriptions/lenient"
    for address in (AUDIT, lenient):
        remove_rule(rig, address, "$Default")
        add_rule(rig, address, "broken", sql("1 / price = 1"))
    send(rig, colored("zero", price=0), colored("one", price=1), to="events")
    assert bodies(take(rig, AUDIT)) == bodies(take(rig, lenient)) == ["one"]
    [dead] = take(rig, f"{AUDIT}/$DeadLetterQueue")
    assert bodies([dead]) == ["zero"]
    assert properties(dead)["DeadLetterReason"]
    assert "broken" in properties(dead)["DeadLetterErrorDescription"]
    assert take(rig, f"{lenient}/$DeadLetterQueue") == []


# Every ability of a queue


def test_sessions_of_a_subscription(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: G-01, G-03, G-04, G-07."""
    broker.create_subscription("events", "talks", requires_session=True, lock_duration_ms=LOCK_MS)
    talks = "events/Subscriptions/talks"
    send(rig, *(message(f"{name}{number}", name) for number in range(2) for name in "ab"), to="events")
    handle, session_id = accept(rig, address=talks, credit=9)
    assert session_id == "a"
    deliveries = rig.deliveries()
    assert bodies(deliveries) == ["a0", "a1"]
    assert {notes_of(event)["x-opt-locked-until"] for event in deliveries} == {INSTANT_MS_MAX}
    complete(rig, *deliveries)
    named, session_id = accept(rig, "b", address=talks, credit=1)
    assert (session_id, bodies(rig.deliveries())) == ("b", ["b0"])
    state = {"session-id": "b", "session-state": b"half"}
    assert request(rig, talks, "set-session-state", state).status == 200
    got = request(rig, talks, "get-session-state", {"session-id": "b"})
    assert got.body == {"session-state": b"half"}
    listing = {"last-updated-time": Timestamp(253_402_300_800_000), "skip": Int(0), "top": Int(9)}
    assert request(rig, talks, "get-message-sessions", listing).body["sessions-ids"] == ["b"]
    assert handle != named
    assert bodies(take(rig, AUDIT)) == ["a0", "b0", "a1", "b1"]


def test_an_action_puts_a_message_into_a_session(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: P-02, G-01."""
    rule = RuleDescription("by-color", SqlFilter("EXISTS(color)"), SqlAction("SET sys.SessionId = color"))
    broker.create_subscription("events", "talks", rule=rule, requires_session=True)
    send(rig, colored("1", color="red"), colored("2", color="blue"), to="events")
    _, session_id = accept(rig, "blue", address="events/Subscriptions/talks", credit=5)
    [delivery] = rig.deliveries()
    assert bodies([delivery]) == ["2"]
    assert scan(delivery.payload).decode_properties().group_id == session_id == "blue"


def test_the_dead_letter_queue_of_a_subscription(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: L-07, L-09, L-17. By the receiver, and after MaxDeliveryCount deliveries."""
    send(rig, message("bad"), message("stuck"), to="events")
    handle = rig.listen(AUDIT, credit=10)
    bad, stuck = rig.deliveries()
    reason = {Symbol("DeadLetterReason"): "why", Symbol("DeadLetterErrorDescription"): "because"}
    error = AmqpError(Symbol("com.microsoft:dead-letter"), "", reason)
    rig.settle(bad.delivery_id, bad.delivery_id, Rejected(error))
    for _ in range(3):
        rig.settle(stuck.delivery_id, stuck.delivery_id, Modified(True))
        [stuck, *_] = [*rig.deliveries(), stuck]
    rig.client.detach(rig.channel, handle)
    dead = take(rig, f"{AUDIT}/$DeadLetterQueue")
    assert bodies(dead) == ["bad", "stuck"]
    assert properties(dead[0])["DeadLetterReason"] == "why"
    assert properties(dead[1])["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    view = broker.subscription("events", "audit")
    assert (view.active_count, view.dead_letter_count) == (0, 2)
    complete(rig, *dead)
    assert broker.subscription("events", "audit").dead_letter_count == 0


def test_deferred_peeked_renewed_and_settled_over_management(rig: LiveHarness) -> None:
    """Req: L-03, L-10, L-14, S-11."""
    send(rig, message("1"), message("2"), to="events")
    first, second = take(rig, AUDIT, credit=2)
    rig.settle(first.delivery_id, first.delivery_id, Modified(True, True))
    token = uuid.UUID(bytes_le=second.delivery_tag)
    tokens = {"lock-tokens": Array.of(uuid.UUID, [token])}
    assert request(rig, AUDIT, "renew-lock", tokens).status == 200
    done = request(rig, AUDIT, "update-disposition", {**tokens, "disposition-status": "completed"})
    assert done.status == 200
    other = request(rig, BILLING, "update-disposition", {**tokens, "disposition-status": "completed"})
    assert other.status == 410
    peek = {"from-sequence-number": Long(0), "message-count": Int(9)}
    [item] = request(rig, AUDIT, "peek-message", peek).body["messages"]
    assert scan(item["message"]).decode_message_annotations()["x-opt-message-state"] == 1
    body = {"sequence-numbers": Array.of(Long, [1]), "receiver-settle-mode": UInt(0)}
    [item] = request(rig, AUDIT, "receive-by-sequence-number", body).body["messages"]
    assert scan(item["message"]).decode_body()[0][1] == b"1"
    assert request(rig, AUDIT, "peek-message", peek).status == 204
    assert len(request(rig, BILLING, "peek-message", peek).body["messages"]) == 2


def test_scheduled_messages_are_judged_when_they_are_due(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: S-05, S-06, P-01. They wait in the topic; scheduled by either way, and cancelled."""
    at = Timestamp(broker.clock.now_ms + 10_000)
    later = [message(name, annotations={DUE: at}) for name in ("sent", "asked", "cancelled")]
    send(rig, later[0], to="events")
    body = {"messages": [{"message": payload} for payload in later[1:]]}
    numbers = request(rig, "events", "schedule-message", body).body["sequence-numbers"]
    assert len(numbers) == 2
    assert broker.topic("events").scheduled_count == 3
    cancel = {"sequence-numbers": Array.of(Long, numbers[1:])}
    assert request(rig, "events", "cancel-scheduled-message", cancel).status == 200
    assert request(rig, "events", "cancel-scheduled-message", cancel).status == 404
    broker.advance(5_000)
    remove_rule(rig, BILLING, "$Default")
    add_rule(rig, BILLING, "asked", {"correlation-filter": {"message-id": "asked"}})
    audit = rig.listen(AUDIT, credit=10)
    assert rig.deliveries() == []
    broker.advance(5_000)
    rig.pump()
    found = rig.deliveries()
    assert sorted(bodies(found)) == ["asked", "sent"]
    assert {event.handle for event in found} == {audit}
    assert all(notes_of(event)["x-opt-enqueued-time"] >= at for event in found)
    assert bodies(take(rig, BILLING)) == ["asked"]
    assert broker.topic("events").scheduled_count == 0


def test_a_scheduled_message_whose_body_is_on_disk_is_judged_too() -> None:
    """Req: S-05, P-01, R-01. After a restart, with a filter that looks into it."""
    broker = InProcessBroker(body_cache_bytes=1)
    broker.create_topic("events")
    rule = RuleDescription("red", SqlFilter("color = 'red'"), SqlAction("SET seen = color + '!'"))
    broker.create_subscription("events", "audit", rule=rule)
    at = Timestamp(broker.clock.now_ms + 10_000)
    for color in ("red", "blue"):
        payload = message_bytes(annotations={DUE: at}, application_properties={"color": color})
        send(LiveHarness(broker), payload, to="events")
    broker = InProcessBroker(clock=broker.clock, store=broker.store, seed=1, body_cache_bytes=1)
    broker.advance(10_000)
    found = take(LiveHarness(broker), AUDIT)
    assert [properties(event) for event in found] == [{"color": "red", "seen": "red!", "RuleName": "red"}]
    broker.namespace.check(broker.clock.now_ms)


def test_the_shorter_time_to_live_counts(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: E-07, E-05. Of message, topic and subscription."""
    broker.create_topic("short", default_ttl_ms=10_000)
    broker.create_subscription("short", "long", default_ttl_ms=60_000, dead_lettering_on_expiration=True)
    broker.create_subscription("short", "shorter", default_ttl_ms=5_000)
    sent = [message("own", header=[None, None, UInt(2_000)]), message("none")]
    send(rig, *sent, message("longer", header=[None, None, UInt(90_000)]), to="short")
    for name, expected in (("long", [2_000, None, 10_000]), ("shorter", [2_000, None, 5_000])):
        address = f"short/Subscriptions/{name}"
        peek = {"from-sequence-number": Long(0), "message-count": Int(9)}
        found = request(rig, address, "peek-message", peek).body["messages"]
        assert [scan(item["message"]).decode_header().ttl for item in found] == expected
    broker.advance(6_000)
    assert broker.subscription("short", "shorter").active_count == 0
    assert broker.subscription("short", "long").active_count == 2
    broker.advance(6_000)
    dead = take(rig, "short/Subscriptions/long/$DeadLetterQueue")
    assert sorted(bodies(dead)) == ["longer", "none", "own"]
    send(rig, message("none"), to="short")
    for name, ttl_ms in (("long", 10_000), ("shorter", 5_000)):
        [delivery] = take(rig, f"short/Subscriptions/{name}")
        assert scan(delivery.payload).decode_header().ttl == ttl_ms


def test_duplicates_are_found_by_the_topic(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: D-01. They are accepted and come to nobody."""
    broker.create_topic("unique", requires_duplicate_detection=True)
    broker.create_subscription("unique", "audit")
    send(rig, message("1"), message("1"), message("2"), to="unique")
    assert bodies(take(rig, "unique/Subscriptions/audit")) == ["1", "2"]


def test_a_transaction_sends_to_a_topic_and_settles_on_a_subscription(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: F-03, P-01. All or nothing, also the copies."""
    send(rig, message("1"), to="events")
    [delivery] = take(rig, AUDIT, credit=1)
    sender = rig.sender("events")
    controller = Controller(rig)
    rig.events.clear()
    for fails in (True, False):
        txn_id = controller.declare()
        controller.send(txn_id, sender, message("answer"))
        controller.settle(txn_id, delivery)
        assert broker.subscription("events", "billing").active_count == 1
        if fails:
            controller.roll_back(txn_id)
            assert broker.subscription("events", "audit").active_count == 1
        else:
            controller.commit(txn_id)
    assert bodies(take(rig, AUDIT)) == ["answer"]
    assert bodies(take(rig, BILLING)) == ["1", "answer"]


def test_a_subscription_forwards_and_so_does_its_dead_letter_queue(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: F-01, P-01."""
    broker.create_queue("work")
    broker.create_queue("graves")
    broker.create_subscription("events", "onward", forward_to="work")
    broker.create_subscription("events", "buried", forward_dead_lettered_to="graves")
    send(rig, message("1"), to="events")
    assert bodies(take(rig, "work")) == ["1"]
    [delivery] = take(rig, "events/Subscriptions/buried")
    rig.settle(delivery.delivery_id, delivery.delivery_id, DEAD)
    [dead] = take(rig, "graves")
    assert notes_of(dead)["x-opt-deadletter-source"] == "events/Subscriptions/buried"
    rig.attach(Role.RECEIVER, "events/Subscriptions/onward")
    rig.events = [event for event in rig.events if not isinstance(event, DispositionReceived)]
    assert str(rig.refusal().condition) == "amqp:not-allowed"


def test_a_queue_forwards_to_a_topic_by_whose_rules_it_is_judged(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: F-01, P-01."""
    broker.create_queue("inbox", forward_to="events")
    remove_rule(rig, AUDIT, "$Default")
    add_rule(rig, AUDIT, "red", sql("color = 'red'"), "SET seen = TRUE")
    send(rig, colored("1", color="red"), colored("2", color="blue"), to="inbox")
    found = take(rig, AUDIT)
    assert [properties(event) for event in found] == [{"color": "red", "seen": True, "RuleName": "red"}]
    assert bodies(take(rig, BILLING)) == ["1", "2"]


def test_receive_and_delete_from_a_subscription(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: L-01."""
    send(rig, message("1"), message("2"), to="events")
    assert bodies(drained(rig, AUDIT)) == ["1", "2"]
    assert broker.subscription("events", "audit").active_count == 0
    assert broker.subscription("events", "billing").active_count == 2


def test_a_partitioned_topic_shows_its_partitions(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: S-02, P-01. What has one key is in one partition, in all subscriptions."""
    broker.create_topic("wide", enable_partitioning=True)
    for name in ("a", "b"):
        broker.create_subscription("wide", name)
    key = Symbol("x-opt-partition-key")
    send(
        rig,
        *(message(str(number), annotations={key: f"k{number % 3}"}) for number in range(9)),
        to="wide",
    )
    for name in ("a", "b"):
        found = take(rig, f"wide/Subscriptions/{name}")
        assert sorted(bodies(found)) == [str(number) for number in range(9)]
        partitions: dict[str, set[int]] = {}
        for event in found:
            noted = notes_of(event)
            assert noted["x-opt-partition-id"] == noted["x-opt-sequence-number"] >> 48
            partitions.setdefault(noted[key], set()).add(noted["x-opt-partition-id"])
        assert {len(numbers) for numbers in partitions.values()} == {1}


def test_many_subscriptions_and_few_matches(broker: InProcessBroker, rig: LiveHarness) -> None:
    """Req: P-05. Only whose rule fits has a copy."""
    broker.create_topic("many")
    for number in range(300):
        rule = RuleDescription("mine", CorrelationFilter(properties=(("to", number),)))
        broker.create_subscription("many", f"s{number}", rule=rule)
    broker.create_subscription("many", "none", rule=RuleDescription("none", FalseFilter()))
    send(rig, *(colored(str(number), to=number) for number in (7, 250, 999)), to="many")
    assert bodies(take(rig, "many/Subscriptions/s7")) == ["7"]
    assert bodies(take(rig, "many/Subscriptions/s250")) == ["250"]
    assert take(rig, "many/Subscriptions/s8") == take(rig, "many/Subscriptions/none") == []
    assert broker.topic("many").unmatched_count == 1
