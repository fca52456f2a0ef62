"""The events of one segment as arrays, read in a task of Spark.

Theory of operation. Spark hands the bytes of whole segments to tasks, from any storage that it reaches; a
task reads the columns that it needs as arrays, which is several times as fast as Spark's rows. A segment has
half a million events, and is in one task.

A column that an older release did not write is null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from peeklock.capture.schema import EVENTS
from peeklock.pipeline.audit.packing import NONE, Numbers, Truths
from peeklock.pipeline.events import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAMES = ("namespace", "event_type", "entity", "state_before", "link_name", "related_entity", "reason")
"""Columns of few different texts."""


class SegmentDamaged(Exception):
    """A segment cannot be read; the text says why."""


def over_segments(
    spark: SparkSession,
    paths: Sequence[str],
    task: Callable[[str, pa.Buffer], Iterable[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    """Return the rows that a task makes of each file.

    Args:
        task: takes the local path and the content of a file.
        schema: of its rows, as Spark's DDL.
    """

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path, content in zip(batch["path"], batch["content"], strict=True):
                yield from task(local_path(path.as_py()), content.as_buffer())

    files = spark.read.format("binaryFile").load(list(paths)).select("path", "content")
    return files.mapInArrow(each, schema)


class Segment:
    """Columns of a segment."""

    def __init__(self, content: pa.Buffer, columns: Iterable[str]) -> None:
        """Read columns. Raises: SegmentDamaged."""
        wanted = list(columns)
        try:
            file = pq.ParquetFile(
                pa.BufferReader(content),
                page_checksum_verification=True,
                read_dictionary=[name for name in wanted if name in _NAMES],
            )
            there = set(file.schema_arrow.names)
            table = file.read([name for name in wanted if name in there], use_threads=False)
            self.count = len(table)
            self._columns = {name: self._column(table, name) for name in wanted}
        except (pa.ArrowException, OSError) as failure:
            raise SegmentDamaged(str(failure)) from failure
        self._names: dict[str, tuple[Numbers, list[str]]] = {}

    def _column(self, table: pa.Table, name: str) -> pa.Array:
        kind = pa.dictionary(pa.int32(), pa.string()) if name in _NAMES else EVENTS.field(name).type
        if name not in table.schema.names:
            return pa.nulls(len(table), kind)
        column = table[name]
        if name in _NAMES:
            column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
            column = column.unify_dictionaries()
        else:
            column = column.cast(kind)
        # Of a column without chunks the type alone is left.
        return column.combine_chunks() if column.num_chunks else pa.nulls(0, kind)

    def array(self, name: str) -> pa.Array:
        """Return a column as it is; of texts of `_NAMES` by their dictionary."""
        return self._columns[name]

    def numbers(self, name: str) -> Numbers:
        """Return numbers, NONE where there are none."""
        column = self._columns[name].cast(pa.int64())
        values: Numbers = column.fill_null(NONE).to_numpy(zero_copy_only=False)
        return values

    def milliseconds(self, name: str) -> Numbers:
        """Return times as UTC ms, NONE where there are none."""
        values = self.numbers(name)
        return np.where(values == NONE, NONE, values // 1000)

    def has(self, name: str) -> Truths:
        """Return where a column is not null."""
        column = self._columns[name]
        if not column.null_count:
            return np.ones(self.count, bool)
        has: Truths = column.is_valid().to_numpy(zero_copy_only=False)
        return has

    def names(self, name: str) -> tuple[Numbers, list[str]]:
        """Return a column of few texts: places in a list of them, -1 where there is none."""
        if name not in self._names:
            column = self._columns[name]
            codes = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            self._names[name] = codes, column.dictionary.to_pylist()
        return self._names[name]

    def look_up(self, name: str, numbers: Callable[[str], int], otherwise: int = NONE) -> Numbers:
        """Return a number for each text of a column of few texts, `otherwise` where it is null."""
        codes, names = self.names(name)
        return np.array([*(numbers(text) for text in names), otherwise], np.int64)[codes]

    def is_any(self, name: str, *texts: str) -> Truths:
        """Return where a column of few texts is one of some."""
        is_it: Truths = self.look_up(name, texts.__contains__, 0) == 1
        return is_it

    def digests(self, name: str, *, at: Truths | None = None) -> Numbers:
        """Return digests of texts, NONE where there are none.

        Args:
            at: the rows that matter; None = all.
        """
        column = self._columns[name]
        where = self.has(name) if at is None else self.has(name) & at
        digests = np.full(self.count, NONE)
        texts = column.filter(pa.array(where))
        if pa.types.is_dictionary(texts.type):
            texts = texts.cast(pa.string())
        digests[where] = digest(texts.to_numpy(zero_copy_only=False))
        return digests

    def rows(self, where: Truths) -> list[dict[str, Any]]:
        """Return some rows as they are."""
        picked = pa.array(np.flatnonzero(where))
        columns = {name: column.take(picked) for name, column in self._columns.items()}
        table = pa.table({name: self._plain(column) for name, column in columns.items()})
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows

    def _plain(self, column: pa.Array) -> pa.Array:
        return pc.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column


def digest(texts: Any) -> Numbers:
    """Return a digest of 64 bits for each text of an array of objects. It is the same in all processes."""
    return np.asarray(pd.util.hash_array(texts, categorize=False)).view(np.int64)


def mixed(*columns: Numbers) -> Numbers:
    """Return one digest for the numbers of some columns."""
    mix = np.zeros(len(columns[0]), np.uint64)
    for values in columns:
        mix = (mix ^ values.astype(np.int64).view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mix ^= mix >> np.uint64(32)
    return mix.view(np.int64)
