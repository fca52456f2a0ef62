"""The documentation is complete and its links and snippets hold."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from peeklock.cli import main
from peeklock.cli.settings_table import SETTINGS
from peeklock.cli.sources import SettingOption

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(
            path
            for folder in ("docs", "changelog.d", "examples", "bench")
            for path in (ROOT / folder).rglob("*.md")
        ),
    ]
)
EXAMPLES = {path.name for path in (ROOT / "examples").glob("*.py")} - {"common.py"}
NO_EXAMPLE = "(The Python client has none.)"
"""Says in a line of advice that no example can show it."""
COMMAND_LINE = (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", COMMAND_LINE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _options() -> Iterator[tuple[str, str]]:
    assert isinstance(main, click.Group)
    for name, command in main.commands.items():
        below = command.commands.values() if isinstance(command, click.Group) else ()
        parameters = [parameter for one in (command, *below) for parameter in one.params]
        # Settings have a page of their own, made from their table.
        options = {
            option
            for parameter in parameters
            if isinstance(parameter, click.Option) and not isinstance(parameter, SettingOption)
            for option in parameter.opts
        }
        for option in sorted(options):
            yield name, option


def test_each_command_has_its_section() -> None:
    assert isinstance(main, click.Group)
    assert set(_sections()) == {f"peeklock {name}" for name in main.commands}


@pytest.mark.parametrize(("command", "option"), list(_options()))
def test_each_option_has_its_entry(command: str, option: str) -> None:
    assert f"`{option}" in _sections()[f"peeklock {command}"]


def test_no_entry_is_for_an_option_that_is_gone() -> None:
    settings = {f"--{setting.name}" for setting in SETTINGS}
    known = {option for _, option in _options()} | settings | {"--help", "--version"}
    assert set(re.findall(r"`(--[a-z-]+)", COMMAND_LINE)) <= known


def test_each_sub_command_of_run_is_documented_and_in_its_help() -> None:
    script = (ROOT / "run").read_text(encoding="utf-8")
    commands = re.findall(r"^([a-z]+)(?: \|[^)]*)?\)$", script, flags=re.MULTILINE)
    assert {"demo", "test", "bench", "soak", "lint", "serve", "help"} <= set(commands)
    shown = subprocess.run([ROOT / "run", "help"], capture_output=True, text=True, check=True).stdout
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for command in commands:
        assert f"`./run {command}" in contributing
        assert f"\n  {command} " in shown


def test_run_without_a_command_it_knows_fails_and_shows_what_there_is() -> None:
    refused = subprocess.run([ROOT / "run", "dance"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "usage: ./run COMMAND" in refused.stderr
    assert "no such command: dance" in refused.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_into_the_work_tree_hold(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    local = [target.split("#")[0] for target in targets if "://" not in target and not target.startswith("#")]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", ["examples/README.md", "docs/how-to/python-client.md"])
def test_each_example_is_told_of(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((?:\.\./\.\./examples/)?([a-z_]+\.py)\)", text)) - {"common.py"} == EXAMPLES


def test_each_line_of_advice_has_its_example() -> None:
    """Req: O-01"""
    advice = (ROOT / "docs/how-to/advice.md").read_text(encoding="utf-8")
    lines = re.findall(r"^- .*?(?=^- |^## |\Z)", advice, re.MULTILINE | re.DOTALL)
    assert len(lines) >= 15
    assert [line for line in lines if "](../../examples/" not in line and NO_EXAMPLE not in line] == []


@pytest.mark.parametrize("snippet", re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL))
def test_python_in_the_readme_compiles(snippet: str) -> None:
    compile(snippet, "README.md", "exec")


def test_no_two_pages_make_entities_of_one_name() -> None:
    """So that their programs run one after another over one broker, with any Config.json that they show."""
    pages = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    made = [
        (name.lower(), page)
        for page, text in pages.items()
        for name in re.findall(r"\.create_(?:queue|topic)\(\s*\"([^\"]+)\"", text)
    ]
    assert len(made) > 10
    assert sorted(made) == sorted({name: (name, page) for name, page in made}.values())
    examples = [
        found for text in pages.values() for found in re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    ]
    configured = {
        entity["Name"].lower()
        for example in examples
        if "UserConfig" in example
        for kind in ("Queues", "Topics")
        for entity in json.loads(example)["UserConfig"]["Namespaces"][0].get(kind, ())
    }
    assert configured
    assert configured & {name for name, _ in made} == set()
