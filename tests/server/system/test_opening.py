"""What a start does with the system store."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from peeklock.server.disk import Disk
from peeklock.server.settings import Settings, StartFailed
from peeklock.server.system.keys import NamespaceKeys
from peeklock.server.system.opening import open_system, take_over_files
from peeklock.server.system.store import SystemStore
from tests.kept_keys import write_keys


async def started(settings: Settings, default: str, disk: Disk) -> SystemStore:
    """Open the store and take over files, as a start does."""
    system = await open_system(settings, default, disk)
    try:
        await take_over_files(system, settings, default)
    except StartFailed:
        await system.close()
        raise
    return system


def test_keys_that_are_not_needed_may_have_a_fault_and_a_renamed_namespace_keeps_its_keys(
    tmp_path: Path,
) -> None:
    rules, file = write_keys(tmp_path), tmp_path / "keys.json"
    open_to_all = Settings(tmp_path, None, "127.0.0.1", 0, 0, "os", None, None, "standard", None)
    with_keys = replace(open_to_all, auth=frozenset({"sas"}))

    async def story() -> None:
        disk = Disk(tmp_path)
        file.chmod(0o644)
        await (await started(open_to_all, "shop", disk)).close()
        assert file.exists()
        with pytest.raises(StartFailed, match="chmod 600"):
            await started(with_keys, "shop", disk)
        file.chmod(0o600)
        await (await started(with_keys, "shop", disk)).close()
        system = await started(with_keys, "store", disk)
        assert NamespaceKeys(system, "store").rules() == rules
        assert NamespaceKeys(system, "shop").rules() == []
        await system.close()
        disk.close()

    asyncio.run(story())


def test_a_folder_in_use_is_named_as_it_was_given(tmp_path: Path) -> None:
    """Not the folder of the system store below it."""
    settings = Settings(tmp_path, None, "127.0.0.1", 0, 0, "os", None, None, "standard", None)

    async def story() -> None:
        disk = Disk(tmp_path)
        system = await open_system(settings, "shop", disk)
        named = f"^{re.escape(str(tmp_path))} is in use by process {os.getpid()}"
        with pytest.raises(StartFailed, match=named):
            await open_system(settings, "shop", disk)
        await system.close()
        disk.close()

    asyncio.run(story())
