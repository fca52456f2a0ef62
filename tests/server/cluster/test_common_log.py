"""The id of the folder to which the nodes of a cluster write their event logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peeklock.server.common_log import ID_FILE, folder_id
from peeklock.server.settings import StartFailed


def test_a_folder_keeps_its_id(tmp_path: Path) -> None:
    found = folder_id(tmp_path / "log")
    assert folder_id(tmp_path / "log") == found != folder_id(tmp_path / "other")
    assert [path.name for path in (tmp_path / "log").iterdir()] == [ID_FILE]


def test_nodes_that_start_together_find_one_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second node starts while the first one writes the file: it is never there without its content."""
    found = []
    sync = os.fsync

    def start_another(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        found.append(folder_id(tmp_path))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", start_another)
    found.append(folder_id(tmp_path))
    assert found[0] == found[1] == folder_id(tmp_path)


def test_a_file_without_an_id_is_named(tmp_path: Path) -> None:
    (tmp_path / ID_FILE).write_text("")
    with pytest.raises(StartFailed, match=r"_cluster does not say which folder this is: delete it"):
        folder_id(tmp_path)
