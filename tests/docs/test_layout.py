"""The work tree is laid out as the import contracts, the packaging and the packages' maps say."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/peeklock"
FOLDERS = sorted({path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE})
LAYERED = ("", "broker", "gateway", "server", "store")


def modules(folder: Path) -> set[str]:
    """Return the names of the modules and sub-packages in a package."""
    found = {path.stem for path in folder.glob("*.py")} | {
        path.parent.name for path in folder.glob("*/__init__.py")
    }
    return found - {"__init__", "__main__"}


@pytest.mark.parametrize("name", LAYERED)
def test_each_module_of_a_layered_package_has_its_layer(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    container = f"peeklock.{name}".rstrip(".")
    [layers] = [
        contract["layers"]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract.get("containers") == [container]
    ]
    named = {module for layer in layers for module in re.split("[ |:]+", layer)}
    assert modules(PACKAGE / name) == named - {"__main__"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(PACKAGE)))
def test_each_package_maps_its_modules(folder: Path) -> None:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert modules(folder) - set(re.findall(r"\w+", text)) == set()


def test_no_module_is_over_500_lines_and_no_function_over_60() -> None:
    long = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if text.count("\n") > 500:
            long.append(f"{path.relative_to(PACKAGE)}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > 60:
                    long.append(f"{path.relative_to(PACKAGE)}: {node.name} has {lines} lines")
    assert long == []


def test_each_package_has_its_init_file() -> None:
    assert [str(folder) for folder in FOLDERS if not (folder / "__init__.py").exists()] == []


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
