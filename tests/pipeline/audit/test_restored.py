"""A log that goes on after a restore: what the broker skipped and undid is no violation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peeklock.pipeline.audit.checks import NOT_PROVEN
from tests.capture.test_restored import restored_log
from tests.pipeline.audit.test_files import audit

pytestmark = pytest.mark.spark


def test_both_sides_of_a_restore_are_judged_and_nothing_between(spark: Any, tmp_path: Path) -> None:
    log, _ = restored_log(tmp_path, 10**12 + 2)
    verdict = audit(spark, log)
    assert verdict.findings == {}
    assert verdict.exit_status == NOT_PROVEN
    assert any("was restored" in sentence for sentence in verdict.not_proven), verdict.not_proven
