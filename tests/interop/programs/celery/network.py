"""A small private internet for an unchanged application: a broker on the usual ports, its name, trust in it.

Owns: the broker's process, the worker's process, and what this process and its children see as /etc/hosts and
as certifi's authorities. Must not know: what is tried.

kombu's transport takes a namespace's name, appends `.servicebus.windows.net` unless it ends with `.net`,
and goes to its ports 5671 and 443 over TLS; no setting changes that. So the program runs in a network of
its own (run.sh), where these ports are free for a broker, and with a view of its own of the file system,
where two files have other contents. A user would give the broker's machine such a name, and append the
broker's authority to the file that `python -m certifi` tells. The broker that the tests run for the program
is not used: it listens elsewhere, by another name.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import certifi

HERE = Path(__file__).parent
HOST = "shop.servicebus.windows.net"
OTHER_HOST = "other.servicebus.windows.net"
"""A name that leads to the broker as well, but is not in its certificate."""

ROOT_RULE = "RootManageSharedAccessKey"
CONCURRENCY = 4


class Surroundings:
    """The broker and a worker. Use it as a context manager; both end with it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="celery-")
        folder = Path(self._folder.name)
        self._data = folder / "data"
        self._command = [os.environ["PYTHON"], "-c", "from peeklock.cli import main; main()"]
        self._broker: subprocess.Popen[str] | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        os.environ["SHOP_RUNS"] = str(folder / "runs")

        _run("ip", "link", "set", "lo", "up")
        hosts = folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost {HOST} {OTHER_HOST}\n", encoding="ascii")
        _run("mount", "--bind", str(hosts), "/etc/hosts")
        self.start_broker()
        bundle = folder / "authorities.pem"
        authority = _run(*self._command, "ca", "--print", str(self._data))
        bundle.write_text(certifi.contents() + authority, encoding="ascii")
        _run("mount", "--bind", str(bundle), certifi.where())
        # Where the machine has this set to another file, the administration client would look there.
        os.environ["REQUESTS_CA_BUNDLE"] = certifi.where()
        listed = _run(*self._command, "keys", "list", str(self._data))
        [key] = re.findall(rf"primary +SharedAccessKeyName={ROOT_RULE};SharedAccessKey=(.*)", listed)
        self.url = f"azureservicebus://{ROOT_RULE}:{key}@{HOST}"
        os.environ["BROKER_URL"] = self.url

    def __enter__(self) -> Surroundings:
        self.start_worker()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill_worker()
        self.stop_broker()
        self._folder.cleanup()

    def start_broker(self) -> None:
        """Start the broker, and return when it takes connections."""
        options = ["--auth", "sas", "--tls-name", HOST, "--usual-ports"]
        # Variables for this program have the prefix of the broker's settings.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PEEKLOCK_")}
        self._broker = subprocess.Popen(
            [*self._command, "serve", "--data", str(self._data), *options],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self._broker.stdout is not None
        if not self._broker.stdout.readline():
            raise RuntimeError("the broker did not start")

    def stop_broker(self) -> None:
        """Stop the broker as an administrator would."""
        assert self._broker is not None
        self._broker.send_signal(signal.SIGTERM)
        self._broker.wait(10)

    def start_worker(self) -> None:
        """Start a worker; it takes tasks as soon as it can."""
        options = [
            "--pool",
            "threads",
            "--concurrency",
            str(CONCURRENCY),
            "--without-gossip",
            "--without-mingle",
        ]
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "--app", "shop", "worker", *options, "--loglevel", "info"],
            cwd=HERE,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )

    def kill_worker(self) -> None:
        """End the worker as a power cut would."""
        assert self._worker is not None
        self._worker.kill()
        self._worker.wait()


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
