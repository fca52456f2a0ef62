"""Text becomes a tree and text again; errors say what is wrong with other text."""

from __future__ import annotations

import contextlib
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.rules.ast import Predicate, Remove, Set, Statement, unparse
from peeklock.rules.compiled import compile_action, compile_filter
from peeklock.rules.errors import RuleError
from peeklock.rules.filters import SqlAction, SqlFilter
from peeklock.rules.parser import DEPTH_MAX, LENGTH_MAX, STATEMENTS_MAX, parse_action, parse_filter
from tests.rules.effort import least_cpu_s
from tests.rules.strategies import EXPRESSIONS, PREDICATES, PROPERTIES

STATEMENTS = st.builds(Set, PROPERTIES, EXPRESSIONS) | st.builds(Remove, PROPERTIES)


@given(PREDICATES)
def test_a_tree_is_parsed_from_its_text(tree: Predicate) -> None:
    """Req: P-02"""
    text = unparse(tree)
    if len(text) <= LENGTH_MAX:
        parsed = parse_filter(text)
        assert parsed == tree
        assert repr(parsed) == repr(tree)  # 1 == True == 1.0
        assert unparse(parsed) == text


def written(statement: Statement) -> str:
    if isinstance(statement, Set):
        return f"SET {unparse(statement.property)} = {unparse(statement.value)}"
    return f"REMOVE {unparse(statement.property)}"


@given(st.lists(STATEMENTS, min_size=1, max_size=4).map(tuple))
def test_statements_are_parsed_from_their_text(statements: tuple[Statement, ...]) -> None:
    text = "; ".join(map(written, statements))
    if len(text) <= LENGTH_MAX:
        assert repr(parse_action(text)) == repr(statements)


PIECES = """a b 'x' 1 2.5 @p [n] "q" = <> < ( ) ( ) , . ; + - * / % AND OR NOT IN LIKE ESCAPE IS NULL EXISTS(
TRUE FALSE SET REMOVE sys. user. p( newid() ' [ ] $ --
|| BETWEEN XOR CASE SELECT DATE N'x' EXISTS f( \u2019"""


