"""A broker that a program starts: the file that says it is ready, and its end with that program.

The programs in `examples/start_in_tests` start it as users' tests do.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peeklock.demo.broker import program
from tests.server.waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples/start_in_tests"
ARGUMENTS = ["serve", "--amqp-port=0", "--http-port=0", "--durability=memory"]

NODE = """
import { startBroker } from "./broker.mjs";
const broker = await startBroker();
console.log(broker.connectionString);
setInterval(() => {}, 1000);
"""
JAVA = """
public class Main {
    public static void main(String[] arguments) throws Exception {
        Broker broker = new Broker("--durability", "memory");
        System.out.println(broker.connectionString);
        Thread.sleep(60_000);
    }
}
"""
GO = """
package broker

import (
	"fmt"
	"testing"
	"time"
)

func TestIt(t *testing.T) {
	broker, err := Start("--durability", "memory")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(broker.ConnectionString)
	time.Sleep(time.Minute)
}
"""
NODE_WAITS = """
import { startBroker } from "./broker.mjs";
import { ask, waitFor } from "./messages.mjs";
const broker = await startBroker();
const config = { UserConfig: { Namespaces: [{ Name: "x", Queues: [{ Name: "orders" }] }] } };
const body = JSON.stringify(config);
const url = `http://localhost:${broker.httpPort}/$api/v1/namespaces`;
const { connectionString } = await (await fetch(url, { method: "POST", body })).json();
const send = (text) => ask(connectionString, "entities/orders/messages", { method: "POST", body: text });
const waited = waitFor(connectionString, "orders", 2);
await send('[{"body": "a"}, {"body": "b"}]');
const taken = { method: "POST", body: '{"mode": "receiveAndDelete"}' };
await waited;
await ask(connectionString, "entities/orders/locks", taken);
const found = await waitFor(connectionString, "orders", 2);
console.log(found.map((message) => message.body).join());
await waitFor(connectionString, "orders", 3, 0).catch((error) => console.log(error.message));
broker.stop();
"""
PROGRAMS = {
    "node": ("main.mjs", NODE, [], ["node", "main.mjs"]),
    "java": ("Main.java", JAVA, ["javac", "Main.java", "Broker.java"], ["java", "Main"]),
    "go": ("it_test.go", GO, ["go", "test", "-c", "-o", "it"], ["./it", "-test.v"]),
}


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_the_file_is_there_while_the_broker_is_ready(tmp_path: Path) -> None:
    file = tmp_path / "ready.json"
    file.write_text("of a broker that was killed")
    with subprocess.Popen(
        [program(), *ARGUMENTS, f"--ready-file={file}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert until(file.exists)
        found = json.loads(file.read_text())
        assert found["connectionString"] in line
        assert found["pid"] == process.pid
        assert listens(found["amqpPort"])
        assert listens(found["httpPort"])
        process.terminate()
        assert process.wait(20) == 0
    assert not file.exists()


def test_a_folder_that_is_missing_stops_the_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [program(), *ARGUMENTS, f"--ready-file={tmp_path}/none/ready.json"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert f"--ready-file {tmp_path}/none/ready.json: " in done.stderr


def test_a_broker_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "ready.json"
    command = [program(), *ARGUMENTS, f"--ready-file={file}", "--exit-with-parent"]
    parent = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", parent, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        assert until(lambda: file.exists() and file.stat().st_size > 0)
        port = json.loads(file.read_text())["amqpPort"]
        time.sleep(0.6)  # longer than between two looks: it stays while the parent lives
        assert listens(port)
        process.kill()
    assert until(lambda: not listens(port))
    assert until(lambda: not file.exists()), "it stops in order"


@pytest.mark.long
@pytest.mark.parametrize(
    "language",
    [
        # The reason: a machine without the language's own tool cannot build its program; CI has all of them.
        pytest.param(name, marks=pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is missing"))
        for name, tool in (("node", "node"), ("java", "javac"), ("go", "go"))
    ],
)
def test_the_examples_start_a_broker_that_ends_with_them(language: str, tmp_path: Path) -> None:
    folder = tmp_path / language
    shutil.copytree(EXAMPLES / language, folder)
    name, source, build, command = PROGRAMS[language]
    (folder / name).write_text(source)
    environment = {**os.environ, "PATH": f"{Path(program()).parent}:{os.environ['PATH']}"}
    if build:
        subprocess.run(build, cwd=folder, env=environment, check=True, timeout=120, capture_output=True)
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("Endpoint="))
        port = int(re.findall(r":(\d+);", line)[0])
        assert listens(port)
        process.send_signal(signal.SIGKILL)
    assert until(lambda: not listens(port))


@pytest.mark.long
# The reason: a machine without Node.js cannot run its program; CI has it.
@pytest.mark.skipif(shutil.which("node") is None, reason="node is missing")
def test_the_example_counts_and_waits(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    shutil.copytree(EXAMPLES / "node", folder)
    (folder / "main.mjs").write_text(NODE_WAITS)
    environment = {**os.environ, "PATH": f"{Path(program()).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["node", "main.mjs"],
        cwd=folder,
        env=environment,
        check=True,
        timeout=120,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout == "a,b\n2 of 3 messages came to orders\n"
