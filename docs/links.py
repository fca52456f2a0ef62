"""A hook of mkdocs for links that leave docs/, for example to an example or a test.

On disk and in a forge such a link works as it is. On the site it becomes a link to `repo_url`, or plain text
if mkdocs.yml has none.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\[]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the page with each link that leaves docs/ replaced."""
    folder = PurePosixPath("docs") / PurePosixPath(page.file.src_uri).parent
    return LINK.sub(lambda link: replace(link, folder, config.repo_url or ""), markdown)


def replace(link: re.Match[str], folder: PurePosixPath, repo_url: str) -> str:
    """Return a link of a page in `folder`, which is relative to the top of the work tree."""
    target = normpath(folder / link["target"])
    if "://" in link["target"] or target.startswith("docs/"):
        return link[0]
    if not repo_url:
        return link["text"]
    return f"[{link['text']}]({repo_url.rstrip('/')}/blob/main/{target}{link['anchor'] or ''})"