@given(st.lists(st.sampled_from(PIECES.split()), max_size=12).map(" ".join) | st.text(max_size=30))
@settings(max_examples=300)
def test_any_text_is_a_rule_or_gives_a_rule_error(text: str) -> None:
    refused: list[RuleError] = []
    for make in (
        lambda: compile_filter(SqlFilter(text, (("@p", 1),))),
        lambda: compile_action(SqlAction(text, (("@p", 1),))),
    ):
        try:
            make()
        except RuleError as error:
            refused.append(error)
    for refusal in refused:
        assert str(refusal)
        assert refusal.position is None or 1 <= refusal.position <= len(text) + 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a =", "Expected a value after '=', found the end of the filter; at position 4, marked ^: a =^"),
        ("a = ) b", "Expected a value after '=', found ')'; at position 5, marked ^: a = ^) b"),
        ("a = 1 AND", "Expected a condition after 'AND', found the end of the filter"),
        ("a = 1 b", "Expected an operator or the end after '1', found 'b'; at position 7"),
        ("(a = 1", "Expected ')' after '1', found the end of the filter; at position 7"),
        ("a NOT b", "Expected IN or LIKE after 'NOT', found 'b'"),
        ("a IS 5", "Expected NULL or NOT NULL after 'IS', found '5'"),
        ("a IS NOT 5", "Expected NULL after 'NOT', found '5'"),
        ("a IN 5", "Expected '(' after 'IN', found '5'"),
        ("a IN (1 2)", "Expected an operator or ',' or ')' after '1', found '2'"),
        ("a IS NULL b", "Expected AND or OR or the end after 'NULL', found 'b'"),
        (
            "a = 'x",
            "A text begins here whose closing ' is missing; a ' within a text is written twice; at",
        ),
        ("[a = 1", "A name begins here whose closing ] is missing; at position 1"),
        ("a == 1", "Expected a value after '=', found '='; one = compares; at position 4"),
        ("a && b", "Expected an operator, found '&'; write AND; at position 3"),
        (
            "a = 1 -- comment",
            "There are no comments, and -- begins none; write '- -' or parentheses for a minus of a minus; "
            "at position 7",
        ),
        ("a = $", "The character '$' has no meaning; at position 5"),
        ("upper(a) = 'X'", "There is no function 'upper', only newid(), property(name), p(name) and EXISTS"),
        ("newid(2) = 1", "The function 'newid' takes nothing, found 1 value; at position 1"),
        ("x.y = 1", "There is no scope 'x', only sys and user; write [x.y] for a property with a dot"),
        (
            "sys.like = 1",
            "Expected the name of a property after '.', found 'like'; write [like] for",
        ),
        ("sys.Colour = 1", "There is no system property 'Colour'; there are MessageId, CorrelationId"),
        ("sys.Lable = 'x'", "There is no system property 'Lable'; did you mean Label? There are MessageId,"),
        ("sys.message_id = 'x'", "did you mean MessageId? There are"),
        ("sys.Subjct = 'x'", "did you mean Subject? There are"),
        ("sys.ScheduledEnqueueTime = 1", "did you mean ScheduledEnqueueTimeUtc? There are"),
        ("system.Label = 'x'", "There is no scope 'system', only sys and user; write sys.Label for a system"),
        ("5", "Expected a condition, such as color = 'blue', found a value; at position 1"),
        ("a OR 5", "OR takes a condition, such as color = 'blue', found a value; at position 6"),
        ("a = (b = 1)", "'=' takes values, found a condition; at position 6"),
        ("a = @p", "The parameter '@p' has no value; at position 5"),
        ("a LIKE 5", "LIKE takes a text as its pattern, found a number; at position 8"),
        ("a LIKE 'x' ESCAPE 'yy'", "ESCAPE takes one character, found 'yy'"),
        ("a = 1 / 0", "1 / 0: a division by zero; at position 5"),
        ("a = 'x' - 1", "- cannot be applied to a text and a number; at position 5"),
        ("a = 9223372036854775808", "The number 9223372036854775808 has more than 64 bits; at position 5"),
        ("1 IS NULL", "IS NULL takes the name of a property, found a value; at position 1"),
        (
            "a = 1\n\tAND\n\t)",
            "Expected a condition after 'AND', found ')'; at position 13, marked ^: a = 1  AND  ^)",
        ),
        ("", "The filter is empty."),
        (" \t\n", "The filter is empty."),
    ],
)
def test_an_error_says_where_it_is_and_what_was_expected(text: str, says: str) -> None:
    """Req: P-02"""
    with pytest.raises(RuleError) as refused:
        compile_filter(SqlFilter(text))
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = 1", "Expected SET or REMOVE, found 'a'; at position 1"),
        ("SET a 1", "Expected '=' after 'a', found '1'"),
        ("SET", "Expected the name of a property after 'SET', found the end of the action"),
        (
            "SET set = 1",
            "Expected the name of a property after 'SET', found 'set'; write [set] for",
        ),
        ("SET a = b = 1", "An action takes a value, not a condition; found '='; at position 11"),
        ("SET a = b > 1", "An action takes a value, not a condition; found '>'; at position 11"),
        ("SET a = NOT b", "An action takes a value, not a condition; found 'NOT'; at position 9"),
        ("SET a = (b > 1)", "'SET' takes values, found a condition; at position 10"),
        ("SET a == 1", "Expected a value after '=', found '='; one = sets; at position 8"),
        ("REMOVE a = 1", "Expected SET or REMOVE or the end after 'a', found '='; at position 10"),
        ("SET a = 1; = 2", "Expected SET or REMOVE or the end after ';', found '='; at position 12"),
        ("= 1", "Expected SET or REMOVE, found '='; at position 1"),
        ("SET 'a' = 1", "found \"'a'\"; a name is written without quotes; at position 5"),
        ("", "The action is empty."),
        ("SET a = 1,", "Expected SET or REMOVE after ',', found the end of the action"),
        ("SET sys.Size = 1", "The system property 'Size' cannot be set; at position 5"),
        ("SET sys.Colour = 1", "There is no system property 'Colour'"),
        ("SET sys.Label = TRUE", "sys.Label takes a text, found a boolean; at position 17"),
    ],
)
def test_an_error_of_an_action_says_the_same(text: str, says: str) -> None:
    """Req: P-02"""
    with pytest.raises(RuleError) as refused:
        compile_action(SqlAction(text))
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("b = 1 AND a BETWEEN 1 AND 3", "There is no BETWEEN; write a >= 1 AND a <= 3; at position 13"),
        ("[a b] BETWEEN 'x' AND @p", "There is no BETWEEN; write [a b] >= 'x' AND [a b] <= @p"),
        ("sys.Size BETWEEN -1 AND 3", "There is no BETWEEN; write sys.Size >= -1 AND sys.Size <= 3"),
        ("a NOT BETWEEN 1 AND 3", "There is no BETWEEN; write (a < 1 OR a > 3)"),
        ("a BETWEEN (1) AND 3", "There is no BETWEEN; write a >= 1 AND a <= 3; at position 3"),
        (f"a BETWEEN '{'x' * 80}' AND 'y'", "There is no BETWEEN; write a >= 1 AND a <= 3; at position 3"),
        ("COUNT(*) > 3", "There is no function 'COUNT', only newid(), property(name), p(name) and EXISTS"),
        ("CAST(a AS int) = 1", "There is no function 'CAST', only"),
        ("CAST(a AS int) = 1", "EXISTS(property); kinds do not change, but '' + a makes a text of a number"),
        ("ISNULL(a, 1) = 1", "EXISTS(property); write a IS NULL OR ...; at position 1"),
        ("CASE WHEN a = 1 THEN 2 END = 2", "There is no CASE; make a rule for each case, or use AND and OR"),
        ("a = CASE b WHEN 1 THEN 2 END", "There is no CASE; make a rule for each case, or use AND and OR"),
        ("IF(a = 1, 2, 3) = 2", "There is no IF; make a rule for each case"),
        ("a XOR b", "There is no XOR; write (a OR b) AND NOT (a AND b); at position 3"),
        ("a MOD 2 = 0", "There is no MOD; write %, as in a % 2; at position 3"),
        ("MOD(a, 2) = 0", "There is no MOD; write %, as in a % 2; at position 1"),
        ("a ilike 'X'", "There is no ILIKE; texts are compared with =, IN and LIKE, and capitals always"),
        ("a = N'x'", "A text has no N before it; write 'x'; at position 5"),
        ("a > DATE '2024-01-01'", "There are no constants of time; give a parameter, such as @day"),
        ("SELECT a FROM b", "There is no SELECT; a filter is only a condition, such as color = 'blue'"),
        ("SELECT * FROM b WHERE a = 1", "There is no SELECT; a filter is only a condition"),
        ("WHERE a = 1", "There is no WHERE; a filter is only a condition, such as color = 'blue'; at"),
        ("SET a = 1", "SET belongs to an action; a filter is a condition, such as color = 'blue'; at"),
        ("REMOVE a", "REMOVE belongs to an action; a filter is a condition"),
        ("'x'||'y' = a", "There is no '||'; texts are joined by +, conditions by OR; at position 4"),
        ("a = 'it's'", "The text ends here; a ' within a text is written twice, as in 'it''s'; at"),
        ("a = \u2018x\u2019", "The quote \u2018 has no meaning; write ' before and after a text; at"),
        ("a = \u201cx\u201d", "The quote \u201c has no meaning; write ' before and after a text; at"),
        ("a = 'x\u2019", "closing ' is missing; \u2019 does not close it; at position 5"),
        ("NOT EXISTS sys.To", "EXISTS takes a property in parentheses; write EXISTS(sys.To); at position 5"),
        ("EXISTS 'a'", "EXISTS takes a property in parentheses; write EXISTS(name); at position 1"),
        ("exists 5", "Expected an operator or the end after 'exists', found '5'; at position 8"),
        ("EXISTS('a')", "EXISTS takes the name of a property, without quotes; found a text; at position 8"),
        ("a = 1 /* b */", "There are no comments, and /* begins none; at position 7"),
        ("a IS TRUE", "Expected NULL or NOT NULL after 'IS', found 'TRUE'; write = TRUE; at position 6"),
    ],
)  # fmt: skip
def test_words_of_other_languages_are_answered_with_those_of_this_one(text: str, says: str) -> None:
    """Req: P-02"""
    with pytest.raises(RuleError) as refused:
        compile_filter(SqlFilter(text))
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("REMOVE a, b", "Each statement begins with SET or REMOVE; write REMOVE a, REMOVE b; at position 11"),
        ("SET a=1, b=2", "Each statement begins with SET or REMOVE; write SET a=1, SET b=2; at position 10"),
        ("SET c = 1; SET a = 1;\nsys.To = 'x,y'", "write SET a = 1; SET sys.To = 'x,y'; at position 23"),
        (f"SET a = 1, {'b' * 80} = 2", "Each statement begins with SET or REMOVE; at position 12"),
        ("SET a = 1 WHERE b = 2", "There is no WHERE in an action; the filter of its rule says which"),
        ("UPDATE a SET b = 1", "There is no UPDATE; an action is made of SET and REMOVE; at position 1"),
        ("SET a = CASE WHEN b THEN 1 END", "There is no CASE; make a rule for each case, or use AND and OR"),
        (
            "SET sys.TimeToLive = 'PT5S'",
            "sys.TimeToLive takes a time span, found a text; a time span is given as a parameter",
        ),
        ("SET sys.ScheduledEnqueueTimeUtc = 5", "found a number; a point in time is given as a parameter"),
    ],
)  # fmt: skip
def test_an_action_answers_them_too(text: str, says: str) -> None:
    """Req: P-02"""
    with pytest.raises(RuleError) as refused:
        compile_action(SqlAction(text))
    assert says in str(refused.value)
    assert str(refused.value).isprintable()


