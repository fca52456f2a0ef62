"""The shared access keys of a namespace, as a fact."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from peeklock.auth import ALL_RIGHTS, Right, SasRule
from peeklock.server.keys.rules import RULES_MAX, KeysRefused, rule_json
from peeklock.server.system.keys import NamespaceKeys, fact_key
from peeklock.server.system.store import SystemStore
from peeklock.store.base import StoreDamaged, StoreFailed
from peeklock.store.memory import MemoryStore
from peeklock.testing.faults import Fault, FaultyStore
from tests.server.system.asking import as_killed_now, opened

SEND = ["send"]
ROOT = "RootManageSharedAccessKey"


async def fresh() -> NamespaceKeys:
    numbers = itertools.count(1)
    system = await SystemStore.open(MemoryStore())
    return NamespaceKeys(system, "Orders", draw=lambda size: next(numbers).to_bytes(size, "big"))


def test_the_first_start_makes_one_rule_with_all_rights(tmp_path: Path) -> None:
    """Req: R-04."""

    async def test() -> None:
        async with opened(tmp_path) as system:
            (one,) = await NamespaceKeys(system, "a").load_or_make()
            (other,) = await NamespaceKeys(system, "b").load_or_make("orders")
            assert (one.name, one.rights, other.name) == (ROOT, ALL_RIGHTS, "orders")
            assert len({*one.keys, *other.keys}) == 4
            assert all(len(key) == 44 for key in one.keys)
        async with opened(tmp_path) as system:
            assert NamespaceKeys(system, "A").rules() == [one]
            assert await NamespaceKeys(system, "A").load_or_make("ignored") == [one]

    asyncio.run(test())


def test_a_rotation_keeps_the_old_key_once() -> None:
    """Req: R-04."""

    async def test() -> None:
        keys = await fresh()
        (made,) = await keys.load_or_make()
        first = await keys.rotate(ROOT.lower(), revoke=False)
        assert first.secondary_key == made.primary_key
        assert first.primary_key not in made.keys
        revoked = await keys.rotate(ROOT, revoke=True)
        assert not set(revoked.keys) & {*first.keys, *made.keys}
        assert keys.rules() == [revoked]

    asyncio.run(test())


def test_rules_are_added_and_removed() -> None:
    """Req: R-04. Without any rule the list is empty, and no start makes a new key."""

    async def test() -> None:
        keys = await fresh()
        (root,) = await keys.load_or_make()
        sender = await keys.add("sender", SEND)
        assert sender.rights == {Right.SEND}
        assert keys.rules() == [root, sender]
        assert await keys.remove("SENDER") == ("sender", False)
        assert await keys.remove(ROOT) == (ROOT, True)
        assert keys.rules() == await keys.load_or_make() == []

    asyncio.run(test())


def test_each_change_is_told_once_it_is_durable() -> None:
    async def test() -> None:
        store = FaultyStore(MemoryStore())
        keys = NamespaceKeys(await SystemStore.open(store), "orders")
        told: list[list[SasRule]] = []
        kept: list[list[SasRule]] = []

        def tell(rules: list[SasRule]) -> None:
            told.append(rules)
            kept.append(keys.rules())

        keys.on_change = tell
        await keys.load_or_make()
        await keys.add("sender", SEND)
        with pytest.raises(KeysRefused):
            await keys.add("sender", SEND)
        await keys.rotate("sender", revoke=True)
        await keys.remove(ROOT)
        assert told == kept
        assert [[rule.name for rule in rules] for rules in told] == [
            [ROOT],
            [ROOT, "sender"],
            [ROOT, "sender"],
            ["sender"],
        ]
        store.fault = lambda batch: Fault.BEFORE
        with pytest.raises(StoreFailed):
            await keys.remove("sender")
        assert len(told) == 4
        assert [rule.name for rule in keys.rules()] == ["sender"]

    asyncio.run(test())


def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    async def test() -> None:
        keys = await fresh()
        await keys.load_or_make()
        await keys.add("sender", SEND)
        before = keys.rules()
        with pytest.raises(KeysRefused, match="already"):
            await keys.add("Sender", SEND)
        for name in ("", "-x", "x" * 257, "a/b", "a b", "é"):
            with pytest.raises(KeysRefused, match="name"):
                await keys.add(name, SEND)
        with pytest.raises(KeysRefused, match="no rights"):
            await keys.add("nothing", ())
        with pytest.raises(KeysRefused, match="'fly' is not a right"):
            await keys.add("nothing", ["fly"])
        with pytest.raises(KeysRefused, match=f"there are: {ROOT}, sender"):
            await keys.rotate("sendr", revoke=False)
        with pytest.raises(KeysRefused, match="no rule 'sendr'"):
            await keys.remove("sendr")
        assert keys.rules() == before
        for number in range(RULES_MAX - 2):
            await keys.add(f"rule-{number}", SEND)
        with pytest.raises(KeysRefused, match="already 12 rules"):
            await keys.add("one-more", SEND)

    asyncio.run(test())


def test_changes_at_the_same_time_do_not_undo_each_other(tmp_path: Path) -> None:
    """Req: R-04. A key that was revoked must not come back with somebody else's change."""

    async def test() -> None:
        async with opened(tmp_path / "data") as system:
            keys = NamespaceKeys(system, "orders")
            (root,) = await keys.load_or_make()
            added = await asyncio.gather(
                keys.rotate(ROOT, revoke=True),
                *(NamespaceKeys(system, "orders").add(f"rule{number}", SEND) for number in range(8)),
            )
            as_killed_now(tmp_path / "data", tmp_path / "killed")
        async with opened(tmp_path / "killed") as system:
            kept = NamespaceKeys(system, "orders").rules()
            assert kept == added
            assert not set(kept[0].keys) & set(root.keys)

    asyncio.run(test())


def test_a_removed_namespace_gets_no_keys_again() -> None:
    async def test() -> None:
        system = await SystemStore.open(MemoryStore())
        keys = NamespaceKeys(system, "orders")
        with pytest.raises(KeysRefused, match="the namespace 'orders' has no keys"):
            await keys.add("sender", SEND)
        await keys.load_or_make()
        removing = asyncio.ensure_future(system.put({fact_key("orders"): None}))
        with pytest.raises(KeysRefused, match="the namespace 'orders' has no keys"):
            await asyncio.gather(removing, keys.rotate(ROOT, revoke=True))
        await removing
        assert keys.rules() == []
        assert system.keys_below("") == []

    asyncio.run(test())


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("secret", "the rules must be a list"),
        ([{"name": "secret"}], "rule 1 must have"),
        ([rule_json(SasRule("a", "secret", "secret" * 50))], "longer than 256"),
    ],
)
def test_rules_that_cannot_be_read_are_named_without_showing_a_key(value: object, told: str) -> None:
    async def test() -> None:
        system = await SystemStore.open(MemoryStore())
        await system.put({"keys/orders": value})
        keys = NamespaceKeys(system, "orders")
        match = f"keys/orders of the process .*{told}"
        with pytest.raises(StoreDamaged, match=match) as started:
            await keys.load_or_make()
        with pytest.raises(StoreDamaged, match=match):
            keys.rules()
        assert "secret" not in str(started.value)

    asyncio.run(test())
