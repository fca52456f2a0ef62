"""Pages with a part that is written from a table of the code, behind a mark; the rest is written by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

REFERENCE = Path(__file__).with_name("reference")


class GeneratedPage:
    """One page of the reference; `python -m docs.NAME [--check]` writes or checks it."""

    def __init__(self, name: str, lines: Callable[[], Iterable[str]]) -> None:
        """Name the page; `lines` returns the lines behind the mark."""
        self.file = REFERENCE / f"{name}.md"
        self._name = name
        self._lines = lines

    def written(self, page: str) -> str:
        """Return the page with its part current."""
        mark = f"<!-- From here on written by `python -m docs.{self._name}`. -->\n"
        return page.partition(mark)[0] + mark + "\n" + "\n".join(self._lines()) + "\n"

    def main(self, arguments: list[str]) -> int:
        """Write the page, or with `--check` say whether it is current; return the exit status."""
        page = self.file.read_text(encoding="utf-8")
        current = self.written(page)
        if arguments == ["--check"]:
            if page != current:
                command = f"python -m docs.{self._name}"
                print(f"docs/reference/{self.file.name} is not current: run `{command}`", file=sys.stderr)
            return int(page != current)
        self.file.write_text(current, encoding="utf-8")
        return 0
