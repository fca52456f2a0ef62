"""The unit of systemd: systemd's own checks, and what the broker needs that hardening could take away."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from peeklock.cli.settings_table import SETTINGS

DEPLOY = Path(__file__).parents[2] / "deploy/systemd"
UNIT = DEPLOY / "peeklock.service"

EXPOSURE_MAX = 20
"""In tenths, of 100: systemd calls up to 2.0 safe."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def analyze(*arguments: str) -> str:
    """Return the output of systemd-analyze, which must find nothing."""
    command = ["systemd-analyze", "--no-pager", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return the unit with a program that this machine has."""
    unit = tmp_path / UNIT.name
    text = UNIT.read_text(encoding="utf-8")
    assert text.count("/opt/peeklock/bin/peeklock ") == 1
    unit.write_text(text.replace("/opt/peeklock/bin/peeklock ", f"{sys.executable} "), encoding="utf-8")
    return unit


def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # typed as a method, meant to be set
    parser.read_string(UNIT.read_text(encoding="utf-8"))
    return parser["Service"]


@needs_systemd
def test_systemd_finds_no_fault_in_the_unit(installed: Path) -> None:
    assert analyze("verify", str(installed)) == ""


@needs_systemd
def test_systemd_calls_the_service_safe(installed: Path) -> None:
    analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(installed))


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed")
def test_the_user_of_the_unit_is_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    command = ["systemd-sysusers", f"--root={tmp_path}", str(DEPLOY / "peeklock.conf")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    users = (tmp_path / "etc/passwd").read_text(encoding="utf-8")
    (user,) = [line for line in users.splitlines() if line.startswith(service()["User"] + ":")]
    assert user.split(":")[5:] == ["/var/lib/peeklock", "/usr/sbin/nologin"]


def test_the_unit_is_one_that_notifies_and_reloads() -> None:
    unit = service()
    assert unit["Type"] == "notify"
    assert unit["ExecReload"] == "kill -HUP $MAINPID"
    assert float(unit["WatchdogSec"]) >= 10, "a start of Java beside it must not look like a hang"


def test_the_data_folder_is_the_one_that_systemd_makes() -> None:
    unit = service()
    variable, _, value = unit["Environment"].partition("=")
    assert value == f"%S/{unit['StateDirectory']}"
    assert variable in {setting.variable for setting in SETTINGS}


def test_hardening_leaves_what_the_broker_reads_and_writes() -> None:
    """Its sockets are IP or Unix, and it reads files of /proc/sys and of control groups."""
    unit = service()
    assert "ProcSubset" not in unit, "the store reads /proc/sys/kernel/random/boot_id"
    assert unit["ProtectControlGroups"] == "yes", "they can still be read"
    assert set(unit["RestrictAddressFamilies"].split()) == {"AF_INET", "AF_INET6", "AF_UNIX"}
