"""Template expressions: values, unknown ones, and mistakes."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.templates.arm_expressions import NotEvaluated, Unknown, parse, readable, text_of, unknown_in
from peeklock.templates.arm_functions import ITEMS_MAX, SIZE_MAX
from peeklock.templates.arm_scope import Misplaced, Scope

FILE = Path(__file__).parent / "files/expressions.txt"
LINES = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]

TEMPLATE: dict[str, Any] = {
    "parameters": {
        "ns": {"type": "string", "defaultValue": "bus"},
        "list": {"type": "array", "defaultValue": ["a", "b"]},
        "held": {"type": "object", "defaultValue": {"K": {"x": 1}}},
        "missing": {"type": "string"},
        "maybe": {"type": "string", "nullable": True},
    },
    "variables": {
        "twice": "[concat(parameters('ns'), parameters('ns'))]",
        "one": "[variables('other')]",
        "other": "[variables('one')]",
        "copy": [{"name": "made", "count": 3, "input": {"n": "[copyIndex('made', 1)]"}}],
    },
}


def value_of(expression: str) -> Any:
    return Scope(TEMPLATE, {}, "").evaluated(f"[{expression}]", "here")


@pytest.mark.parametrize("line", LINES)
def test_an_expression_has_its_value(line: str) -> None:
    expression, wanted = line.split("\t")
    found = value_of(expression)
    assert json.dumps(found) == json.dumps(json.loads(wanted))


@pytest.mark.parametrize(
    ("expression", "unknown"),
    [
        ("resourceGroup().location", "resourceGroup().location"),
        ("toLower(uniqueString('x'))", "uniqueString('x')"),
        ("parameters('missing')", "parameters('missing')"),
        ("if(equals(parameters('missing'), 'x'), 1, 2)", "parameters('missing')"),
        ("listKeys('x', 'y').primaryConnectionString", "listKeys('x', 'y')"),
        ("and(true(), equals(parameters('missing'), ''))", "parameters('missing')"),
    ],
)
def test_what_only_a_deployment_knows_is_unknown_and_names_itself(expression: str, unknown: str) -> None:
    found = unknown_in(value_of(expression))
    assert found is not None
    assert unknown in found


def test_an_unknown_part_of_a_name_does_not_hide_the_others() -> None:
    found = value_of("format('{0}/{1}', concat('bus-', uniqueString(resourceGroup().id)), 'orders')")
    namespace, queue = found.split("/")
    assert queue == "orders"
    assert unknown_in(namespace) == "uniqueString(resourceGroup().id)"
    assert readable(namespace) == "bus-<uniqueString(resourceGroup().id)>"


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "ends early"),
        ("concat('a'", "ends early"),
        ("concat('a') b", "see character 13"),
        ("concat(;)", "see character 8"),
        ("'open", "see character 1"),
        ("nonsense('x')", "the function nonsense() is not offered: replace nonsense('x')"),
        ("parameters('none')", "the template has none of this name"),
        ("variables('one')", "needs itself"),
        ("parameters('list')[2]", "there is no 2"),
        ("parameters('held').none", "there is no 'none'"),
        ("substring('abc', 2, 5)", "wrong arguments"),
        ("int('x')", "wrong arguments"),
        ("copyIndex()", "there is no such loop"),
        ("if(true())", "takes three arguments"),
        ("format('{0:X}', 1)", "the format {0:X} is not offered"),
        (f"range(0, {ITEMS_MAX + 1})", "is not from 0"),
        (f"padLeft('x', {SIZE_MAX + 1})", "is not from 0"),
        ("div(1, 0)", "wrong arguments"),
        ("not(" * 101 + "true()" + ")" * 101, "nested deeper than 100"),
        ("'" + "x" * 24_576 + "'", "longer than 24576"),
    ],
)
def test_a_mistake_is_named_with_its_place(expression: str, said: str) -> None:
    with pytest.raises(Misplaced) as refused:
        value_of(expression)
    assert refused.value.path == "here"
    assert said in refused.value.what


def test_texts_cannot_grow_with_each_variable() -> None:
    variables = {f"v{n}": f"[concat(variables('v{n - 1}'), variables('v{n - 1}'))]" for n in range(1, 60)}
    template = {"variables": {"v0": "x" * 100, **variables}}
    with pytest.raises(Misplaced, match=f"longer than {SIZE_MAX} characters"):
        Scope(template, {}, "").evaluated("[variables('v59')]", "here")


def test_arrays_of_arrays_cannot_grow_as_text() -> None:
    variables = {
        f"v{n}": f"[createArray(variables('v{n - 1}'), variables('v{n - 1}'))]" for n in range(1, 60)
    }
    template = {"variables": {"v0": "x", **variables}}
    with pytest.raises(Misplaced, match=f"longer than {SIZE_MAX} characters"):
        Scope(template, {}, "").evaluated("[string(variables('v59'))]", "here")


def test_text_that_is_no_expression_stays() -> None:
    scope = Scope(TEMPLATE, {}, "")
    for given_text, wanted in (("[[x]", "[x]"), ("[x", "[x"), ("x]", "x]"), ("", ""), ("[[x", "[[x")):
        assert scope.evaluated(given_text, "") == wanted


def test_loops_make_variables_and_properties() -> None:
    scope = Scope(TEMPLATE, {}, "")
    assert scope.evaluated("[variables('made')]", "") == [{"n": 1}, {"n": 2}, {"n": 3}]
    held = {"copy": [{"name": "x", "count": 2, "input": "[copyIndex('x')]"}], "y": 1}
    assert scope.evaluated(held, "") == {"x": [0, 1], "y": 1}
    assert scope.evaluated("[parameters('maybe')]", "") is None


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with suppress(NotEvaluated):
        parse(text)


@given(st.text(st.characters(codec="utf-8"), max_size=20), st.text(st.characters(codec="utf-8"), max_size=20))
def test_a_mark_keeps_its_expression_in_any_text(expression: str, around: str) -> None:
    mark = text_of(Unknown(expression))
    assert "/" not in mark
    assert unknown_in([{"a": f"a{mark}b"}]) == expression
    assert unknown_in(around.replace("\ue000", "")) is None
