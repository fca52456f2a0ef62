"""The compatibility page comes from the tests, and is current."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.compatibility import PAGE, ROOT, BadSource, render

REQUIREMENTS = """
[sections]
L = "Receiving"
[requirements]
L-01 = "first"
L-02 = "second"
"""


def _tree(root: Path, test: str, choices: str = "") -> Path:
    (root / "docs").mkdir()
    (root / "tests").mkdir()
    (root / "docs/requirements.toml").write_text(REQUIREMENTS)
    (root / "docs/choices.toml").write_text(choices)
    (root / "tests/test_room.py").write_text(test)
    return root


def _line(page: str, id_: str) -> str:
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {id_} ")]
    return line


def test_the_page_is_current() -> None:
    """Run `python -m docs.compatibility` when this fails."""
    assert PAGE.read_text(encoding="utf-8") == render(ROOT)


def test_a_requirement_that_a_test_names_works_and_links_to_it(tmp_path: Path) -> None:
    page = render(
        _tree(tmp_path, 'def test_it():\n    """Say so.\n\n    Req: L-01. Source: ours.\n    """\n')
    )
    assert _line(page, "L-01") == "| L-01 | first | works | never run | [1 test](#l-01) |"
    assert "### L-01\n\n- [tests/test_room.py](../../tests/test_room.py): `test_it`\n" in page
    assert "2 requirements: 1 work, 0 work in part, 0 differ, 1 not yet." in page


def test_a_requirement_without_a_test_is_not_yet(tmp_path: Path) -> None:
    assert _line(render(_tree(tmp_path, "")), "L-02") == "| L-02 | second | not yet |  |  |"


def test_several_ids_and_a_method_of_a_class_count(tmp_path: Path) -> None:
    test = 'class TestAll:\n    async def test_it(self):\n        """Req: L-01, L-02"""\n'
    page = render(_tree(tmp_path, test))
    assert page.count("- [tests/test_room.py](../../tests/test_room.py): `TestAll::test_it`\n") == 2


def test_every_test_is_named_beside_its_file(tmp_path: Path) -> None:
    test = "".join(f'def test_{n}():\n    """Req: L-01"""\n' for n in range(5))
    page = render(_tree(tmp_path, test))
    assert _line(page, "L-01").endswith("| [5 tests](#l-01) |")
    assert "test_room.py): `test_0`, `test_1`, `test_2`, `test_3`, `test_4`\n" in page


def test_what_ran_against_azure_says_when(tmp_path: Path) -> None:
    choices = '[[azure]]\nid = "L-01"\nrun = "2026-12-01"\n'
    page = render(_tree(tmp_path, 'def test_it():\n    """Req: L-01, L-02"""\n', choices))
    assert "| 2026-12-01 |" in _line(page, "L-01")
    assert "| never run |" in _line(page, "L-02")


def test_a_difference_is_shown_with_how_and_why(tmp_path: Path) -> None:
    choices = '[[differs]]\nid = "L-01"\nhow = "Sooner."\nwhy = "Better."\nsource = "Learn, Time"\n'
    page = render(_tree(tmp_path, 'def test_it():\n    """Req: L-01"""\n', choices))
    assert "| differs |" in _line(page, "L-01")
    assert "- **L-01**: Sooner. Better. What Azure does: Learn, Time." in page


def test_what_is_missing_of_a_requirement_is_said(tmp_path: Path) -> None:
    choices = '[[partly]]\nid = "L-01"\nmissing = "topics"\n'
    page = render(_tree(tmp_path, 'def test_it():\n    """Req: L-01"""\n', choices))
    assert "| works in part, missing: topics |" in _line(page, "L-01")


def test_our_choices_have_a_table(tmp_path: Path) -> None:
    choices = '[[choice]]\nabout = "a|b"\nchoice = "c"\nwhy = "d"\n'
    assert "| a\\|b | c | d |" in render(_tree(tmp_path, "", choices))


@pytest.mark.parametrize(
    ("test", "choices", "complaint"),
    [
        ('def test_it():\n    """Req: L-99"""\n', "", "test_room.py::test_it: no requirement 'L-99'"),
        ('def test_it():\n    """Req: later"""\n', "", "no requirement ''"),
        ("", '[[differs]]\nid = "L-01"\nhow = "x"\nwhy = "y"\n', "has no text 'source'"),
        ("", '[[azure]]\nid = "L-99"\nrun = "x"\n', "choices.toml: no requirement 'L-99'"),
        ("", '[[choice]]\nabout = "x"\n', "has no text 'choice'"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(
    tmp_path: Path, test: str, choices: str, complaint: str
) -> None:
    with pytest.raises(BadSource, match=complaint.replace("(", r"\(")):
        render(_tree(tmp_path, test, choices))
