"""RuleDescription: as the official clients write it, and as they want to read it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.admin.reading import read_description
from peeklock.admin.rules import read_rule, write_rule
from peeklock.broker.vocabulary.descriptions import RuleDescription
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.rules.filters import CorrelationFilter, FalseFilter, Filter, SqlAction, SqlFilter, TrueFilter
from tests.admin.strategies import VALUES, XML_TEXT

CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA = "http://www.w3.org/2001/XMLSchema"

PYTHON = (
    "<?xml version='1.0' encoding='utf-8'?>\n"
    f'<ns0:entry xmlns:d6p1="{SCHEMA}" xmlns:ns0="http://www.w3.org/2005/Atom" xmlns="{CONNECT}" '
    f'xmlns:xsi="{INSTANCE}"><ns0:content type="application/xml"><RuleDescription>'
    '<Filter xsi:type="SqlFilter"><SqlExpression>Level = @level</SqlExpression>'
    "<CompatibilityLevel>20</CompatibilityLevel><Parameters><KeyValueOfstringanyType><Key>@level</Key>"
    '<Value xsi:type="d6p1:int">1</Value></KeyValueOfstringanyType></Parameters>'
    "<RequiresPreprocessing>true</RequiresPreprocessing></Filter>"
    '<Action xsi:type="EmptyRuleAction" /><Name>rule1</Name>'
    "</RuleDescription></ns0:content></ns0:entry>"
)
JAVASCRIPT = (
    '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'
    '<entry xmlns="http://www.w3.org/2005/Atom"><updated>2024-01-01T00:00:00.000Z</updated>'
    f'<content type="application/xml"><RuleDescription xmlns="{CONNECT}" xmlns:i="{INSTANCE}">'
    f'<Filter p4:type="SqlFilter" xmlns:p4="{INSTANCE}"><SqlExpression>Level = @level</SqlExpression>'
    "<Parameters><KeyValueOfstringanyType><Key>@level</Key>"
    f'<Value p4:type="l28:int" xmlns:l28="{SCHEMA}">1</Value></KeyValueOfstringanyType></Parameters></Filter>'
    f'<Action p4:type="EmptyRuleAction" xmlns:p4="{INSTANCE}"/><Name>rule1</Name>'
    "</RuleDescription></content></entry>"
)
DOT_NET = (
    '<?xml version="1.0" encoding="utf-8"?><entry xmlns="http://www.w3.org/2005/Atom">'
    f'<content type="application/xml"><RuleDescription xmlns="{CONNECT}">'
    f'<Name>rule1</Name><Filter d4p1:type="SqlFilter" xmlns:d4p1="{INSTANCE}">'
    "<Parameters><KeyValueOfstringanyType><Key>@level</Key>"
    f'<Value xmlns:l28="{SCHEMA}" d4p1:type="l28:int">1</Value></KeyValueOfstringanyType></Parameters>'
    "<SqlExpression>Level = @level</SqlExpression></Filter></RuleDescription></content></entry>"
)


@pytest.mark.parametrize("body", [PYTHON, JAVASCRIPT, DOT_NET])
def test_each_client_s_spelling_is_the_same_rule(body: str) -> None:
    """Req: A-01, P-03. The name is that of the path; what the content says does not count."""
    assert read_rule(read_description(body.encode()), "Rule1") == RuleDescription(
        "Rule1", SqlFilter("Level = @level", (("@level", 1),))
    )


def rule(content: str) -> RuleDescription:
    body = (
        f'<entry><content><RuleDescription xmlns="{CONNECT}" xmlns:i="{INSTANCE}">{content}'
        "</RuleDescription></content></entry>"
    )
    return read_rule(read_description(body.encode()), "r")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("", TrueFilter()),
        ('<Filter i:type="TrueFilter"/>', TrueFilter()),
        ('<Filter i:type="TrueFilter"><SqlExpression>1=1</SqlExpression></Filter>', TrueFilter()),
        ('<Filter i:type="FalseFilter"><SqlExpression>1=0</SqlExpression></Filter>', FalseFilter()),
        ('<Filter i:type="SqlFilter"><SqlExpression> 1=1 </SqlExpression></Filter>', SqlFilter(" 1=1 ")),
        (
            '<Filter i:type="CorrelationFilter"><Properties/><ContentType>c</ContentType><Label/></Filter>',
            CorrelationFilter(content_type="c", label=""),
        ),
        ('<Filter i:type="CorrelationFilter"/>', CorrelationFilter()),
    ],
)
def test_each_kind_of_filter_is_read(content: str, found: Filter) -> None:
    """Req: A-01, P-02, P-03. Whether an empty correlation filter can be, the broker says."""
    assert rule(content).filter == found


def test_actions_are_read() -> None:
    """Req: A-01, P-03."""
    assert rule("").action is None
    assert rule('<Action i:type="EmptyRuleAction"/>').action is None
    assert rule('<Action i:nil="true"/>').action is None
    assert rule(
        '<Action i:type="SqlRuleAction"><SqlExpression>SET a=@b</SqlExpression><Parameters>'
        "<KeyValueOfstringanyType><Key>@b</Key><Value>x</Value></KeyValueOfstringanyType>"
        "</Parameters></Action>"
    ).action == SqlAction("SET a=@b", (("@b", "x"),))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("<Filter/>", "The type '' of a Filter is not one of SqlFilter, TrueFilter"),
        ('<Filter i:type="DateFilter"/>', "The type 'DateFilter' of a Filter is not one of"),
        ('<Filter i:type="SqlFilter"/>', "A SqlFilter has no SqlExpression"),
        ('<Action i:type="SqlRuleAction"/>', "A SqlRuleAction has no SqlExpression"),
        ('<Action i:type="SqlFilter"/>', "The type 'SqlFilter' of an Action is neither"),
        ("<Action/>", "The type '' of an Action is neither SqlRuleAction nor EmptyRuleAction"),
    ],
)
def test_what_is_no_filter_or_action_is_refused_by_name(content: str, reason: str) -> None:
    """Req: A-01."""
    with pytest.raises(ArgumentInvalid, match=re.escape(reason)):
        rule(content)


def test_a_rule_is_written_to_the_byte() -> None:
    """Req: A-01, P-03. Source: wire contract 7.6: `i:type` literally, elements in this order."""
    asked = RuleDescription(
        "rule1", SqlFilter("a<@p", (("@p", 1),)), SqlAction("SET a = 1"), 1_704_067_200_500
    )
    assert write_rule(asked) == (
        f'<RuleDescription xmlns="{CONNECT}" xmlns:i="{INSTANCE}">'
        '<Filter i:type="SqlFilter"><SqlExpression>a&lt;@p</SqlExpression>'
        "<CompatibilityLevel>20</CompatibilityLevel><Parameters><KeyValueOfstringanyType><Key>@p</Key>"
        f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:int">1</Value></KeyValueOfstringanyType></Parameters>'
        '</Filter><Action i:type="SqlRuleAction"><SqlExpression>SET a = 1</SqlExpression>'
        "<CompatibilityLevel>20</CompatibilityLevel><Parameters/></Action>"
        "<CreatedAt>2024-01-01T00:00:00.500Z</CreatedAt><Name>rule1</Name></RuleDescription>"
    )


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        (
            TrueFilter(),
            '<Filter i:type="TrueFilter"><SqlExpression>1=1</SqlExpression>'
            "<CompatibilityLevel>20</CompatibilityLevel><Parameters/></Filter>",
        ),
        (
            FalseFilter(),
            '<Filter i:type="FalseFilter"><SqlExpression>1=0</SqlExpression>'
            "<CompatibilityLevel>20</CompatibilityLevel><Parameters/></Filter>",
        ),
        (
            CorrelationFilter("c", "m", "t", "r", "l", "s", "rs", "ct", (("x", True),)),
            '<Filter i:type="CorrelationFilter"><CorrelationId>c</CorrelationId><MessageId>m</MessageId>'
            "<To>t</To><ReplyTo>r</ReplyTo><Label>l</Label><SessionId>s</SessionId>"
            "<ReplyToSessionId>rs</ReplyToSessionId><ContentType>ct</ContentType><Properties>"
            f'<KeyValueOfstringanyType><Key>x</Key><Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:boolean">true'
            "</Value></KeyValueOfstringanyType></Properties></Filter>",
        ),
    ],
)
def test_each_kind_of_filter_is_written_as_its_own_type(asked: Filter, written: str) -> None:
    """Req: A-01, P-03. Source: wire contract 7.6."""
    text = write_rule(RuleDescription("r", asked))
    assert f'{written}<Action i:type="EmptyRuleAction"/>' in text


PAIRS = st.lists(st.tuples(XML_TEXT, VALUES)).map(tuple)
FIELDS = st.none() | XML_TEXT
RULES = st.builds(
    RuleDescription,
    name=st.just("r"),
    filter=st.builds(TrueFilter)
    | st.builds(FalseFilter)
    | st.builds(SqlFilter, XML_TEXT, PAIRS)
    | st.builds(CorrelationFilter, *[FIELDS] * 8, PAIRS),
    action=st.none() | st.builds(SqlAction, XML_TEXT, PAIRS),
)


@given(RULES)
def test_every_rule_survives_writing_and_reading(asked: RuleDescription) -> None:
    """Req: A-01, P-03. A client that reads and writes back changes nothing."""
    body = f"<entry><content>{write_rule(asked)}</content></entry>"
    assert read_rule(read_description(body.encode()), "r") == asked
