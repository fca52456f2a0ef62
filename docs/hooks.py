"""Hooks of mkdocs: what a page needs to read on the site as it does on disk and in a forge.

A link that leaves docs/, for example to an example or a test, becomes a link to `repo_url`, or plain text if
mkdocs.yml has none. A pipe in code in a table is written `\\|`, as GitHub wants it, and shown as `|`.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\[]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the text of a page for the site."""
    folder = PurePosixPath("docs") / PurePosixPath(page.file.src_uri).parent
    return unescape_pipes(replace_links(markdown, folder, config.repo_url or ""))


def replace_links(text: str, folder: PurePosixPath, repo_url: str) -> str:
    """Return a page without links that leave docs/; `folder` is relative to the top of the work tree."""

    def replace(link: re.Match[str]) -> str:
        target = normpath(folder / link["target"])
        if "://" in link["target"] or target.startswith("docs/"):
            return link[0]
        if not repo_url:
            return link["text"]
        return f"[{link['text']}]({repo_url.rstrip('/')}/blob/main/{target}{link['anchor'] or ''})"

    return LINK.sub(replace, text)


def unescape_pipes(text: str) -> str:
    """Return a page whose tables have bare pipes in code."""
    return ROW.sub(lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), text)
