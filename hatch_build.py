"""The compiled form of the core: what is compiled, and how a build makes it.

`PEEKLOCK_COMPILE=1 pip install .` compiles; a build without it, or without a C compiler, makes the pure
wheel. `docs/explanation/compiled-core.md` says how to write for both forms.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("amqp", "broker", "engine", "gateway")
"""Packages whose modules are compiled, with the packages inside. Their `__init__` modules are docstrings.

`rules` stays interpreted: its grammar needs lark's classes. `auth` does: its rights are a set of flags."""

INTERPRETED = {
    "amqp/types.py": "its subclasses of int, str, float and bytes cannot be native classes",
    "amqp/errors.py": "a weak reference to a compiled exception outlives it, and crashes",
    "broker/vocabulary/errors.py": "as `amqp/errors.py`",
    "gateway/errors.py": "as `amqp/errors.py`",
    "broker/content/subject.py": "`__getattr__` fills its slots; `int()` must make a plain int of a subclass",
    "broker/queue/message_table.py": "its chunk is a subclass of list",
    "broker/vocabulary/descriptions.py": "a constant of a class has the name of a field of another one",
}
"""Modules of `PACKAGES` that stay interpreted, each with the reason."""

LEVEL = "2"
"""How much the C compiler optimizes a wheel: -O3 takes longer, and its code runs no faster."""

LIBRARY = "peeklock_core__mypyc"
"""The extension that has the code of all modules; the extension of each module only names it."""


def modules(package: Path) -> list[str]:
    """Return the compiled modules as paths in the folder of `peeklock`."""
    found = (
        path.relative_to(package) for name in PACKAGES for path in sorted((package / name).rglob("*.py"))
    )
    return [
        path.as_posix() for path in found if path.name != "__init__.py" and path.as_posix() not in INTERPRETED
    ]


def compile_core(source: Path, folder: Path, level: str) -> None:
    """Compile the modules of `source`/peeklock into `folder`, which becomes `peeklock/_compiled`."""
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, __file__, str(source.absolute()), work, level]
        subprocess.run(command, env=os.environ | _ccache(work), check=True)
        built = Path(work, "lib")
        shutil.copytree(built / "peeklock", folder)
        for library in built.glob(f"{LIBRARY}.*"):
            shutil.copy(library, folder)
    state_form(source, folder)


def _ccache(work: str) -> dict[str, str]:
    """Return the variables by which ccache, where it is installed, keeps what is compiled in any folder."""
    if "CC" in os.environ or shutil.which("ccache") is None:
        return {}
    return {"CC": "ccache cc", "CCACHE_BASEDIR": work, "CCACHE_NOHASHDIR": "1"}


def state_form(source: Path, folder: Path) -> None:
    """Write `form.json`: what `peeklock.form` requires to be in the folder."""
    version = re.search(r'^__version__ = "(.+)"', (source / "peeklock/__init__.py").read_text(), re.M)
    assert version is not None
    files = {LIBRARY: LIBRARY}
    for path in modules(source / "peeklock"):
        file = path.removesuffix(".py")
        files[f"peeklock.{file.replace('/', '.')}"] = file
    sizes = {name: (folder / (file + EXTENSION_SUFFIXES[0])).stat().st_size for name, file in files.items()}
    stated = {"version": version[1], "library": LIBRARY, "sizes": sizes}
    (folder / "form.json").write_text(json.dumps(stated, indent=1))


def build_extensions(source: Path, work: Path, level: str) -> None:
    """Compile into `work`/lib, in a process of its own: mypyc and setuptools work on the current folder."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    os.chdir(source)
    (work / "mypy.ini").write_text("[mypy]\nignore_missing_imports = True\n")
    extensions = mypycify(
        [f"--config-file={work / 'mypy.ini'}", f"--cache-dir={work / 'cache'}"]
        + [f"peeklock/{path}" for path in modules(Path("peeklock"))],
        opt_level=level,
        debug_level="0",
        multi_file=True,
        group_name=LIBRARY.removesuffix("__mypyc"),
        target_dir=str(work / "c"),
    )
    distribution = Distribution({"name": "peeklock", "ext_modules": extensions})
    command: Any = distribution.get_command_obj("build_ext")
    command.build_lib = str(work / "lib")
    command.build_temp = str(work / "o")
    distribution.run_command("build_ext")


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg] # of a configuration: there is none
    """Adds the compiled form to a wheel when PEEKLOCK_COMPILE=1 asks for it."""

    def dependencies(self) -> list[str]:
        return self.metadata.core.optional_dependencies["compile"] if self._asked() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add what was made to the wheel; without success say so, and leave the wheel pure."""
        if version == "editable" or not self._asked():
            return
        self._folder = tempfile.TemporaryDirectory()
        compiled = Path(self._folder.name, "_compiled")
        try:
            compile_core(Path(self.root, "src"), compiled, LEVEL)
        except (OSError, subprocess.CalledProcessError) as failure:
            self.app.display_warning(
                f"the core could not be compiled, and the wheel is the pure one: {failure}"
            )
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"][str(compiled)] = "peeklock/_compiled"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def _asked(self) -> bool:
        return self.target_name == "wheel" and os.environ.get("PEEKLOCK_COMPILE") == "1"


def kept_tree(level: str) -> Path:
    """Return a folder with the compiled package: it is kept as long as the sources are the same."""
    sources = sorted(Path("src/peeklock").rglob("*.py"))
    content = b"".join(path.read_bytes() for path in [Path(__file__), Path("pyproject.toml"), *sources])
    name = hashlib.sha256(content + level.encode() + EXTENSION_SUFFIXES[0].encode()).hexdigest()[:16]
    tree = Path("build/compiled", name).absolute()
    if not tree.exists():
        shutil.rmtree(tree.parent, ignore_errors=True)
        part = tree.with_suffix(".part")
        for package in ("peeklock", "pyspark_servicebus"):
            shutil.copytree(Path("src", package), part / package)
        compile_core(Path("src"), part / "peeklock/_compiled", level)
        part.rename(tree)
    return tree


if __name__ == "__main__":
    build_extensions(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
