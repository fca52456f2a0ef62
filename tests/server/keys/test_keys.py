"""The file of the namespace's keys."""

from __future__ import annotations

import itertools
import json
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from peeklock.auth import ALL_RIGHTS, Right
from peeklock.cli import main
from peeklock.server.keys.keys import GivenKeyFile, KeyFile
from peeklock.server.keys.rules import RULES_MAX, KeysRefused

SEND = ["send"]


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    numbers = itertools.count(1)
    return KeyFile(tmp_path / "data", draw=lambda size: next(numbers).to_bytes(size, "big"))


def test_the_first_start_makes_a_rule_with_all_rights_and_keys_of_its_own(tmp_path: Path) -> None:
    """Req: R-04."""
    (one,) = KeyFile(tmp_path / "a").load_or_make()
    (other,) = KeyFile(tmp_path / "b").load_or_make()
    assert (one.name, one.rights) == ("RootManageSharedAccessKey", ALL_RIGHTS)
    assert len({*one.keys, *other.keys}) == 4
    assert all(len(key) == 44 for key in one.keys)
    assert KeyFile(tmp_path / "a").load_or_make() == [one]


def test_only_the_owner_can_read_it(keys: KeyFile) -> None:
    """Req: R-04. Whoever could read it may have: the broker says so and does not go on."""
    keys.load_or_make()
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o600
    keys.add("sender", SEND)
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o600
    keys.path.chmod(0o640)
    with pytest.raises(KeysRefused, match="chmod 600"):
        keys.load()


def test_a_rotation_keeps_the_old_key_once(keys: KeyFile) -> None:
    """Req: R-04."""
    (made,) = keys.load_or_make()
    first = keys.rotate("rootmanagesharedaccesskey", revoke=False)
    assert first.secondary_key == made.primary_key
    assert first.primary_key not in made.keys
    second = keys.rotate("RootManageSharedAccessKey", revoke=False)
    assert made.primary_key not in second.keys
    revoked = keys.rotate("RootManageSharedAccessKey", revoke=True)
    assert not set(revoked.keys) & set(second.keys)
    assert keys.load() == [revoked]


def test_rules_are_added_and_removed(keys: KeyFile) -> None:
    """Req: R-04."""
    keys.load_or_make()
    sender = keys.add("sender", SEND)
    assert [rule.name for rule in keys.load()] == ["RootManageSharedAccessKey", "sender"]
    assert sender.rights == {Right.SEND}
    keys.remove("SENDER")
    assert [rule.name for rule in keys.load()] == ["RootManageSharedAccessKey"]


def test_what_cannot_be_is_refused_and_changes_nothing(keys: KeyFile) -> None:
    keys.load_or_make()
    keys.add("sender", SEND)
    before = keys.path.read_bytes()
    with pytest.raises(KeysRefused, match="already"):
        keys.add("Sender", SEND)
    for name in ("", "-x", "x" * 257, "a/b", "a b", "é"):
        with pytest.raises(KeysRefused, match="name"):
            keys.add(name, SEND)
    with pytest.raises(KeysRefused, match="no rights"):
        keys.add("nothing", ())
    with pytest.raises(KeysRefused, match="there are: RootManageSharedAccessKey, sender"):
        keys.rotate("sendr", revoke=False)
    with pytest.raises(KeysRefused, match="no rule 'sendr'"):
        keys.remove("sendr")
    assert keys.path.read_bytes() == before
    for number in range(RULES_MAX - 2):
        keys.add(f"rule-{number}", SEND)
    with pytest.raises(KeysRefused, match="already 12 rules"):
        keys.add("one-more", SEND)


def test_changes_at_the_same_time_do_not_undo_each_other(tmp_path: Path) -> None:
    """Req: R-04. A key that was revoked must not come back with somebody else's change."""
    names = [f"rule{number}" for number in range(8)]
    start = threading.Barrier(len(names))
    KeyFile(tmp_path).load_or_make()

    def add(name: str) -> tuple[str, ...]:
        start.wait()
        return KeyFile(tmp_path).add(name, SEND).keys

    with ThreadPoolExecutor(len(names)) as pool:
        added = dict(zip(names, pool.map(add, names), strict=True))
    kept = {rule.name: rule.keys for rule in KeyFile(tmp_path).load()}
    assert kept.items() >= added.items()
    assert len(kept) == len(names) + 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change a file of another user")
def test_what_root_changes_stays_the_file_of_the_folder_s_owner(tmp_path: Path) -> None:
    """Req: R-04. Else the broker could not read its new keys, and would go on with the old ones."""
    os.chown(tmp_path, 12345, 12346)
    keys = KeyFile(tmp_path)
    keys.load_or_make()
    keys.add("sender", SEND)
    keys.rotate("sender", revoke=True)
    found = keys.path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12345, 12346, 0o600)


def test_another_file_is_noticed(keys: KeyFile) -> None:
    """Req: R-04."""
    keys.load_or_make()
    assert not keys.changed()
    KeyFile(keys.path.parent).rotate("RootManageSharedAccessKey", revoke=False)
    assert keys.changed()
    keys.load()
    assert not keys.changed()
    keys.path.unlink()
    assert keys.changed()
    with pytest.raises(KeysRefused, match="missing"):
        keys.load()
    assert not keys.changed()  # said once is enough
    keys.load_or_make()


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
    keys.load_or_make()
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
    KeyFile(tmp_path).load_or_make()
    added = run.invoke(main, ["keys", "add", folder, "worker", "--rights", "Send,Listen"])
    assert added.exit_code == 0, added.output
    rules = {rule.name: rule for rule in KeyFile(tmp_path).load()}
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
    assert KeyFile(tmp_path).load()[1].secondary_key == rules["worker"].primary_key
    assert run.invoke(main, ["keys", "rotate", folder, "worker", "--revoke"]).exit_code == 0
    assert rules["worker"].primary_key not in KeyFile(tmp_path).load()[1].keys
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
    KeyFile(tmp_path).load_or_make()
    gone = run.invoke(main, ["keys", "remove", str(tmp_path), "RootManageSharedAccessKey"])
    assert gone.exit_code == 0
    assert gone.stdout == "removed RootManageSharedAccessKey\n"
    assert "no rule with Manage is left" in gone.stderr
    assert KeyFile(tmp_path).load() == []


def test_keys_that_are_made_are_told_and_not_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Req: R-04. Also after the file was lost: clients have other keys then."""
    (rule,) = KeyFile(tmp_path).load_or_make()
    (made,) = caplog.records
    assert (made.levelname, made.message) == ("WARNING", "keys made")
    assert not any(key in str(vars(made)) for key in rule.keys)
    KeyFile(tmp_path).load_or_make()
    assert len(caplog.records) == 1


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
    keys.load_or_make()
    given = GivenKeyFile(mounted(tmp_path / "secret", "one", keys))
    assert given.load_or_make() == keys.load()
    assert not given.changed()
    keys.add("worker", SEND)
    mounted(tmp_path / "secret", "two", keys)
    assert given.changed()
    assert given.load() == keys.load()


def test_a_given_file_is_never_made(tmp_path: Path) -> None:
    with pytest.raises(KeysRefused, match=r"k\.json is missing; --keys names the file"):
        GivenKeyFile(tmp_path / "k.json").load_or_make()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("mode", [0o444, 0o460])
def test_a_given_file_that_others_can_read_or_change_is_refused(keys: KeyFile, mode: int) -> None:
    keys.load_or_make()
    keys.path.chmod(mode)
    with pytest.raises(KeysRefused, match=r"can be read by others than its owner and group.*mode 0440"):
        GivenKeyFile(keys.path).load()
