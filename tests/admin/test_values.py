"""Typed values of rules: as each client writes them, and back as each client reads them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.admin.reading import read_description
from peeklock.admin.values import read_pairs, write_pairs
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.rules.filters import AsGiven, Pairs, Value
from tests.admin.strategies import VALUES, XML_TEXT

INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA = "http://www.w3.org/2001/XMLSchema"
SERIALIZATION = "http://schemas.microsoft.com/2003/10/Serialization/"


def read(pairs: str) -> Pairs:
    """Read pairs that stand in an element of the service's own prefixes."""
    body = f'<entry><content><X xmlns:i="{INSTANCE}">{pairs}</X></content></entry>'
    return read_pairs(read_description(body.encode()), "Parameters")[0]


def seen_again(pairs: str, kind: str) -> tuple[str, str]:
    """Return the type and the text in which a value comes back; `kind` is its type in the request."""
    body = f'<entry><content><X xmlns:i="{INSTANCE}">{pairs}</X></content></entry>'
    shown = write_pairs("Parameters", *read_pairs(read_description(body.encode()), "Parameters"))
    found = re.search(r'<Value xmlns:d6p1="([^"]*)" i:type="d6p1:(\w+)">([^<]*)</Value>', shown)
    assert found is not None
    assert found[1] == (SERIALIZATION if found[2] == "guid" else SCHEMA)
    return found[2], found[3]


