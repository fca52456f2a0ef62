"""`peeklock queues`, `topics`, `subscriptions` and `rules`, against a broker; the docs page runs as it is."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from peeklock.amqp.message_writing import encode_message
from peeklock.cli import main
from peeklock.cli.entity_options import option_of, shown, size_text
from peeklock.client.connection import BlockingConnection
from peeklock.client.connection_string import ConnectionString
from peeklock.client.entities import SETTINGS
from peeklock.demo.broker import BrokerProcess, program

PAGE = Path(__file__).parents[2] / "docs/how-to/entities-from-the-command-line.md"
CONFIG = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "shop",
                "Queues": [{"Name": "orders"}],
                "Topics": [{"Name": "events", "Subscriptions": [{"Name": "all"}]}],
            }
        ]
    }
}


def started(folder: Path, *arguments: str) -> BrokerProcess:
    (folder / "Config.json").write_text(json.dumps(CONFIG))
    return BrokerProcess(folder, ("--durability=os", f"--config={folder / 'Config.json'}", *arguments))


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker in development mode that each test leaves as it was."""
    with started(tmp_path_factory.mktemp("entities")) as running:
        yield running


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that asks for keys."""
    with started(tmp_path_factory.mktemp("secured"), "--auth=sas") as running:
        yield running


def run(process: BrokerProcess, command: str, *more: str, text: str | None = None) -> Result:
    where = ("--data", str(process.data)) if text is None else ("--connection-string", text)
    return CliRunner().invoke(main, [*shlex.split(command), *more, *where])


def done(process: BrokerProcess, command: str, *more: str) -> str:
    result = run(process, command, *more)
    assert result.exit_code == 0, result.output
    return result.output


def send(process: BrokerProcess, path: str, count: int) -> None:
    made = BlockingConnection(ConnectionString.parse(process.connection_string))
    sender = made.sender(path)
    for _ in range(count):
        sender.send(encode_message(data=b"x"))
    sender.flush()
    made.close()


def test_a_queue_is_made_shown_changed_and_deleted(process: BrokerProcess) -> None:
    """Req: A-01, T-11."""
    done(process, "queues create jobs --lock-duration 30s --max-size 2g --session --auto-delete-on-idle 7d")
    shown_text = done(process, "queues show jobs")
    for line in ("lock-duration +30s", "max-size +2 GiB", "session +yes", "auto-delete-on-idle +7d"):
        assert re.search(rf"^{line}$", shown_text, re.MULTILINE)
    dry = done(process, "queues update jobs --lock-duration PT1M --max-delivery-count 10 --dry-run")
    assert dry == "lock-duration: 30s -> 1m\n"
    assert json.loads(done(process, "queues show jobs --json"))["lockDuration"] == "PT30S"
    refused = run(process, "queues update jobs --lock-duration 1h")
    assert (refused.exit_code, refused.stdout) == (1, "")
    done(process, "queues update jobs --lock-duration 1m")
    assert json.loads(done(process, "queues show jobs --json"))["lockDuration"] == "PT1M"
    assert done(process, "queues update jobs --lock-duration 1m") == "nothing to change\n"
    assert done(process, "queues delete jobs --dry-run") == "would delete queue 'jobs'\n"
    assert done(process, "queues delete jobs") == "deleted queue 'jobs'\n"


def test_a_namespace_is_deleted_only_without_dry_run(process: BrokerProcess) -> None:
    done(process, "namespaces create bank")
    text = "would delete the namespace bank with all its messages (0 connections)\n"
    assert done(process, "namespaces delete bank --dry-run") == text
    assert "bank" in done(process, "namespaces list")
    assert done(process, "namespaces delete bank --yes") == "deleted bank\n"


def test_messages_are_counted_and_not_deleted_unasked(process: BrokerProcess) -> None:
    """Req: A-01, T-11."""
    done(process, "queues create full")
    send(process, "full", 3)
    [row] = [
        json.loads(line) for line in done(process, "queues list --json").splitlines() if '"full"' in line
    ]
    assert row["countDetails"]["activeMessageCount"] == 3
    assert row["sizeInBytes"] > 0
    assert row["oldestMessageAgeSeconds"] >= 0
    refused = run(process, "queues delete full")
    assert (refused.exit_code, "with 3 messages is not deleted without --yes" in refused.output) == (1, True)
    assert "with 3 messages" in done(process, "queues delete full --dry-run")
    done(process, "queues delete full --yes")


def test_a_topic_counts_the_messages_of_its_subscriptions(process: BrokerProcess) -> None:
    done(process, "topics create t")
    done(process, "subscriptions create t s")
    send(process, "t", 2)
    assert run(process, "topics delete t").exit_code == 1
    done(process, "topics delete t --yes")


def test_rules_of_all_kinds(process: BrokerProcess) -> None:
    """Req: A-01, T-11."""
    done(process, "subscriptions create events ruled")
    done(process, "rules create events ruled sql --filter 'a > 1' --action 'SET b = 2'")
    done(
        process,
        "rules create events ruled same --correlation label=paid --correlation n:=5 --correlation prop:To=x",
    )
    done(process, "rules create events ruled no --none")
    rows = {
        row["name"]: row
        for row in map(json.loads, done(process, "rules list events ruled --json").splitlines())
    }
    assert rows["$Default"]["filter"] == {"type": "true"}
    assert rows["sql"]["filter"] == {"type": "sql", "sqlExpression": "a > 1"}
    assert rows["sql"]["action"] == "SET b = 2"
    assert rows["same"]["filter"] == {
        "type": "correlation",
        "label": "paid",
        "properties": {"n": "5", "To": "x"},
    }
    assert rows["no"]["filter"] == {"type": "false"}
    done(process, "rules update events ruled sql --action ''")
    assert re.search(r"filter +a > 1\naction +none\n", done(process, "rules show events ruled sql"))
    done(process, "rules delete events ruled '$Default'")
    missing = run(process, "rules show events ruled smae")
    assert (missing.exit_code, "has no rule 'smae'; did you mean 'same'?" in missing.output) == (1, True)
    done(process, "subscriptions delete events ruled")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("queues show order", "there is no queue 'order'; did you mean 'orders'?"),
        ("queues show events", "there is no queue 'events'"),
        ("subscriptions show event all", "there is no topic 'event'; did you mean 'events'?"),
        ("subscriptions show events al", "no subscription 'al' of topic 'events'; did you mean 'all'?"),
        ("queues create big --max-message-size 5m", "cannot be set in tier Standard"),
        ("queues create orders", "already exists"),
        ("queues create slow --lock-duration 10m", "allowed: PT5S to PT5M"),
        ("rules create events all bad --filter 'a >'", "refused"),
    ],
)
def test_a_refusal_says_why_in_one_line(process: BrokerProcess, command: str, why: str) -> None:
    """Req: A-02, T-11."""
    result = run(process, command)
    assert (result.exit_code, why in result.output) == (1, True), result.output


@pytest.mark.parametrize(
    "command",
    [
        "queues create x --lock-duration 5",
        "queues create x --max-size 1k",
        "queues create x --status Off",
        "queues update orders",
        "queues update orders --session",
        "queues list --json --watch",
        "rules create events all x --filter a --all",
        "rules create events all x --correlation a",
        "rules create events all x --correlation a:=b",
        "rules update events all x",
    ],
)
def test_wrong_use_exits_with_2(process: BrokerProcess, command: str) -> None:
    assert run(process, command).exit_code == 2


def test_keys_rights_and_hosts_are_named_and_never_shown(secured: BrokerProcess) -> None:
    """Req: R-04, T-11."""
    keys = CliRunner().invoke(main, ["keys", "add", str(secured.data), "web", "--rights", "Send"]).output
    key = re.findall("SharedAccessKey=(.*)", keys)[0]
    endpoint = f"Endpoint=sb://localhost:{secured.amqp_port};"
    assert run(secured, "queues list").exit_code == 0
    weak = run(
        secured,
        "queues list",
        text=f"{endpoint}SharedAccessKeyName=web;SharedAccessKey={key};UseDevelopmentEmulator=true",
    )
    wrong = run(
        secured,
        "queues list",
        text=f"{endpoint}SharedAccessKeyName=web;SharedAccessKey=sekret;UseDevelopmentEmulator=true",
    )
    away = run(
        secured,
        "queues list",
        text="Endpoint=sb://localhost:1;SharedAccessKeyName=web;SharedAccessKey=sekret",
    )
    untrusted = run(secured, "queues list", text=f"{endpoint}SharedAccessKeyName=web;SharedAccessKey=sekret")
    for result, why in (
        (weak, "has Manage"),
        (wrong, "has Manage"),
        (away, "no broker answers"),
        (untrusted, "--ca FILE"),
    ):
        assert result.exit_code == 1
        assert why in result.output
        assert result.output.count("\n") == 1
        assert "sekret" not in result.output
        assert key not in result.output


def test_over_tls_with_a_key(secured: BrokerProcess) -> None:
    """Req: R-04, T-11."""
    keys = CliRunner().invoke(main, ["keys", "list", str(secured.data)]).output
    named = re.findall("SharedAccessKeyName=.*", keys)[0]
    text = f"Endpoint=sb://localhost:{secured.amqp_port};{named}"
    result = run(secured, "queues list", "--ca", str(secured.authority()), text=text)
    assert (result.exit_code, "orders" in result.output) == (0, True), result.output


def test_watch_redraws_until_it_is_interrupted(process: BrokerProcess) -> None:
    import signal

    command = [program(), "queues", "list", "--watch", "--data", str(process.data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        with pytest.raises(subprocess.TimeoutExpired):
            watching.wait(3)
        watching.send_signal(signal.SIGINT)
        shown_text = watching.stdout.read()
    assert watching.returncode == 130
    assert "orders" in shown_text


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    """Req: T-11."""
    text = PAGE.read_text(encoding="utf-8")
    (tmp_path / "Config.json").write_text(
        '{"UserConfig": {"Namespaces": [{"Name": "shop", "Queues": [{"Name": "orders"}]}]}}'
    )
    arguments = ("--durability=os", f"--config={tmp_path / 'Config.json'}")
    environment = {**os.environ, "PATH": f"{Path(program()).parent}:{os.environ['PATH']}"}
    with BrokerProcess(tmp_path, arguments):
        [(command, output)] = re.findall(r"^```console\n\$ (.*)\n((?:.*\n)*?)```", text, re.MULTILINE)
        shown_text = subprocess.check_output(command, shell=True, cwd=tmp_path, text=True, env=environment)
        assert shown_text == output
        for block in re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            lines = block.replace("| jq -r", "| cat #")
            subprocess.run(["bash", "-ec", lines], cwd=tmp_path, check=True, env=environment)


@pytest.mark.parametrize(
    ("shell", "mark"), [("bash", "complete -o"), ("zsh", "#compdef peeklock"), ("fish", "complete ")]
)
def test_a_shell_gets_its_completion(shell: str, mark: str) -> None:
    environment = {**os.environ, "_PEEKLOCK_COMPLETE": f"{shell}_source"}
    assert f"_PEEKLOCK_COMPLETE={shell}_source peeklock" in PAGE.read_text(encoding="utf-8")
    found = subprocess.run([program()], env=environment, capture_output=True, text=True, check=False)
    assert mark in found.stdout, found.stderr


HEAVY = {
    "asyncio",
    "cryptography",
    "h11",
    "lark",
    "pyarrow",
    "pyspark",
    "rich",
    "ssl",
    "uvloop",
    "websockets",
}


@pytest.mark.parametrize("arguments", [["--help"], ["queues", "--help"], ["queues", "create", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom peeklock.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        f"sys.exit(repr(sorted({HEAVY!r} & sys.modules.keys())))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stderr.strip() == "[]"


def test_names_of_options_follow_one_rule() -> None:
    assert option_of("RequiresDuplicateDetection") == "--duplicate-detection"
    assert option_of("MaxMessageSizeInKilobytes") == "--max-message-size"
    assert len({option_of(element) for element in SETTINGS}) == len(SETTINGS)
    assert (size_text(1536), size_text(5 << 30), shown("ForwardTo", "")) == ("1.5 KiB", "5 GiB", "none")
