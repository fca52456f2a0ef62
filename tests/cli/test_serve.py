"""`peeklock serve` asks for a folder at a terminal, and refuses settings that contradict each other."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess

SERVE = [sys.executable, "-m", "peeklock", "serve", "--amqp-port=0", "--http-port=0"]


def run_serve(*arguments: str, environ: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return exit status and standard error of a broker that must not start."""
    done = subprocess.run(
        [*SERVE, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, **(environ or {})},
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, re.sub(r"\s+", " ", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (
            ("--data=x", "--config=README.md"),
            {"CONFIG_JSON": "{}"},
            "CONFIG_JSON is set beside a configuration file",
        ),
        (("--data=x", "--auth=development", "--auth=sas"), {}, "--auth development cannot be combined"),
        (("--data=x", "--keys=README.md"), {}, "--keys has the keys of --auth sas: add --auth sas"),
        (
            ("--durability=memory", "--auth=sas"),
            {},
            "choose fsync or os, or name a file of keys with --keys.",
        ),
        *(
            (
                ("--data=x", "--namespaces=on-use", f"--auth={auth}", *jwt),
                {},
                "--namespaces on-use makes namespaces for keys that everybody knows",
            )
            for auth, jwt in (("sas", ()), ("jwt", ("--jwt=README.md",)), ("off", ()))
        ),
        (("--data=x", "--node=a"), {}, "--node NAME and --cluster-key FILE go together."),
        (
            ("--data=x", "--node=a", "--cluster-key=README.md"),
            {},
            "--node is for a cluster, whose stores are",
        ),
        (
            ("--data=x", "--node=a", "--cluster-key=README.md", "--store=x", "--store-connections=9"),
            {},
            "--store-connections must be at least 10 for a node.",
        ),
        (
            ("--data=x", "--node=a", "--cluster-key=README.md", "--store=x", "--throw-away=1"),
            {},
            "--throw-away makes namespaces in the memory of one process: leave it or --node out.",
        ),
        (("--data=x", "--node-address=a:1"), {}, "--node-address is of a node: name it with --node."),
        (("--data=x", "--node=a.b"), {}, "'a.b' is not a name: 1 to 63 of"),
        (("--data=x", "--node-address=a"), {}, "'a' is not HOST:PORT, such as"),
        (
            ("--store=postgresql://a/b",),
            {},
            "name a folder with --data DIR. The messages are in the database",
        ),
        ((), {}, "name a folder for the messages with --data DIR, or use --durability memory."),
    ],
)
def test_settings_that_contradict_are_explained(
    arguments: tuple[str, ...], environ: Mapping[str, str], said: str
) -> None:
    status, told = run_serve(*arguments, environ=environ)
    assert status == 2
    assert said in told


def test_a_bad_configuration_in_the_environment_is_told_by_its_path(tmp_path: Path) -> None:
    status, told = run_serve(
        f"--data={tmp_path}", environ={"CONFIG_JSON": '{"UserConfig": {"Namespace": []}}'}
    )
    assert status == 1
    assert "peeklock: CONFIG_JSON: UserConfig" in told


@pytest.mark.parametrize(("answer", "made"), [("\n", True), ("n\n", False)])
def test_at_a_terminal_it_offers_a_folder(tmp_path: Path, answer: str, made: bool) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        SERVE, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as broker:
        os.close(theirs)
        try:
            assert "Keep the messages in ./peeklock-data? [Y/n]:" in _read_until(ours, "]:")
            os.write(ours, answer.encode())
            if made:
                _read_until(ours, "administration: port")
                broker.terminate()
            else:
                _read_until(ours, "--data DIR")
            assert broker.wait(30) == (0 if made else 2)
        finally:
            broker.kill()
            os.close(ours)
    assert (tmp_path / "peeklock-data" / "peeklock.db").exists() is made


def _read_until(terminal: int, end: str, within_s: float = 20) -> str:
    found, until = "", time.monotonic() + within_s
    while end not in found:
        ready, _, _ = select.select([terminal], [], [], until - time.monotonic())
        assert ready, found
        found += os.read(terminal, 4096).decode()
    return found


def test_development_by_name_serves_other_machines_and_says_so(tmp_path: Path) -> None:
    status, told = run_serve(f"--data={tmp_path / 'a'}", "--host=0.0.0.0")
    assert status == 1
    assert "use --auth sas for keys of your own, --auth development if everybody may know it" in told
    (tmp_path / "b").mkdir()
    with BrokerProcess(tmp_path / "b", ["--host=0.0.0.0", "--auth=development"]) as broker:
        assert "SharedAccessKey=SAS_KEY_VALUE" in broker.connection_string
        assert broker.stop() == 0
        assert (
            "development mode: everybody knows this key, and it has all rights, also from other machines"
            in (broker.log.read_text())
        )
