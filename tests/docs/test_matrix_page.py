"""The page of tested versions comes from the results of the matrix, and is current."""

from __future__ import annotations

import json

from docs.matrix import PAGE, RESULTS, table
from tests.spark.matrix import results


def test_the_page_is_current() -> None:
    """Run `python -m docs.matrix` when this fails."""
    page = PAGE.file.read_text(encoding="utf-8")
    assert page == PAGE.written(page)


def test_the_results_are_those_of_the_versions_that_are_tested() -> None:
    """Run `./run soak spark` when this fails."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert [(row["spark"], row["format"], row["jars"]) for row in rows] == results.tested()


def test_each_spark_has_a_table_format_that_works_and_was_killed() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    killed = {row["spark"] for row in rows if row["kills"] and set(row["cells"].values()) == {"works"}}
    assert killed == {spark for spark, _, _ in results.tested()}


def test_equal_failures_share_a_footnote() -> None:
    row = {"spark": "4.3.0", "format": "Delta", "jars": ["g:a:1", "g:b:2"], "kills": 0}
    works = {"cursor": "works", "merged": "NoSuchMethodError: x", "browse": "NoSuchMethodError: x"}
    lines = list(table([{**row, "cells": works}]))
    assert lines[2] == "| 4.3.0 | Delta | `a:1`<br>`b:2` | works | fails[^1] |  | fails[^1] |  |"
    assert lines[4:] == ["[^1]: `NoSuchMethodError: x`"]


def test_a_row_that_was_not_run_says_so() -> None:
    row = {"spark": "4.3.0", "format": "Delta", "jars": [], "kills": 0, "cells": {}}
    assert list(table([row]))[2] == "| 4.3.0 | Delta |  | not run |  |  |  |  |"
