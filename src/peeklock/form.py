"""Which form of the core runs: the pure one, or the compiled one where it is installed and fits.

A wheel for one platform has the core's modules compiled, in the folder `_compiled`, beside all sources. Only
the finder here loads them, so that without it Python finds the sources, as in the wheel for any platform. It
is all modules or none: compiled ones call each other without Python.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

PURE = "pure"
COMPILED = "compiled"

VARIABLE = "PEEKLOCK_PURE"

_FOLDER = Path(__file__).with_name("_compiled")


class CompiledFinder:
    """Finds the compiled modules of a folder.

    Its `form.json` has the version, and the size of the file of each module: to load half a file is to die.
    """

    def __init__(self, folder: Path, version: str) -> None:
        """Check that the folder fits. Raises: ImportError."""
        import json  # which costs each start of a command 2 ms, and is needed here alone

        try:
            stated = json.loads((folder / "form.json").read_text())
            if stated["version"] != version:
                raise ImportError(f"it is of version {stated['version']}")
            self._files = {name: file_of(folder, name) for name in stated["sizes"]}
            for name, file in self._files.items():
                if file.stat().st_size != stated["sizes"][name]:
                    raise ImportError(f"{file.name} is not whole")
        except (OSError, ValueError, KeyError) as failure:
            raise ImportError(str(failure)) from failure
        # It has the code of all modules: if it loads, so do they.
        _load(stated["library"], self._files[stated["library"]])

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a compiled module is; None for all others."""
        file = self._files.get(name)
        return None if file is None else _spec(name, file)


def file_of(folder: Path, name: str) -> Path:
    """Return the file of a compiled module in the folder, for this Python."""
    return folder / (name.removeprefix("peeklock.").replace(".", "/") + EXTENSION_SUFFIXES[0])


def _spec(name: str, file: Path) -> ModuleSpec:
    spec = spec_from_file_location(name, file, loader=ExtensionFileLoader(name, str(file)))
    assert spec is not None
    return spec


def _load(name: str, file: Path) -> None:
    spec = _spec(name, file)
    module = module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    sys.modules[name] = module


def choose(version: str, folder: Path = _FOLDER) -> str:
    """Return the form that runs in this process, and make the compiled one importable.

    If a compiled one does not fit, a warning says so, and child processes run the pure one without a word.
    """
    if os.environ.get(VARIABLE) == "1" or not folder.is_dir():
        return PURE
    try:
        sys.meta_path.insert(0, CompiledFinder(folder, version))
    except ImportError as failure:
        text = f"peeklock runs its pure form, since the compiled one does not fit here: {failure}"
        warnings.warn(f"{text}. Install peeklock again, or set {VARIABLE}=1", RuntimeWarning, stacklevel=3)
        os.environ[VARIABLE] = "1"
        return PURE
    return COMPILED
