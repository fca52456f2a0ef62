"""Apache Kafka for comparison, from Maven Central: one node in KRaft mode, and what Spark needs to read it.

Owns: the download, once, and a broker's configuration, start and end. Must not know: what is measured.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path

from bench.loadgen import BUILD
from bench.systems import StartFailed, end, free_ports, log_tail, takes_connections

VERSION = "4.1.1"
SCALA = "2.13"
"""Of Spark's jars too."""

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"

START_S_MAX = 60
FETCH_S_MAX = 300

SETTINGS = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
log.dirs={folder}/data
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
broker.session.timeout.ms=60000
"""
"""The last one: on a busy machine the node would miss its own heartbeats and take itself out of service."""


def kafka_missing(spark_version: str) -> str | None:
    """Return why Kafka, or the source of this Spark, cannot take part here; None if it can."""
    for program, package in (("java", "default-jre-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            return f"no {program} (Debian: apt-get install {package})"
    try:
        broker_jars()
        source_jars(spark_version)
    except StartFailed as error:
        return str(error)
    return None


def broker_jars(cache: Path = BUILD) -> Path:
    """Return the folder of the broker's jars; fetch them the first time. Raises: StartFailed."""
    return _jars(cache, f"org.apache.kafka:kafka_{SCALA}:{VERSION}", "")


def source_jars(spark_version: str, cache: Path = BUILD) -> Path:
    """Return the folder of the jars that Spark needs to read from Kafka. Raises: StartFailed."""
    # Spark itself has the others.
    wanted = "kafka-clients,commons-pool2"
    return _jars(
        cache,
        f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}:{spark_version}",
        f"{wanted},spark-sql-kafka-0-10_{SCALA},spark-token-provider-kafka-0-10_{SCALA}",
    )


def _jars(cache: Path, artifact: str, wanted: str) -> Path:
    """Return the folder of an artifact and of what it depends on: all of it, or the artifacts `wanted`."""
    group, name, version = artifact.split(":")
    folder = cache / f"{name}-{version}"
    if folder.exists():
        return folder
    scratch = cache / f"jars-{os.getpid()}"
    scratch.mkdir(parents=True)
    try:
        (scratch / "pom.xml").write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>bench</artifactId>"
            f"<version>1</version><dependencies><dependency><groupId>{group}</groupId>"
            f"<artifactId>{name}</artifactId><version>{version}</version></dependency></dependencies></project>"
        )
        command = [
            "mvn",
            "--batch-mode",
            "--quiet",
            "--strict-checksums",
            "-f",
            str(scratch / "pom.xml"),
            COPY,
        ]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={scratch / 'jars'}"]
        if wanted:
            command.append(f"-DincludeArtifactIds={wanted}")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S_MAX, check=False)
        except subprocess.TimeoutExpired as error:
            raise StartFailed(f"{artifact} was not fetched within {FETCH_S_MAX} s") from error
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip().splitlines()
            raise StartFailed(f"{artifact} cannot be fetched: {said[0] if said else 'mvn said nothing'}")
        (scratch / "jars").rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


@dataclass(slots=True)
class Kafka:
    """A node that is broker and controller, with Kafka's own defaults."""

    folder: Path
    partitions: int
    """Of a topic that the first message creates."""
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    def __enter__(self) -> Kafka:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Format the folder, start the node and wait for it. Raises: StartFailed."""
        self.folder.mkdir(parents=True)
        self.port, controller_port = free_ports(2)
        settings = self.folder / "server.properties"
        settings.write_text(
            SETTINGS.format(
                port=self.port,
                controller_port=controller_port,
                folder=self.folder,
                partitions=self.partitions,
            )
        )
        java = ["java", "-Xmx1g", "-cp", f"{broker_jars()}/*"]
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # An id that begins with a dash would be an option.
        storage = ["kafka.tools.StorageTool", "format", "--standalone", f"--cluster-id=K{cluster[1:]}"]
        done = subprocess.run(
            [*java, *storage, "--config", str(settings)],
            capture_output=True,
            text=True,
            timeout=START_S_MAX,
            check=False,
        )
        if done.returncode != 0:
            raise StartFailed(f"Kafka's storage was not formatted: {(done.stderr or done.stdout)[-600:]}")
        console = self.folder / "console.txt"
        with console.open("ab") as log:
            self.process = subprocess.Popen(
                [*java, "kafka.Kafka", str(settings)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        if not takes_connections(self.process, self.port, START_S_MAX):
            self.stop()
            raise StartFailed(f"Kafka did not start: {log_tail(console)}")

    def stop(self) -> None:
        """End the node."""
        if self.process is not None:
            end(self.process, 30)
        self.process = None
