"""Dead letters grouped by a value of theirs."""

from __future__ import annotations

import pytest

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.types import Long, Timestamp
from peeklock.jobs import groups
from peeklock.jobs.groups import NOTHING, OTHERS, Group, Groups, grouping
from peeklock.search import Peeked, SearchError


def dead(number: int, body: bytes = b"", **properties: object) -> Peeked:
    return Peeked(
        encode_message(
            message_annotations={
                "x-opt-sequence-number": Long(number),
                "x-opt-enqueued-time": Timestamp(1000 * number),
            },
            application_properties=dict(properties),
            data=body,
        )
    )


def test_the_largest_group_is_first_and_has_its_figures() -> None:
    found = Groups(grouping("reason"))
    found.add([dead(3, DeadLetterReason="b"), dead(1, DeadLetterReason="a")])
    found.add([dead(2, DeadLetterReason="a"), dead(4)])
    assert found.found() == [
        Group("a", 2, 1000, 2000, 1),
        Group(NOTHING, 1, 4000, 4000, 4),
        Group("b", 1, 3000, 3000, 3),
    ]


@pytest.mark.parametrize(
    ("by", "name"),
    [
        ("property:kind", "pizza"),
        ("property:n", "3"),
        ("property:no", NOTHING),
        ("json:$.a.b", "x"),
        ("json:$.a", '{"b": "x"}'),
        ("json:$.a.c", NOTHING),
    ],
)
def test_a_message_has_the_group_of_its_value(by: str, name: str) -> None:
    assert grouping(by)(dead(1, b'{"a": {"b": "x"}}', kind="pizza", n=3)) == name


def test_a_body_that_is_no_json_has_none() -> None:
    assert grouping("json:$.a")(dead(1, b"{")) == NOTHING


def test_values_that_are_long_and_begin_alike_are_one_group() -> None:
    name = grouping("property:kind")
    begun = "x" * groups.NAME_LENGTH_MAX
    assert name(dead(1, kind=begun + "a")) == name(dead(2, kind=begun + "b")) == begun


@pytest.mark.parametrize("by", ["", "property:", "json:", "json:x", "reasons", "kind:x"])
def test_what_is_no_grouping_is_refused(by: str) -> None:
    with pytest.raises(SearchError) as refused:
        grouping(by)
    assert refused.value.criterion == "by"


def test_groups_beyond_the_limit_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "GROUPS_MAX", 2)
    found = Groups(grouping("property:n"))
    found.add(dead(number, n=number) for number in range(9))
    found.add([dead(9, n=OTHERS)])  # a value, which is no group of its own either
    assert {each.name: each.count for each in found.found()} == {"0": 1, "1": 1}
    assert (found.others.name, found.others.count, found.others.example) == (OTHERS, 8, 2)


def test_a_value_that_is_named_as_the_rest_is_a_group() -> None:
    found = Groups(grouping("property:n"))
    found.add([dead(1, n=OTHERS)])
    assert [(each.name, each.count) for each in found.found()] == [(OTHERS, 1)]
    assert found.others.count == 0