def test_such_words_are_names_where_a_name_can_be() -> None:
    """Req: P-02"""
    names = (
        "between",
        "xor",
        "case",
        "select",
        "from",
        "where",
        "set",
        "remove",
        "date",
        "n",
        "exists",
        "count",
    )
    compile_filter(SqlFilter(" AND ".join(f"{name} = 1" for name in names)))
    with pytest.raises(RuleError, match="Expected an operator or the end after '1', found 'b'"):
        compile_filter(SqlFilter("select = 1 b"))


def test_a_long_expression_is_shown_in_part() -> None:
    text = " AND ".join(["color = 'blue'"] * 20) + " AND ) OR " + " OR ".join(["size = 1"] * 20)
    with pytest.raises(RuleError) as refused:
        parse_filter(text)
    excerpt = "at position 381, marked ^: ... AND color = 'blue' AND ^) OR size = 1 OR size = ..."
    assert excerpt in str(refused.value)


def test_an_expression_at_the_limit_is_parsed_and_one_past_it_is_not() -> None:
    """Req: P-02"""
    longest = "a = '" + "x" * (LENGTH_MAX - 6) + "'"
    parse_filter(longest)
    with pytest.raises(RuleError, match=r"1025 characters; the limit is 1024"):
        parse_filter(longest + " ")
    with pytest.raises(RuleError, match=r"1025 characters; the limit is 1024"):
        parse_action("SET a = 1" + " " * (LENGTH_MAX - 8))


