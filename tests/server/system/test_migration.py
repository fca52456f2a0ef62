"""Files of earlier releases become facts, whenever the process is killed."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from peeklock.auth import Right, SasRule
from peeklock.server.keys.keys import KeyFile
from peeklock.server.system import authority
from peeklock.server.system.keys import NamespaceKeys
from peeklock.server.system.migration import MigrationRefused, migrate
from peeklock.server.system.store import SystemStore, folder_of
from peeklock.server.tls.contexts import TlsFiles
from peeklock.server.tls.kept_authority import Pair
from peeklock.store.base import StoreFailed
from peeklock.store.memory import MemoryStore
from peeklock.testing.faults import Fault, FaultyStore
from tests.kept_keys import write_keys
from tests.server.system.asking import opened

NAMESPACE = "sbemulatorns"
NOT_READ = "a file of an earlier release is not read"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a data folder of an earlier release, with keys and an authority."""
    data = tmp_path / "old"
    write_keys(data, sender=[Right.SEND])
    TlsFiles(data).make_files()
    return data


def pair_in(data: Path) -> Pair:
    return Pair(*((data / "tls" / name).read_bytes() for name in ("ca.pem", "ca-key.pem")))


async def facts(data: Path) -> tuple[list[SasRule], Pair]:
    async with opened(folder_of(data)) as system:
        return NamespaceKeys(system, NAMESPACE).rules(), authority.read(system)


async def migrated(data: Path) -> None:
    async with opened(folder_of(data)) as system:
        await migrate(system, data, NAMESPACE)


def names_in(data: Path) -> set[str]:
    return {str(path.relative_to(data)) for path in data.rglob("*") if "system" not in path.parts}


def test_keys_and_authority_become_facts_and_their_files_are_set_aside(old: Path) -> None:
    """Req: R-04."""
    rules, pair, content = KeyFile(old / "keys.json").load(), pair_in(old), (old / "keys.json").read_bytes()
    asyncio.run(migrated(old))
    assert asyncio.run(facts(old)) == (rules, pair)
    assert names_in(old) == {"keys.json.migrated", "tls", *(f"tls/{name}" for name in LEFT)}
    kept = old / "keys.json.migrated"
    assert kept.read_bytes() == content
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    asyncio.run(migrated(old))
    assert asyncio.run(facts(old)) == (rules, pair)


LEFT = ("ca.pem", "ca.p12", "certificate.pem", "key.pem")


@pytest.mark.parametrize("fault", Fault)
def test_a_kill_in_the_commit_leaves_the_files(old: Path, fault: Fault) -> None:
    """Req: R-02."""
    rules, pair, before = KeyFile(old / "keys.json").load(), pair_in(old), names_in(old)

    async def test() -> None:
        inner = MemoryStore()
        system = await SystemStore.open(FaultyStore(inner, fault=lambda batch: fault))
        with pytest.raises(StoreFailed):
            await migrate(system, old, NAMESPACE)
        assert names_in(old) == before
        system = await SystemStore.open(inner)
        await migrate(system, old, NAMESPACE)
        assert NamespaceKeys(system, NAMESPACE).rules() == rules
        assert authority.read(system) == pair
        assert names_in(old) == before - {"keys.json", "tls/ca-key.pem"} | {"keys.json.migrated"}

    asyncio.run(test())


