"""The site is built without a warning: no broken link, no missing anchor, no page outside the navigation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from docs.hooks import replace_links, unescape_pipes

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def test_the_site_is_built_in_strict_mode(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    for page in PAGES:
        assert (tmp_path / page.relative_to(ROOT / "docs").with_suffix(".html")).exists(), page


@pytest.mark.parametrize(
    ("text", "repo_url", "expected"),
    [
        ("[a](../../examples/a.py)", "", "a"),
        (
            "[a](../../examples/a.py#L3)",
            "https://x.example/p/",
            "[a](https://x.example/p/blob/main/examples/a.py#L3)",
        ),
        ("[a](../faq.md#b)", "", "[a](../faq.md#b)"),
        ("[a](https://x.example/b)", "", "[a](https://x.example/b)"),
        ("[a](#b)", "", "[a](#b)"),
    ],
)
def test_links_that_leave_the_documentation_are_replaced(text: str, repo_url: str, expected: str) -> None:
    assert replace_links(text, PurePosixPath("docs/how-to"), repo_url) == expected


def test_a_pipe_in_code_in_a_table_is_bare_on_the_site() -> None:
    assert unescape_pipes("| `a \\| b` | c \\| d |\n`a \\| b`\n") == "| `a | b` | c \\| d |\n`a \\| b`\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_list_begins_after_an_empty_line(page: Path) -> None:
    """GitHub needs none, and the site shows the list as a paragraph."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    begins = r"^(?![ ]*(?:[-*]|\d+\.) |[ ]|#)[^\n]+\n(?:[-*]|\d+\.) [^\n]*"
    assert re.findall(begins, text, re.MULTILINE) == []