def test_an_action_at_the_limit_of_statements_is_parsed_and_one_past_it_is_not() -> None:
    """Req: P-02"""
    assert len(parse_action("SET a=1;" * STATEMENTS_MAX)) == STATEMENTS_MAX
    with pytest.raises(RuleError, match=r"33 statements; the limit is 32"):
        parse_action("SET a=1;" * (STATEMENTS_MAX + 1))


def test_nesting_at_the_limit_is_parsed_and_one_past_it_is_not() -> None:
    at_limit = "NOT " * (DEPTH_MAX - 2) + "a = 1"
    compile_filter(SqlFilter(at_limit))
    with pytest.raises(RuleError, match=r"Nested more than 32 levels deep"):
        compile_filter(SqlFilter("NOT " + at_limit))


WORST = [
    "(" * 509 + "1=1" + ")" * 509,
    "(" * LENGTH_MAX,
    ")" * LENGTH_MAX,
    "NOT " * 255 + "a",
    "- " * 500 + "a = 1",
    "+" * 1000 + "a = 1",
    "a" + "+a" * 500 + " = 1",
    "a" + "%a" * 500 + " = 1",
    "a" + " OR a" * 200,
    "a" + " AND a" * 170,
    "a IN (" + ",".join("1" * 500) + ")",
    "a IN (" + ",".join("a" * 500) + ")",
    "p(" * 340 + "'a'" + ")" * 340,
    " AND ".join(["(a OR b)"] * 78),
    "a=1" + " AND (a=1 OR" * 50 + " a=1" + ")" * 50,
    "'" * LENGTH_MAX,
    "'" * (LENGTH_MAX - 1),
    "[" * LENGTH_MAX,
    "[" + "]" * (LENGTH_MAX - 1),
    "a LIKE '" + "%_" * 500 + "'",
    "a=" + "9" * 1000,
    "a=1e" + "9" * 1000,
    "a=1." + "9" * 1000,
    "@" * LENGTH_MAX,
    " " * (LENGTH_MAX - 1) + "a",
    "a" * LENGTH_MAX,
    "a " * (LENGTH_MAX // 2),
    "=" * LENGTH_MAX,
    ("x" * 29 + "' OR ") * 30,
    "SET a=1," * 127,
    "SET a=" + "(" * 500,
    "SET a=a" + "+a" * 500,
    "a" * 1000 + " BETWEEN",
    "a BETWEEN " * 100,
    "SET a=1," + "'x'," * 250,
]


@pytest.mark.parametrize("text", WORST, ids=range(len(WORST)))
def test_no_text_takes_long_or_much_stack(text: str) -> None:
    """P-05 for the definition: neither time nor recursion grows out of hand, with 150 frames left for it."""
    assert len(text) <= LENGTH_MAX
    parse_filter("a = 1")
    parse_action("SET a = 1")

    def make() -> None:
        parse_filter.cache_clear()
        parse_action.cache_clear()
        with contextlib.suppress(RuleError):
            compile_filter(SqlFilter(text))
        with contextlib.suppress(RuleError):
            compile_action(SqlAction(text))

    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(_frames() + 150)
    try:
        assert least_cpu_s(make) < 0.25  # some 5 ms here
    finally:
        sys.setrecursionlimit(usual)


def _frames() -> int:
    count, frame = 0, sys._getframe()
    while frame.f_back is not None:
        count, frame = count + 1, frame.f_back
    return count


def test_equal_texts_are_parsed_once() -> None:
    """Req: P-05"""
    assert parse_filter("color = 'parsed once'") is parse_filter("color = 'parsed once'")
