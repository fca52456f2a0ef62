"""The limit of open files: raised at the start, and what it is enough for is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerFailed, BrokerProcess, program

HARD = 700
"""Enough for 14 namespaces beside clients."""


def broker_of(folder: Path, namespaces: int, soft: int, hard: int) -> BrokerProcess:
    """Return a broker with these limits of open files."""
    config = folder / "Config.json"
    named = [{"Name": f"team-{number}"} for number in range(namespaces)]
    config.write_text(json.dumps({"UserConfig": {"Namespaces": named}}))
    script = folder / "limited"
    script.write_text(f'#!/bin/sh\nulimit -S -n {soft}\nulimit -H -n {hard}\nexec {program()} "$@"\n')
    script.chmod(0o755)
    broker = BrokerProcess(folder, [f"--config={config}", "--durability=os"])
    broker.executable = script
    return broker


@pytest.mark.parametrize(("count", "event"), [(2, "namespaces served"), (15, "more namespaces than")])
def test_the_limit_is_raised_and_the_number_that_fits_is_said(count: int, event: str, tmp_path: Path) -> None:
    with broker_of(tmp_path, count, 64, HARD) as broker:
        limits = Path(f"/proc/{broker.pid}/limits").read_text()
        assert limits.split("Max open files")[1].split()[0] == str(HARD)
        [said] = [line for line in map(json.loads, broker.log.read_text().splitlines()) if "fit" in line]
        assert said["event"].startswith(event)
        assert (said["namespaces"], said["fit"]) == (count, (HARD - 64 - 512) // 9)


def test_a_start_that_fails_for_want_of_files_names_the_limit(tmp_path: Path) -> None:
    broker = broker_of(tmp_path, 40, 64, 200)
    with pytest.raises(BrokerFailed):
        broker.start()
    first, *_, last = broker.log.read_text().splitlines()
    assert "more namespaces than the limit of open files allows" in first
    assert "open files" in last
