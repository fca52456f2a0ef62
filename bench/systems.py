"""The measured brokers, each a process on its own folder.

Owns their command lines, start, readiness and end. Knows nothing of scenarios. Everything is ephemeral: ports
chosen by the system, folders under the run's temporary one, processes ended by pid.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.loadgen import Endpoint
from peeklock.store.sqlite.folder import DATABASE_NAME
from peeklock.store.sqlite.read_only import open_read_only

PROGRAM = Path(sys.executable).with_name("peeklock")
"""The broker's command of the installation that runs this benchmark."""

# The keys of the emulator, which a broker without a configured key accepts.
KEY_NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
RABBITMQ_SERVER = Path(
    "/usr/lib/rabbitmq/bin/rabbitmq-server"
)  # the one in /usr/sbin changes user and folder

Settings = Mapping[str, Mapping[str, object]]
"""Settings of queues as in Config.json, by name of the queue."""

Topics = Mapping[str, Sequence[Mapping[str, object]]]
"""The rules of topics as in Config.json, by name of the topic; each rule gets a subscription of its name."""


class StartFailed(Exception):
    """The broker did not start; the text ends with the end of its log."""


class System(Protocol):
    """One broker, or one queue type of a broker, under its name in the tables."""

    name: str
    warm_s: float
    """Seconds of load until a broker has its full speed."""
    answers: tuple[str, ...]
    """Options of the load generator under which the broker answers each unsettled disposition."""

    def start(self) -> float:
        """Start the broker if it is not running; return the seconds from spawn to ready."""

    def stop(self) -> None:
        """End the broker if it is running."""

    def endpoint(self) -> Endpoint:
        """The address of the running broker."""

    def address(self, queue: str) -> str:
        """Return the AMQP address of a queue that was declared at the start."""


