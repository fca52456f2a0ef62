"""The data source `servicebus`: the class that Spark registers.

Spark makes an instance in the process that plans and pickled copies in others, so nothing connects here.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from peeklock.spark.options import Mode, Options, Use, read_options
from peeklock.spark.source.schema import row_ddl
from peeklock.spark.source.tables import created_table, table_ddl, table_options
from peeklock.spark.versions import require_supported, stream_reader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class ServiceBusSource(DataSource):
    """Reads and writes messages: `spark.read.format("servicebus")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        require_supported(pyspark.__version__)
        self.options = options

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "servicebus"

    def schema(self) -> str:
        """Return the columns; see `peeklock.spark.source.schema`, for a new table `.tables`."""
        table = created_table(self.options)
        if table is not None:
            return table_ddl(table)
        encoded = next((self.options[key] for key in self.options if key.lower() == "includeencoded"), "")
        return row_ddl(include_encoded=encoded.strip().lower() == "true")

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        from peeklock.spark.source.browse import BrowseReader

        return BrowseReader(self._read(Use.BATCH_READ, schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return the reader of a stream."""
        options = self._read(Use.STREAM_READ, schema)
        if options.mode is Mode.CURSOR:
            from peeklock.spark.source.cursor import CursorStreamReader

            return stream_reader(CursorStreamReader(options, schema))
        if options.mode is Mode.PEEK_LOCK:
            from peeklock.spark.source.peek_lock import PeekLockStreamReader

            return stream_reader(PeekLockStreamReader(options, schema))
        from peeklock.spark.source.browse_stream import BrowseStreamReader

        return stream_reader(BrowseStreamReader(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch."""
        from peeklock.spark.sink.writer import SinkWriter

        return SinkWriter(self._read(Use.WRITE, schema), schema, overwrite)

    def streamWriter(  # noqa: N802  # Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return the writer of a stream."""
        from peeklock.spark.sink.writer import SinkStreamWriter

        return SinkStreamWriter(self._read(Use.WRITE, schema), schema, overwrite)

    def _read(self, use: Use, schema: StructType) -> Options:
        return read_options(self.options, use, table_options(schema))
