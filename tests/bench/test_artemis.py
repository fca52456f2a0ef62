"""Artemis takes part where its release is to be had, and only if it is what it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.artemis import VERSION, artemis_missing, home
from bench.systems import StartFailed


def _maven(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a Maven on the path, and nothing else but the tools that it needs."""
    path = folder / "bin" / "mvn"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")


def test_a_release_that_was_fetched_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / f"apache-artemis-{VERSION}").mkdir()
    assert home(tmp_path) == tmp_path / f"apache-artemis-{VERSION}"


def test_another_file_than_the_release_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = f"apache-artemis-{VERSION}-bin.tar.gz"
    out = 'for word in "$@"; do case $word in -DoutputDirectory=*) out=${word#*=} ;; esac; done'
    _maven(tmp_path, monkeypatch, f'{out}; mkdir -p "$out"; echo other >"$out/{archive}"')
    with pytest.raises(StartFailed, match="another checksum"):
        home(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_failed_fetch_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _maven(tmp_path, monkeypatch, 'echo "[ERROR] no network"; echo "[ERROR] more about it"; exit 1')
    with pytest.raises(StartFailed, match=r"cannot be fetched: \[ERROR\] no network$"):
        home(tmp_path / "cache")


def test_without_java_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert artemis_missing() == "no java (Debian: apt-get install default-jre-headless)"
