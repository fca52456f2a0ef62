"""The fixture of expressions: what each is of which message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, timedelta
from datetime import datetime as plain_datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from peeklock.rules.ast import unparse
from peeklock.rules.compiled import compile_filter
from peeklock.rules.errors import EvaluationError, RuleError
from peeklock.rules.expression import Fixed, bind
from peeklock.rules.filters import SqlFilter
from peeklock.rules.parser import parse_filter
from peeklock.rules.predicate import compile_condition
from tests.rules.subjects import FakeMessage

FIXTURE = Path(__file__).with_name("expressions.txt")
RESULTS = {"true": True, "false": False, "unknown": None}


def datetime(*parts: int) -> plain_datetime:
    year, month, day, *time = parts
    hour, minute, second = (*time, 0, 0, 0)[:3]
    return plain_datetime(year, month, day, hour, minute, second, tzinfo=UTC)


def values(text: str) -> dict[str, Any]:
    """Read `name=value, ...`; a name may be delimited, a delimiter in it is as it is."""
    names: list[str] = []

    def numbered(found: re.Match[str]) -> str:
        names.append(found[1] or found[2])
        return f"{found[0][0] if found[0][0] in ', ' else ''}_{len(names) - 1}="

    system = re.search(r"sys\((.*)\)$", text)
    given = text if system is None else text[: system.start()]
    replaced = re.sub(r"(?:(?<=^)|(?<=, ))(?:\[(.*?)\]|(\w+))=", numbered, given.strip())
    namespace = {"datetime": datetime, "timedelta": timedelta, "Decimal": Decimal, "UUID": UUID}
    found = eval(f"dict({replaced})", namespace)
    result = {names[int(name[1:])]: value for name, value in found.items()}
    if system is not None:
        result["sys()"] = values(system[1])
    return result


def read() -> tuple[dict[str, FakeMessage], dict[str, Any], list[tuple[str, str, str]]]:
    messages: dict[str, FakeMessage] = {}
    parameters: dict[str, Any] = {}
    lines = []
    for line in FIXTURE.read_text(encoding="utf-8").splitlines():
        if line.startswith("@"):
            name, _, text = line[1:].partition("=")
            given = values(text.strip())
            if name.strip() == "parameter":
                parameters = {f"@{key}": value for key, value in given.items()}
            else:
                system = given.pop("sys()", {})
                messages[name.strip()] = FakeMessage(given, system)
        elif line and not line.startswith("#"):
            result, message, expression = line.split("|", 2)
            lines.append((result.strip(), message.strip(), expression.strip()))
    return messages, parameters, lines


MESSAGES, PARAMETERS, LINES = read()


def test_the_fixture_is_large() -> None:
    assert len(LINES) >= 300
    assert len(set(LINES)) == len(LINES)


def cases() -> Iterator[Any]:
    for result, message, expression in LINES:
        yield pytest.param(result, message, expression, id=f"{expression} [{message}]")


@pytest.mark.parametrize(("result", "message_name", "expression"), list(cases()))
def test_expression(result: str, message_name: str, expression: str) -> None:
    """Req: P-02"""
    message = MESSAGES[message_name]
    rule = SqlFilter(expression, tuple(PARAMETERS.items()))
    if result == "refused":
        with pytest.raises(RuleError) as refused:
            compile_filter(rule)
        assert refused.value.position is not None
        assert f"at position {refused.value.position}" in str(refused.value)
        return
    tree = parse_filter(expression)
    assert parse_filter(unparse(tree)) == tree
    compiled = compile_filter(rule)
    judge = compile_condition(tree, bind(rule.parameters))
    if result == "error":
        assert not isinstance(judge, Fixed)
        with pytest.raises(EvaluationError):
            judge(message)
        with pytest.raises(EvaluationError):
            compiled.matches(message)
        return
    assert (judge.value if isinstance(judge, Fixed) else judge(message)) is RESULTS[result]
    assert compiled.matches(message) is (result == "true")
