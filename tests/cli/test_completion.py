"""Completion in bash, zsh and fish: the scripts of docs/how-to/complete-in-the-shell.md, in the shells."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from peeklock.cli import main
from peeklock.cli.tasks import Commands

PAGE = (Path(__file__).parents[2] / "docs/how-to/complete-in-the-shell.md").read_text(encoding="utf-8")

ASK = {
    "bash": """
        source "$SCRIPT"
        COMP_WORDS=($WORDS); [[ $WORDS == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _peeklock_completion peeklock
        printf '%s\\n' "${COMPREPLY[@]}"
    """,
    # The functions of zsh's completion work inside its line editor alone: here they print.
    "zsh": """
        compdef() { }
        _describe() { print -l -- ${${(P)3}%%:*} }
        compadd() { print -l -- ${(P)@[-1]} }
        source "$SCRIPT"
        words=(${=WORDS}); [[ $WORDS == *" " ]] && words+=("")
        CURRENT=$#words
        _peeklock_completion
    """,
    "fish": """
        source "$SCRIPT"
        complete --do-complete "$WORDS" | string replace --regex '\\t.*' ''
    """,
}
"""What completes `$WORDS` with the script `$SCRIPT`, as the shell would, and prints a proposal a line."""

NO_RC = {"bash": ("--norc",), "zsh": ("-f",), "fish": ("--no-config",)}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    program = tmp_path / "bin" / "peeklock"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m peeklock "$@"\n')
    program.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path),
    }


def source(shell: str, environment: dict[str, str]) -> str:
    return subprocess.run(
        ["peeklock"],
        env={**environment, "_PEEKLOCK_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout


def proposed(shell: str, words: str, environment: dict[str, str], folder: Path) -> set[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")  # CI installs it; a work tree runs without
    script = folder / "script"
    script.write_text(source(shell, environment))
    done = subprocess.run(
        [shell, *NO_RC[shell], "-c", ASK[shell]],
        env={**environment, "SCRIPT": str(script), "WORDS": words},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def logins(environment: dict[str, str], *names: str) -> None:
    file = Path(environment["XDG_CONFIG_HOME"], "peeklock", "connections.toml")
    file.parent.mkdir()
    file.touch(0o600)
    file.write_text("".join(f'[{name}]\nconnection-string = "Endpoint=sb://{name}"\n' for name in names))


@pytest.mark.parametrize("shell", ASK)
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("peeklock subs", {"subscriptions"}),
        ("peeklock queues ", {"list", "show", "create", "update", "delete"}),
        ("peeklock send orders --sub", {"--subject"}),
        ("peeklock peek orders --state ", {"active", "deferred", "scheduled"}),
        ("peeklock peek orders --connection sh", {"shop", "shed"}),
    ],
)
def test_the_shell_proposes(
    shell: str, words: str, wanted: set[str], environment: dict[str, str], tmp_path: Path
) -> None:
    logins(environment, "shop", "shed", "bank")
    assert proposed(shell, words, environment, tmp_path) == wanted


@pytest.mark.parametrize(
    "words",
    ["peeklock logins remove ", "peeklock queues list --connection ", "peeklock move a b --to-connection "],
)
def test_names_of_logins_are_proposed(words: str, environment: dict[str, str], tmp_path: Path) -> None:
    logins(environment, "shop", "bank")
    assert proposed("bash", words, environment, tmp_path) == {"shop", "bank"}
    Path(environment["XDG_CONFIG_HOME"], "peeklock", "connections.toml").chmod(0o644)
    assert proposed("bash", words, environment, tmp_path) == set()


def test_each_command_is_proposed(environment: dict[str, str], tmp_path: Path) -> None:
    assert isinstance(main, Commands)
    assert proposed("bash", "peeklock ", environment, tmp_path) == set(main.commands)


@pytest.mark.parametrize("shell", ASK)
def test_the_line_of_the_page_makes_the_script(shell: str, environment: dict[str, str]) -> None:
    lines = re.findall(r"^(_PEEKLOCK_COMPLETE=(\w+)_source peeklock) > (\S+)$", PAGE, re.MULTILINE)
    [command] = [each for each, name, _ in lines if name == shell]
    done = subprocess.run(
        ["/bin/sh", "-c", command], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == source(shell, environment)
    assert "_peeklock_completion" in done.stdout
