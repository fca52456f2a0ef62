"""`./run` says plainly what a machine lacks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bare_tree(tmp_path: Path) -> Path:
    """A work tree without .venv, on a machine that has a shell and `bin/` alone."""
    (tmp_path / "bin").mkdir()
    for tool in ("cat", "cksum", "dirname", "rm", "sh"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / "bin" / tool).symlink_to(found)
    for name in ("run", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def _run(
    tree: Path, *arguments: str, folders: tuple[str, ...] = ("bin",), python: str | None = None
) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = ["sh", tree / "run", *arguments]
    path = ":".join(str(tree / folder) for folder in folders)
    env = {"PATH": path} | ({} if python is None else {"PEEKLOCK_PYTHON": python})
    return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=False)


def _install(tree: Path, name: str, script: str) -> None:
    (tree / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
    (tree / "bin" / name).chmod(0o755)


def test_without_python_it_says_so(bare_tree: Path) -> None:
    done = _run(bare_tree, "test")
    assert done.returncode == 1
    assert "no Python 3.11 or newer on the path" in done.stderr


def test_a_python_that_does_not_start_is_passed_over(bare_tree: Path) -> None:
    _install(bare_tree, "python3.14", "exit 127")  # as the shim of a version manager
    assert "no Python 3.11 or newer on the path" in _run(bare_tree, "test").stderr


ABOUT = """
code=$2
case $code in
*version_info*) ;;
*ensurepip*) {venv} ;;
*CONFIG_ARGS*) {optimized} ;;
*) echo "$0 $*" ;;
esac
"""
"""A Python that is new enough; `venv` and `optimized` are true or false. Called otherwise, it says how."""


@pytest.mark.parametrize(
    ("pythons", "chosen"),
    [
        ({"a/python3.12": (True, False), "a/python3.11": (True, False)}, "a/python3.12"),
        ({"a/python3.12": (True, False), "a/python3.11": (True, True)}, "a/python3.11"),
        ({"a/python3.12": (True, True), "a/python3.11": (True, True)}, "a/python3.12"),
        ({"a/python3.12": (True, False), "a/python3.11": (False, True)}, "a/python3.12"),
        ({"a/python3.11": (True, False), "b/python3.11": (True, True)}, "b/python3.11"),
        ({"a/python3.11": (False, True), "b/python3": (True, False)}, "b/python3"),
    ],
)
def test_an_optimized_python_is_preferred(
    bare_tree: Path, pythons: dict[str, tuple[bool, bool]], chosen: str
) -> None:
    for name, (venv, optimized) in pythons.items():
        path = bare_tree / name
        path.parent.mkdir(exist_ok=True)
        words = {"venv": str(venv).lower(), "optimized": str(optimized).lower()}
        path.write_text("#!/bin/sh" + ABOUT.format(**words))
        path.chmod(0o755)
    done = _run(bare_tree, "test", folders=("a", "b", "bin"))
    assert f"creating .venv with {bare_tree / chosen} -V" in done.stderr


def test_the_python_that_is_named_is_taken(bare_tree: Path) -> None:
    for name in ("python3.11", "python3.14"):
        _install(bare_tree, name, ABOUT.format(venv="true", optimized="true"))
    done = _run(bare_tree, "test", python="python3.11")
    assert f"creating .venv with {bare_tree / 'bin/python3.11'} -V" in done.stderr


def test_a_named_python_that_is_too_old_is_refused(bare_tree: Path) -> None:
    _install(bare_tree, "python3.10", "exit 1")
    _install(bare_tree, "python3.14", ABOUT.format(venv="true", optimized="true"))
    done = _run(bare_tree, "test", python="python3.10")
    assert done.returncode == 1
    assert "PEEKLOCK_PYTHON=python3.10 is not Python 3.11 or newer" in done.stderr


def test_without_the_venv_module_it_names_the_package(bare_tree: Path) -> None:
    _install(bare_tree, "python3", "case $2 in *ensurepip*) exit 1;; esac")
    done = _run(bare_tree, "test")
    assert done.returncode == 1
    assert (
        "python3 has no venv module: install it (Debian and Ubuntu: apt-get install python3-venv)"
        in done.stderr
    )


def test_help_needs_no_python(bare_tree: Path) -> None:
    done = _run(bare_tree)
    assert done.returncode == 0
    assert "usage: ./run COMMAND" in done.stdout


def _install_project(tree: Path, extras: tuple[str, ...], **programs: str) -> None:
    """Put scripts into .venv, and note the extras as installed."""
    folder = tree / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    with (tree / "pyproject.toml").open() as project:
        sum_of_it = subprocess.run(["cksum"], stdin=project, capture_output=True, check=True).stdout
    for extra in extras:
        (folder.parent / f".installed-{extra}").write_bytes(sum_of_it)


@pytest.mark.parametrize("command", ["serve", "check", "export", "keys", "ca"])
def test_commands_of_the_broker_are_handed_on(bare_tree: Path, command: str) -> None:
    assert f"\n  {command} " in _run(bare_tree, "help").stdout
    _install_project(bare_tree, ("demo",), python="exit 0", peeklock='printf "%s\\n" "$@"')
    done = _run(bare_tree, command, "list", "a folder")
    assert done.stdout.splitlines() == [command, "list", "a folder"], done.stderr


@pytest.mark.parametrize(
    ("arguments", "handed_on"),
    [
        ([], ["-m", "tests", "test"]),
        (["--all"], ["-m", "tests", "rest"]),
        (["tests/broker", "-k", "a b"], ["-m", "pytest", "tests/broker", "-k", "a b"]),
    ],
)
def test_the_tests_are_a_part_or_what_is_named(
    bare_tree: Path, arguments: list[str], handed_on: list[str]
) -> None:
    _install_project(bare_tree, ("compile", "lint", "test"), python='[ "$1" = -c ] || printf "%s\\n" "$@"')
    assert _run(bare_tree, "test", *arguments).stdout.splitlines() == handed_on


BUILDER = """
case $* in
*__version__*) echo 1.2.3 ;;
-c*) ;;
*) printf '%s\\n' "$SOURCE_DATE_EPOCH" "$@" ;;
esac
"""


def test_a_build_states_a_fixed_time_and_removes_older_archives(bare_tree: Path) -> None:
    _install_project(bare_tree, ("release",), python=BUILDER)
    (bare_tree / "dist").mkdir()
    (bare_tree / "dist/peeklock-1.2.2.tar.gz").touch()
    done = _run(bare_tree, "build", "v1.2.3")
    assert done.stdout.splitlines() == ["1580601600", "-m", "build", "--no-isolation"], done.stderr
    assert not (bare_tree / "dist").exists()


def test_a_build_for_the_tag_of_another_version_is_refused(bare_tree: Path) -> None:
    _install_project(bare_tree, ("release",), python=BUILDER)
    done = _run(bare_tree, "build", "v1.2.4")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the tag of version 1.2.3 is v1.2.3, not v1.2.4" in done.stderr


def test_the_changelog_is_built_by_towncrier(bare_tree: Path) -> None:
    _install_project(bare_tree, ("release",), python='[ "$1" = -c ] || printf "%s\\n" "$@"')
    done = _run(bare_tree, "changelog", "--draft")
    assert done.stdout.splitlines() == ["-m", "towncrier", "build", "--yes", "--draft"], done.stderr


@pytest.mark.parametrize(
    ("arguments", "handed_on"),
    [([], ["-m", "mkdocs", "build", "--strict"]), (["--serve"], ["-m", "mkdocs", "serve", "--strict"])],
)
def test_the_documentation_is_built_or_shown_strictly(
    bare_tree: Path, arguments: list[str], handed_on: list[str]
) -> None:
    _install_project(bare_tree, ("docs",), python='[ "$1" = -c ] || printf "%s\\n" "$@"')
    assert _run(bare_tree, "docs", *arguments).stdout.splitlines() == handed_on


RUN_OF_CI = """#!/bin/sh
echo "== ./run $*"
case $* in
test) echo "7 passed, 1 failed"; exit 1 ;;
"test --all") {rest} ;;
esac
"""


@pytest.mark.parametrize(
    ("rest", "status", "total"),
    [
        ('echo "3 passed, 0 failed"', 1, "10 passed, 1 failed"),
        ('echo "no closing line"; exit 1', 1, "7 passed, 2 failed"),
    ],
)
def test_ci_runs_both_parts_and_adds_them_up(tmp_path: Path, rest: str, status: int, total: str) -> None:
    (tmp_path / ".ci").mkdir()
    script = Path(shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run"))
    (tmp_path / "run").write_text(RUN_OF_CI.format(rest=rest))
    (tmp_path / "run").chmod(0o755)
    done = subprocess.run([script], cwd="/", capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("==")] == ["== ./run test", "== ./run test --all"]
    assert (done.returncode, lines[-1]) == (status, total), done.stderr


def test_ci_passes_when_both_parts_do(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    script = Path(shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run"))
    (tmp_path / "run").write_text('#!/bin/sh\necho "4 passed, 0 failed"\n')
    (tmp_path / "run").chmod(0o755)
    done = subprocess.run([script], cwd="/", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "8 passed, 0 failed"), done.stderr