def pair(kind: str, text: str) -> str:
    return (
        "<Parameters><KeyValueOfstringanyType><Key>@p</Key>"
        f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:{kind}">{text}</Value>'
        "</KeyValueOfstringanyType></Parameters>"
    )


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", " a\n&lt;b&gt; ", " a\n<b> "),
        ("string", "", ""),
        ("int", "-7", -7),
        ("long", "2147483650", 2147483650),
        ("long", "9223372036854775807", 2**63 - 1),
        ("short", " +3 ", 3),
        ("unsignedByte", "255", 255),
        ("boolean", "true", True),
        ("boolean", "0", False),
        ("double", "1.5E+3", 1500.0),
        ("double", "-INF", float("-inf")),
        ("double", "inf", float("inf")),
        ("float", ".5", 0.5),
        ("decimal", "79228162514264337593543950335", Decimal(2**96 - 1)),
        ("decimal", "1.50", Decimal("1.50")),
        ("dateTime", "2020-07-05T11:12:13Z", datetime(2020, 7, 5, 11, 12, 13, tzinfo=UTC)),
        ("dateTime", "2020-07-05T11:12:13.1234567Z", datetime(2020, 7, 5, 11, 12, 13, 123456, UTC)),
        ("dateTime", "2020-07-05T11:12:13.5+02:00", datetime(2020, 7, 5, 9, 12, 13, 500000, UTC)),
        ("dateTime", "2020-07-05T11:12:13", datetime(2020, 7, 5, 11, 12, 13)),  # noqa: DTZ001 -- none given
        ("duration", "P1DT2H3M", timedelta(days=1, hours=2, minutes=3)),
        ("duration", "-PT0.000001S", timedelta(microseconds=-1)),
        ("duration", "P10675199DT2H48M5.4775807S", timedelta(10675199, 10085, 477580)),
        ("guid", "6c1b1f2e-0000-4000-8000-000000000001", UUID("6c1b1f2e-0000-4000-8000-000000000001")),
        ("base64Binary", " AAE\nC", b"\0\1\2"),
    ],
)
def test_a_value_of_each_type_is_read(kind: str, text: str, value: object) -> None:
    """Req: A-01, P-03."""
    ((name, found),) = read(pair(kind, text))
    assert (name, type(found), found) == ("@p", type(value), value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", ""),
        ("int", "1.0"),
        ("int", "1_000"),
        ("long", "9223372036854775808"),
        ("unsignedLong", "18446744073709551616"),
        ("unsignedLong", "-1"),
        ("unsignedInt", "4294967296"),
        ("unsignedShort", "65536"),
        ("unsignedByte", "256"),
        ("byte", "128"),
        ("byte", "-129"),
        ("short", "32768"),
        ("int", "2147483648"),
        ("int", "-2147483649"),
        ("float", "3.5E38"),
        ("float", "-1E39"),
        ("double", "1E400"),
        ("double", "-1.8E308"),
        ("decimal", "79228162514264337593543950336"),
        ("int", "9" * 5000),
        ("boolean", "yes"),
        ("double", "1,5"),
        ("double", "infinity"),
        ("double", "1_0"),
        ("decimal", "1E400000"),
        ("decimal", "NaN"),
        ("dateTime", "2020-07-05"),
        ("dateTime", "2020-13-05T11:12:13Z"),
        ("dateTime", "0001-01-01T00:00:00+05:00"),
        ("dateTime", "0000-01-01T00:00:00Z"),
        ("duration", "P1Y"),
        ("duration", "P999999999999999999D"),
        ("guid", "6c1b1f2e"),
        ("base64Binary", "A"),
        ("char", "65"),
        ("QName", "a:b"),
    ],
)
def test_a_value_that_cannot_be_read_is_named_with_its_key_and_type(kind: str, text: str) -> None:
    """Req: A-01, R-05, C35."""
    with pytest.raises(ArgumentInvalid, match="'@p'") as failure:
        read(pair(kind, text))
    assert kind in str(failure.value)
    assert len(str(failure.value)) < 400


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("string", " a\n "),
        ("int", "-7"),
        ("int", "007"),
        ("long", "5"),
        ("long", "9223372036854775807"),
        ("short", "+3"),
        ("short", "-32768"),
        ("byte", "-128"),
        ("byte", "127"),
        ("unsignedByte", "255"),
        ("unsignedShort", "65535"),
        ("unsignedInt", "4294967295"),
        ("unsignedInt", "1"),
        ("unsignedLong", "18446744073709551615"),
        ("unsignedLong", "1"),
        ("boolean", "true"),
        ("boolean", "1"),
        ("double", "1"),
        ("double", "1.5E+3"),
        ("double", "inf"),
        ("double", "INF"),
        ("double", "1.7976931348623157E+308"),
        ("float", "0.1"),
        ("float", "3.4028235E+38"),
        ("decimal", "1.50"),
        ("decimal", "79228162514264337593543950335"),
        ("dateTime", "2020-07-05T11:12:13"),
        ("dateTime", "2020-07-05T11:12:13Z"),
        ("dateTime", "2020-07-05T11:12:13.5Z"),
        ("dateTime", "2020-07-05T11:12:13.1234567Z"),
        ("dateTime", "2020-07-05T11:12:13.1234567+02:00"),
        ("dateTime", "2020-07-05T11:12:13.0000000Z"),
        ("duration", "PT60S"),
        ("duration", "PT0.0000001S"),
        ("duration", "P10675199DT2H48M5.4775807S"),
        ("guid", "6c1b1f2e-0000-4000-8000-000000000001"),
        ("guid", "6C1B1F2E-0000-4000-8000-000000000001"),
        ("base64Binary", "AAEC"),
    ],
)
def test_a_value_comes_back_in_its_type_and_with_its_text(kind: str, text: str) -> None:
    """Req: C35"""
    assert seen_again(pair(kind, text), kind) == (kind, text)


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        ("dateTime", "2020-07-05T11:12:13.12345678Z", "2020-07-05T11:12:13.1234567Z"),
        ("dateTime", "2020-07-05T11:12:13.123456789+02:00", "2020-07-05T11:12:13.1234567+02:00"),
        ("duration", "PT1.000000001S", "PT1.0000000S"),
        ("int", " 7\n", "7"),
    ],
)
def test_the_text_has_seven_digits_of_a_second_and_no_white_space(kind: str, text: str, shown: str) -> None:
    """Req: C35. Clients count in ticks of 100 ns."""
    assert seen_again(pair(kind, text), kind) == (kind, shown)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("byte", -5, ("int", "-5")),
        ("short", 5, ("int", "5")),
        ("ubyte", 255, ("int", "255")),
        ("ushort", 65535, ("int", "65535")),
        ("uint", 5, ("long", "5")),
        ("long", 5, ("long", "5")),
        ("ulong", 5, ("long", "5")),
        ("ulong", 2**63 - 1, ("long", "9223372036854775807")),
        ("ulong", 2**63, ("string", "9223372036854775808")),
        ("ulong", 2**64 - 1, ("string", "18446744073709551615")),
        ("float", 0.5, ("double", "0.5")),
        ("decimal", Decimal("1.50"), ("string", "1.50")),
        ("char", "x", ("string", "x")),
        ("symbol", "x", ("string", "x")),
        ("uuid", UUID(int=1), ("string", "00000000-0000-0000-0000-000000000001")),
        ("datetime-offset", datetime(2020, 7, 5, tzinfo=UTC), ("dateTime", "2020-07-05T00:00:00Z")),
        ("timespan", timedelta(minutes=1), ("duration", "PT1M")),
        ("uri", "http://x/", ("string", "http://x/")),
        ("of a later release", 5, ("int", "5")),
    ],
)
def test_a_value_that_came_over_amqp_has_the_nearest_type(
    name: str, value: Value, shown: tuple[str, str]
) -> None:
    """Req: C35. What follows from the value alone is in the table of the next test."""
    text = write_pairs("Parameters", (("k", value),), (AsGiven(f"amqp:{name}", "00"),))
    kind, written = shown
    assert f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:{kind}">{written}</Value>' in text


