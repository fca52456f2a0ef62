"""The folder of the soaked broker: its configuration, keys, clock, and commands of `peeklock` on it.

Owns: the process and its files. Must not know: clients, or when anything happens.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from peeklock.auth import generate
from peeklock.demo.broker import BrokerProcess, program
from tests.kill.bank_loop import QUEUES as BANK_QUEUES
from tests.kill.copies import SINK
from tests.kill.faked_clock import LIBRARY, FakedClock
from tests.kill.ledger import Broken
from tests.kill.loop import DELIVERIES_MAX
from tests.kill.loop import QUEUES as MESSAGE_QUEUES
from tests.simulation.world.accounts import KEY, KEY_NAME, USUAL, Account

NAMESPACE = "soak"
SECOND = "second"
TURNING = "turning"
"""The key that is rotated."""

WINDOW = "PT5M"
"""Of duplicates. Longer than any repetition and step of the clock; short, so that ids are forgotten."""

CLOCK_STEP_S_MAX = 60
ADDRESS = "127.0.0.1"
COMMAND_S_MAX = 300
RELOAD_S_MAX = 20.0

_ONCE: dict[str, Any] = {
    "RequiresDuplicateDetection": True,
    "DuplicateDetectionHistoryTimeWindow": WINDOW,
    "MaxDeliveryCount": DELIVERIES_MAX,
    "LockDuration": "PT30S",
}

MAIN_QUEUES: dict[str, dict[str, Any]] = {
    **MESSAGE_QUEUES,
    "work": {**MESSAGE_QUEUES["work"], "DuplicateDetectionHistoryTimeWindow": WINDOW},
    SINK: {"MaxDeliveryCount": DELIVERIES_MAX},
    "kept": {},
    "deferring": _ONCE,
    "scheduling": _ONCE,
    "expiring": {**_ONCE, "DefaultMessageTimeToLive": "PT2S", "DeadLetteringOnMessageExpiration": True},
    "chatting": {**_ONCE, "RequiresSession": True},
    "reading": _ONCE,
    "taking": _ONCE,
    "large": _ONCE,
    "turning": _ONCE,
    "official": _ONCE,
}
"""Each queue of a feature is used by that feature alone."""


class Site:
    """One broker with two namespaces, on one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.extra: list[str] = []
        """Queues that reloads have added."""
        self._config = folder / "Config.json"
        self._keys = folder / "keys.json"
        self.turning_key = ""
        self.turn_key()
        self.write_config()
        options = [
            f"--config={self._config}",
            "--auth=sas",
            f"--keys={self._keys}",
            f"--capture={self.log}",
            "--capture-interval=5",
        ]
        self.broker = BrokerProcess(folder, options)
        self.clock = FakedClock(folder) if LIBRARY is not None else None
        """None where faketime is not installed: no steps of the clock then."""

    def clocked(self) -> Any:
        """Return a context whose new processes have the clock that can be set."""
        return self.clock or nullcontext()

    # Files

    def write_config(self) -> None:
        """Write the queues of both namespaces."""
        named = {**MAIN_QUEUES, **{name: {} for name in self.extra}}
        both = {NAMESPACE: named, SECOND: BANK_QUEUES}
        described = [
            {
                "Name": name,
                "Queues": [{"Name": queue, "Properties": about} for queue, about in queues.items()],
            }
            for name, queues in both.items()
        ]
        _replace(self._config, json.dumps({"UserConfig": {"Namespaces": described}}))

    def turn_key(self) -> None:
        """Write another value of the key `TURNING`."""
        self.turning_key = os.urandom(24).hex()
        rights = ["Manage", "Send", "Listen"]
        rules = [
            {"name": KEY_NAME, "rights": rights, "primaryKey": KEY},
            {"name": TURNING, "rights": rights[1:], "primaryKey": self.turning_key},
        ]
        _replace(self._keys, json.dumps({"rules": rules}))

    # The process

    def connection_string(self, key_name: str = KEY_NAME, key: str = KEY, *, tls: bool = False) -> str:
        """Return that of the default namespace."""
        plain = "" if tls else "UseDevelopmentEmulator=true;"
        return (
            f"Endpoint=sb://localhost:{self.broker.amqp_port};SharedAccessKeyName={key_name};"
            f"SharedAccessKey={key};{plain}"
        )

    def second_account(self) -> Account:
        """Return the present key of the second namespace."""
        listed = self.run("keys", "list", str(self.broker.data), "--namespace", SECOND)
        found = re.search(r"primary\s+SharedAccessKeyName=(\S+?);SharedAccessKey=(\S+)", listed)
        assert found is not None, listed
        return Account(f"{SECOND}.localhost", found[1], found[2])

    def reload(self) -> str:
        """Send SIGHUP, and wait until the broker has followed; return its line."""
        before = self._reloads()
        assert self.broker.pid is not None
        os.kill(self.broker.pid, signal.SIGHUP)
        deadline = time.monotonic() + RELOAD_S_MAX
        while len(lines := self._reloads()) <= len(before):
            if time.monotonic() > deadline:
                raise Broken(f"no answer to SIGHUP within {RELOAD_S_MAX} s")
            time.sleep(0.05)
        if "refused" in lines[-1]:
            raise Broken(f"a good file was refused: {lines[-1]}")
        return lines[-1]

    def _reloads(self) -> list[str]:
        return [line for line in self.broker.log.read_text().splitlines() if '"event": "reloaded"' in line]

    def run(self, *arguments: str, expect: tuple[int, ...] = (0,)) -> str:
        """Run a command of `peeklock`; return what it prints, both streams. Raises: Broken."""
        done = subprocess.run(
            [program(), *arguments], capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False
        )
        said = done.stdout + done.stderr
        if done.returncode not in expect:
            raise Broken(f"peeklock {' '.join(arguments)}: exit status {done.returncode}: {said[-2000:]}")
        return said

    # HTTP

    def ask(
        self, method: str, path: str, body: Any = None, *, account: Account = USUAL, **headers: str
    ) -> tuple[int, bytes]:
        """Return status and body of an HTTP request. Raises: OSError, http.client.HTTPException."""
        connection = http.client.HTTPConnection(ADDRESS, self.broker.http_port, timeout=20)
        expires_ms = time.time_ns() // 1_000_000 + 3_600_000
        token = generate(f"http://{account.host}/", account.key_name, account.key, expires_ms)
        said = {"Host": account.host, "Authorization": token, **headers}
        if body is not None:
            said["Content-Type"] = "application/json"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), said)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def _replace(path: Path, text: str) -> None:
    """Write a file as a whole, readable by its owner alone."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o600)
    new.replace(path)
