"""What ARCHITECTURE.md says of the code and can be checked: packages, modules, names, dependencies."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/peeklock"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()


def section(title: str) -> str:
    """Return the text under a heading of the second level."""
    return TEXT.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_the_table_names_each_package_in_the_order_of_the_layers() -> None:
    named = re.findall(r"^\| `(\w+)` \|", section("Packages"), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [layers] = [
        contract["layers"]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract.get("containers") == ["peeklock"]
    ]
    level = {name: number for number, layer in enumerate(layers) for name in layer.split(" | ")}
    assert sorted(named) == sorted(set(level) - {"__main__"})
    assert [level[name] for name in named] == sorted(level[name] for name in named)


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|txt))`", TEXT))))
def test_each_file_is_there(named: str) -> None:
    assert (PACKAGE / named).exists() or (ROOT / named).exists()


@pytest.mark.parametrize(("path", "name"), sorted(set(re.findall(r"`([\w/]+\.py)` `([\w.]+)`", TEXT))))
def test_each_name_is_in_its_file(path: str, name: str) -> None:
    body: list[ast.stmt] = ast.parse((PACKAGE / path).read_text()).body
    for part in name.split("."):
        found = [node for node in body if part in names(node)]
        assert found, f"{path} has no {name}"
        body = getattr(found[0], "body", [])


def names(node: ast.stmt) -> set[str]:
    """Return what a statement defines."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return {node.name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


EXTRAS = ("demo", "capture", "entra", "otel", "postgres", "pytest", "spark", "spark-any", "spark-connect")
"""For users; the others are for development."""


def test_each_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + [each for name in EXTRAS for each in extras[name]]
    found = {re.split(r"[\[<>=; ]", each)[0] for each in wanted} - {"peeklock"}
    rows = re.findall(r"^\| ([a-z0-9, -]+) \|", section("Dependencies"), re.MULTILINE)
    assert found == {name for row in rows for name in row.split(", ")} - {"package"}


@pytest.mark.parametrize("decision", re.findall(r"^\*\*.*(?:\n.+)*", section("Decisions"), re.MULTILINE))
def test_each_decision_has_context_rejected_and_cost(decision: str) -> None:
    for part in ("Context", "Decision", "Rejected", "Cost"):
        assert len(re.findall(rf"^{part}(?: \(.*?\))?: ", decision, re.MULTILINE)) == 1, decision
