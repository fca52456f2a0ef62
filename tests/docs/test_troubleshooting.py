"""Each text that the page of troubleshooting quotes is a text of the broker's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/troubleshoot.md").read_text(encoding="utf-8")


def _texts() -> Iterator[str]:
    """Yield the string constants of the package, with `...` for what an f-string fills in."""
    for path in (ROOT / "src/peeklock").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "..."
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.Constant) and isinstance(node.value, bytes):
                yield node.value.decode("latin-1")


def test_each_quoted_text_stands_in_the_source() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    quoted = [
        text
        for row in rows
        if "clients' text" not in row and "client's text" not in row
        for text in re.findall(r"`([^`]+)`", row)
    ]
    assert len(quoted) > 30
    texts = "\n".join(_texts())
    pieces = {piece.strip() for text in quoted for piece in text.split("...") if piece.strip()}
    assert sorted(piece for piece in pieces if piece not in texts) == []
