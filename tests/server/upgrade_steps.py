"""`python -m tests.server.upgrade_steps SOURCE PLACE EVERY`: the first start on a folder of an earlier
release, killed before each EVERYth step that changes files, and then started again.

Owns: what a step is, and the processes. Must not know: what has to hold. Each process is a fork, so that it
need not import all modules again. Prints a line of JSON for each kill, and one for a start without a kill.

Source: docs.python.org/3/library/audit_events.html
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import shutil
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from peeklock.auth import SasRule
from peeklock.server.app import Broker
from peeklock.server.keys.rules import rule_json
from peeklock.server.settings import AuthMode, Settings
from peeklock.server.system import authority
from peeklock.server.system.keys import NamespaceKeys
from peeklock.server.system.store import SystemStore, folder_of
from peeklock.store.sqlite.store import SqliteStore
from tests.store.damage import format_of

NAMESPACE = "bank"
CHANGES = frozenset(
    f"os.{name}" for name in ("chmod", "link", "mkdir", "remove", "rename", "rmdir", "truncate")
)
FILES = ("keys.json", "tls/ca.pem", "tls/ca-key.pem")
"""What an earlier release needs of a folder besides its store."""


def kill_at(step: int) -> None:
    """Kill this process before the given step, from 0."""
    steps = itertools.count()

    def take(*_: object) -> None:
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and arguments[2] & os.O_ACCMODE):
            take()

    def connect(*given: Any, **named: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = sqlite3.connect(*given, **named)
        db.set_trace_callback(take)  # each statement is a step
        return db

    defaults = SqliteStore.__init__.__kwdefaults__
    assert defaults is not None
    defaults["connect"] = connect
    sys.addaudithook(watch)


def settings_of(data: Path) -> Settings:
    """Return those of a broker with keys, on ports of the system's choice."""
    config = data.with_name("Config.json")
    auth: frozenset[AuthMode] = frozenset({"sas"})
    return Settings(data, config, "127.0.0.1", 0, 0, "fsync", None, None, "standard", None, auth=auth)


async def start(data: Path) -> None:
    """Start a broker, and stop it."""
    broker = Broker(settings_of(data))
    await broker.start()
    broker.ask_to_stop()
    await broker.stopped()


async def facts(data: Path) -> dict[str, Any]:
    """Return all that must be the same after a start."""
    system = await SystemStore.open(SqliteStore(folder_of(data)))
    rules: list[SasRule] = NamespaceKeys(system, NAMESPACE).rules()
    pair = authority.read(system)
    await system.close()
    store = SqliteStore(data)
    await store.open()
    live = await store.load_live()
    messages = [(queue, change.message) for queue, changes in live.messages for change in changes]
    rows = await store.read_body_rows(sorted({message.body_row for _, message in messages}))
    await store.close()
    return {
        "keys": [rule_json(rule) for rule in rules],
        "authority": [None if pem is None else pem.decode() for pem in (pair.certificate, pair.key)],
        "messages": sorted(
            [queue, message.position, hashlib.sha256(rows[message.body_row][message.body_slot]).hexdigest()]
            for queue, message in messages
        ),
    }


def forked(step: int | None, data: Path) -> bool:
    """Start a broker in a process of its own, killed at a step; return whether it was killed."""
    process = os.fork()
    if process == 0:
        try:
            if step is not None:
                kill_at(step)
            asyncio.run(start(data))
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert status == 0, f"a start failed with status {status}"
    return False


def main(source: Path, place: Path, every: int) -> None:
    """Print what each kill left, and what the next start made of it."""
    for step in itertools.count(0, every):
        data = place / "data"
        shutil.copytree(source, data)
        shutil.copy(source.with_name("Config.json"), place)
        killed = forked(step, data)
        kept = {name: (data / name).read_text() for name in FILES if (data / name).exists()}
        left = {"step": step, "format": format_of(data / "peeklock.db"), "files": kept}
        if killed:
            forked(None, data)
        print(json.dumps({**left, "killed": killed, "facts": asyncio.run(facts(data))}), flush=True)
        shutil.rmtree(data)
        if not killed:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
