"""The work tree is laid out as the import contracts and the packaging take for granted."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/peeklock"


def test_each_room_is_the_source_of_an_import_contract() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    bound = {module for contract in contracts for module in contract.get("source_modules", [])}
    rooms = {
        path.stem for path in PACKAGE.iterdir() if (path / "__init__.py").exists() or path.suffix == ".py"
    }
    assert {f"peeklock.{room}" for room in rooms - {"__init__", "__main__"}} <= bound


def test_each_package_has_its_init_file() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
