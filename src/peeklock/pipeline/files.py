"""Folders on any file system that Spark reaches.

Owns: small reads and writes through Hadoop's own interface. Must not know: what the files are for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Files:
    """A folder on any file system that Spark reaches, through Hadoop's own interface."""

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
        """Return path and size in bytes of the files that match a glob pattern below the folder."""
        found = self._system.globStatus(self._path(self.join(pattern)))
        return [(status.getPath().toString(), status.getLen()) for status in found or ()]

    def names(self) -> list[str]:
        """Return what is in the folder, nothing if it is not there."""
        if not self.exists():
            return []
        place = self._path(self.path)
        return [status.getPath().getName() for status in self._system.listStatus(place)]

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