@pytest.mark.parametrize("keys_are_aside", [False, True])
@pytest.mark.parametrize("key_is_gone", [False, True])
def test_a_kill_after_the_commit_is_made_good(
    old: Path, tmp_path: Path, keys_are_aside: bool, key_is_gone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Req: R-02. The folder is as after the commit and some of the steps behind it."""
    rules, pair = KeyFile(old / "keys.json").load(), pair_in(old)
    data = shutil.copytree(old, tmp_path / "data")
    asyncio.run(migrated(old))
    shutil.copytree(folder_of(old), folder_of(data))
    if keys_are_aside:
        (data / "keys.json").rename(data / "keys.json.migrated")
    if key_is_gone:
        (data / "tls" / "ca-key.pem").unlink()
    asyncio.run(migrated(data))
    assert asyncio.run(facts(data)) == (rules, pair)
    assert names_in(data) == names_in(old)
    assert NOT_READ not in caplog.messages


def test_files_that_are_put_there_later_are_not_read_and_told(
    old: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Req: R-04. A key that was revoked must not come back with an old backup."""
    backup = shutil.copytree(old, tmp_path / "backup")
    asyncio.run(migrated(old))

    async def rotate() -> None:
        async with opened(folder_of(old)) as system:
            await NamespaceKeys(system, NAMESPACE).rotate("sender", revoke=True)

    asyncio.run(rotate())
    before = asyncio.run(facts(old))
    shutil.copy2(backup / "keys.json", old)
    other = tmp_path / "other"
    TlsFiles(other).make_files()
    for name in ("ca.pem", "ca-key.pem"):
        shutil.copy2(other / "tls" / name, old / "tls")
    names = names_in(old)
    with caplog.at_level(logging.WARNING):
        asyncio.run(migrated(old))
    assert asyncio.run(facts(old)) == before
    assert names_in(old) == names
    told = [vars(record)["fields"] for record in caplog.records if record.message == NOT_READ]
    assert [fields["file"] for fields in told] == [str(old / "keys.json"), str(old / "tls" / "ca-key.pem")]
    assert "remove the file" in told[0]["do"]
    caplog.clear()
    (old / "keys.json").write_text("{")
    (old / "keys.json").chmod(0o644)
    asyncio.run(migrated(old))
    assert caplog.messages.count(NOT_READ) == 2


def test_a_sound_authority_replaces_one_that_was_taken_over_damaged(old: Path) -> None:
    """As the error says. Without its key the authority goes on, and gets it back later."""
    pair = pair_in(old)
    assert pair.key is not None
    files = {name: old / "tls" / name for name in ("ca.pem", "ca-key.pem")}
    for damaged in (
        Pair(pair.certificate, b"\xff nonsense"),
        Pair(b"nonsense", pair.key),
        Pair(pair.certificate),
    ):
        shutil.rmtree(folder_of(old), ignore_errors=True)
        for name, data in zip(files, (damaged.certificate, damaged.key), strict=True):
            files[name].unlink(missing_ok=True)
            if data is not None:
                files[name].write_bytes(data)
                files[name].chmod(0o600)
        asyncio.run(migrated(old))
        assert asyncio.run(facts(old))[1] == damaged
        assert not files["ca-key.pem"].exists()
        files["ca.pem"].write_bytes(pair.certificate or b"")
        files["ca-key.pem"].write_bytes(pair.key)
        files["ca-key.pem"].chmod(0o600)
        asyncio.run(migrated(old))
        assert asyncio.run(facts(old))[1] == pair
        assert not files["ca-key.pem"].exists()


def test_a_key_without_a_certificate_is_kept_for_its_authority(old: Path) -> None:
    """A first start was killed between the two files."""
    pair = pair_in(old)
    (old / "tls" / "ca.pem").unlink()
    asyncio.run(migrated(old))
    assert asyncio.run(facts(old))[1] == Pair(None, pair.key)


@pytest.mark.parametrize(
    ("name", "content", "mode", "told"),
    [
        ("keys.json", b"{", 0o600, r"keys\.json is no file of keys"),
        ("keys.json", None, 0o644, r"chmod 600 .*keys\.json"),
        ("tls/ca-key.pem", None, 0o640, r"chmod 600 .*ca-key\.pem"),
    ],
)
def test_what_cannot_be_taken_over_stays_and_nothing_else_is_taken(
    old: Path, name: str, content: bytes | None, mode: int, told: str
) -> None:
    if content is not None:
        (old / name).write_bytes(content)
    (old / name).chmod(mode)
    before = names_in(old)
    with pytest.raises(MigrationRefused, match=told):
        asyncio.run(migrated(old))
    assert names_in(old) == before
    assert asyncio.run(facts(old)) == ([], Pair())


def test_a_file_that_cannot_be_set_aside_is_named_and_taken_over_by_the_next_start(old: Path) -> None:
    """What was put by then is found again, and put no second time."""
    in_the_way = old / "keys.json.migrated" / "a folder"
    in_the_way.mkdir(parents=True)
    with pytest.raises(MigrationRefused, match="cannot be taken over"):
        asyncio.run(migrated(old))
    assert (old / "keys.json").exists()
    in_the_way.rmdir()
    in_the_way.parent.rmdir()
    asyncio.run(migrated(old))
    assert not (old / "keys.json").exists()
    assert in_the_way.parent.is_file()


def test_a_new_folder_has_nothing_to_take_over(tmp_path: Path) -> None:
    asyncio.run(migrated(tmp_path))
    assert names_in(tmp_path) == set()


def test_the_keys_of_another_namespace_are_left_alone(old: Path) -> None:
    async def test() -> Any:
        async with opened(folder_of(old)) as system:
            made = await NamespaceKeys(system, "other").load_or_make()
            await migrate(system, old, NAMESPACE)
            assert NamespaceKeys(system, "other").rules() == made
            return system.get("keys/sbemulatorns")

    content = json.loads((old / "keys.json").read_text())
    assert asyncio.run(test()) == content["rules"]
