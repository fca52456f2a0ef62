"""Programs of earlier releases, from the wheels in `tests/golden/releases`."""

from __future__ import annotations

import shlex
import sys
import zipfile
from pathlib import Path

WHEELS = Path(__file__).parent / "golden" / "releases"


def unpacked(release: str, folder: Path) -> Path:
    """Unpack a release into a folder; return its program `peeklock`.

    It runs with the packages of this interpreter. Their own `peeklock` comes later on the path.
    """
    modules = folder / release
    with zipfile.ZipFile(WHEELS / f"peeklock-{release}-py3-none-any.whl") as wheel:
        wheel.extractall(modules)
    program = folder / f"peeklock-{release}"
    python, path = shlex.quote(sys.executable), shlex.quote(str(modules))
    program.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {python} -m peeklock "$@"\n')
    program.chmod(0o755)
    return program
