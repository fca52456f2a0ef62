"""The compiled form of the core: what is compiled, and how a build makes it.

`PEEKLOCK_COMPILE=1 pip install .` compiles; a build without it, or without a C compiler, makes the pure
wheel. `docs/explanation/compiled-core.md` says how to write for both forms.
"""

from __future__ import annotations

import ast
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

PACKAGES = ("amqp", "broker", "engine", "gateway", "store/encoding")
"""Packages whose modules are compiled, with the packages inside. Their `__init__` modules are docstrings.

`rules` stays interpreted: its grammar needs lark's classes. `auth` does: its rights are a set of flags."""

INTERPRETED = {
    "amqp/types.py": "its subclasses of int, str, float and bytes cannot be native classes",
    "amqp/errors.py": "a weak reference to a compiled exception outlives it, and crashes",
    "broker/vocabulary/errors.py": "as `amqp/errors.py`",
    "gateway/errors.py": "as `amqp/errors.py`",
    "broker/content/subject.py": "`__getattr__` fills its slots; `int()` must make a plain int of a subclass",
    "store/encoding/body_rows.py": "its `LostRow` is a subclass of Sequence",
    "broker/vocabulary/descriptions.py": "a constant of a class has the name of a field of another one",
}
"""Modules of `PACKAGES` that stay interpreted, each with the reason."""

LEVEL = "2"
"""How much the C compiler optimizes a wheel: -O3 takes longer, and its code runs no faster."""

FOR_TESTS = "0"
"""The level of a build that only runs tests."""

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
        subprocess.run(command, env=os.environ | _compiler(work, level), check=True)
        built = Path(work, "lib")
        shutil.copytree(built / "peeklock", folder)
        for library in built.glob(f"{LIBRARY}.*"):
            shutil.copy(library, folder)
    state_form(source, folder)


def _compiler(work: str, level: str) -> dict[str, str]:
    """Return the variables that choose a C compiler.

    For tests it is tcc where it is installed: it takes 8 s of CPU for all modules, gcc 100 s. Else ccache,
    where it is, keeps what is compiled in any folder.
    """
    if "CC" in os.environ:
        return {}
    if level == FOR_TESTS and shutil.which("tcc"):
        return {"CC": "tcc", "LDSHARED": "tcc -shared"}
    if shutil.which("ccache") is None:
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


def with_constructors(text: str) -> str:
    """Return the text of a module in which data classes have their constructors written out.

    The compiler leaves a constructor that `dataclass` makes to the interpreter: it takes five times as long.
    Lines keep their numbers, since empty ones follow a class. Classes that inherit, are frozen, or have a
    factory or a constructor of their own stay as they are.
    """
    lines = text.split("\n")
    for node in ast.parse(text).body:
        if not isinstance(node, ast.ClassDef) or node.bases or len(node.decorator_list) != 1:
            continue
        decorator = node.decorator_list[0]
        if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) != "dataclass":
            continue
        behind = slice(node.end_lineno, (node.end_lineno or 0) + 2)
        written = _constructor(node)
        if {option.arg for option in decorator.keywords} <= {"slots", "eq", "repr"} and written:
            assert not any(lines[behind]), f"two empty lines follow the class {node.name}"
            lines[behind] = written
            lines[decorator.lineno - 1] = f"@{ast.unparse(decorator)[:-1]}, init=False)"
    return "\n".join(lines)


def _constructor(node: ast.ClassDef) -> list[str]:
    """Return the lines of `__init__` and `__reduce__` of a data class; none if it must not have them."""
    places: dict[str, str] = {}  # parameters by field
    names: dict[str, str] = {}  # those that are given by name
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name in ("__init__", "__post_init__", "__reduce__"):
            return []
        if not isinstance(item, ast.AnnAssign) or ast.unparse(item.annotation).startswith("ClassVar"):
            continue
        field, value, found = ast.unparse(item.target), item.value, places
        if isinstance(value, ast.Call):
            options = {option.arg: option.value for option in value.keywords}
            if options.keys() != {"default", "kw_only"}:
                return []
            value, found = options["default"], names
        default = "" if value is None else f" = {ast.unparse(value)}"
        found[field] = f"{field}: {ast.unparse(item.annotation)}{default}"
    parameters = ", ".join(["self", *places.values(), *(["*"] if names else []), *names.values()])
    if not (places or names):
        return []
    steps = "; ".join(f"self.{field} = {field}" for field in (*places, *names))
    made_of = "".join(f"self.{field}, " for field in places)
    maker = node.name
    if names:
        by_name = ", ".join(f"{field}=self.{field}" for field in names)
        maker = f"__import__('functools').partial({node.name}, {by_name})"
    return [
        f"    def __init__({parameters}) -> None: {steps}",
        f"    def __reduce__(self) -> tuple[object, ...]: return {maker}, ({made_of})",
    ]


def build_extensions(source: Path, work: Path, level: str) -> None:
    """Compile into `work`/lib, in a process of its own: mypyc and setuptools work on the current folder."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    shutil.copytree(source / "peeklock", work / "py" / "peeklock")
    os.chdir(work / "py")
    for path in map(Path, modules(Path("peeklock"))):
        file = "peeklock" / path
        file.write_text(with_constructors(file.read_text()))
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
    if os.environ.get("CC") == "tcc":
        for extension in extensions:
            # It warns of protocols, and the compiler's options are gcc's.
            extension.extra_compile_args = ["-w"]
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
