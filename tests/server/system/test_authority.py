"""The certificate authority in the system store."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from pathlib import Path
from typing import Any

import pytest

from peeklock.server.system.authority import FACT, SystemAuthority, read, values_of
from peeklock.server.system.store import SystemStore, folder_of
from peeklock.server.tls.certificates import CA_VALID_DAYS, keep_authority
from peeklock.server.tls.contexts import TlsFiles
from peeklock.server.tls.kept_authority import Pair
from peeklock.store.base import StoreDamaged
from peeklock.store.memory import MemoryStore
from peeklock.testing.faults import Fault, FaultyStore
from tests.server.system.asking import opened
from tests.server.tls.test_contexts import shake_hands, trusting

FILES = {"ca.p12", "ca.pem", "certificate.pem", "key.pem"}


def tls(system: SystemStore, data: Path) -> TlsFiles:
    return TlsFiles(data, authority=SystemAuthority(system, data))


def test_the_private_key_of_the_authority_is_in_the_system_store_alone(tmp_path: Path) -> None:
    """Req: R-05."""

    async def test() -> None:
        folder = tmp_path / "tls"
        async with opened(folder_of(tmp_path)) as system:
            files = tls(system, tmp_path)
            assert await asyncio.to_thread(files.make_files)
            assert not await asyncio.to_thread(files.make_files)
            assert {file.name for file in folder.iterdir()} == FILES
            pair = read(system)
            assert pair.certificate == (folder / "ca.pem").read_bytes()
            assert shake_hands(await asyncio.to_thread(files.load), trusting(folder / "ca.pem"), "localhost")
            assert files.open_keys() == []
            (folder / "key.pem").chmod(0o640)
            assert files.open_keys() == [folder / "key.pem"]
        for file in folder.iterdir():
            assert pair.key is not None
            assert pair.key not in file.read_bytes()
            file.unlink()
        async with opened(folder_of(tmp_path)) as system:
            files = tls(system, tmp_path)
            assert await asyncio.to_thread(files.make_files)
            assert read(system) == pair
            assert (folder / "ca.pem").read_bytes() == pair.certificate, "clients go on"
            assert shake_hands(await asyncio.to_thread(files.load), trusting(folder / "ca.pem"), "localhost")

    asyncio.run(test())


def test_another_authority_in_the_folder_is_replaced_by_the_kept_one(tmp_path: Path) -> None:
    """Clients trust the kept one: `ca.pem` is a copy."""

    async def test() -> None:
        system = await SystemStore.open(MemoryStore())
        files = tls(system, tmp_path)
        await asyncio.to_thread(files.load)
        TlsFiles(tmp_path / "other").make_files()
        ca = tmp_path / "tls" / "ca.pem"
        ca.write_bytes((tmp_path / "other" / "tls" / "ca.pem").read_bytes())
        assert not files.looks_sound()
        assert await asyncio.to_thread(files.follow) is not None
        assert ca.read_bytes() == read(system).certificate
        assert files.looks_sound()

    asyncio.run(test())


def test_an_authority_is_renewed_in_the_store_with_its_key(tmp_path: Path) -> None:
    async def test() -> None:
        system = await SystemStore.open(MemoryStore())
        kept = SystemAuthority(system, tmp_path)
        now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        folder = tmp_path / "tls"
        await asyncio.to_thread(keep_authority, folder, now, kept)
        first = read(system)
        later = now + datetime.timedelta(CA_VALID_DAYS - 100)
        await asyncio.to_thread(keep_authority, folder, later, kept)
        second = read(system)
        assert (second.key, (folder / "ca.pem").read_bytes()) == (first.key, second.certificate)
        assert second.certificate != first.certificate

    asyncio.run(test())


def test_what_is_wrong_with_the_authority_is_told_and_nothing_is_replaced(tmp_path: Path) -> None:
    async def test() -> None:
        system = await SystemStore.open(MemoryStore())
        files = tls(system, tmp_path)
        await asyncio.to_thread(files.load)
        sound = read(system)
        mend = f"; put sound copies of ca.pem and ca-key.pem into {tmp_path / 'tls'}, and start again"
        (tmp_path / "tls" / "key.pem").unlink()
        place, key = (
            f"the {what} of the authority in the system store" for what in ("certificate", "private key")
        )
        for pair, said in (
            (Pair(b"nonsense", sound.key), f"{place} is not a PEM certificate{mend}"),
            (Pair(sound.certificate, b"nonsense"), f"{key} is not a PEM private key{mend}"),
            (
                Pair(sound.certificate, None),
                f"{key} is missing, and a new certificate is needed (there was none); put ca-key.pem into "
                f"{tmp_path / 'tls'}, and start again",
            ),
        ):
            await system.put(values_of(pair))
            with pytest.raises(ssl.SSLError) as refused:
                await asyncio.to_thread(files.load)
            assert str(refused.value) == said
            assert read(system) == pair

    asyncio.run(test())


def test_a_store_that_fails_is_a_fault_of_tls(tmp_path: Path) -> None:
    """It is logged, and tried again; a certificate of an authority that is not kept is never shown."""

    async def test() -> None:
        system = await SystemStore.open(FaultyStore(MemoryStore(), fault=lambda batch: Fault.BEFORE))
        with pytest.raises(OSError, match="the local authority cannot be kept"):
            await asyncio.to_thread(tls(system, tmp_path).load)
        assert not (tmp_path / "tls" / "certificate.pem").exists()

    asyncio.run(test())


@pytest.mark.parametrize(
    "value", ["text", {"certificate": "a"}, {"certificate": 1, "key": None}, {"certificate": "☃", "key": "a"}]
)
def test_a_fact_that_is_no_authority_is_named(value: Any, tmp_path: Path) -> None:
    async def test() -> None:
        system = await SystemStore.open(MemoryStore())
        await system.put({FACT: value})
        with pytest.raises(StoreDamaged, match="certificate-authority of the process cannot be read"):
            read(system)
        with pytest.raises(OSError, match="certificate-authority of the process cannot be read"):
            SystemAuthority(system, tmp_path).load()

    asyncio.run(test())
