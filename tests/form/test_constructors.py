"""The build writes out constructors of data classes: they take and do what those of `dataclass` do."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import pickle
import sys
from pathlib import Path
from types import ModuleType

import pytest

import peeklock
from hatch_build import modules, with_constructors

PACKAGE = Path(peeklock.__file__).parent

TEXT = '''
from dataclasses import dataclass, field
from typing import ClassVar

@dataclass(slots=True)
class Plain:
    """A text."""

    ratio: ClassVar = 3
    first: int
    second: str | None = None
    """Of the second."""

    def shown(self) -> str:
        return f"{self.first} {self.second}"


@dataclass(slots=True, eq=False)
class ByName:
    first: int
    third: bool = field(default=False, kw_only=True)


@dataclass(slots=True)
class Factory:
    found: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen:
    first: int


@dataclass(slots=True)
class Own:
    first: int

    def __init__(self) -> None:
        self.first = 5


@dataclass(slots=True)
class Inherits(Plain):
    last: int = 1


@dataclass(slots=True)
class Last:
    last: int = 1
'''


def executed(text: str, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(text, name, "exec"), vars(module))
    return module


def written(text: str) -> list[ast.ClassDef]:
    """Return the classes that have a written constructor only after the step."""
    before, after = ast.parse(text), ast.parse(with_constructors(text))
    pairs = zip(before.body, after.body, strict=True)
    return [
        new for old, new in pairs if isinstance(new, ast.ClassDef) and ast.unparse(old) != ast.unparse(new)
    ]


def test_classes_with_written_constructors_behave_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = executed(TEXT, "plain", monkeypatch)
    other = executed(with_constructors(TEXT), "other", monkeypatch)
    assert [node.name for node in written(TEXT)] == ["Plain", "ByName", "Last"]
    for module in (plain, other):
        made = module.Plain(1, second="b")
        assert repr(made) == "Plain(first=1, second='b')"
        assert made == module.Plain(1, "b") != module.Plain(1)
        assert copy.copy(made) == pickle.loads(pickle.dumps(made)) == made
        named = module.ByName(1, third=True)
        assert named.third
        assert copy.copy(named).third == pickle.loads(pickle.dumps(named)).third
        assert module.Inherits(1, last=7).last == 7
        assert module.Last().last == 1
        for wrong in ((), (1, 2, 3)):
            with pytest.raises(TypeError, match="argument"):
                module.Plain(*wrong)


def test_lines_keep_their_numbers() -> None:
    lines, after = TEXT.split("\n"), with_constructors(TEXT).split("\n")
    changed = [(old, new) for old, new in zip(lines, after, strict=False) if old != new]
    assert {old for old, _ in changed} == {"", "@dataclass(slots=True)", "@dataclass(slots=True, eq=False)"}
    assert len(after) == len(lines) + 1  # the file ends with a class


@pytest.mark.parametrize("path", [path for path in modules(PACKAGE) if path.startswith(("amqp", "broker"))])
def test_written_constructors_take_the_fields_in_their_order(path: str) -> None:
    module = importlib.import_module(f"peeklock.{path.removesuffix('.py').replace('/', '.')}")
    for node in written((PACKAGE / path).read_text()):
        constructor = next(item for item in node.body if getattr(item, "name", "") == "__init__")
        assert isinstance(constructor, ast.FunctionDef)
        places = [parameter.arg for parameter in constructor.args.args[1:]]
        names = [parameter.arg for parameter in constructor.args.kwonlyargs]
        found = inspect.signature(getattr(module, node.name)).parameters.values()
        assert [each.name for each in found if each.kind is not each.KEYWORD_ONLY] == places
        assert [each.name for each in found if each.kind is each.KEYWORD_ONLY] == names