@dataclass(slots=True)
class Peeklock:
    """`peeklock serve` on one data folder."""

    folder: Path
    queues: tuple[str, ...]
    settings: Settings = field(default_factory=dict)
    topics: Topics = field(default_factory=dict)
    options: tuple[str, ...] = ()  # further ones of `peeklock serve`
    name: str = "peeklock"
    warm_s: float = 2
    answers: tuple[str, ...] = ("-2",)
    program: Path = PROGRAM
    process: subprocess.Popen[str] | None = None
    port: int = 0

    def start(self) -> float:
        if self.process is not None:
            return 0.0
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "Config.json"
        # A lock outlives any scenario, so that no lapse is measured by accident.
        locking: dict[str, object] = {"LockDuration": "PT5M"}
        queues = [
            {"Name": name, "Properties": {**locking, **self.settings.get(name, {})}} for name in self.queues
        ]
        topics = [
            {
                "Name": name,
                "Properties": {},
                "Subscriptions": [
                    {"Name": rule["Name"], "Properties": locking, "Rules": [rule]} for rule in rules
                ],
            }
            for name, rules in self.topics.items()
        ]
        namespace = {"Name": "sbemulatorns", "Queues": queues, "Topics": topics}
        config.write_text(
            json.dumps({"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "Console"}}})
        )
        command = [self.program, "serve", "--data", self.folder / "data", "--config", config]
        started = time.monotonic()
        log = (self.folder / "log.txt").open("a")
        with log:
            self.process = subprocess.Popen(
                [*map(str, command), "--amqp-port", "0", "--http-port", "0", *self.options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        seconds = time.monotonic() - started
        found = re.search(r"Endpoint=sb://[^;/]*?:(\d+)", line)
        if found is None:
            self.kill()
            raise StartFailed(f"no connection string in {line!r}; {log_tail(self.folder / 'log.txt')}")
        self.port = int(found[1])
        return seconds

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut would, for the measurement of a restart."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None

    def endpoint(self) -> Endpoint:
        assert self.process is not None
        return Endpoint(self.port, KEY_NAME, KEY, self.process.pid)

    def address(self, queue: str) -> str:
        return queue

    def disk_bytes(self) -> int:
        """Bytes of the data folder on disk (blocks, not lengths)."""
        files = (self.folder / "data").rglob("*")
        return sum(file.stat().st_blocks * 512 for file in files if file.is_file())

    def body_bytes(self) -> int:
        """Bytes of bodies in the database."""
        with open_read_only(self.folder / "data" / DATABASE_NAME) as db:
            size_bytes: int = db.execute("SELECT coalesce(sum(length(data)), 0) FROM body").fetchone()[0]
        return size_bytes


@dataclass(slots=True)
class RabbitNode:
    """A RabbitMQ node with the AMQP 1.0 plugin; its queues come from a definitions file."""

    folder: Path
    queues: tuple[str, ...]
    process: subprocess.Popen[bytes] | None = None
    epmd: subprocess.Popen[bytes] | None = None
    port: int = 0
    start_s: float = field(default=0.0)

    def start(self) -> float:
        """Start node and name server, and wait until it accepts a connection; return the seconds from spawn
        to that."""
        if self.process is not None:
            return 0.0
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port, distribution, names = free_ports(3)
        (self.folder / "definitions.json").write_text(json.dumps(self._definitions()))
        (self.folder / "enabled_plugins").write_text("[rabbitmq_amqp1_0].\n")
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            f"load_definitions = {self.folder / 'definitions.json'}\n"
            "disk_free_limit.absolute = 50MB\n"
        )
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),  # the cookie of the node
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{os.getpid()}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
        }
        self.epmd = subprocess.Popen(["epmd", "-port", str(names)], env=environment)
        started = time.monotonic()
        with (self.folder / "console.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [str(RABBITMQ_SERVER)], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        if takes_connections(self.process, self.port, 90):  # its listeners open last, after the definitions
            return time.monotonic() - started
        self.stop()
        raise StartFailed(f"RabbitMQ did not start: {log_tail(self.folder / 'console.txt')}")

    def stop(self) -> None:
        """End the node, then its name server."""
        for process, patience_s in ((self.process, 30), (self.epmd, 5)):
            if process is not None:
                end(process, patience_s)
        self.process = self.epmd = None

    def _definitions(self) -> dict[str, object]:
        salt = b"loop"
        digest = base64.b64encode(salt + hashlib.sha256(salt + b"guest").digest()).decode()
        hashing = "rabbit_password_hashing_sha256"
        user = {
            "name": "guest",
            "password_hash": digest,
            "hashing_algorithm": hashing,
            "tags": "administrator",
        }
        permission = {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
        queues = [
            {
                "name": f"{kind}-{name}",
                "vhost": "/",
                "durable": True,
                "auto_delete": False,
                "arguments": {"x-queue-type": kind},
            }
            for kind in ("classic", "quorum")
            for name in self.queues
        ]
        return {"users": [user], "vhosts": [{"name": "/"}], "permissions": [permission], "queues": queues}


@dataclass(slots=True)
class RabbitQueue:
    """One queue type of a shared RabbitMQ node; only one of them is under load at any time."""

    node: RabbitNode
    kind: str
    name: str = ""
    warm_s: float = 10
    answers: tuple[str, ...] = ("-1",)

    def __post_init__(self) -> None:
        self.name = f"RabbitMQ {self.kind}"

    def start(self) -> float:
        return self.node.start()

    def stop(self) -> None:
        self.node.stop()

    def endpoint(self) -> Endpoint:
        assert self.node.process is not None
        return Endpoint(self.node.port, "guest", "guest", descendant(self.node.process.pid, "beam"))

    def address(self, queue: str) -> str:
        return f"/amq/queue/{self.kind}-{queue}"


def rabbitmq_missing() -> str | None:
    """Return why RabbitMQ cannot take part here; None if it can."""
    if not RABBITMQ_SERVER.exists() or shutil.which("epmd") is None:
        return "RabbitMQ is not installed (Debian: apt-get install rabbitmq-server)"
    if not list(Path("/usr/lib/rabbitmq/lib").glob("*/plugins/rabbitmq_amqp1_0-*")):
        return "the installed RabbitMQ has no rabbitmq_amqp1_0 plugin"
    return None


def descendant(pid: int, program: str) -> int:
    """Find a program among a process and its descendants: scripts in front may or may not `exec`."""
    pending = [pid]
    while pending:
        pid = pending.pop()
        if Path(f"/proc/{pid}/comm").read_text().startswith(program):
            return pid
        pending.extend(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    raise StartFailed(f"no process of {program}")


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago, for servers that cannot choose their own."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def rss_bytes(pid: int, *, peak: bool = False) -> int:
    """Return the resident memory of a process: now, or its peak."""
    name = "VmHWM" if peak else "VmRSS"
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def threads(pid: int) -> int:
    """Return how many threads a process has."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def log_tail(log: Path) -> str:
    """Return the end of a broker's log."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return text[-600:].strip() or "its log is empty"


def takes_connections(process: subprocess.Popen[bytes], port: int, seconds: float) -> bool:
    """Wait until a port of a process accepts connections; False: it ended, or so long has passed."""
    started = time.monotonic()
    while time.monotonic() - started < seconds and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        time.sleep(0.1)
    return False


def end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """End a process, by force if it still runs after `patience_s`."""
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
