"""Files that a running broker follows: noticed, read when they are whole, refused without a change."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from peeklock.demo.broker import BrokerProcess
from peeklock.server import log
from peeklock.server.follow import FileWatch, FollowedFiles, Outcome
from peeklock.server.reload import Reload

# A watch


_TIMES = itertools.count()


def touch(file: Path, text: str) -> None:
    """Write a file whose status differs from before, however coarse the file system's times are."""
    file.write_text(text)
    os.utime(file, ns=(0, next(_TIMES)))


def test_a_change_counts_once_the_file_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "f"
    touch(file, "a")
    watch = FileWatch(file)
    assert not watch.changed(at_once=False)
    touch(file, "half")
    assert not watch.changed(at_once=False)
    touch(file, "whole")
    assert not watch.changed(at_once=False)
    assert watch.changed(at_once=False)
    assert not watch.changed(at_once=False)


def test_a_change_counts_at_once_when_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "f"
    watch = FileWatch(file)
    touch(file, "a")
    assert watch.changed(at_once=True)
    file.unlink()
    assert watch.changed(at_once=True)
    assert not watch.changed(at_once=True)


def test_a_link_to_another_file_is_a_change(tmp_path: Path) -> None:
    """As Kubernetes replaces what a secret mounts."""
    for name in "ab":
        (tmp_path / name).write_text("same")
    link = tmp_path / "link"
    link.symlink_to("a")
    watch = FileWatch(link)
    link.unlink()
    link.symlink_to("b")
    assert watch.changed(at_once=True)


def test_a_refused_file_stays_refused_until_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "f"
    reasons = ["broken", ""]

    async def read() -> str:
        return reasons.pop(0)

    async def look() -> Outcome:
        return await followed.look(True)

    followed = FollowedFiles(FileWatch(file), read)
    assert asyncio.run(look()) is Outcome.UNCHANGED
    touch(file, "broken")
    assert asyncio.run(look()) is Outcome.REFUSED
    assert asyncio.run(look()) is Outcome.REFUSED
    touch(file, "good")
    assert asyncio.run(look()) is Outcome.FOLLOWED
    assert asyncio.run(look()) is Outcome.UNCHANGED
    assert reasons == []


@pytest.mark.parametrize(
    ("outcome", "event"),
    [
        (Outcome.FOLLOWED, "reloaded"),
        (Outcome.REFUSED, "reloaded, but for what is refused: that stays as it was"),
    ],
)
def test_a_reload_looks_at_all_and_says_what_came_of_it(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome, event: str
) -> None:
    told: list[Any] = []

    async def first(at_once: bool) -> Outcome:
        assert at_once
        return outcome

    async def second(at_once: bool) -> Outcome:
        return Outcome.UNCHANGED

    async def main() -> None:
        ended = asyncio.Event()
        begin, end = (lambda: told.append("begin")), (lambda: told.append("end"))
        reload = Reload({"config": first, "keys": second}, begin=begin, end=end)

        def tell(*line: Any) -> None:
            told.append(line)
            ended.set()

        monkeypatch.setattr(log, "info", tell)
        monkeypatch.setattr(log, "warning", tell)
        running = asyncio.get_running_loop().create_task(reload.run())
        reload.ask()
        await asyncio.wait_for(ended.wait(), 5)
        running.cancel()

    asyncio.run(main())
    assert told == ["begin", "end", (event, {"config": outcome.value, "keys": "unchanged"})]


# A real broker


def config_of(count: int, *, name: str = "sbemulatorns", delivery: int = 10) -> str:
    queues = [{"Name": f"q{n}", "Properties": {"MaxDeliveryCount": delivery}} for n in range(count)]
    return json.dumps({"UserConfig": {"Namespaces": [{"Name": name, "Queues": queues}]}}, indent=1)


class Running:
    """A broker whose log is read."""

    def __init__(self, process: BrokerProcess, config: Path) -> None:
        self.process = process
        self.config = config

    def reload(self) -> dict[str, Any]:
        """Return the log line of a reload."""
        before = len(self.lines("reloaded"))
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGHUP)
        line: dict[str, Any] = self.wait(lambda: self.lines("reloaded")[before:])[0]
        return line

    def lines(self, event: str) -> list[dict[str, Any]]:
        lines = map(json.loads, self.process.log.read_text().splitlines())
        return [line for line in lines if line["event"].startswith(event)]

    def wait(self, found: Callable[[], Any]) -> Any:
        until = time.monotonic() + 20
        while not (result := found()):
            assert time.monotonic() < until, self.process.log.read_text()
            time.sleep(0.02)
        return result

    def health(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.process.http_port}/health"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as late:  # 503 while a busy machine holds it up
            with late:
                found = json.load(late)
        return found


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    config = tmp_path / "Config.json"
    config.write_text(config_of(1))
    with BrokerProcess(tmp_path, ["--durability=os", f"--config={config}"]) as process:
        yield Running(process, config)


def test_sighup_follows_the_configuration_and_tells_what_came_of_it(running: Running) -> None:
    assert {
        "config": "unchanged",
        "keys": "unchanged",
        "tls": "unchanged",
    }.items() <= running.reload().items()
    running.config.write_text(config_of(3))
    assert running.reload()["config"] == "followed"
    assert running.health()["entities"] == 3
    running.config.write_text(config_of(1))  # nothing is ever deleted
    assert running.reload()["config"] == "followed"
    assert running.health()["entities"] == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (config_of(3)[:200], "Config.json: line 14 column"),
        (config_of(3, name="other"), "the broker runs as 'sbemulatorns'; restart it to rename the namespace"),
        (config_of(3, delivery=0), "UserConfig.Namespaces[0].Queues[0].Properties"),
    ],
)
def test_a_broken_configuration_changes_nothing_and_is_told_by_its_place(
    running: Running, text: str, said: str
) -> None:
    running.config.write_text(text)
    line = running.reload()
    assert (line["level"], line["config"]) == ("warning", "refused")
    (told,) = running.lines("the configuration file is not followed")
    assert said in told["reason"]
    assert running.health()["entities"] == 1
    running.config.write_text(config_of(2))
    assert running.reload()["config"] == "followed"
    assert running.health()["entities"] == 2


def test_a_changed_configuration_is_followed_without_a_signal(running: Running) -> None:
    running.config.write_text(config_of(2))
    running.wait(lambda: running.health()["entities"] == 2)


def test_a_changed_settings_file_needs_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("lock-grace = 1")
    with BrokerProcess(tmp_path, ["--durability=os", f"--settings={file}"]) as process:
        running = Running(process, file)
        file.write_text("lock-grace = 20")
        for _ in range(2):
            assert running.reload()["settings"] == "changed: restart the broker"


def test_a_thousand_entities_are_followed_in_slices(running: Running) -> None:
    running.config.write_text(config_of(1000))
    assert running.reload()["config"] == "followed"
    assert running.health()["entities"] == 1000
    running.config.write_text(config_of(1000, delivery=5))
    assert running.reload()["config"] == "followed"
    (created, changed) = running.lines("configuration followed")[-2:]
    assert (created["created"], changed["changed"]) == (999, 1000)
