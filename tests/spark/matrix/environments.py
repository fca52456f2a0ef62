"""An environment of each Spark, and the jars of table formats.

Owns: which versions are tested with which jars, where they are installed. Must not know: what runs there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".environments"

DELTA = "Delta"
ICEBERG = "Iceberg"
PARQUET = "Parquet"


@dataclass(frozen=True, slots=True)
class Table:
    """A table format with the jars that it needs, as `group:artifact:version`."""

    format: str
    jars: tuple[str, ...] = ()


def _delta(artifact: str, version: str) -> Table:
    return Table(DELTA, (f"io.delta:{artifact}:{version}", f"io.delta:delta-storage:{version}"))


def _iceberg(spark: str, version: str) -> Table:
    return Table(ICEBERG, (f"org.apache.iceberg:iceberg-spark-runtime-{spark}_2.13:{version}",))


TABLES = {
    "4.0.5": (Table(PARQUET), _delta("delta-spark_4.0_2.13", "4.3.1"), _iceberg("4.0", "1.11.0")),
    "4.1.4": (Table(PARQUET), _delta("delta-spark_4.1_2.13", "4.3.1"), _iceberg("4.1", "1.12.0")),
    "4.2.1": (Table(PARQUET), _delta("delta-spark_2.13", "4.3.1"), _iceberg("4.1", "1.12.0")),
    "4.3.0": (Table(PARQUET), _delta("delta-spark_2.13", "4.3.1"), _iceberg("4.1", "1.12.0")),
}
"""Newest release of each Spark, and the newest jars for it; for Spark 4.2 and 4.3 the newest of all, which
are made for 4.1."""

OLDEST = min(TABLES)


class NotInstalled(Exception):
    """pip or Maven failed; the text has its last lines."""


def python_of(spark: str) -> Path:
    """Return the Python of an environment with a Spark; make the environment when it is not there.

    It has the packages of the environment that runs the tests, but another Spark. Raises: NotInstalled.
    """
    folder = FOLDER / f"spark-{spark}"
    stamp = folder / ".installed"
    python = folder / "bin/python"
    if not stamp.exists():
        _run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder))
        packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
        _unpack(spark, packages)
        ours = sysconfig.get_path("purelib")
        (packages / "tests.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
        stamp.touch()
    return python


def _unpack(spark: str, packages: Path) -> None:
    """Put a Spark where Python finds it, as its setup.py does; pip takes two minutes more."""
    with tempfile.TemporaryDirectory(dir=packages) as made:
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
        _run(*pip, "--no-deps", "--no-build-isolation", "--dest", made, f"pyspark=={spark}")
        archive = Path(made) / f"pyspark-{spark}.tar.gz"
        with tarfile.open(archive) as found:
            found.extractall(made)
        unpacked = archive.with_name(f"pyspark-{spark}")
        for part in ("jars", "bin"):
            (unpacked / "deps" / part).rename(unpacked / "pyspark" / part)
        (unpacked / "lib").rename(unpacked / "pyspark" / "python" / "lib")
        (unpacked / "pyspark").rename(packages / "pyspark")


def jars_of(table: Table) -> list[Path]:
    """Return the jars of a table format, copied by Maven where they are not there yet.

    Raises: NotInstalled.
    """
    folder = FOLDER / "jars"
    found = []
    for jar in table.jars:
        _, artifact, version = jar.split(":")
        file = folder / f"{artifact}-{version}.jar"
        if not file.exists():
            maven = shutil.which("mvn")
            if maven is None:
                raise NotInstalled(f"{jar} is fetched by Maven, which is not installed")
            _run(maven, "-q", "-B", "dependency:copy", f"-Dartifact={jar}", f"-DoutputDirectory={folder}")
        found.append(file)
    return found


def _run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise NotInstalled(f"{' '.join(command)} ended with status {done.returncode}:\n{last}")
