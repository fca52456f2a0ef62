"""How much memory there is, by the machine and its control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peeklock.server.memory import memory_bytes

PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MIB = 1024 * 1024


def system(root: Path, groups: str, **limits: str) -> Path:
    """Make the files of a system: `groups` as /proc/self/cgroup, and limits by path, `__` for each slash."""
    files = {"proc/self/cgroup": groups} | {name.replace("__", "/"): text for name, text in limits.items()}
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_without_control_groups_it_is_the_machines(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path) == PHYSICAL
    assert memory_bytes(system(tmp_path, "0::/\n")) == PHYSICAL


@pytest.mark.parametrize("group", ["/", "/user.slice/peeklock.service", "/host/path/that/is/not/here"])
def test_the_limit_of_the_own_group_or_the_mount_counts(tmp_path: Path, group: str) -> None:
    root = system(tmp_path, f"0::{group}\n")
    folder = root / "sys/fs/cgroup" / group.lstrip("/") if "host" not in group else root / "sys/fs/cgroup"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{512 * MIB}\n")
    assert memory_bytes(root) == 512 * MIB


def test_the_lowest_limit_on_the_way_up_counts_and_max_is_none(tmp_path: Path) -> None:
    root = system(tmp_path, "0::/a/b\n")
    for name, text in (("a/b", "max"), ("a", str(300 * MIB)), ("", str(400 * MIB))):
        folder = root / "sys/fs/cgroup" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(text + "\n")
    assert memory_bytes(root) == 300 * MIB


def test_the_first_version_of_control_groups_counts(tmp_path: Path) -> None:
    root = system(tmp_path, "12:cpu,cpuacct:/x\n7:memory:/docker/1\n")
    folder = root / "sys/fs/cgroup/memory/docker/1"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{256 * MIB}\n")
    assert memory_bytes(root) == 256 * MIB
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")  # as without a limit
    assert memory_bytes(root) == PHYSICAL
