"""The file of the namespace's keys."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from peeklock.auth import Right, SasRule
from peeklock.cli import main
from peeklock.server.keys.keys import GivenKeyFile, KeyFile
from peeklock.server.keys.rules import KeysRefused
from peeklock.server.system.default_name import set_default_name
from peeklock.server.system.keys import NamespaceKeys
from peeklock.server.system.store import folder_of
from tests.kept_keys import write_keys
from tests.server.system.asking import opened

SEND = ["send"]


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    write_keys(tmp_path / "data")
    return KeyFile(tmp_path / "data" / "keys.json")


async def made(data: Path) -> list[SasRule]:
    """Do what a first start does."""
    async with opened(folder_of(data)) as system:
        await set_default_name(system, "Shop")
        return await NamespaceKeys(system, "Shop").load_or_make()


async def kept(data: Path) -> list[SasRule]:
    async with opened(folder_of(data)) as system:
        return NamespaceKeys(system, "shop").rules()


def test_only_the_owner_may_be_able_to_read_it(keys: KeyFile) -> None:
    """Req: R-04. Whoever could read it may have: the broker says so and does not go on."""
    keys.path.chmod(0o640)
    with pytest.raises(KeysRefused, match="chmod 600"):
        keys.load()


def test_another_file_is_noticed(keys: KeyFile) -> None:
    """Req: R-04."""
    keys.load()
    assert not keys.changed()
    write_keys(keys.path.parent)
    assert keys.changed()
    keys.load()
    assert not keys.changed()
    keys.path.unlink()
    assert keys.changed()
    with pytest.raises(KeysRefused, match="missing"):
        keys.load()
    assert not keys.changed()  # said once is enough


@pytest.mark.parametrize(
    "told",
    [
        "",
        "[]",
        "{}",
        '{"rules": {}}',
        '{"rules": [1]}',
        '{"rules": [], "more": 1}',
        '{"rules": [{"name": "a", "rights": ["Send"]}]}',
        '{"rules": [{"name": "a", "rights": ["Send"], "primaryKey": ""}]}',
        '{"rules": [{"name": "a", "rights": ["Send"], "primaryKey": 5}]}',
        '{"rules": [{"name": "a", "rights": "Send", "primaryKey": "SECRET"}]}',
        '{"rules": [{"name": "a", "rights": ["send"], "primaryKey": "SECRET"}]}',
        '{"rules": [{"name": "a", "rights": [["Send"]], "primaryKey": "SECRET"}]}',
        '{"rules": [{"name": "a", "rights": [], "primaryKey": "SECRET"}]}',
        '{"rules": [{"name": "a", "rights": ["Manage"], "primaryKey": "SECRET"}]}',
        '{"rules": [{"name": "a", "rights": ["Send"], "primaryKey": "SECRET", "x": 1}]}',
        json.dumps({"rules": [{"name": "a", "rights": ["Send"], "primaryKey": "SECRET"}] * 2}),
        json.dumps({"rules": [{"name": "a", "rights": ["Send"], "primaryKey": "SECRET" * 50}]}),
        '{"rules": [{"name": "a", "rights": ["Send"], "primaryKey": "SECRET"}',
        "[" * 100_000,
        " " * (1024 * 1024 + 1),
        "\ud800",
    ],
)
def test_a_file_that_is_not_right_is_refused_without_showing_a_key(keys: KeyFile, told: str) -> None:
    """Req: R-04."""
    keys.path.write_bytes(told.encode("utf-8", "surrogatepass"))
    with pytest.raises(KeysRefused) as refused:
        keys.load()
    assert str(keys.path) in str(refused.value)
    assert "SECRET" not in str(refused.value)


def test_the_commands(tmp_path: Path) -> None:
    """Req: R-04. What is listed is what a connection string needs."""
    run = CliRunner()
    folder = str(tmp_path)
    missing = run.invoke(main, ["keys", "list", folder])
    assert missing.exit_code == 1
    assert "--auth sas" in missing.output
    absent = run.invoke(main, ["keys", "add", folder, "worker", "--rights", "Send,Listen"])
    assert absent.exit_code == 1
    assert "--auth sas" in absent.output
    assert list(tmp_path.iterdir()) == [], "a rule with all rights that nobody asked for"
    asyncio.run(made(tmp_path))
    added = run.invoke(main, ["keys", "add", folder, "worker", "--rights", "Send,Listen"])
    assert added.exit_code == 0, added.output
    rules = {rule.name: rule for rule in asyncio.run(kept(tmp_path))}
    assert f"SharedAccessKeyName=worker;SharedAccessKey={rules['worker'].primary_key}" in added.output
    listed = run.invoke(main, ["keys", "list", folder]).output
    for rule in rules.values():
        assert rule.name in listed
        for key in rule.keys:
            assert key in listed
    assert "Endpoint=sb://HOST:PORT;" in listed.splitlines()[-1]
    rotated = run.invoke(main, ["keys", "rotate", folder, "worker"])
    secondary = f"secondary  SharedAccessKeyName=worker;SharedAccessKey={rules['worker'].primary_key}"
    assert secondary in rotated.output
    assert asyncio.run(kept(tmp_path))[1].secondary_key == rules["worker"].primary_key
    assert run.invoke(main, ["keys", "rotate", folder, "worker", "--revoke"]).exit_code == 0
    assert rules["worker"].primary_key not in asyncio.run(kept(tmp_path))[1].keys
    removed = run.invoke(main, ["keys", "remove", folder, "WORKER"])
    assert (removed.exit_code, removed.output) == (0, "removed worker\n")
    refused = run.invoke(main, ["keys", "remove", folder, "worker"])
    assert refused.exit_code == 1
    assert "there are: RootManageSharedAccessKey" in refused.output
    wrong = run.invoke(main, ["keys", "add", folder, "other", "--rights", "Write"])
    assert wrong.exit_code == 1
    assert "'Write' is not a right; the rights are Send, Listen, Manage" in wrong.output


def test_the_last_rule_that_may_administer_goes_with_a_word(tmp_path: Path) -> None:
    run = CliRunner()
    asyncio.run(made(tmp_path))
    gone = run.invoke(main, ["keys", "remove", str(tmp_path), "RootManageSharedAccessKey"])
    assert gone.exit_code == 0
    assert gone.stdout == "removed RootManageSharedAccessKey\n"
    assert "no rule with Manage is left" in gone.stderr
    assert asyncio.run(kept(tmp_path)) == []


def mounted(folder: Path, generation: str, keys: KeyFile) -> Path:
    """Return a file as Kubernetes mounts it: through a link to a folder that an update replaces."""
    (folder / generation).mkdir(parents=True)
    content = folder / generation / "keys.json"
    content.write_bytes(keys.path.read_bytes())
    content.chmod(0o440)
    (folder / "..new").symlink_to(generation)
    (folder / "..new").replace(folder / "..data")
    if not (folder / "keys.json").is_symlink():
        (folder / "keys.json").symlink_to("..data/keys.json")
    return folder / "keys.json"


def test_a_mounted_file_is_read_and_an_update_noticed(keys: KeyFile, tmp_path: Path) -> None:
    """Its owner is root, so the broker reads it by its group."""
    given = GivenKeyFile(mounted(tmp_path / "secret", "one", keys))
    assert given.load() == keys.load()
    assert not given.changed()
    write_keys(keys.path.parent, worker=[Right.SEND])
    mounted(tmp_path / "secret", "two", keys)
    assert given.changed()
    assert given.load() == keys.load()


def test_a_given_file_is_never_made(tmp_path: Path) -> None:
    with pytest.raises(KeysRefused, match=r"k\.json is missing; --keys names the file"):
        GivenKeyFile(tmp_path / "k.json").load()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("mode", [0o444, 0o460])
def test_a_given_file_that_others_can_read_or_change_is_refused(keys: KeyFile, mode: int) -> None:
    keys.path.chmod(mode)
    with pytest.raises(KeysRefused, match=r"can be read by others than its owner and group.*mode 0440"):
        GivenKeyFile(keys.path).load()