def test_a_type_of_a_later_release_is_shown_by_its_value() -> None:
    """Req: C35"""
    text = write_pairs("Parameters", (("k", 5),), (AsGiven("d:new", "five"),))
    assert 'i:type="d6p1:int">5<' in text


def test_prefixes_and_the_order_of_elements_are_the_client_s_own() -> None:
    """Req: A-01. Source: what Python, JavaScript and .NET write, wire contract 7.6."""
    found = read(
        f'<Parameters xmlns:p4="{INSTANCE}" xmlns:l28="{SCHEMA}">'
        '<KeyValueOfstringanyType><Key>b</Key><Value p4:type="l28:int">1</Value></KeyValueOfstringanyType>'
        '<KeyValueOfstringanyType><Value p4:type="l28:string">x</Value><Key>a</Key></KeyValueOfstringanyType>'
        '<KeyValueOfstringanyType><Key>c</Key><Value p4:nil="true"/></KeyValueOfstringanyType>'
        "<KeyValueOfstringanyType><Key>d</Key><Value>plain</Value></KeyValueOfstringanyType>"
        "<Other/></Parameters>"
    )
    assert found == (("b", 1), ("a", "x"), ("c", None), ("d", "plain"))


def test_without_the_element_or_pairs_in_it_there_are_none() -> None:
    assert read("") == read("<Parameters/>") == read('<Parameters i:nil="true"/>') == ()


def test_a_value_without_a_key_is_refused() -> None:
    with pytest.raises(ArgumentInvalid, match="One of the Parameters has no Key"):
        read("<Parameters><KeyValueOfstringanyType><Value>1</Value></KeyValueOfstringanyType></Parameters>")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a<b", f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:string">a&lt;b</Value>'),
        (True, f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:boolean">true</Value>'),
        (2**31 - 1, f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:int">2147483647</Value>'),
        (2**31, f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:long">2147483648</Value>'),
        (float("inf"), f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:double">INF</Value>'),
        (
            datetime(2020, 7, 5, 11, 12, 13, tzinfo=UTC),
            f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:dateTime">2020-07-05T11:12:13Z</Value>',
        ),
        (
            timedelta(days=1, microseconds=500),
            f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:duration">P1DT0.0005S</Value>',
        ),
        (Decimal("1E+3"), f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:decimal">1000</Value>'),
        (
            UUID(int=1),
            '<Value xmlns:d6p1="http://schemas.microsoft.com/2003/10/Serialization/" '
            'i:type="d6p1:guid">00000000-0000-0000-0000-000000000001</Value>',
        ),
        (b"\0\1\2", f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:base64Binary">AAEC</Value>'),
        (None, '<Value i:nil="true"/>'),
    ],
)
def test_a_value_is_written_with_a_prefix_of_four_characters(value: Value | None, written: str) -> None:
    """Req: A-01, P-03. Source: wire contract 7.6: JavaScript cuts five characters off the type."""
    assert write_pairs("Parameters", (("k&", value),), ()) == (
        f"<Parameters><KeyValueOfstringanyType><Key>k&amp;</Key>{written}"
        "</KeyValueOfstringanyType></Parameters>"
    )
    assert write_pairs("Properties", (), ()) == "<Properties/>"


@given(st.lists(st.tuples(XML_TEXT, VALUES)))
def test_names_values_types_and_order_survive_writing_and_reading(
    pairs: list[tuple[str, Value | None]],
) -> None:
    """Req: A-01, P-03."""
    found = read(write_pairs("Parameters", tuple(pairs), ()))
    assert found == tuple(pairs)
    assert [type(value) for _, value in found] == [type(value) for _, value in pairs]
