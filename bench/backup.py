"""`python -m bench.backup`: a back-up beside clients that send, and a restore.

Sends are compared with those of a quiet moment of the same run; the back-up with its compressor alone over
the same bytes; the restore with a copy of the folder and a start on it. Other programs on the machine make
all of it slower, so the ratios count. The back-up's are of wall time, while the sends take their share of the
machine, and of CPU time, which they do not change. The large case: `--messages 1000000`.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import subprocess
import tempfile
import time
import zlib
from pathlib import Path
from urllib.request import urlopen

from bench.loadgen import Endpoint, Load, drive, offered
from peeklock.auth import DEVELOPMENT_KEY
from peeklock.demo.broker import BrokerProcess, program
from peeklock.store.backup.format import LEVEL, read_blocks

KEY_NAME = "RootManageSharedAccessKey"
BUCKET = re.compile(r'peeklock_commit_seconds_bucket\{[^}]*le="([^"]+)"\} (\d+)')
QUEUES = ("backlog", "live")

SENDS_ASKED, BACKUP_ASKED, RESTORE_ASKED = 2.0, 2.0, 3.0
"""Largest ratios that are asked for: p99 of sends to quiet ones, of a back-up to its compressor, of a restore
to a copy and a start."""


def main() -> None:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.backup", description="Measure back-up and restore."
    )
    parser.add_argument("--messages", type=int, default=100_000, help="of 1 KiB that wait (100000)")
    parser.add_argument("--rate", type=int, default=5_000, help="sends a second meanwhile (5000)")
    parser.add_argument("--quiet", type=float, default=15.0, help="seconds of the quiet moment (15)")
    parser.add_argument("--data", type=Path, help="a folder on the disk to measure")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.data) as folder:
        _measure(Path(folder), given.messages, given.rate, given.quiet)


def _measure(folder: Path, messages: int, rate: int, quiet_s: float) -> None:
    queues = [{"Name": name} for name in QUEUES]
    config = folder / "Config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "bench", "Queues": queues}]}}))
    file = folder / "file.backup"
    with BrokerProcess(folder, [f"--config={config}"]) as broker:
        assert broker.pid is not None
        endpoint = Endpoint(broker.amqp_port, KEY_NAME, DEVELOPMENT_KEY, broker.pid)
        drive(endpoint, QUEUES[0], "send", messages, timeout_s=1200)
        _say(f"{messages:,} messages wait")
        before = _slow_commits(broker)
        with offered(endpoint, QUEUES[1], rate, 600) as quiet:
            time.sleep(quiet_s)
        between = _slow_commits(broker)
        with offered(endpoint, QUEUES[1], rate, 600) as beside:
            backup_s, backup_cpu_s = _run("backup", "--data", broker.data, "--to", file)
        after = _slow_commits(broker)
        _say(f"sends at {rate:,}/s, quiet:            {_latencies(quiet.load)}; {_share(before, between)}")
        _say(f"sends at {rate:,}/s beside a back-up: {_latencies(beside.load)}; {_share(between, after)}")
        p99 = beside.load.latency_us["p99"] / quiet.load.latency_us["p99"]
        _say(f"the p99 of sends beside it is {_ratio(p99, SENDS_ASKED)} as high")
        wal = broker.data / "peeklock.db-wal"
        _say(f"the WAL has {wal.stat().st_size / 1e6:.0f} MB")
        assert broker.stop() == 0
    compress_s, size_bytes = _compress(file)
    _say(
        f"back-up {backup_s:.1f} s for {size_bytes / 1e6:,.0f} MB into {file.stat().st_size / 1e6:,.0f} MB, "
        f"the compressor alone {compress_s:.1f} s: {_ratio(backup_s / compress_s, BACKUP_ASKED)} as long"
    )
    _say(f"of CPU time, {backup_cpu_s:.1f} s: {_ratio(backup_cpu_s / compress_s, BACKUP_ASKED)} as much")
    _restores(folder, broker, file)


def _restores(folder: Path, broker: BrokerProcess, file: Path) -> None:
    copied = folder / "copy"
    copied.mkdir()
    started = time.monotonic()
    shutil.copytree(broker.data, copied / "data")
    subprocess.run(["sync", "-f", copied], check=True)
    copy_s = time.monotonic() - started
    other = BrokerProcess(copied)
    start_s = other.start()
    other.stop()
    shutil.rmtree(copied)
    target = folder / "restored"
    target.mkdir()
    restore_s, _ = _run("restore", file, "--data", target / "data")
    again = BrokerProcess(target)
    restart_s = again.start()
    again.stop()
    _say(
        f"restore {restore_s:.1f} s, and a start {restart_s:.1f} s; a copy of the folder {copy_s:.1f} s and "
        f"a start {start_s:.1f} s: the restore takes {_ratio(restore_s / (copy_s + start_s), RESTORE_ASKED)} "
        "as long"
    )


def _run(*arguments: object) -> tuple[float, float]:
    """Return how long a command takes, and how much CPU time, in seconds."""
    before = _children_cpu_s()
    started = time.monotonic()
    subprocess.run([program(), *map(str, arguments)], check=True)
    return time.monotonic() - started, _children_cpu_s() - before


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _ratio(found: float, asked: float) -> str:
    return f"{found:.2f} times (asked: <= {asked:g})"


def _compress(file: Path) -> tuple[float, int]:
    """Return how long the compressor takes for what is in a back-up, and how much that is."""
    took_s, size_bytes = 0.0, 0
    with file.open("rb") as opened:
        for block in read_blocks(opened):
            data = block.unpacked()
            size_bytes += len(data)
            started = time.monotonic()
            zlib.compress(data, LEVEL)
            took_s += time.monotonic() - started
    return took_s, size_bytes


def _slow_commits(broker: BrokerProcess) -> dict[str, int]:
    """Return the number of commits by the upper bound of their time."""
    with urlopen(f"http://127.0.0.1:{broker.http_port}/metrics") as answer:
        return {bound: int(count) for bound, count in BUCKET.findall(answer.read().decode())}


def _share(before: dict[str, int], after: dict[str, int]) -> str:
    bounds = {bound: after[bound] - before.get(bound, 0) for bound in after}
    total = bounds["+Inf"]
    slow = total - max((count for bound, count in bounds.items() if float(bound) <= 0.01), default=0)
    p99 = min((float(bound) for bound, count in bounds.items() if count >= 0.99 * total), default=0.0)
    return f"99 % of {total:,} commits took up to {1000 * p99:g} ms, {slow:,} over 10 ms"


def _latencies(load: Load) -> str:
    return ", ".join(f"{name} {us / 1000:.1f} ms" for name, us in load.latency_us.items())


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
