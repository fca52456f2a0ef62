"""Documents that nobody should send: a 400 that says what is wrong, soon, and nothing is changed."""

from __future__ import annotations

import time
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.admin.api import BODY_BYTES_MAX, Pending, Response
from peeklock.admin.reading import MARKS_MAX, read_description
from peeklock.broker.vocabulary.commands import LookUp
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.broker.vocabulary.effects import EntityFound, EntityView
from tests.admin.asking import PYTHON_ENTRY, REPLY_TO, Client, detail
from tests.admin.strategies import XML_TEXT

ANSWER_BYTES_MAX = 1000
SECONDS_MAX = 1.0
"""For a document of 512 KiB; the worst takes 8 ms."""

PATHS = {
    "QueueDescription": "/orders",
    "TopicDescription": "/orders",
    "SubscriptionDescription": "/news/subscriptions/a",
    "RuleDescription": "/news/subscriptions/a/rules/b",
}


@pytest.fixture
def client() -> Client:
    return Client()


def refused(client: Client, path: str, body: str | bytes) -> str:
    """Send a document as a creation and as an update, and give what is said of it."""
    said = set()
    for headers in ({}, {"if_match": "*"}):
        begun = time.monotonic()
        answer = client.ask("PUT", path, body, **headers)
        if isinstance(answer, Pending) and isinstance(answer.command, LookUp):
            found = EntityView(1, QueueDescription("orders"), 0, 0, 0, 0, 0, 0, 0, 0)
            answer = answer.render(EntityFound(REPLY_TO, found))
        assert isinstance(answer, Response), answer
        assert answer.status == 400
        assert len(answer.body) < ANSWER_BYTES_MAX
        assert time.monotonic() - begun < SECONDS_MAX
        said.add(detail(answer))
    return said.pop()


def queue(content: str) -> str:
    return PYTHON_ENTRY.format(f"<QueueDescription>{content}</QueueDescription>")


LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))


@pytest.mark.parametrize(
    "body",
    [
        f'<!DOCTYPE e [<!ENTITY l0 "ha">{LAUGHS}]><entry>&l9;</entry>',
        '<!DOCTYPE e [<!ENTITY a "{}">]><entry>&a;</entry>'.format("a" * 100_000),
        '<!DOCTYPE e [<!ENTITY x SYSTEM "file:///etc/hostname">]><entry><content>&x;</content></entry>',
        '<!DOCTYPE e SYSTEM "http://127.0.0.1:1/e.dtd"><entry/>',
        '<!DOCTYPE e [<!ENTITY % p SYSTEM "file:///etc/hostname"> %p;]><entry/>',
        '<!DOCTYPE e PUBLIC "-//W3C//DTD XHTML 1.0//EN" "file:///etc/hostname"><entry/>',
        "<!DOCTYPE entry><entry/>",
    ],
)
def test_document_types_and_entities_are_not_read(client: Client, body: str) -> None:
    """Req: R-05"""
    assert refused(client, "/orders", body).startswith("The body has a document type or entities")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "The body is not XML: no element found"),
        (b"\x00", "The body is not XML: "),
        (b"\xff\xfe\x00", "The body is not XML: "),
        (b"<entry", "The body is not XML: unclosed token"),
        (b"<entry>", "The body is not XML: no element found"),
        (b"<entry></feed>", "The body is not XML: mismatched tag"),
        (b"<entry/><entry/>", "The body is not XML: junk after document element"),
        (b"<entry a='1' a='2'/>", "The body is not XML: duplicate attribute"),
        (b"<x:entry/>", "The body is not XML: unbound prefix"),
        (b"<entry>\xff</entry>", "The body is not XML: not well-formed"),
        (b"<entry>&nbsp;</entry>", "The body is not XML: undefined entity"),
        (b"<entry>&#0;</entry>", "The body is not XML: reference to invalid character number"),
        (b"<?xml version='1.0' encoding='klingon'?><entry/>", "The body is not XML: "),
        (b"{}", "The body is not XML: not well-formed"),
        (b"<feed/>", "The body is not an ATOM entry: its root is 'feed'"),
        (b"<QueueDescription/>", "The body is not an ATOM entry: its root is 'QueueDescription'"),
        (b"<%s/>" % (b"x" * 100_000), "The body is not an ATOM entry: its root is 'xxxx"),
        (b"<entry/>", "The body is not an ATOM entry with one content"),
        (b"<entry><content/></entry>", "The body is not an ATOM entry with one content"),
        (
            b"<entry><content><QueueDescription/><QueueDescription/></content></entry>",
            "The body is not an ATOM entry with one content",
        ),
        (
            b"<entry><content><QueueDescription/></content><content><QueueDescription/></content></entry>",
            "The body is not an ATOM entry with one content",
        ),
        (
            b"<entry><content><TableDescription/></content></entry>",
            "The content is a 'TableDescription', not a QueueDescription or TopicDescription",
        ),
        (
            b"<entry><content><%s/></content></entry>" % (b"x" * 100_000),
            "The content is a 'xxxx",
        ),
    ],
)
def test_what_is_no_entry_is_told_so(client: Client, body: bytes, says: str) -> None:
    """Req: R-05"""
    assert refused(client, "/orders", body).startswith(says)


