"""Folders on any file system that Spark reaches: small reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Files:
    """A folder, through Hadoop's interface."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path.rstrip("/")
        jvm: Any = spark.sparkContext._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        self._system = self._path(self.path).getFileSystem(hadoop)
        self._io = jvm.org.apache.commons.io.IOUtils

    def join(self, *names: str) -> str:
        return "/".join([self.path, *names])

    def exists(self) -> bool:
        return bool(self._system.exists(self._path(self.path)))

    def find(self, pattern: str) -> list[tuple[str, int]]:
        """Return path and size in bytes of the files below the folder that match a glob pattern."""
        found = self._system.globStatus(self._path(self.join(pattern)))
        return [(status.getPath().toString(), status.getLen()) for status in found or ()]

    def names(self) -> list[str]:
        """Return the names in the folder; none if it is missing."""
        if not self.exists():
            return []
        return [status.getPath().getName() for status in self._system.listStatus(self._path(self.path))]

    def read(self, name: str) -> str | None:
        place = self._path(self.join(name))
        if not self._system.exists(place):
            return None
        stream = self._system.open(place)
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        stream = self._system.create(self._path(self.join(name)), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def delete(self, name: str) -> None:
        self._system.delete(self._path(self.join(name)), True)
