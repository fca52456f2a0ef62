"""The changelog has a section for the version; fragments have the form that changelog.d/README.md states."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from peeklock import __version__

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "changelog.d"
KEPT = {"README.md", "release.md.jinja"}
FRAGMENTS = sorted(path for path in FOLDER.iterdir() if path.name not in KEPT)
TEXT_CHARACTERS_MAX = 400


def find_faults(name: str, text: str) -> list[str]:
    """Return what is wrong with a fragment."""
    checks = {
        "name": re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*\.(added|changed|fixed|removed|security)\.md", name),
        "first character": re.match(r"[A-Z`]", text),
        "last character": text.rstrip().endswith("."),
        "length": len(text) <= TEXT_CHARACTERS_MAX,
        "paragraphs": "\n\n" not in text.strip(),
        "list or heading": not re.search(r"^\s*([-*#]|\d+\.) ", text, re.MULTILINE),
    }
    return [what for what, holds in checks.items() if not holds]


def test_each_fragment_has_the_form_of_one() -> None:
    faults = {path.name: find_faults(path.name, path.read_text(encoding="utf-8")) for path in FRAGMENTS}
    assert {name: found for name, found in faults.items() if found} == {}


@pytest.mark.parametrize(
    ("name", "text", "faults"),
    [
        ("renew-lock.fixed.md", "A lock can be renewed\nafter a restart.\n", []),
        ("history.added.md", "`serve --history` lists messages.\n", []),
        ("renew lock.fixed.md", "A lock can be renewed.", ["name"]),
        ("renew-lock.improved.md", "A lock can be renewed.", ["name"]),
        ("renew-lock.fixed.md", "a lock can be renewed", ["first character", "last character"]),
        ("renew-lock.fixed.md", "A lock.\n\nA second.\n", ["paragraphs"]),
        ("renew-lock.fixed.md", "Locks:\n- a lock.\n", ["list or heading"]),
        ("renew-lock.fixed.md", "A lock can be renewed." * 20, ["length"]),
    ],
)
def test_a_fragment_of_another_form_is_found(name: str, text: str, faults: list[str]) -> None:
    assert find_faults(name, text) == faults


def test_the_version_has_its_section() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [
        heading for heading in headings if not re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", heading)
    ] == []
    released = headings[0].split()[0]
    if __version__.endswith(".dev0"):  # between two releases: this one's changes are fragments
        assert _numbers(__version__.removesuffix(".dev0")) > _numbers(released)
    else:
        assert released == __version__


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_a_release_moves_the_fragments_to_a_section_of_its_own(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n<!-- releases -->\n\n## 9.0.0 (2030-01-01)\n\nOlder.\n"
    )
    (tmp_path / "changelog.d").mkdir()
    for name in KEPT:
        shutil.copy(FOLDER / name, tmp_path / "changelog.d")
    (tmp_path / "changelog.d/renew-lock.fixed.md").write_text("Locks can be renewed after\na restart.\n")
    (tmp_path / "changelog.d/move-messages.added.md").write_text("Messages can be moved.\n")
    release = ("--yes", "--version", "9.1.0", "--date", "2030-02-01")
    subprocess.run([sys.executable, "-m", "towncrier", "build", *release], cwd=tmp_path, check=True)
    assert (tmp_path / "CHANGELOG.md").read_text() == (
        "# Changelog\n\n<!-- releases -->\n\n"
        "## 9.1.0 (2030-02-01)\n\n"
        "### Added\n\n- Messages can be moved.\n\n"
        "### Fixed\n\n- Locks can be renewed after\n  a restart.\n\n"
        "## 9.0.0 (2030-01-01)\n\nOlder.\n"
    )
    assert {path.name for path in (tmp_path / "changelog.d").iterdir()} == KEPT
