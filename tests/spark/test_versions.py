"""The range of Sparks that the data source runs on."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from peeklock.spark.source.data_source import ServiceBusSource
from peeklock.spark.versions import NEWEST, OLDEST, UnsupportedSpark, require_supported
from tests.spark.matrix.environments import TABLES

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("version", ["4.0.0", "4.1.4", "4.2.1", "4.3.0", "4.3.2.dev1"])
def test_these_are_supported(version: str) -> None:
    require_supported(version)


@pytest.mark.parametrize("version", ["3.5.9", "4.4.0", "4.4.0.dev1", "4.10.0", "5.0.0"])
def test_others_are_refused_by_name(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    with pytest.raises(UnsupportedSpark, match=rf"Spark 4\.0 to 4\.3, not on {version}: run pip install"):
        ServiceBusSource({})


def test_extra_matrix_and_check_have_the_same_range() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (pin,) = (one for one in extras["spark-any"] if one.startswith("pyspark"))
    assert pin == f"pyspark[sql]>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"
    tested = [tuple(map(int, version.split(".")[:2])) for version in TABLES]
    assert tested == [(OLDEST[0], minor) for minor in range(OLDEST[1], NEWEST[1] + 1)]
