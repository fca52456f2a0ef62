"""`python -m tests.compiled LEVEL COMMAND...`: run a command over the compiled core.

Owns the build, which is kept as long as the sources are the same, and the variables of the command. Must not
know what the command does. LEVEL is how much the C compiler optimizes.
"""

from __future__ import annotations

import os
import sys

from hatch_build import kept_tree  # which needs the build backend


def main(level: str, command: list[str]) -> None:
    """Build the core if it is not built yet, and become the command."""
    os.environ["PYTHONPATH"] = str(kept_tree(level))  # before the sources, for all processes
    os.environ.pop("PEEKLOCK_PURE", None)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
