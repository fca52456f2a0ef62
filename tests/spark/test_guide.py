"""The Spark tutorial: its Python blocks in this environment, all its lines in a new one made from a wheel.

The page about Delta and Iceberg too: its lines in a new environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from peeklock import __version__
from peeklock.demo.broker import READY, BrokerProcess

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
NAME = "docs/tutorials/spark.md"
PAGE = (ROOT / NAME).read_text(encoding="utf-8")

TABLES = (ROOT / "docs/how-to/tables.md").read_text(encoding="utf-8")

INSTALL = "    pip install 'peeklock[spark,demo]'\n"
SERVE = "    peeklock serve --data ./data --capture ./events\n"

NOTEBOOK = """
import sys, traceback
names = {}
for block in iter(sys.stdin.readline, ""):
    try:
        exec(compile(eval(block), "block", "exec"), names)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        sys.exit(1)
    print("block done", flush=True)
"""
"""Runs the Python literals in its input one after another, each a block of code."""


def python_blocks() -> list[str]:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == PAGE.count("```python") > 0
    return blocks


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    options = [f"--capture={tmp_path / 'events'}", "--capture-interval=1"]
    with BrokerProcess(tmp_path, options) as broker:
        yield broker


@pytest.mark.long
def test_the_tutorial_does_what_it_says(
    spark: object, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: X-01, X-05"""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in python_blocks():
        here = block.replace("5672", str(broker.amqp_port))
        # Java resolves paths by the folder that the tests were started in.
        here = re.sub(r'"(lake/|events\b)', rf'"{tmp_path}/\1', here)
        exec(compile(here, NAME, "exec"), names)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder)
    subprocess.run(build, cwd=ROOT, check=True)
    return folder / f"peeklock-{__version__}-py3-none-any.whl"


def install(wheel: Path, command: str, folder: Path) -> Path:
    """Return the folder of the programs in a new environment, installed from a wheel as a page says."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    line = command.strip().replace("peeklock[", f"{wheel}[")
    subprocess.run(line, shell=True, env=environment(folder / "bin"), check=True)
    return folder / "bin"


def environment(programs: Path) -> dict[str, str]:
    outside = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))
    }
    return {**outside, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def served(programs: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Start the broker as the page does, on free ports; yield its connection string and port."""
    command: list[str | Path] = [programs / "peeklock", *SERVE.split()[1:], "--amqp-port=0", "--http-port=0"]
    with subprocess.Popen(
        command, cwd=folder, env=environment(programs), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            ready = READY.match(process.stdout.readline().strip())
            assert ready is not None
            yield ready[1], ready[2]
        finally:
            process.terminate()


@contextmanager
def notebook(programs: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [programs / "python", "-c", NOTEBOOK],
        cwd=folder,
        env=environment(programs),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run_block(block: str, stdin: IO[str], stdout: IO[str]) -> None:
    """Run a block in a notebook. Raises: AssertionError, with what it printed."""
    stdin.write(f"{block!r}\n")
    stdin.flush()
    printed = ""
    for line in stdout:
        if line == "block done\n":
            return
        printed += line
    raise AssertionError(f"{block}\n{printed}")


@pytest.mark.soak
@pytest.mark.timeout(1500)  # it installs Spark, and starts it for each command of the page
def test_each_line_does_what_it_says_from_a_wheel(wheel: Path, tmp_path: Path) -> None:
    assert INSTALL in PAGE
    assert SERVE in PAGE
    programs = install(wheel, INSTALL, tmp_path / "venv")
    page = PAGE.replace(INSTALL, "").replace(SERVE, "")
    page = page.replace("    pip install 'peeklock[spark]'\n", "")  # is a part of the first installation
    page = page.replace("spark://head:7077", "'local[2]'").replace(
        "s3a://bucket/metrics", f"{tmp_path}/of-cluster"
    )
    page = page.replace("s3a://bucket", str(tmp_path))
    with served(programs, tmp_path) as (connection_string, port), notebook(programs, tmp_path) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        page = page.replace("Endpoint=sb://localhost:5672;...", connection_string).replace("5672", port)
        for python, commands in re.findall(r"^```python\n(.*?)^```|((?:^    [^\n]*\n)+)", page, re.M | re.S):
            if python:
                run_block(python, shell.stdin, shell.stdout)
            else:
                done = subprocess.run(
                    ["sh", "-eu"],
                    input=commands,
                    cwd=tmp_path,
                    env=environment(programs),
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
    assert (tmp_path / "metrics.png").exists()
    assert (tmp_path / "of-cluster.png").exists()


LOOK = {
    ("Delta", False): "spark.read.format('delta').load('lake/orders').count()",
    (
        "Delta",
        True,
    ): "spark.read.format('delta').load('lake/totals').agg({'messages': 'sum'}).head()[0]",
    ("Iceberg", False): "spark.table('lake.shop.orders').count()",
    ("Iceberg", True): "spark.table('lake.shop.totals').agg({'messages': 'sum'}).head()[0]",
}
"""How many messages are in the tables of a format, streamed and merged."""
REFRESH = 'spark.catalog.refreshTable("lake.shop.totals")'
"""What the page says to call before the merged Iceberg table is read."""


@pytest.fixture(scope="module")
def tables_programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of an environment for both formats, whose lines are equal."""
    [line] = set(re.findall(r"^    (pip install .*)\n", TABLES, re.M))
    return install(wheel, line, tmp_path_factory.mktemp("tables") / "venv")


@pytest.mark.soak
@pytest.mark.timeout(900)  # it installs Spark, and starts it
@pytest.mark.skipif(shutil.which("mvn") is None, reason="the jars come by Maven")
@pytest.mark.parametrize(("format_name", "merged"), LOOK)
def test_a_table_has_each_message_as_its_page_says(
    tables_programs: Path, format_name: str, merged: bool, tmp_path: Path
) -> None:
    section = re.split(r"^## ", TABLES.partition(f"\n## {format_name}\n")[2], maxsplit=1, flags=re.M)[0]
    stream, _, merge = section.partition("\n### ")
    [jars] = re.findall(r"((?:^    mvn .*\n)+)", stream, re.M)
    subprocess.run(["sh", "-eu"], input=jars, text=True, cwd=tmp_path, check=True)
    blocks = re.findall(r"^```python\n(.*?)^```", stream, re.M | re.S)
    if merged:
        blocks[-1] = blocks[-1].partition("query = ")[0]
        blocks += re.findall(r"^```python\n(.*?)^```", merge, re.M | re.S)
    after = ["query.processAllAvailable()\nquery.stop()"]
    if format_name == "Iceberg" and merged:
        assert REFRESH in merge
        after.append(REFRESH)
    after.append(f"found = {LOOK[format_name, merged]}\nassert found == 7, found")
    with BrokerProcess(tmp_path) as broker, notebook(tables_programs, tmp_path) as shell:
        send_orders(broker, 7)
        assert shell.stdin is not None
        assert shell.stdout is not None
        run_block(f"CONNECTION = {broker.connection_string!r}", shell.stdin, shell.stdout)
        for block in (*blocks, *after):
            run_block(block.replace("/data/lake", f"{tmp_path}/lake"), shell.stdin, shell.stdout)


def send_orders(broker: BrokerProcess, count: int) -> None:
    administration = ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string, connection_verify=str(broker.authority())
    )
    administration.create_queue("orders")
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages([ServiceBusMessage(f"customer-{number % 3}") for number in range(count)])
