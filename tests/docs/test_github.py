"""Workflows, issue templates and commit hooks have their form, and call the commands of the project."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TEMPLATES = sorted(
    set((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")) - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"}
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
GITHUBS_OWN = "gh release create "
"""The only command of a step that is not one of `./run`."""

each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
each_template = pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _steps(workflow: Any) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job["steps"]


def _job(file: str, name: str) -> Any:
    return _read(ROOT / ".github/workflows" / file)["jobs"][name]


@each_workflow
def test_each_job_has_a_time_limit_and_no_right_to_write_by_default(path: Path) -> None:
    workflow = _read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert [name for name, job in workflow["jobs"].items() if "timeout-minutes" not in job] == []


@each_workflow
def test_each_action_is_pinned_by_its_major_version(path: Path) -> None:
    actions = [step["uses"] for step in _steps(_read(path)) if "uses" in step]
    assert actions
    assert [name for name in actions if not re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+", name)] == []


@each_workflow
def test_each_step_calls_a_command_of_run(path: Path) -> None:
    script = (ROOT / "run").read_text(encoding="utf-8")
    known = set(re.findall(r"^([a-z]+)(?: \|[^)]*)?\)$", script, flags=re.MULTILINE))
    called = [step["run"] for step in _steps(_read(path)) if "run" in step]
    assert called
    for command in called:
        if not command.startswith(GITHUBS_OWN):
            assert re.fullmatch(r"\./run [^\n;&|]+", command)
            assert command.split()[1] in known


def test_each_supported_python_is_tested() -> None:
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert _job("ci.yml", "test")["strategy"]["matrix"]["python"] == supported
    assert PROJECT["requires-python"] == f">={supported[0]}"


def test_a_release_is_published_by_its_tag_without_a_password() -> None:
    """PyYAML reads the key `on` as true."""
    workflow = _read(ROOT / ".github/workflows/release.yml")
    assert set(workflow[True]["push"]) == {"tags"}
    assert workflow["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")


def test_a_release_has_the_wheel_for_any_platform_beside_compiled_ones() -> None:
    """pip takes the first where none of the others fits."""
    jobs = _read(ROOT / ".github/workflows/release.yml")["jobs"]
    assert jobs["publish"]["needs"] == ["build", "wheels"]
    assert [step["run"] for step in jobs["wheels"]["steps"] if "run" in step] == ["./run wheels"]
    built = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert built["build"] == [f"cp{version.replace('.', '')}-*" for version in supported]


@each_template
def test_each_issue_template_has_named_fields(path: Path) -> None:
    template = _read(path)
    assert {"name", "description", "labels", "body"} == set(template)
    fields = [field for field in template["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"input", "textarea", "dropdown", "checkboxes"}
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_commit_hooks_use_the_tools_of_lint() -> None:
    hooks = [hook for repo in _read(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    programs = {hook["entry"].split()[0] for hook in hooks}
    assert programs == {f".venv/bin/{tool}" for tool in ("ruff", "mypy", "lint-imports")}


@pytest.mark.long
@pytest.mark.skipif(shutil.which("go") is None, reason="actionlint is built with Go")
def test_workflows_pass_actionlint() -> None:
    done = subprocess.run(
        ["go", "run", ACTIONLINT, "-shellcheck=", "-pyflakes=", *WORKFLOWS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
