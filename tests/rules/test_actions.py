"""What actions change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from peeklock.rules.action import ActionResult
from peeklock.rules.compiled import compile_action
from peeklock.rules.errors import EvaluationError, RuleError
from peeklock.rules.filters import SqlAction, Value
from peeklock.rules.subject import ID_LENGTH_MAX
from peeklock.rules.values import TEXT_LENGTH_MAX
from tests.rules.subjects import FakeMessage

ORDER = FakeMessage(
    {"Color": "blue", "quantity": 10, "price": 2.5, "rate": Decimal("0.5"), "note": None},
    {"label": "order", "messageid": "m-1", "timetolive": timedelta(hours=2)},
)
NOON, MINUTE = datetime(2024, 5, 17, 12, tzinfo=UTC), timedelta(minutes=1)


def apply(expression: str, message: FakeMessage = ORDER, **parameters: Value | None) -> ActionResult:
    given = tuple((f"@{name}", value) for name, value in parameters.items())
    return compile_action(SqlAction(expression, given)).apply(message)


@pytest.mark.parametrize(
    ("expression", "user", "removed"),
    [
        ("SET size = 3", {"size": 3}, []),
        ("SET color = 'red'", {"Color": "red"}, []),
        ("set COLOR = 'red'", {"Color": "red"}, []),
        ("SET user.[a b] = TRUE", {"a b": True}, []),
        ("SET quantity = quantity + 1", {"quantity": 11}, []),
        ("SET total = quantity * price", {"total": 25.0}, []),
        ("SET a = 1, SET b = a + 1; SET c = b + 1 SET d = c + 1;", {"a": 1, "b": 2, "c": 3, "d": 4}, []),
        ("SET a = 1;, SET b = 2", {"a": 1, "b": 2}, []),
        ("SET New = 1; SET nEW = 2", {"New": 2}, []),
        ("SET a = missing", {"a": None}, []),
        ("SET a = NULL", {"a": None}, []),
        ("SET color = NULL; SET a = color", {"Color": None, "a": None}, []),
        ("REMOVE color", {}, ["Color"]),
        ("REMOVE note", {}, ["note"]),
        ("REMOVE missing", {}, []),
        ("REMOVE color; REMOVE color", {}, ["Color"]),
        ("REMOVE color; SET a = color", {"a": None}, ["Color"]),
        ("REMOVE color SET color = 'red'", {"Color": "red"}, []),
        ("SET color = 'red' REMOVE color", {}, ["Color"]),
        ("SET color = 'red', REMOVE color, SET color = 'green'", {"Color": "green"}, []),
        ("SET a = 1; REMOVE a", {}, []),
        ("SET a = 1; REMOVE a; SET A = 2", {"A": 2}, []),
        ("SET a = 1; REMOVE A; SET b = a", {"b": None}, []),
        ("SET a = newid()", {"a": UUID(int=1)}, []),
        ("SET a = property('color') + '!'", {"a": "blue!"}, []),
        ("SET a = 1 SET b = p('a')", {"a": 1, "b": 1}, []),
        ("SET a = sys.Label + '-' + quantity", {"a": "order-10"}, []),
        ("SET a = sys.ReplyTo", {"a": None}, []),
        ("SET price = 3", {"price": 3.0}, []),
        ("SET rate = 3", {"rate": Decimal(3)}, []),
        ("SET price = 'x'", {"price": "x"}, []),
        ("SET quantity = 2.5", {"quantity": 2.5}, []),
        ("SET quantity = TRUE", {"quantity": True}, []),
    ],
)
def test_application_properties(expression: str, user: dict[str, Any], removed: list[str]) -> None:
    """Req: P-02"""
    message = FakeMessage(ORDER.properties, ORDER.system)
    result = apply(expression, message)
    assert (result.user, result.removed, result.system) == (user, removed, {})
    assert {name: type(value) for name, value in result.user.items()} == {
        name: type(value) for name, value in user.items()
    }
    assert message.properties == ORDER.properties


@pytest.mark.parametrize(
    ("expression", "system"),
    [
        ("SET sys.Label = 'x'", {"label": "x"}),
        ("SET sys.Subject = 'x'", {"label": "x"}),
        ("SET SYS.[label] = 'x'", {"label": "x"}),
        ("SET sys.To = 'a' SET sys.ReplyTo = 'b'", {"to": "a", "replyto": "b"}),
        ("SET sys.ReplyToSessionId = 'a'", {"replytosessionid": "a"}),
        ("SET sys.SessionId = 'a'", {"sessionid": "a"}),
        ("SET sys.CorrelationId = sys.MessageId", {"correlationid": "m-1"}),
        ("SET sys.ContentType = 'a/b'", {"contenttype": "a/b"}),
        ("SET sys.MessageId = 'n' SET sys.To = sys.MessageId", {"messageid": "n", "to": "n"}),
        ("SET sys.PartitionKey = 'a'", {"partitionkey": "a"}),
        ("SET sys.ViaPartitionKey = 'a'", {"viapartitionkey": "a"}),
        ("SET sys.TimeToLive = @minute", {"timetolive": timedelta(minutes=1)}),
        ("SET sys.TimeToLive = sys.TimeToLive - @minute", {"timetolive": timedelta(minutes=119)}),
        ("SET sys.TimeToLive = NULL", {"timetolive": None}),
        ("SET sys.Label = NULL", {"label": None}),
        ("SET sys.Label = missing", {"label": None}),
        ("REMOVE sys.Label", {"label": None}),
        ("REMOVE sys.ReplyTo", {"replyto": None}),
        ("REMOVE sys.TimeToLive", {"timetolive": None}),
        ("SET sys.SessionId = quantity", {"sessionid": "10"}),
        ("SET sys.SessionId = 5", {"sessionid": "5"}),
        ("SET sys.CorrelationId = newid()", {"correlationid": str(UUID(int=1))}),
        ("SET sys.ScheduledEnqueueTimeUtc = @noon", {"scheduledenqueuetimeutc": NOON}),
        ("SET sys.ScheduledEnqueueTimeUtc = @local", {"scheduledenqueuetimeutc": NOON}),
        ("SET sys.ScheduledEnqueueTimeUtc = missing", {"scheduledenqueuetimeutc": None}),
        ("REMOVE sys.ScheduledEnqueueTimeUtc", {"scheduledenqueuetimeutc": None}),
    ],
)  # fmt: skip
def test_system_properties(expression: str, system: dict[str, Any]) -> None:
    """Req: P-02"""
    message = FakeMessage(ORDER.properties, ORDER.system)
    result = apply(expression, message, minute=MINUTE, noon=NOON, local=NOON.replace(tzinfo=None))
    assert (result.user, result.removed, result.system) == ({}, [], system)


def test_later_statements_see_system_properties_that_were_cleared() -> None:
    assert apply("REMOVE sys.Label; SET a = sys.Label; SET sys.Label = 'x'; SET b = sys.Label").user == {
        "a": None,
        "b": "x",
    }


def test_later_statements_see_the_time_to_which_an_action_puts_a_copy_off() -> None:
    text = (
        "SET sys.ScheduledEnqueueTimeUtc = sys.ScheduledEnqueueTimeUtc + @minute; "
        "SET a = sys.ScheduledEnqueueTimeUtc; REMOVE sys.ScheduledEnqueueTimeUtc; "
        "SET b = sys.ScheduledEnqueueTimeUtc"
    )
    message = FakeMessage({}, {"scheduledenqueuetimeutc": NOON})
    assert apply(text, message, minute=MINUTE).user == {"a": NOON + MINUTE, "b": None}


@pytest.mark.parametrize(
    "name",
    [
        "EnqueuedTimeUtc",
        "SequenceNumber",
        "EnqueuedSequenceNumber",
        "DeliveryCount",
        "LockedUntilUtc",
        "LockToken",
        "Size",
        "ForcePersistence",
        "State",
        "DeadLetterSource",
        "ExpiresAtUtc",
    ],
)
def test_what_the_broker_decides_cannot_be_set(name: str) -> None:
    for statement in (f"SET sys.{name} = NULL", f"REMOVE sys.{name}"):
        with pytest.raises(RuleError, match=f"The system property '{name}' cannot be"):
            compile_action(SqlAction(statement))


@pytest.mark.parametrize(
    "expression",
    [
        "SET sys.Label = TRUE",
        "SET sys.Label = 1.5",
        "SET sys.TimeToLive = 5",
        "SET sys.TimeToLive = 'PT5M'",
        "SET sys.TimeToLive = @nothing",
        "SET sys.ScheduledEnqueueTimeUtc = 5",
        "SET sys.MessageId = NULL",
        "REMOVE sys.MessageId",
        "SET sys.Colour = 1",
        "SET a = @missing",
        "SET a = 1 / 0",
        "SET a = b > 1",
        f"SET sys.SessionId = '{'x' * (ID_LENGTH_MAX + 1)}'",
    ],
)
def test_what_is_wrong_without_a_message_is_refused_at_the_definition(expression: str) -> None:
    with pytest.raises(RuleError) as refused:
        apply(expression, nothing=timedelta(0))
    assert refused.value.position is not None


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("SET sys.Label = price", "sys.Label takes a text, found a number"),
        ("SET sys.To = flag", "sys.To takes a text, found a boolean"),
        ("SET sys.TimeToLive = quantity", "sys.TimeToLive takes a time span, found a number"),
        (
            "SET sys.TimeToLive = sys.TimeToLive - sys.TimeToLive",
            "sys.TimeToLive must be positive",
        ),
        ("SET sys.ScheduledEnqueueTimeUtc = quantity", "takes a point in time, found a number"),
        ("SET sys.MessageId = missing", "sys.MessageId cannot be set to NULL"),
        ("SET sys.SessionId = long", "the value for sys.SessionId has 129 characters; the limit is 128"),
        ("SET a = quantity / zero", "10 / 0: a division by zero"),
        ("SET a = color - 1", "- cannot be applied to a text and a number"),
        ("SET a = property(quantity)", "takes the name of a property, found a number"),
    ],
)
def test_what_is_wrong_with_a_message_is_an_error_of_its_evaluation(expression: str, says: str) -> None:
    """Req: P-02, P-04"""
    message = FakeMessage(
        {**ORDER.properties, "flag": True, "zero": 0, "long": "x" * (ID_LENGTH_MAX + 1)}, ORDER.system
    )
    with pytest.raises(EvaluationError) as failed:
        apply(expression, message)
    assert says in str(failed.value)


def test_texts_cannot_grow_without_end() -> None:
    at_limit = FakeMessage({"a": "x" * (TEXT_LENGTH_MAX // 2)})
    assert len(str(apply("SET a = a + a", at_limit).user["a"])) == TEXT_LENGTH_MAX
    with pytest.raises(EvaluationError, match=r"32769 characters; the limit is 32768"):
        apply("SET a = a + a + 'x'", at_limit)
    with pytest.raises(EvaluationError, match="the limit is"):
        apply("SET a = a + a;" * 32, FakeMessage({"a": "x" * 100}))
