"""Kafka takes part where its jars are to be had; ratios are those of the reads of one pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import kafka, spark
from bench.systems import StartFailed


def _maven(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a Maven on the path, and nothing else but the tools that it needs."""
    path = folder / "bin" / "mvn"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")


def test_jars_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = 'for word in "$@"; do case $word in -DoutputDirectory=*) out=${word#*=} ;; esac; done'
    _maven(tmp_path, monkeypatch, f'{out}; mkdir -p "$out"; echo 1 >>"$out/kafka.jar"')
    for _ in range(2):
        (jar,) = kafka.broker_jars(tmp_path / "cache").iterdir()
        assert jar.read_text() == "1\n"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [f"kafka_2.13-{kafka.VERSION}"]


def test_a_failed_fetch_is_told_in_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _maven(tmp_path, monkeypatch, 'echo "[ERROR] no network"; echo "[ERROR] more about it"; exit 1')
    with pytest.raises(StartFailed, match=r"spark-sql-kafka.*cannot be fetched: \[ERROR\] no network$"):
        kafka.source_jars("4.2.0", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_ratios_are_medians_of_the_passes_that_have_both_reads() -> None:
    def read(rate: float, broker: float, java: float) -> spark.Figures:
        return {"rate": rate, "broker": broker, "Java": java}

    passes = [
        {"Kafka batch": read(100, 1, 9), "batch": read(50, 10, 10), "cursor stream": read(1, 1, 1)},
        {"Kafka batch": read(10, 1, 9), "batch": read(9, 4, 6)},
        {"Kafka batch": read(20, 1, 9), "batch": read(20, 2, 3)},
        {"Kafka batch": read(20, 1, 9)},
    ]
    assert spark.ratios(passes) == {"batch": (20, 20, 0.9, 1.0)}
