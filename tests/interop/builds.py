"""The clients, their features, and the builds of their programs.

Owns: clients.toml and features.toml as read; which toolchains this machine has; the folder `.interop/` with a
build for each client. Must not know: how a program is run, and what it prints.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAMS = HERE / "programs"
BUILDS = ROOT / ".interop"

BUILD_S_MAX = 300
"""Time limit of a build, downloads included. Our choice: ten times what the longest takes."""

LEFTOVERS = {"__pycache__", "node_modules", "target"}
"""Folders that tools make beside a program when it is run by hand."""

CHECKSUM_DIGITS = 16
"""Hex digits of a folder's state, at the end of its build's name. Our choice: no two states collide."""

FAILURE_LINES = 40
"""How much of a failed tool's output is shown."""


class BuildFailed(Exception):
    """A program could not be built; the text ends with the tool's output."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client, as in clients.toml."""

    name: str
    title: str
    package: str
    folder: Path
    arguments: tuple[str, ...]
    needs: tuple[str, ...]
    modules: tuple[str, ...]
    only: tuple[str, ...] = ()
    """The features that it is tried on; empty = all."""
    own: str = ""
    """Why it needs the broker of the tests; empty where it runs against any Service Bus."""

    @property
    def tried(self) -> list[str]:
        """The features that it is tried on, in the order of the page."""
        return [name for name in features() if not self.only or name in self.only]

    @property
    def missing(self) -> str:
        """Return what this machine lacks for it; empty where it has all."""
        if not (self.folder / "run.sh").exists():
            return f"{self.name}: it has no program yet"
        for command in self.needs:
            if not _starts(command):
                return f"{self.name}: {command} is not installed"
        for module in self.modules:
            if not _is_there(module):
                return f"{self.name}: the Python module {module} is not installed"
        if fault := _fault(self.folder):
            return f"{self.name}: {fault}"
        return ""


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature that clients are tried on."""

    name: str
    title: str
    shows: str
    section: str
    own: str = ""
    """Why it needs the broker of the tests; empty where it runs against any Service Bus."""


@functools.cache
def clients() -> dict[str, Client]:
    """Return the clients, in the order of the page."""
    told = tomllib.loads((PROGRAMS / "clients.toml").read_text(encoding="utf-8"))
    return {name: _client(name, fields) for name, fields in told.items()}


def _client(name: str, fields: dict[str, Any]) -> Client:
    return Client(
        name,
        fields["title"],
        fields["package"],
        PROGRAMS / fields["folder"],
        tuple(fields["arguments"]),
        tuple(fields["needs"]),
        tuple(fields["modules"]),
        tuple(fields.get("only", ())),
        fields.get("own", ""),
    )


@functools.cache
def features() -> dict[str, Feature]:
    """Return the features, in the order of the page."""
    told = tomllib.loads((HERE / "features.toml").read_text(encoding="utf-8"))
    return {
        name: Feature(name, fields["title"], fields["shows"], section["title"], fields.get("own", ""))
        for section in told.values()
        for name, fields in section["features"].items()
    }


@functools.cache
def _starts(command: str) -> bool:
    """Return whether a command starts: a version manager's shim may be on the path and start nothing."""
    version = {"go": "version", "java": "-version", "javac": "-version"}.get(command, "--version")
    try:
        done = subprocess.run(
            [command, version], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


@functools.cache
def _fault(folder: Path) -> str:
    """Return what a program's own check.sh reports as missing; most programs have none."""
    if not (folder / "check.sh").exists():
        return ""
    done = subprocess.run(
        ["sh", "check.sh"], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    return "" if done.returncode == 0 else done.stdout.strip() or f"check.sh ended with {done.returncode}"


@functools.cache
def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def build(client: Client) -> Path:
    """Build the program, and return the folder of the build.

    A build is made once for each state of the program's folder. Clients of one folder share it, and so do
    processes: the second waits for the first.

    Raises: BuildFailed.
    """
    BUILDS.mkdir(exist_ok=True)
    built = BUILDS / f"{client.folder.name}-{_checksum(client.folder)}"
    stamp = built / ".built"
    with _locked(BUILDS / f"{client.folder.name}.lock"):
        if not stamp.exists():
            for outdated in BUILDS.glob(client.folder.name + "-" + "[0-9a-f]" * CHECKSUM_DIGITS):
                shutil.rmtree(outdated)
            built.mkdir()
            _build(client, built)
            stamp.touch()
    return built


def is_built(client: Client) -> bool:
    """Return whether a build of the folder's present state exists."""
    return (BUILDS / f"{client.folder.name}-{_checksum(client.folder)}" / ".built").exists()


def environment() -> dict[str, str]:
    """Return the environment of build.sh and run.sh: ours, and our Python as `PYTHON`."""
    return {**os.environ, "PYTHON": sys.executable}


def _build(client: Client, built: Path) -> None:
    script = client.folder / "build.sh"
    log = built / "build.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["sh", str(script), str(built)],
            cwd=client.folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(BUILD_S_MAX)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if status != 0:
        how = f"did not end within {BUILD_S_MAX} s" if status is None else f"ended with status {status}"
        words = "\n".join(log.read_text(errors="replace").splitlines()[-FAILURE_LINES:])
        raise BuildFailed(f"{client.name}: {script} {how}; its output:\n{words}")


def _checksum(folder: Path) -> str:
    """Return a checksum of names, modes and contents of a program's files; `LEFTOVERS` and pages do not
    count."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and path.suffix != ".md" and not LEFTOVERS & set(name.parts):
            total.update(f"{name}\0{os.access(path, os.X_OK)}\0{path.stat().st_size}\0".encode())
            total.update(path.read_bytes())
    return total.hexdigest()[:CHECKSUM_DIGITS]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
