"""The image's root file system, made by the steps of the Dockerfile without an engine, and a broker in it.

The base image is this machine's `/usr`, mounted read-only. All else is done as the Dockerfile says. A broker
runs as the Dockerfile's user and as process 1, with a read-only root, in namespaces of its own for processes,
mounts and the network, so that it has the real ports. Needs root, `unshare` and `chroot`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from dockerfile_parse import DockerfileParser  # type: ignore[import-untyped]  # it has no types

REPOSITORY = Path(__file__).parents[2]
CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP = 1
"""Source: sched.h, linux/sockios.h, linux/if.h."""

BASE = ("bin", "sbin", "lib", "lib64", "usr", "etc", "dev")
"""Of this machine: the base image."""


class Dockerfile:
    """The parsed Dockerfile: its steps, and what the last stage says of the process."""

    def __init__(self, file: Path = REPOSITORY / "Dockerfile") -> None:
        with tempfile.TemporaryDirectory() as folder:  # the parser writes beside what it reads
            shutil.copy(file, folder)
            parser = DockerfileParser(folder)
            self.steps = [
                (step["instruction"], step["value"])
                for step in parser.structure
                if step["instruction"] != "COMMENT"
            ]
            self.environment: dict[str, str] = dict(parser.envs)
            self.labels: dict[str, str] = dict(parser.labels)

    def last(self, instruction: str) -> str:
        """Return the value of the last such instruction."""
        found: str = [value for name, value in self.steps if name == instruction][-1]
        return found

    @property
    def user(self) -> str:
        return self.last("USER")

    @property
    def command(self) -> list[str]:
        entry: list[str] = json.loads(self.last("ENTRYPOINT"))
        return entry + list(json.loads(self.last("CMD")))

    @property
    def health_check(self) -> list[str]:
        found: list[str] = json.loads(self.last("HEALTHCHECK").partition("CMD ")[2])
        return found

    def full_environment(self) -> dict[str, str]:
        """Return the environment with the variable of the base image filled in."""
        base = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
        return base | {name: value.replace("$PATH", base["PATH"]) for name, value in self.environment.items()}


def build(root: Path) -> None:
    """Carry out the steps of the Dockerfile in a folder."""
    dockerfile = Dockerfile()
    ours = ("proc", "tmp", "opt", "src", "data", "root", "ServiceBus_Emulator/ConfigFiles", "base")
    for name in (*BASE, *ours):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "base/python").symlink_to("/usr/bin/python3")
    (root / "ServiceBus_Emulator/ConfigFiles/Config.json").touch()
    work = Path("/")
    for instruction, value in dockerfile.steps:
        if instruction == "WORKDIR":
            work = Path(value)
        elif instruction == "COPY" and not value.startswith("--from"):
            *sources, target = value.split()
            for source in sources:
                _copy(REPOSITORY / source, root / str(work / target).lstrip("/"), source)
        elif instruction == "RUN":
            _in_root(root, f"cd {work} && {value}")
    shutil.rmtree(root / "src")  # of the first stage
    (root / "src").mkdir()


def _copy(source: Path, target: Path, name: str) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target / name)


def _mounts(root: Path) -> list[str]:
    return [f"mount --rbind -o ro /{name} {root}/{name}" for name in BASE if Path("/", name).exists()]


def _in_root(root: Path, command: str) -> None:
    """Run a line of shell as root, with the settings of pip that this machine has."""
    given = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP"))}
    environment = _as_arguments({**given, "PATH": "/base:/usr/bin:/bin:/usr/sbin"})
    script = " && ".join((*_mounts(root), f'exec chroot {root} /usr/bin/env -i "$@"'))
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *environment, "/bin/sh", "-c", command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command}\n{done.stdout}{done.stderr}")


def _as_arguments(environment: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environment.items()]


class Container:
    """One run of the image; use it within `own_network`."""

    def __init__(
        self,
        root: Path,
        data: Path,
        environment: Mapping[str, str] | None = None,
        *,
        config: Path | None = None,
        read_only_data: bool = False,
    ) -> None:
        """Start it; `config` is mounted where the emulator's container has its Config.json."""
        dockerfile = Dockerfile()
        mounts = [
            f"mount --bind {root} {root}",
            *_mounts(root),
            f"mount --bind {data} {root}/data",
            f"mount -t proc proc {root}/proc",
        ]
        if config is None:
            mounts.append(f"mount -t tmpfs -o ro none {root}/ServiceBus_Emulator")
        else:
            mounts.append(f"mount --bind {config} {root}/ServiceBus_Emulator/ConfigFiles/Config.json")
        if read_only_data:
            mounts.append(f"mount -o remount,ro,bind {root}/data")
        mounts.append(f"mount -o remount,ro,bind {root}")
        user, group = dockerfile.user.split(":")
        run = f'exec chroot --userspec={user}:{group} --groups="" {root} /usr/bin/env -i "$@"'
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c"]
        self.process = subprocess.Popen(
            [
                *command,
                " && ".join((*mounts, run)),
                "sh",
                *_as_arguments(dockerfile.full_environment() | dict(environment or {})),
                *dockerfile.command,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def lines_until(self, text: str) -> str:
        """Return standard output up to a line with this text, or all of it."""
        assert self.process.stdout is not None
        found = ""
        for line in self.process.stdout:
            found += line
            if text in line:
                break
        return found

    @property
    def first(self) -> int:
        """The process that is number 1 inside."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0])

    def stop(self) -> tuple[int, float]:
        """Stop it as an engine does; return its exit status and how long that took, s."""
        began_s = time.monotonic()
        os.kill(self.first, signal.SIGTERM)
        status = self.process.wait(30)
        return status, time.monotonic() - began_s

    def failed(self) -> tuple[int, str]:
        """Return exit status and standard error of one that must not start."""
        _, told = self.process.communicate(timeout=30)
        return self.process.returncode, told

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:  # the death of `unshare` alone would leave the broker
            with contextlib.suppress(OSError, IndexError):
                os.kill(self.first, signal.SIGKILL)
            self.process.kill()
        self.process.communicate(timeout=10)


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """Put this thread, and all that it starts, into a network of its own with a loopback interface."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    if libc.unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))
        Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")  # as Docker does
        yield
    finally:
        libc.setns(before, CLONE_NEWNET)
        os.close(before)
