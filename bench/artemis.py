"""Apache Artemis for comparison: its release from Maven Central, an instance created by its own tool.

Owns: the download, once, and a broker's configuration, start and end. Must not know: scenarios.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from bench.loadgen import BUILD, Endpoint
from bench.systems import StartFailed, descendant, end, free_ports, log_tail, takes_connections

VERSION = "2.56.0"
SHA512 = (
    "441ad38aa1b0526e5709edf43542039f016669d24134056613e4cbafdf6b101e"
    "5351f79f7ee190b43fc8031f6ec596a5fd075490dcee4d3eb3a88d8ed2cfc01b"
)
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"

START_S_MAX = 60
FETCH_S_MAX = 300


def artemis_missing() -> str | None:
    """Return why Artemis cannot take part here; None if it can. Fetch it the first time."""
    for program, package in (("java", "default-jre-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            return f"no {program} (Debian: apt-get install {package})"
    try:
        home()
    except StartFailed as error:
        return str(error)
    return None


def home(cache: Path = BUILD) -> Path:
    """Return the folder of the unpacked release; fetch it where the cache has none.

    Raises:
        StartFailed: it cannot be fetched, or is not what it was.
    """
    unpacked = cache / f"apache-artemis-{VERSION}"
    if unpacked.exists():
        return unpacked
    cache.mkdir(parents=True, exist_ok=True)
    scratch = cache / f"artemis-{os.getpid()}"
    try:
        archive = _fetch(scratch)
        if hashlib.sha512(archive.read_bytes()).hexdigest() != SHA512:
            raise StartFailed(f"{archive.name} has another checksum than the release of Artemis {VERSION}")
        subprocess.run(["tar", "-xzf", str(archive), "-C", str(scratch)], check=True)
        (scratch / unpacked.name).rename(unpacked)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return unpacked


def _fetch(folder: Path) -> Path:
    artifact = f"org.apache.artemis:apache-artemis:{VERSION}:tar.gz:bin"
    command = ["mvn", "--batch-mode", "--quiet", "--strict-checksums", COPY]
    command += [f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S_MAX, check=False)
    except subprocess.TimeoutExpired as error:
        raise StartFailed(f"Artemis {VERSION} was not fetched within {FETCH_S_MAX} s") from error
    archive = folder / f"apache-artemis-{VERSION}-bin.tar.gz"
    if done.returncode != 0 or not archive.exists():
        said = (done.stdout + done.stderr).strip().splitlines()
        raise StartFailed(f"Artemis {VERSION} cannot be fetched: {said[0] if said else 'mvn said nothing'}")
    return archive


@dataclass(slots=True)
class Artemis:
    """A broker as `artemis create` configures it: durable queues, the journal synced before each answer."""

    folder: Path
    queues: tuple[str, ...]
    name: str = "Artemis"
    warm_s: float = 45
    """The virtual machine compiles hot code, in steps, for tens of seconds."""
    answers: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    def start(self) -> float:
        if self.process is not None:
            return 0.0
        if not self.folder.exists():
            self._create()
        started = time.monotonic()
        with (self.folder / "console.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.folder / "bin" / "artemis"), "run"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if takes_connections(self.process, self.port, START_S_MAX):
            return time.monotonic() - started
        self.stop()
        raise StartFailed(f"Artemis did not start: {log_tail(self.folder / 'console.txt')}")

    def stop(self) -> None:
        if self.process is not None:
            end(self.process, 30)
        self.process = None

    def endpoint(self) -> Endpoint:
        assert self.process is not None
        return Endpoint(self.port, "guest", "guest", descendant(self.process.pid, "java"))

    def address(self, queue: str) -> str:
        return queue

    def _create(self) -> None:
        """Create the instance. Its journal is asynchronous where libaio is installed, as its makers
        advise."""
        (self.port,) = free_ports(1)
        command = [str(home() / "bin" / "artemis"), "create", str(self.folder), "--silent", "--require-login"]
        command += ["--user", "guest", "--password", "guest", "--host", "127.0.0.1"]
        command += ["--default-port", str(self.port), "--queues", ",".join(self.queues)]
        command += [f"--no-{part}" for part in ("web", *(f"{p}-acceptor" for p in OTHER_ACCEPTORS))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S_MAX, check=False)
        if done.returncode != 0:
            raise StartFailed(f"artemis create failed: {(done.stderr or done.stdout).strip()[-600:]}")


OTHER_ACCEPTORS = ("amqp", "hornetq", "mqtt", "stomp")
"""Ports of one protocol each; the remaining one takes all protocols."""
