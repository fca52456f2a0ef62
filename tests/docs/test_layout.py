"""The work tree is laid out as the import contracts and the packaging take for granted."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/peeklock"
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


def test_each_package_has_its_init_file() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
