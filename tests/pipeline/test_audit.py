"""The audit over made-up logs: nothing in a clean one, and each fault by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peeklock.pipeline.audit_checks import CLEAN
from tests.pipeline.synthetic import write_log

pytestmark = pytest.mark.spark


def test_nothing_is_found_in_a_clean_log(spark: Any, tmp_path: Path) -> None:
    from peeklock.pipeline.audit import Options, run

    write_log(tmp_path / "log", messages=6_000, seed=3)
    verdict = run(spark, Options((str(tmp_path / "log"),)))
    assert verdict.findings == {}, verdict.report()
    assert verdict.exit_status == CLEAN
