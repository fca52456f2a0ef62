"""Rules over the `$management` node of a subscription: what clients write, and the bytes that they read."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from peeklock.amqp.codec import decode
from peeklock.amqp.decimals import decimal128_of
from peeklock.amqp.encoding import encode
from peeklock.amqp.messaging import scan
from peeklock.amqp.performatives import TransactionalState
from peeklock.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from peeklock.broker.vocabulary.commands import AddRule, ListRules, RemoveRule
from peeklock.broker.vocabulary.descriptions import RuleDescription
from peeklock.broker.vocabulary.effects import Done, Failed, RulesFound
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    InvalidOperation,
    RuleAlreadyExists,
    RuleNotFound,
)
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.nodes.management import RULES_BYTES_MAX
from peeklock.gateway.nodes.rules import encode_rules
from peeklock.rules.filters import (
    AsGiven,
    CorrelationFilter,
    FalseFilter,
    Filter,
    SqlAction,
    SqlFilter,
    TrueFilter,
    Value,
)
from tests.gateway.harness import Harness, ask, refused

PATH = "events/Subscriptions/audit"
NODE = f"{PATH}/$management"
DAY = datetime(2024, 2, 29, 12, tzinfo=UTC)
DAY_MS = int(DAY.timestamp() * 1000)


@pytest.fixture
def rig() -> Harness:
    return Harness()


@pytest.fixture
def sender(rig: Harness) -> int:
    return rig.pair(NODE)[0]


def added(rig: Harness, sender: int, description: Any, name: Any = "blue") -> RuleDescription:
    """Ask for a rule, and give what the broker is asked."""
    ask(rig, sender, "add-rule", {"rule-name": name, "rule-description": description})
    command = rig.take(AddRule)
    assert command.path == PATH
    rig.effect(RulesFound(command.reply_to, [command.rule]))
    response = rig.response()
    assert (response.status, response.condition, response.body) == (200, None, {})
    return command.rule


# What clients write

ALL_FIELDS = {
    "correlation-id": "c",
    "message-id": "m",
    "to": "t",
    "reply-to": "r",
    "label": "l",
    "session-id": "s",
    "reply-to-session-id": "rs",
    "content-type": "ct",
    "properties": {"a": Long(1), "B": None},
}


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({"sql-filter": {"expression": "1=1"}}, SqlFilter("1=1")),
        ({"sql-filter": {"expression": ""}}, SqlFilter("")),
        ({"sql-filter": {"expression": "a = 1"}, "correlation-filter": None}, SqlFilter("a = 1")),
        ({Symbol("sql-filter"): {Symbol("expression"): "a = 1"}}, SqlFilter("a = 1")),
        (
            {"sql-filter": {"expression": "a = @p", "parameters": {"@p": Int(3)}, "compatibility-level": 20}},
            SqlFilter("a = @p", (("@p", 3),)),
        ),
        (
            {"correlation-filter": ALL_FIELDS},
            CorrelationFilter("c", "m", "t", "r", "l", "s", "rs", "ct", (("a", 1), ("B", None))),
        ),
        ({"correlation-filter": {"label": "red"}}, CorrelationFilter(label="red")),
        ({"correlation-filter": {"label": None, "properties": None}}, CorrelationFilter()),
        ({"true-filter": {}}, TrueFilter()),
        ({"false-filter": {}}, FalseFilter()),
    ],
)
def test_every_kind_of_filter_is_read(rig: Harness, sender: int, filter: Any, expected: Filter) -> None:
    """Req: P-02, P-03. A SQL filter stays what it is, also `1=1`, as in the service. Source: wire contract
    5.2."""
    assert added(rig, sender, filter) == RuleDescription("blue", expected)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (None, None),
        ({"expression": "SET a = 1"}, SqlAction("SET a = 1")),
        (
            {"expression": "SET a = @p", "parameters": {"@p": "x"}},
            SqlAction("SET a = @p", (("@p", "x"),)),
        ),
    ],
)
def test_an_action_is_read(rig: Harness, sender: int, action: Any, expected: SqlAction | None) -> None:
    """Req: P-02, P-03. .NET and Java send null for none, JavaScript sends nothing."""
    description = {"true-filter": {}, "sql-rule-action": action, "rule-name": "blue"}
    assert added(rig, sender, description).action == expected


def test_the_name_is_beside_the_description_or_in_it(rig: Harness, sender: int) -> None:
    """Req: P-03."""
    description = {"true-filter": {}, "rule-name": "inner"}
    assert added(rig, sender, description, "outer").name == "outer"
    assert added(rig, sender, description, None).name == "inner"


VALUES: list[tuple[Any, Value | None, Any]] = [
    (True, True, True),
    (Int(-5), -5, Int(-5)),
    (Byte(-5), -5, Byte(-5)),
    (Short(-5), -5, Short(-5)),
    (UByte(5), 5, UByte(5)),
    (UShort(5), 5, UShort(5)),
    (Long(5), 5, Long(5)),
    (UInt(0), 0, UInt(0)),
    (UInt(5), 5, UInt(5)),
    (UInt(2**32 - 1), 2**32 - 1, UInt(2**32 - 1)),
    (ULong(5), 5, ULong(5)),
    (ULong(2**64 - 1), 2**64 - 1, ULong(2**64 - 1)),
    (Long(-(2**63)), -(2**63), Long(-(2**63))),
    (Float(0.1), struct.unpack("f", struct.pack("f", 0.1))[0], Float(0.1)),
    (decimal128_of(Decimal("1.50")), Decimal("1.50"), decimal128_of(Decimal("1.50"))),
    (Decimal32(bytes.fromhex("31800096")), Decimal("1.50"), Decimal32(bytes.fromhex("31800096"))),
    (Char("x"), "x", Char("x")),
    (1.25, 1.25, 1.25),
    ("text", "text", "text"),
    (Symbol("text"), "text", Symbol("text")),
    (b"bytes", b"bytes", b"bytes"),
    (uuid.UUID(int=3), uuid.UUID(int=3), uuid.UUID(int=3)),
    (Timestamp(DAY_MS), DAY, Timestamp(DAY_MS)),
    (
        Described(Symbol("com.microsoft:timespan"), Long(15_000_000)),
        timedelta(seconds=1.5),
        Described(Symbol("com.microsoft:timespan"), Long(15_000_000)),
    ),
    (
        Described(Symbol("com.microsoft:datetime-offset"), Long(638_448_048_000_000_000)),
        DAY,
        Described(Symbol("com.microsoft:datetime-offset"), Long(638_448_048_000_000_000)),
    ),
    (
        Described(Symbol("com.microsoft:timespan"), Long(3)),
        timedelta(0),
        Described(Symbol("com.microsoft:timespan"), Long(3)),
    ),
    (
        Described(Symbol("com.microsoft:uri"), "http://x/"),
        "http://x/",
        Described(Symbol("com.microsoft:uri"), "http://x/"),
    ),
    (None, None, None),
]


@pytest.mark.parametrize(("sent", "known", "shown"), VALUES)
def test_a_value_has_its_type_in_both_directions(
    rig: Harness, sender: int, sent: Any, known: Value | None, shown: Any
) -> None:
    """Req: P-02, P-03, C35. Source: wire contract 5.2."""
    rule = added(rig, sender, {"correlation-filter": {"properties": {"x": sent}}})
    assert rule.filter == CorrelationFilter(properties=(("x", known),))
    [(_, value)] = rule.filter.properties
    assert type(value) is type(known)
    raw = enumerated(rig, sender, [rule])
    assert encode({"x": shown}) in raw


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("byte", -5, Byte(-5)),
        ("short", 5, Short(5)),
        ("int", 5, Int(5)),
        ("long", 5, Long(5)),
        ("unsignedByte", 5, UByte(5)),
        ("unsignedShort", 5, UShort(5)),
        ("unsignedInt", 5, UInt(5)),
        ("unsignedLong", 2**64 - 1, ULong(2**64 - 1)),
        ("float", 0.1, Float(0.1)),
        ("double", 0.1, 0.1),
        ("decimal", Decimal("1.50"), Decimal128(bytes.fromhex("303c0000000000000000000000000096"))),
        ("boolean", True, True),
        ("guid", uuid.UUID(int=3), uuid.UUID(int=3)),
        ("base64Binary", b"bytes", b"bytes"),
        ("dateTime", DAY, Timestamp(DAY_MS)),
        ("duration", timedelta(seconds=1.5), Described(Symbol("com.microsoft:timespan"), Long(15_000_000))),
    ],
)
def test_a_value_of_the_administration_has_the_type_of_the_same_name(
    rig: Harness, sender: int, kind: str, value: Value, shown: Any
) -> None:
    """Req: C35"""
    filter = CorrelationFilter(properties=(("x", value),), as_given=(AsGiven(f"d:{kind}", " as given "),))
    assert encode({"x": shown}) in enumerated(rig, sender, [RuleDescription("r", filter)])


def test_parameters_keep_how_they_were_given(rig: Harness, sender: int) -> None:
    """Req: C35. They are listed by the administration alone."""
    pairs = {"@a": UInt(5), "@b": "x", "@c": None, "@d": uuid.UUID(int=3)}
    action = {"expression": "SET a = @a", "parameters": pairs}
    filter = {"expression": "1=1", "parameters": pairs}
    rule = added(rig, sender, {"sql-filter": filter, "sql-rule-action": action})
    expected = (AsGiven("amqp:uint", "5205"), None, None, AsGiven("amqp:uuid", "98" + f"{3:032x}"))
    assert isinstance(rule.filter, SqlFilter)
    assert rule.action is not None
    assert rule.filter.as_given == rule.action.as_given == expected
    usual = added(rig, sender, {"sql-filter": {"expression": "1=1", "parameters": {"@b": "x", "@i": Int(5)}}})
    assert isinstance(usual.filter, SqlFilter)
    assert usual.filter.as_given == ()


def test_a_decimal_of_unknown_origin_is_shown_as_a_double(rig: Harness, sender: int) -> None:
    """The configuration file knows decimals."""
    rule = RuleDescription("r", CorrelationFilter(properties=(("x", Decimal("2.5")),)))
    assert encode({"x": 2.5}) in enumerated(rig, sender, [rule])


def test_a_time_without_a_zone_is_shown_as_utc(rig: Harness, sender: int) -> None:
    """Only the administration API knows such times."""
    rule = RuleDescription("r", CorrelationFilter(properties=(("x", DAY.replace(tzinfo=None)),)))
    assert encode({"x": Timestamp(DAY_MS)}) in enumerated(rig, sender, [rule])


SQL = {"sql-filter": {"expression": "1=1"}}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"rule-name": "blue"}, "'rule-description' is not a map"),
        ({"rule-name": "blue", "rule-description": [SQL]}, "'rule-description' is not a map"),
        ({"rule-name": 7, "rule-description": SQL}, "'rule-name' is not a string"),
        ({"rule-description": SQL}, "'rule-name' is missing"),
        ({"rule-description": {**SQL, "rule-name": 7}}, "'rule-name' is not a string"),
        ({"rule-name": "b", "rule-description": {}}, "holds no filter"),
        ({"rule-name": "b", "rule-description": {"sql-filter": None}}, "holds no filter"),
        ({"rule-name": "b", "rule-description": {"true-filter": {}, **SQL}}, "sql-filter and true-filter"),
        ({"rule-name": "b", "rule-description": {"sql-filter": "1=1"}}, "'sql-filter' is not a map"),
        ({"rule-name": "b", "rule-description": {"sql-filter": {}}}, "'sql-filter' holds no 'expression'"),
        (
            {"rule-name": "b", "rule-description": {"sql-filter": {"expression": 1}}},
            "'expression' is not a string",
        ),
        (
            {"rule-name": "b", "rule-description": {"sql-filter": {"expression": "a", "parameters": []}}},
            "'parameters' is not a map",
        ),
        (
            {"rule-name": "b", "rule-description": {"correlation-filter": {"label": 7}}},
            "'label' is not a string",
        ),
        (
            {"rule-name": "b", "rule-description": {"correlation-filter": {"properties": {7: "x"}}}},
            "A name in 'properties' is not a string",
        ),
        (
            {"rule-name": "b", "rule-description": {"correlation-filter": {"properties": {"x": [1]}}}},
            "The value of 'x' is of a type",
        ),
        (
            {"rule-name": "b", "rule-description": {**SQL, "sql-rule-action": "SET a = 1"}},
            "'sql-rule-action' is not a map",
        ),
        (
            {"rule-name": "b", "rule-description": {**SQL, "sql-rule-action": {}}},
            "'sql-rule-action' holds no 'expression'",
        ),
    ],
)
def test_a_malformed_rule_is_400_and_the_text_names_the_field(
    rig: Harness, sender: int, body: Any, named: str
) -> None:
    """Req: P-03, R-05, T-02."""
    ask(rig, sender, "add-rule", body)
    assert named in refused(rig, 400, "com.microsoft:argument-error").description
    assert rig.commands == []


@pytest.mark.parametrize(
    ("error", "status", "condition"),
    [
        (RuleAlreadyExists("there"), 409, "com.microsoft:entity-already-exists"),
        (ArgumentInvalid("expected a value after '=' at 5"), 400, "com.microsoft:argument-error"),
        (InvalidOperation("'events' is a topic"), 400, "amqp:not-allowed"),
    ],
)
def test_a_rule_that_is_refused(
    rig: Harness, sender: int, error: ArgumentInvalid, status: int, condition: str
) -> None:
    """Req: P-03, T-03. Source: wire contract 5.2."""
    ask(rig, sender, "add-rule", {"rule-name": "b", "rule-description": SQL})
    rig.effect(Failed(rig.take(AddRule).reply_to, error))
    assert str(error) in refused(rig, status, condition).description


def test_a_rule_is_removed(rig: Harness, sender: int) -> None:
    """Req: P-03. Source: wire contract 5.2."""
    ask(rig, sender, "remove-rule", {"rule-name": "$Default"})
    command = rig.take(RemoveRule)
    assert (command.path, command.name) == (PATH, "$Default")
    rig.effect(Done(command.reply_to))
    response = rig.response()
    assert (response.status, response.body) == (200, {})
    ask(rig, sender, "remove-rule", {"rule-name": "$Default"})
    rig.effect(Failed(rig.take(RemoveRule).reply_to, RuleNotFound("gone")))
    refused(rig, 404, "amqp:not-found")
    for body in ({}, {"rule-name": 1}):
        ask(rig, sender, "remove-rule", body)
        refused(rig, 400, "com.microsoft:argument-error")
    assert rig.commands == []


# What clients read


def enumerated(rig: Harness, sender: int, rules: list[RuleDescription]) -> bytes:
    """Ask for rules and let the broker find these; gives the response as it came."""
    ask(rig, sender, "enumerate-rules", {"top": Int(100), "skip": Int(0)})
    rig.effect(RulesFound(rig.take(ListRules).reply_to, rules))
    response = rig.response()
    assert (response.status, response.condition) == (200, None)
    return response.raw


def test_rules_are_described_lists_byte_for_byte(rig: Harness, sender: int) -> None:
    """Req: P-03. Golden bytes: descriptors in full (0x80), the empty action never null, JavaScript looks into
    it; four elements. Source: wire contract 5.2; the service's own answer, recorded in the tests of the Java
    client, has the same bytes here."""
    rule = RuleDescription("$Default", TrueFilter(), None, 1_700_000_000_123)
    golden = (
        "00 53 77"
        " c1 56 02 a1 05" + b"rules".hex() + " c0 4c 01"
        " c1 49 02 a1 10" + b"rule-description".hex() + " 00 80 0000013700000004 c0 2a 04"
        " 00 80 0000001370000007 45"
        " 00 80 0000013700000005 45"
        " a1 08" + b"$Default".hex() + " 83 0000018bcfe5687b"
    )
    raw = enumerated(rig, sender, [rule])
    body = scan(raw).body
    assert body is not None
    assert raw[body[0] :].hex(" ") == bytes.fromhex(golden).hex(" ")


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (
            RuleDescription("a", SqlFilter("a = @p", (("@p", 1),)), SqlAction("SET b = 2"), 7),
            [
                Described(0x1370000006, ["a = @p", 20]),
                Described(0x13700000006, ["SET b = 2", 20]),
                "a",
                7,
            ],
        ),
        (
            RuleDescription("b", FalseFilter(), None, 7),
            [Described(0x1370000008, []), Described(0x13700000005, []), "b", 7],
        ),
        (
            RuleDescription(
                "c", CorrelationFilter("c", "m", "t", "r", "l", "s", "rs", "ct", (("n", 1),)), None, 7
            ),
            [
                Described(0x1370000009, ["c", "m", "t", "r", "l", "s", "rs", "ct", {"n": 1}]),
                Described(0x13700000005, []),
                "c",
                7,
            ],
        ),
        (
            RuleDescription("d", CorrelationFilter(label="x"), None, 7),
            [
                Described(0x1370000009, [None] * 4 + ["x"] + [None] * 3 + [{}]),
                Described(0x13700000005, []),
                "d",
                7,
            ],
        ),
    ],
)
def test_every_kind_of_rule_is_shown(
    rig: Harness, sender: int, rule: RuleDescription, expected: list[Any]
) -> None:
    """Req: P-02, P-03. Source: wire contract 5.2."""
    raw = enumerated(rig, sender, [rule])
    body = scan(raw).body
    assert body is not None
    value, _ = decode(raw, body[0] + 3)
    assert value == {"rules": [{"rule-description": Described(0x13700000004, expected)}]}
    if isinstance(rule.filter, SqlFilter):
        assert encode([rule.filter.expression, Int(20)]) in raw


@pytest.mark.parametrize("kind", [Int, Long, UInt, ULong, lambda value: value])
def test_rules_are_listed_in_pages(rig: Harness, sender: int, kind: Callable[[int], Any]) -> None:
    """Req: P-03. JavaScript asks for the most that an int can say. Nothing in range is 204, with the
    condition that the service was recorded to give."""
    ask(rig, sender, "enumerate-rules", {"top": kind(2**31 - 1), "skip": kind(3)})
    command = rig.take(ListRules)
    assert (command.path, command.skip, command.top) == (PATH, 3, GatewayLimits().reply_count_max)
    rig.effect(RulesFound(command.reply_to, []))
    response = rig.response()
    assert (response.status, response.condition) == (204, "com.microsoft:rules-not-found")
    assert response.body == {}


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        ({"skip": 0}, "com.microsoft:argument-error"),
        ({"top": 1}, "com.microsoft:argument-error"),
        ({"top": "1", "skip": 0}, "com.microsoft:argument-error"),
        ({"top": 0, "skip": 0}, "com.microsoft:argument-out-of-range"),
        ({"top": 1, "skip": -1}, "com.microsoft:argument-out-of-range"),
        ({"top": 1, "skip": 2**31}, "com.microsoft:argument-out-of-range"),
    ],
)
def test_a_range_that_is_none_is_refused(rig: Harness, sender: int, body: Any, condition: str) -> None:
    """Req: R-05."""
    ask(rig, sender, "enumerate-rules", body)
    refused(rig, 400, condition)
    assert rig.commands == []


def test_an_answer_has_a_bound_and_always_a_rule(rig: Harness, sender: int) -> None:
    """Req: R-05. Exactly what fits, and one rule even if it is larger."""
    rules = [RuleDescription(f"{number:06}", SqlFilter("x" * 1024)) for number in range(1200)]
    ask(rig, sender, "enumerate-rules", {"top": Int(4000), "skip": Int(0)})
    rig.effect(RulesFound(rig.take(ListRules).reply_to, rules))
    found = rig.response().body["rules"]
    assert len(found) == RULES_BYTES_MAX // len(encode_rules(rules[:1], 0)[0])
    assert [item["rule-description"].value[2] for item in found] == [
        rule.name for rule in rules[: len(found)]
    ]
    large = RuleDescription("a", CorrelationFilter(label="x" * RULES_BYTES_MAX))
    ask(rig, sender, "enumerate-rules", {"top": Int(4000), "skip": Int(0)})
    rig.effect(RulesFound(rig.take(ListRules).reply_to, [large, rules[0]]))
    assert len(rig.response().body["rules"]) == 1


# Where, and who


@pytest.mark.parametrize("suffix", ["$DeadLetterQueue", "$Transfer/$DeadLetterQueue"])
@pytest.mark.parametrize("operation", ["add-rule", "remove-rule", "enumerate-rules"])
def test_a_sub_queue_has_no_rules(rig: Harness, operation: str, suffix: str) -> None:
    """Req: P-03. The broker says so of queues and topics."""
    sender, _ = rig.pair(f"{PATH}/{suffix}/$management")
    body = {"rule-name": "b", "rule-description": SQL, "top": 1, "skip": 0}
    ask(rig, sender, operation, body)
    assert "has no rules" in refused(rig, 400, "amqp:not-allowed").description
    assert rig.commands == []


@pytest.mark.parametrize("operation", ["add-rule", "remove-rule"])
def test_rules_do_not_change_in_a_transaction(rig: Harness, sender: int, operation: str) -> None:
    """Req: F-03. Looking at them is done at once."""
    state = TransactionalState(bytes(16), None)
    ask(rig, sender, operation, {"rule-name": "b", "rule-description": SQL}, state=state)
    refused(rig, 400, "amqp:not-allowed")
    ask(rig, sender, "enumerate-rules", {"top": Array.of(Int, [1])[0], "skip": 0}, state=state)
    assert rig.take(ListRules).top == 1
