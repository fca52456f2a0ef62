"""Where the value of a setting comes from, and what is said of a wrong one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from peeklock.cli.setting import Setting
from peeklock.cli.settings_table import SETTINGS
from peeklock.cli.sources import SettingOption, problems_of, read_settings_file, setting_options


@click.command()
@setting_options
def told(**given: Any) -> None:
    for name, value in given.items():
        click.echo(f"{name}={value}")


def run(*arguments: str, environ: Mapping[str, str] | None = None) -> Result:
    return CliRunner().invoke(told, arguments, env=environ)


def settings_file(folder: Path, text: str) -> str:
    file = folder / "settings.toml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def refusal(result: Result) -> str:
    assert result.exit_code == 2
    return re.sub(r"\s+", " ", result.output.partition("Error: ")[2])


# Sources


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = settings_file(tmp_path, 'amqp-port = 3\nhttp-port = 3\nhost = "c"\ntls-name = ["c"]')
    environ = {"PEEKLOCK_AMQP_PORT": "2", "PEEKLOCK_HTTP_PORT": "2", "PEEKLOCK_TLS_NAME": "b, d e"}
    told = run("--settings", file, "--amqp-port=1", environ=environ).output.splitlines()
    assert "amqp_port=1" in told
    assert "http_port=2" in told
    assert "tls_names=('b', 'd', 'e')" in told
    assert "host=c" in told
    assert "tier=standard" in told


def test_the_environment_names_the_settings_file(tmp_path: Path) -> None:
    file = settings_file(tmp_path, 'durability = "os"')
    assert "durability=os" in run(environ={"PEEKLOCK_SETTINGS": file}).output


def test_every_setting_is_an_option_a_variable_and_a_key() -> None:
    options = {option.setting.name: option for option in told.params if isinstance(option, SettingOption)}
    assert list(options) == [setting.name for setting in SETTINGS]
    for setting in SETTINGS:
        assert options[setting.name].envvar == setting.variable
        assert options[setting.name].help


@pytest.mark.parametrize(("value", "on"), [("true", True), ("1", True), ("no", False), ("", False)])
def test_a_flag_in_the_environment(value: str, on: bool) -> None:
    assert f"usual_ports={on}" in run(environ={"PEEKLOCK_USUAL_PORTS": value}).output


def test_paths_in_a_settings_file_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "jwt.toml").write_text("")
    file = settings_file(tmp_path, 'jwt = "jwt.toml"\ndata = "/absolute"')
    told = run("--settings", file).output.splitlines()
    assert f"jwt={tmp_path / 'jwt.toml'}" in told
    assert "data=/absolute" in told


def test_numbers_flags_and_texts_of_a_settings_file(tmp_path: Path) -> None:
    file = settings_file(
        tmp_path, "lock-grace = 0.5\nmin-free = 1024\nenforce-quotas = true\ncapture-interval = 2"
    )
    told = run("--settings", file).output.splitlines()
    assert {"lock_grace_ms=500", "min_free_bytes=1024", "enforce_quotas=True", "capture_interval_s=2.0"} <= {
        *told
    }


# Names of variables


@pytest.mark.parametrize(
    "name",
    [
        "PEEKLOCK_SERVICE_HOST",
        "PEEKLOCK_SERVICE_PORT_AMQP",
        "PEEKLOCK_PORT",
        "PEEKLOCK_PORT_5672_TCP_ADDR",
        "PEEKLOCK_PYTHON",
        "OTHER",
    ],
)
def test_variables_that_are_not_ours_are_ignored(name: str) -> None:
    assert problems_of({name: "tcp://10.0.0.1:5672"}) == []


def test_no_setting_has_a_name_of_kubernetes() -> None:
    for setting in SETTINGS:
        assert not re.match(r"PEEKLOCK_(SERVICE_|PORT$|PORT_)", setting.variable)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (
            {"PEEKLOCK_AMQ_PORT": "1"},
            "PEEKLOCK_AMQ_PORT is not a setting, did you mean PEEKLOCK_AMQP_PORT? "
            "`peeklock serve --help` lists all.",
        ),
        ({"PEEKLOCK_X": "1"}, "PEEKLOCK_X is not a setting. `peeklock serve --help` lists all."),
        (
            {"PEEKLOCK_DATA": "a", "peeklock_data": "b"},
            "peeklock_data is not read: write PEEKLOCK_DATA, and only once.",
        ),
    ],
)
def test_an_unknown_or_doubled_variable_is_named(environ: Mapping[str, str], said: str) -> None:
    assert refusal(run(environ=environ)).strip() == said


# Wrong values


def test_a_wrong_value_names_its_source(tmp_path: Path) -> None:
    assert "Invalid value for PEEKLOCK_AMQP_PORT: 'x'" in refusal(run(environ={"PEEKLOCK_AMQP_PORT": "x"}))
    file = settings_file(tmp_path, '\n\nlock-grace = "soon"')
    assert f"Invalid value for lock-grace in {file}, line 3: 'soon' is neither" in refusal(
        run("--settings", file)
    )
    assert "Invalid value for '--amqp-port': 'y'" in refusal(run("--amqp-port=y"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("amqp-port 5", "is not TOML: Expected '=' after a key in a key/value pair (at line 1, column 11)."),
        ("host = 'a'\namq-port = 5", "line 2: 'amq-port' is not a setting, did you mean amqp-port?"),
        ("[network]\nhost = 'a'", "line 1: 'network' is not a setting."),
        (
            "usual-ports = 'yes'",
            'line 1: usual-ports is "yes", and must be true or false, without quotation marks.',
        ),
        ("auth = 'sas'", 'line 1: auth is "sas", and must be a list, as ["sas"].'),
        ("amqp-port = true", "line 1: amqp-port is true, and must be a text or a number."),
        ("host = ['a']", "line 1: host is ['a'], and must be a text or a number."),
    ],
)
def test_a_broken_settings_file_is_told_by_its_line_and_key(tmp_path: Path, text: str, said: str) -> None:
    file = settings_file(tmp_path, text)
    assert said in refusal(run("--settings", file))
    assert file in run("--settings", file).output.replace("\n", "")


def test_all_that_is_wrong_in_a_settings_file_is_told_at_once(tmp_path: Path) -> None:
    file = settings_file(tmp_path, "a = 1\nb = 2")
    with pytest.raises(click.UsageError, match=r"line 1: 'a' .*\n.*line 2: 'b' "):
        read_settings_file(Path(file))


def test_a_settings_file_that_is_no_text_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xff")
    with pytest.raises(click.UsageError, match=r"x.toml is not a settings file: it is not UTF-8 text"):
        read_settings_file(tmp_path / "x.toml")


def test_a_variable_of_a_table_is_its_name_in_capitals() -> None:
    setting = Setting(name="a-b", field="a_b", topic="", scope="process", help="")
    assert setting.variable == "PEEKLOCK_A_B"
