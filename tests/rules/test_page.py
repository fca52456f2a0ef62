"""docs/reference/rules.md: each example on it is what rules do, and its lists and limits are complete."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from peeklock.rules.action import KEPT, WRITABLE
from peeklock.rules.ast import RESERVED, RESERVED_IN_ACTIONS
from peeklock.rules.compiled import compile_action, compile_filter
from peeklock.rules.errors import EvaluationError, RuleError
from peeklock.rules.expression import SPELLED, Fixed, bind
from peeklock.rules.filters import SqlAction, SqlFilter
from peeklock.rules.like import PATTERN_LENGTH_MAX
from peeklock.rules.parser import DEPTH_MAX, LENGTH_MAX, STATEMENTS_MAX, parse_filter
from peeklock.rules.predicate import compile_condition
from peeklock.rules.subject import ID_LENGTH_MAX
from peeklock.rules.values import TEXT_LENGTH_MAX
from tests.rules.subjects import FakeMessage
from tests.rules.test_expressions import RESULTS, values

PAGE = (Path(__file__).parents[2] / "docs/reference/rules.md").read_text(encoding="utf-8")
MESSAGE_TEXT, PARAMETER_TEXT = re.findall(r"```text\n(color=.*)\n```", PAGE)
PARAMETERS = tuple((f"@{name}", value) for name, value in values(PARAMETER_TEXT).items())


def message() -> FakeMessage:
    given = values(MESSAGE_TEXT)
    system = given.pop("sys()")
    return FakeMessage(given, system)


def rows(first: str) -> Iterator[tuple[str, str]]:
    """First and second cell of each row of each table whose first column is named so."""
    for table in re.findall(rf"^\| {first} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, flags=re.MULTILINE):
        for row in table.splitlines():
            cell, result, _ = _cells(row)
            yield cell, result


def _cells(row: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", row.strip("|"))
    return [cell.strip().strip("`").replace("\\|", "|") for cell in cells]


FILTERS, ACTIONS = list(rows("filter")), list(rows("action"))


def test_the_examples_are_found() -> None:
    assert len(FILTERS) >= 50
    assert len(ACTIONS) >= 15


@pytest.mark.parametrize(("expression", "result"), FILTERS)
def test_filter_of_the_page(expression: str, result: str) -> None:
    """Req: P-02"""
    rule = SqlFilter(expression, PARAMETERS)
    if result == "refused":
        with pytest.raises(RuleError):
            compile_filter(rule)
    elif result == "error":
        with pytest.raises(EvaluationError):
            compile_filter(rule).matches(message())
    else:
        assert compile_filter(rule).matches(message()) is (result == "true")
        if result != "no match":
            judge = compile_condition(parse_filter(expression), bind(PARAMETERS))
            assert (judge.value if isinstance(judge, Fixed) else judge(message())) is RESULTS[result]


@pytest.mark.parametrize(("expression", "changes"), ACTIONS)
def test_action_of_the_page(expression: str, changes: str) -> None:
    """Req: P-02"""
    rule = SqlAction(expression, PARAMETERS)
    if changes == "refused":
        with pytest.raises(RuleError):
            compile_action(rule)
    elif changes == "error":
        with pytest.raises(EvaluationError):
            compile_action(rule).apply(message())
    else:
        found = compile_action(rule).apply(message())
        removed = re.fullmatch(r"removed\((\w+)\)", changes)
        expected = {} if removed else values(changes)
        assert found.removed == ([removed[1]] if removed else [])
        assert found.system == expected.pop("sys()", {})
        assert repr(found.user) == repr(expected)


def test_what_comes_from_t_sql() -> None:
    """Req: P-02. The left cell is refused or never true, as it says; the right one is true."""
    (table,) = re.findall(r"^\| T-SQL \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, flags=re.MULTILINE)
    rows = [_cells(row) for row in table.splitlines()]
    assert len(rows) >= 10
    for foreign, here, note in rows:
        assert compile_filter(SqlFilter(here, PARAMETERS)).matches(message()), here
        if note.startswith("accepted"):
            assert not compile_filter(SqlFilter(foreign, PARAMETERS)).matches(message()), foreign
        else:
            with pytest.raises(RuleError):
                compile_filter(SqlFilter(foreign, PARAMETERS))


def test_the_tables_of_truth() -> None:
    """Req: P-02"""
    words = {"true": "TRUE", "false": "FALSE", "unknown": "NULL"}
    for operator in ("AND", "OR"):
        table = PAGE.split(f"| `{operator}` | true | false | unknown |\n|---|---|---|---|\n")[1].split(
            "\n\n"
        )[0]
        lines = [[cell.strip("*") for cell in _cells(row)] for row in table.splitlines()]
        assert len(lines) == 3
        for left, *results in lines:
            for right, result in zip(words, results, strict=True):
                judge = compile_condition(parse_filter(f"{words[left]} {operator} {words[right]}"), {})
                assert isinstance(judge, Fixed)
                assert judge.value is RESULTS[result]


def test_all_system_properties_and_keywords_are_told_of() -> None:
    section = PAGE.split("### System properties")[1].split("###")[0]
    named = set(re.findall(r"[A-Z]\w+", " ".join(re.findall(r"`([^`]*)`", section))))
    assert named == {*SPELLED.values(), "Subject"}
    keywords = set(re.findall(r"Keywords \(`([A-Z\s]+)`, in actions also `([A-Z ]+)`\)", PAGE)[0])
    assert set(" ".join(keywords).split()) == RESERVED_IN_ACTIONS > RESERVED


def test_what_can_be_set_is_told_of() -> None:
    section = PAGE.split("An action can set and remove these system properties:")[1].split("## ")[0]
    table = section.split("\n\n")[1]
    for name, spelled in SPELLED.items():
        assert (f"`{spelled}`" in table) is (name in WRITABLE)
    assert re.search(rf"^\| `{SPELLED[KEPT]}` \| .*can be set but not removed \|$", table, re.MULTILINE)
    assert f"at most {ID_LENGTH_MAX} characters" in section


def test_limits_are_those_of_the_code() -> None:
    section = PAGE.split("## Limits")[1].split("## ")[0]
    found = [int(cell.replace(",", "")) for cell in re.findall(r"\| ([\d,]+) \|$", section, re.MULTILINE)]
    assert found == [LENGTH_MAX, STATEMENTS_MAX, DEPTH_MAX, PATTERN_LENGTH_MAX, TEXT_LENGTH_MAX]
