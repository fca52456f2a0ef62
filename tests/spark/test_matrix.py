"""The judge of the matrix, and the page that the matrix runs."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("pyspark")

from tests.kill.ledger import Broken
from tests.spark.matrix.driver import PAGE, names_of_page
from tests.spark.matrix.environments import DELTA, ICEBERG, TABLES
from tests.spark.matrix.row import cause, require_transactions

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "transactions",
    [
        [],
        [("query", 0), ("query", 0)],
        [("query", 1), ("query", 0)],
        [("query", 0), ("another", 1)],
    ],
)
def test_a_table_whose_transactions_are_not_one_a_batch_is_found(transactions: list[tuple[str, int]]) -> None:
    with pytest.raises(Broken, match="transactions of the table"):
        require_transactions("Delta", transactions)


def test_a_batch_without_rows_needs_no_transaction() -> None:
    require_transactions("Delta", [("query", 0), ("query", 2)])


def test_what_fails_by_a_jar_of_another_spark_is_a_result() -> None:
    text = "Query ended\n: java.lang.NoSuchMethodError: 'void Some.method()'\n\tat somewhere"
    assert cause(text) == "NoSuchMethodError: 'void Some.method()'"


def test_a_signature_alone_is_a_method_that_is_missing() -> None:
    text = "exception: 'void org.apache.LogicalRDD.<init>(scala.Seq, boolean)'\n=== Streaming Query ==="
    assert cause(text) == "NoSuchMethodError: 'void org.apache.LogicalRDD.<init>(scala.Seq, boolean)'"


def test_any_other_failure_breaks_the_run() -> None:
    with pytest.raises(Broken, match="DataLoss"):
        cause("peeklock.spark.source.offsets.DataLoss: claims are missing")


def test_the_page_names_jars_that_are_tested() -> None:
    named = re.findall(r"-Dartifact=(\S+)", PAGE.read_text())
    tested = {jar for tables in TABLES.values() for table in tables for jar in table.jars}
    assert len(named) == 3
    assert {*named} <= tested


@pytest.mark.parametrize(("name", "jar"), [(DELTA, "delta"), (ICEBERG, "iceberg")])
def test_the_page_has_settings_and_a_merge_of_each_format(name: str, jar: str) -> None:
    assert names_of_page(name, 0, {f"jars/{jar}-": "/nowhere/"})["settings"]["spark.jars"] == ""
    assert callable(names_of_page(name, 3, {})["merge"])