def test_a_document_of_any_shape_is_read_or_refused_soon(client: Client) -> None:
    """Depth, width, attributes, comments: as much as a body may have. Req: R-05"""
    room = BODY_BYTES_MAX - 1000
    depth = room // len("<a></a>")
    for body in (
        "<a>" * depth + "</a>" * depth,
        queue("<a>" * (depth // 2) + "</a>" * (depth // 2)) + "x",
        "<entry " + " ".join(f"a{n}=''" for n in range(room // 12)) + "/>",
        "<entry>" + "<a/>" * (room // 4) + "</entry>",
        "<entry><!--" + "x" * room + "--></entry>",
        "<entry>" + "<?x y?>" * (room // 7) + "</entry>",
        "<entry>" + "&#65;" * (room // 5) + "</entry>",
        " " * room,
    ):
        refused(client, "/orders", body)
    assert "larger than" in refused(client, "/orders", b"<entry>" + b" " * BODY_BYTES_MAX + b"</entry>")


@pytest.mark.parametrize("mark", ["tags", "attributes", "namespaces", "mixed"])
def test_tags_and_attributes_are_bounded_together(client: Client, mark: str) -> None:
    """At the limit and one past it, also in UTF-16. Req: R-05"""

    def document(count: int) -> str:
        """Make a document of so many tags and attributes."""
        frame = "<entry><content><QueueDescription>{}</QueueDescription></content></entry>"
        left = count - frame.count("<")
        if mark == "tags":
            return frame.format("<a/>" * left)
        if mark == "mixed":
            return frame.format("<a b=''/>" * (left // 2) + "<a/>" * (left % 2))
        prefix = "a" if mark == "attributes" else "xmlns:a"
        return frame.format("<a " + " ".join(f"{prefix}{n}='u'" for n in range(left - 1)) + "/>")

    read_description(document(MARKS_MAX).encode())
    assert isinstance(client.ask("PUT", "/orders", document(MARKS_MAX)), Pending)
    for body in (document(MARKS_MAX + 1), document(MARKS_MAX + 1).encode("utf-16")):
        assert f"more than {MARKS_MAX} tags and attributes" in refused(client, "/orders", body)


def test_a_deep_element_that_nobody_knows_is_passed_over(client: Client) -> None:
    depth = MARKS_MAX // 2 - 20
    pending = client.ask("PUT", "/orders", queue("<a>" * depth + "</a>" * depth))
    assert isinstance(pending, Pending)


LONG = "9" * 100_000


@pytest.mark.parametrize(
    ("element", "values"),
    [
        (
            "LockDuration",
            ["", "x", "60", "P1Y", "P1M", "PT", "P", "-PT1M", "PT1M1M", "PT1.M", "PT1,5S", f"PT{LONG}S"],
        ),
        ("DefaultMessageTimeToLive", ["PT1H30", "P1DT", "PT٣S", "PT-1S", "<a>PT1M</a>"]),
        ("MaxDeliveryCount", ["", "ten", "1.0", "1e3", "0x10", "٣", "1 0", LONG, f"-{LONG}"]),
        ("MaxSizeInMegabytes", ["1_024", "+-1", "NaN", "INF"]),
        ("RequiresSession", ["", "yes", "tru", "2", LONG]),
        ("EnablePartitioning", ["null", "-1"]),
        ("Status", ["", "active", "Deleting", LONG]),
        ("ForwardTo", ["sb://h/" + "x" * 261, LONG]),
    ],
)
def test_a_value_of_no_kind_is_told_with_its_element(client: Client, element: str, values: list[str]) -> None:
    """Req: A-01, R-05"""
    for value in values:
        assert element in refused(client, "/orders", queue(f"<{element}>{value}</{element}>"))
    twice = f"<{element}>1</{element}>" * 2
    assert f"more than one {element}" in refused(client, "/orders", queue(twice))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("<Filter/>", "The type '' of a Filter"),
        ('<Filter i:type="Filter"/>', "The type 'Filter' of a Filter"),
        (f'<Filter i:type="{"x" * 10_000}"/>', "The type 'xxxx"),
        ('<Filter i:type="SqlFilter"/>', "no SqlExpression"),
        ('<Filter i:type="TrueFilter"/><Filter i:type="FalseFilter"/>', "more than one Filter"),
        ('<Action i:type="Sql"/>', "The type 'Sql' of an Action"),
        (
            '<Filter i:type="CorrelationFilter"><To>a</To><To>b</To></Filter>',
            "more than one To in a Filter",
        ),
        (
            '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType><Key>k</Key>'
            f'<Value i:type="x:int">{LONG}</Value></KeyValueOfstringanyType></Properties></Filter>',
            "of 'k' in Properties is not a valid int",
        ),
        (
            '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType><Key>k</Key>'
            f'<Value i:type="x:duration">P{LONG}</Value></KeyValueOfstringanyType></Properties></Filter>',
            "of 'k' in Properties is not a valid duration",
        ),
    ],
)
def test_a_rule_of_no_kind_is_told_so(client: Client, content: str, says: str) -> None:
    """Req: A-01, R-05"""
    body = PYTHON_ENTRY.format(f"<RuleDescription>{content}</RuleDescription>")
    assert says in refused(client, PATHS["RuleDescription"], body)


def test_a_file_that_is_named_is_not_opened(client: Client, tmp_path: Path) -> None:
    """Req: R-05"""
    (tmp_path / "secret").write_text(
        "<QueueDescription><UserMetadata>s3cret</UserMetadata></QueueDescription>"
    )
    for body in (
        f'<!DOCTYPE e [<!ENTITY x SYSTEM "{tmp_path}/secret">]><entry><content>&x;</content></entry>',
        '<entry xmlns:xi="http://www.w3.org/2001/XInclude"><content>'
        f'<xi:include href="{tmp_path}/secret"/></content></entry>',
    ):
        assert "s3cret" not in refused(client, "/orders", body)


NAMES = st.sampled_from(
    [
        *("LockDuration", "MaxSizeInMegabytes", "RequiresSession", "Status", "ForwardTo", "UserMetadata"),
        *("AuthorizationRules", "AuthorizationRule", "Rights", "AccessRights", "KeyName", "PrimaryKey"),
        *("DefaultRuleDescription", "Filter", "Action", "SqlExpression", "Parameters", "Properties"),
        *("KeyValueOfstringanyType", "Key", "Value", "Name", "CorrelationId", "AutoDeleteOnIdle", "a"),
        *("MaxMessageSizeInKilobytes", "EnablePartitioning"),
    ]
)
TYPES = st.sampled_from(
    ["", *(f' i:type="{kind}"' for kind in ("SqlFilter", "TrueFilter", "CorrelationFilter"))]
)
TYPES |= st.sampled_from(
    [' i:nil="true"', ' i:type="SqlRuleAction"', ' i:type="x:duration"', ' i:type="x:guid"']
)
TEXTS = (XML_TEXT | st.sampled_from(["true", "1", "PT1M", "Active", "sb://h/q", "-1", "P9D"])).map(escape)
ELEMENTS = st.recursive(
    TEXTS,
    lambda inner: st.builds(
        lambda name, kind, content: f"<{name}{kind}>{''.join(content)}</{name}>",
        NAMES,
        TYPES,
        st.lists(inner, max_size=4),
    ),
    max_leaves=20,
)


@given(st.sampled_from(sorted(PATHS)), st.lists(ELEMENTS, max_size=6), st.booleans())
def test_any_description_leads_to_a_command_or_a_refusal(
    kind: str, content: list[str], updates: bool
) -> None:
    """Req: R-05"""
    body = PYTHON_ENTRY.format(f"<{kind}>{''.join(content)}</{kind}>")
    answer = Client().ask("PUT", PATHS[kind], body, **({"if_match": "*"} if updates else {}))
    if isinstance(answer, Response):
        assert answer.status == 400
        assert len(answer.body) < ANSWER_BYTES_MAX


@given(st.binary(max_size=300) | XML_TEXT.map(str.encode), st.sampled_from(sorted(PATHS.values())))
def test_any_bytes_are_a_400(body: bytes, path: str) -> None:
    """Req: R-05"""
    assert Client().answer("PUT", path, body).status == 400


@pytest.mark.parametrize("header", ["", ",", '""', '"1-2', 'W/"*"', 'W/"1-2"', '"a" "b"', "x" * 10_000])
def test_an_if_match_of_no_form_matches_nothing(client: Client, header: str) -> None:
    if_match = client.command("DELETE", "/orders", if_match=header).if_match
    assert if_match is not None
    assert ("1-2" in if_match) == (header == '"1-2')
