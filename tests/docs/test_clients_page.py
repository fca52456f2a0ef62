"""The page of clients comes from what their programs came to, and is current."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from docs.clients import PAGE, ROOT, BadSource, render

FEATURES = """
[sending]
title = "Sending"
[sending.features]
send = { title = "Send", shows = "it arrives" }
batch = { title = "Batch", shows = "all arrive" }
"""
CLIENTS = """
[one]
title = "One"
package = "the-one"
folder = "one"
[two]
title = "Two"
package = "the-two"
folder = "one"
"""


def _tree(root: Path, **results: Any) -> Path:
    interop = root / "tests/interop"
    (interop / "programs/one").mkdir(parents=True)
    (interop / "results").mkdir()
    (interop / "features.toml").write_text(FEATURES)
    (interop / "programs/clients.toml").write_text(CLIENTS)
    (interop / "programs/one/notes.md").write_text("Trust it.\n")
    for client, features in results.items():
        told = {"versions": {"the-one": "1.0", "Runtime": "2"}, "features": features}
        (interop / f"results/{client}.json").write_text(json.dumps(told))
    return root


WORKS = {"status": "works"}


def test_the_page_is_current() -> None:
    """Run `python -m docs.clients` when this fails."""
    assert PAGE.read_text(encoding="utf-8") == render(ROOT)


def test_a_feature_has_a_row_with_what_each_client_came_to(tmp_path: Path) -> None:
    none = {"status": "not offered"}
    page = render(_tree(tmp_path, one={"send": WORKS, "batch": none}, two={"send": WORKS, "batch": WORKS}))
    assert "|  | One | Two |" in page
    assert "| **Send**: it arrives | works | works |" in page
    assert "| **Batch**: all arrive | not offered | works |" in page
    assert "| One | `the-one` | the-one 1.0, Runtime 2 |" in page


def test_how_it_differs_is_a_footnote_that_equal_texts_share(tmp_path: Path) -> None:
    differs = {"status": "differs", "how": "It is slower."}
    none = {"status": "not offered", "how": "There is another way."}
    page = render(
        _tree(tmp_path, one={"send": differs, "batch": none}, two={"send": differs, "batch": WORKS})
    )
    assert "| differs[^1] | differs[^1] |" in page
    assert "| not offered[^2] | works |" in page
    assert page.endswith("\n[^1]: It is slower.\n[^2]: There is another way.\n")


def test_clients_of_one_folder_share_their_notes(tmp_path: Path) -> None:
    results = {"send": WORKS, "batch": WORKS}
    page = render(_tree(tmp_path, one=results, two=results))
    assert page.count("Trust it.") == 1


def test_a_client_that_never_ran_is_left_out(tmp_path: Path) -> None:
    page = render(_tree(tmp_path, two={"send": WORKS, "batch": WORKS}))
    assert "One" not in page


@pytest.mark.parametrize(
    ("results", "complaint"),
    [
        ({"send": WORKS}, "one.json and features.toml do not both have 'batch'"),
        ({"send": WORKS, "batch": WORKS, "gone": WORKS}, "do not both have 'gone'"),
        ({"send": WORKS, "batch": {"status": "failed"}}, "'batch' has the status 'failed'"),
        (
            {"send": WORKS, "batch": {"status": "differs"}},
            "'batch' has the status 'differs' and says how: ''",
        ),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, results: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadSource, match=complaint):
        render(_tree(tmp_path, one=results))


def test_what_a_client_is_not_tried_on_says_so(tmp_path: Path) -> None:
    root = _tree(tmp_path, one={"send": WORKS, "batch": WORKS}, two={"send": WORKS})
    clients = root / "tests/interop/programs/clients.toml"
    clients.write_text(clients.read_text() + 'only = ["send"]\n')
    assert "| **Batch**: all arrive | works | not tried |" in render(root)
    clients.write_text(clients.read_text().replace('["send"]', '["batch"]'))
    with pytest.raises(BadSource, match=r"two\.json and clients\.toml do not both have 'batch'"):
        render(root)
