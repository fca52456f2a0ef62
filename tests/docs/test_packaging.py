"""Archives can be repeated byte for byte, hold what they should, and work without the work tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from peeklock import __version__

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
WHEEL = f"peeklock-{__version__}-py3-none-any.whl"
SDIST = f"peeklock-{__version__}.tar.gz"

LEFT_OUT = shutil.ignore_patterns(
    ".git",
    ".venv",
    ".environments",
    ".interop",
    ".*_cache",
    ".hypothesis",
    "__pycache__",
    "build",
    "dist",
    "target",
)


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folders of two builds, from two copies of the work tree."""
    folders: list[Path] = []
    for name in ("one", "of another length"):
        tree = tmp_path_factory.mktemp("build") / name
        shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
        for file in tree.rglob("*.py"):
            os.utime(file, (0, len(folders)))
        subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation"],
            cwd=tree,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1764000000"},
            umask=0o022 if folders else 0o077,
            check=True,
        )
        folders.append(tree / "dist")
    return folders[0], folders[1]


def test_two_builds_are_equal(builds: tuple[Path, Path]) -> None:
    first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in builds)
    assert set(first) == {SDIST, WHEEL}
    assert first == second


def test_the_wheel_holds_the_packages_and_nothing_else(builds: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(builds[0] / WHEEL) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    assert names == {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }
    listed = {"peeklock/py.typed", "peeklock/spark/log4j2.properties", "peeklock/explorer/page/index.html"}
    assert listed <= names


def test_the_sdist_holds_what_a_clone_does(builds: tuple[Path, Path]) -> None:
    with tarfile.open(builds[0] / SDIST) as sdist:
        modes = {member.name.removeprefix(f"peeklock-{__version__}/"): member.mode for member in sdist}
    assert modes["run"] == 0o755
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert {path for path in listed.stdout.splitlines() if (ROOT / path).exists()} <= set(modes)


def test_with_a_compiler_that_fails_the_wheel_is_the_pure_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--skip-dependency-check",
            "-o",
            tmp_path,
        ],
        cwd=ROOT,
        env={**os.environ, "PEEKLOCK_COMPILE": "1", "CC": "false"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "the core could not be compiled, and the wheel is the pure one" in done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [WHEEL]


def test_the_wheel_works_without_the_work_tree(builds: tuple[Path, Path], tmp_path: Path) -> None:
    """Without the extra the demo names it; with it the demo runs."""
    wheel = builds[0] / WHEEL
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command: list[str | Path] = [tmp_path / "venv/bin" / program, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=outside, capture_output=True, text=True, check=False)

    def install(what: str) -> None:
        done = run("pip", "install", "--quiet", "--disable-pip-version-check", what)
        assert done.returncode == 0, done.stderr

    install(str(wheel))
    assert run("peeklock", "--version").stdout == f"peeklock, version {__version__}, pure core\n"
    found = run("python", "-c", "import peeklock; print(peeklock.__file__)").stdout
    assert Path(found).is_relative_to(tmp_path)
    demo = ("demo", "--broker-only", "--jobs", "200")
    refused = run("peeklock", *demo)
    assert refused.returncode == 1
    assert "pip install 'peeklock[demo]'" in refused.stdout + refused.stderr
    install(f"{wheel}[demo]")
    shown = run("peeklock", *demo)
    assert shown.returncode == 0, shown.stdout + shown.stderr
