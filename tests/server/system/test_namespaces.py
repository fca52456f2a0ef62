"""The records of namespaces."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.server.system.keys import NamespaceKeys
from peeklock.server.system.namespaces import NamespaceList, NamespaceRecord, RecordInvalid
from peeklock.server.system.store import SystemStore
from peeklock.store.base import StoreDamaged
from peeklock.store.memory import MemoryStore
from tests.server.system.asking import as_killed_now, opened

FULL = NamespaceRecord(
    "Orders", 1_700_000_000_000, "command", "premium", 1 << 40, 100, 5_000, ("a.example", "*.lan", "::1")
)
BARE = NamespaceRecord("billing", 0, "config")

LIMITS = st.none() | st.integers(1, 2**63)
RECORDS = st.builds(
    NamespaceRecord,
    st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9-]{0,48}[A-Za-z0-9])?", fullmatch=True),
    st.integers(0, 2**53),
    st.sampled_from(("config", "command")),
    st.none() | st.sampled_from(sorted(TIERS)),
    LIMITS,
    LIMITS,
    LIMITS,
    st.lists(st.sampled_from(("a.example", "*.lan", "127.0.0.1")), max_size=3).map(tuple),
)


@given(RECORDS)
def test_a_record_comes_back_from_its_json(record: NamespaceRecord) -> None:
    assert NamespaceRecord.from_json(record.to_json()) == record


def test_the_json_has_what_was_given() -> None:
    assert BARE.to_json() == {"name": "billing", "created_at_ms": 0, "source": "config"}
    assert FULL.to_json() == {
        "name": "Orders",
        "created_at_ms": 1_700_000_000_000,
        "source": "command",
        "tier": "premium",
        "size_bytes_max": 1 << 40,
        "connections_max": 100,
        "messages_per_second": 5_000,
        "host_names": ["a.example", "*.lan", "::1"],
    }


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"color": "red"}, "'color' is not a member of a namespace; it has name, created_at_ms, "),
        ({"name": ""}, "name: '' cannot be"),
        ({"name": 5}, "name: 5 cannot be"),
        ({"created_at_ms": "now"}, "created_at_ms: 'now' is not a time"),
        ({"created_at_ms": True}, "created_at_ms: True is not"),
        ({"created_at_ms": -1}, "created_at_ms: -1 is not"),
        ({"source": "me"}, "source: 'me' is not one of config, command"),
        ({"source": []}, r"source: \[\] is not"),
        ({"tier": "gold"}, "tier: 'gold' is not one of basic, standard, premium"),
        ({"tier": {}}, "tier: {} is not"),
        ({"size_bytes_max": 0}, "size_bytes_max: 0 is not a whole number above 0"),
        ({"connections_max": 1.5}, "connections_max: 1.5 is not"),
        ({"messages_per_second": "9"}, "messages_per_second: '9' is not"),
        ({"host_names": "a.example"}, "host_names: 'a.example' is not a list"),
        ({"host_names": ["a b"]}, "host_names: "),
        ({"host_names": None}, "host_names: None is not"),
    ],
)
def test_what_is_not_a_record_is_refused_with_its_member(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(RecordInvalid, match=told):
        NamespaceRecord.from_json(BARE.to_json() | changed)


@pytest.mark.parametrize("missing", ["name", "created_at_ms", "source"])
def test_a_missing_member_is_named(missing: str) -> None:
    record = BARE.to_json()
    del record[missing]
    with pytest.raises(RecordInvalid, match=f"has no '{missing}'"):
        NamespaceRecord.from_json(record)


@given(
    st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4)
    | st.dictionaries(
        st.sampled_from(list(FULL.to_json())), st.none() | st.integers() | st.text() | st.lists(st.text())
    )
)
def test_any_json_is_a_record_or_refused(value: Any) -> None:
    try:
        record = NamespaceRecord.from_json(value)
    except RecordInvalid:
        return
    assert NamespaceRecord.from_json(record.to_json()) == record


def test_records_are_kept_by_name_without_regard_to_case(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as system:
            namespaces = NamespaceList(system)
            for record in (FULL, BARE, NamespaceRecord("ORDERS", 5, "config")):
                await namespaces.put(record)
            as_killed_now(tmp_path / "data", tmp_path / "killed")
        async with opened(tmp_path / "killed") as system:
            namespaces = NamespaceList(system)
            assert namespaces.all() == [BARE, NamespaceRecord("ORDERS", 5, "config")]
            assert namespaces.get("BILLING") == BARE
            assert namespaces.get("other") is None

    asyncio.run(test())


def test_a_removed_namespace_loses_its_keys_in_the_same_commit(tmp_path: Path) -> None:
    """A namespace that gets the name later must not get the keys."""

    async def test() -> None:
        async with opened(tmp_path) as system:
            namespaces = NamespaceList(system)
            await namespaces.put(FULL)
            await namespaces.put(BARE)
            keys = {name: await NamespaceKeys(system, name).load_or_make() for name in ("orders", "billing")}
            await namespaces.remove("orders")
            await namespaces.remove("never there")
            assert system.keys_below("") == ["keys/billing", "namespace/billing"]
        async with opened(tmp_path) as system:
            assert NamespaceKeys(system, "billing").rules() == keys["billing"]
            made = await NamespaceKeys(system, "orders").load_or_make()
            assert not set(made[0].keys) & set(keys["orders"][0].keys)

    asyncio.run(test())


@pytest.mark.parametrize(
    ("value", "told"), [({}, "has no 'name'"), (BARE.to_json(), "contains namespace/billing")]
)
def test_a_record_that_cannot_be_is_named(value: Any, told: str) -> None:
    async def test() -> None:
        system = await SystemStore.open(MemoryStore())
        await system.put({"namespace/x": value})
        with pytest.raises(StoreDamaged, match=f"the fact namespace/x of the process .*{told}"):
            NamespaceList(system).all()

    asyncio.run(test())
