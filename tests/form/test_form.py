"""The compiled form runs where it fits; else the pure one does, and says so once."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import peeklock
from peeklock import FORM, __version__

SUFFIX = EXTENSION_SUFFIXES[0]

SHOW = """
import sys, peeklock
try:
    import peeklock._lsprof
    found = peeklock._lsprof.__file__
except ImportError:
    found = None
print(peeklock.FORM, found)
"""

WITH_A_CHILD = f"{SHOW}\nimport subprocess\nsubprocess.run([sys.executable, '-c', {SHOW!r}], check=True)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder `_compiled` of a package, whose one compiled module is an extension of Python."""
    found = importlib.util.find_spec("_lsprof")
    if found is None or found.origin is None or not found.origin.endswith(SUFFIX):
        # The reason: the test needs an extension of Python as a file; a Python may have them all built in.
        pytest.skip("this Python has no _lsprof as an extension")
    package = tmp_path / "peeklock"
    compiled = package / "_compiled"
    compiled.mkdir(parents=True)
    for name in ("__init__.py", "form.py"):
        shutil.copy(Path(peeklock.__file__).with_name(name), package)
    shutil.copy(found.origin, compiled / f"_lsprof{SUFFIX}")
    state(compiled, __version__)
    return compiled


def state(folder: Path, version: str) -> None:
    size = (folder / f"_lsprof{SUFFIX}").stat().st_size
    stated = {"version": version, "library": "_lsprof", "sizes": {"_lsprof": size, "peeklock._lsprof": size}}
    (folder / "form.json").write_text(json.dumps(stated))


def run(folder: Path, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the package above the folder."""
    inherited = {name: value for name, value in os.environ.items() if name != "PEEKLOCK_PURE"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**inherited, "PYTHONPATH": str(folder.parents[1]), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_compiled_module_is_found_in_its_folder(folder: Path) -> None:
    done = run(folder, WITH_A_CHILD)
    assert done.stdout == f"compiled {folder / '_lsprof'}{SUFFIX}\n" * 2
    assert done.stderr == ""


def test_the_pure_form_can_be_chosen_and_child_processes_follow(folder: Path) -> None:
    done = run(folder, WITH_A_CHILD, PEEKLOCK_PURE="1")
    assert done.stdout == "pure None\n" * 2
    assert done.stderr == ""


def _of_another_python(folder: Path) -> None:
    (folder / f"_lsprof{SUFFIX}").rename(folder / "_lsprof.cpython-399-other.so")


def _half_built(folder: Path) -> None:
    file = folder / f"_lsprof{SUFFIX}"
    file.write_bytes(file.read_bytes()[:1000])


def _not_loadable(folder: Path) -> None:
    (folder / f"_lsprof{SUFFIX}").write_bytes(b"for another machine")
    state(folder, __version__)


def _unstated(folder: Path) -> None:
    (folder / "form.json").unlink()


def _torn(folder: Path) -> None:
    (folder / "form.json").write_text('{"version": ')


def _of_another_version(folder: Path) -> None:
    state(folder, "0.0.1")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (_of_another_python, f"/_lsprof{SUFFIX}'"),
        (_half_built, f"_lsprof{SUFFIX} is not whole"),
        (_not_loadable, f"/_lsprof{SUFFIX}: "),
        (_unstated, "/form.json'"),
        (_torn, "Expecting value"),
        (_of_another_version, "it is of version 0.0.1"),
    ],
)
def test_where_the_compiled_form_does_not_fit_the_pure_one_runs_and_says_so_once(
    folder: Path, harm: Callable[[Path], None], says: str
) -> None:
    harm(folder)
    done = run(folder, WITH_A_CHILD)
    assert done.stdout == "pure None\n" * 2
    assert done.stderr.count("peeklock runs its pure form") == 1
    assert says in done.stderr


def test_this_process_runs_the_form_that_it_states() -> None:
    import peeklock.amqp.codec

    assert Path(peeklock.amqp.codec.__file__).suffix == {"pure": ".py", "compiled": ".so"}[FORM]
