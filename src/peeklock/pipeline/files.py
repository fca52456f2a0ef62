"""Folders on any file system that Spark reaches: small reads and writes.

With Java in this process they go through Hadoop. Over Spark Connect there is no Java here, and the
folder may be on the server's machine alone: then a Python worker of the server reads and writes, through
pyarrow. Its function is self-contained, so the workers need no package of ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from peeklock.spark.session import is_remote

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class FileSystemError(Exception):
    """A worker of Spark Connect cannot use a folder; the text says which and what to do."""


class Files:
    """A folder."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path.rstrip("/")
        self._system: _System = _Workers(spark, self.path) if is_remote(spark) else _Hadoop(spark, self.path)

    def join(self, *names: str) -> str:
        return "/".join([self.path, *names])

    def exists(self) -> bool:
        return self._system.exists()

    def find(self, pattern: str) -> list[tuple[str, int]]:
        """Return path and size in bytes of what matches a glob pattern below the folder."""
        return self._system.find(self.join(pattern))

    def names(self) -> list[str]:
        """Return the names in the folder; none if it is missing."""
        return self._system.names()

    def read(self, name: str) -> str | None:
        """Return the text of a file, None if it is missing."""
        return self._system.read(self.join(name))

    def write(self, name: str, text: str) -> None:
        """Write a file, with its folders, in place of another."""
        self._system.write(self.join(name), text)

    def delete(self, name: str) -> None:
        """Delete a file or a folder with its content, if it is there."""
        self._system.delete(self.join(name))


class _System(Protocol):
    """A folder's file system."""

    def exists(self) -> bool: ...

    def find(self, pattern: str) -> list[tuple[str, int]]: ...

    def names(self) -> list[str]: ...

    def read(self, path: str) -> str | None: ...

    def write(self, path: str, text: str) -> None: ...

    def delete(self, path: str) -> None: ...


class _Hadoop:
    """Hadoop's file systems, in the Java of this process."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._folder = self._path(folder)
        self._system = self._folder.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        self._io = jvm.org.apache.commons.io.IOUtils

    def exists(self) -> bool:
        return bool(self._system.exists(self._folder))

    def find(self, pattern: str) -> list[tuple[str, int]]:
        found = self._system.globStatus(self._path(pattern))
        return [(status.getPath().toString(), status.getLen()) for status in found or ()]

    def names(self) -> list[str]:
        if not self.exists():
            return []
        return [status.getPath().getName() for status in self._system.listStatus(self._folder)]

    def read(self, path: str) -> str | None:
        place = self._path(path)
        if not self._system.exists(place):
            return None
        stream = self._system.open(place)
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        stream = self._system.create(self._path(path), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def delete(self, path: str) -> None:
        self._system.delete(self._path(path), True)


class _Workers:
    """The file systems of pyarrow, in a Python worker of Spark Connect's server."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self._folder = folder

    def exists(self) -> bool:
        return bool(self._ask("exists", self._folder))

    def find(self, pattern: str) -> list[tuple[str, int]]:
        return [(path, size) for path, size in self._ask("find", self._folder, pattern)]

    def names(self) -> list[str]:
        return [str(name) for name in self._ask("names", self._folder)]

    def read(self, path: str) -> str | None:
        found = self._ask("read", path)
        return None if found is None else str(found)

    def write(self, path: str, text: str) -> None:
        self._ask("write", path, text)

    def delete(self, path: str) -> None:
        self._ask("delete", path)

    def _ask(self, action: str, path: str, argument: str = "") -> Any:
        """Return the answer of a worker. Raises: FileSystemError."""
        task = self._spark.range(0, 1, 1, 1).mapInArrow(_task(action, path, argument), "answer string")
        (row,) = task.collect()
        answer = json.loads(row.answer)
        if "failure" in answer:
            raise FileSystemError(
                f"a Python worker of the Spark Connect server cannot use {path!r} ({answer['failure']}): "
                "give a folder that pyarrow reaches there (a path, s3://, gs://, hdfs://, abfs://), or run "
                "the job without --remote."
            )
        return answer["value"]


def _task(
    action: str, path: str, argument: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what a worker does. It is pickled by value: it uses nothing of this module."""

    def act() -> Any:
        import fnmatch
        import re

        from pyarrow import fs

        spoken, name = fs.FileSystem.from_uri(re.sub("^s3[an]:", "s3:", path))
        there = spoken.get_file_info(name).type
        if action == "exists":
            return there != fs.FileType.NotFound
        if action == "names":
            inside = fs.FileSelector(name, allow_not_found=True)
            return [entry.base_name for entry in spoken.get_file_info(inside)]
        if action == "find":
            inside = fs.FileSelector(name, allow_not_found=True, recursive=True)
            wanted = argument[len(path) :].strip("/").split("/")
            found = []
            for entry in spoken.get_file_info(inside):
                below = entry.path[len(name.rstrip("/")) :].strip("/")
                parts = below.split("/")
                if len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted)):
                    found.append((f"{path}/{below}", entry.size or 0))
            return found
        if action == "read":
            if there != fs.FileType.File:
                return None
            with spoken.open_input_stream(name) as stream:
                return stream.read().decode()
        if action == "write":
            spoken.create_dir(name.rpartition("/")[0])
            with spoken.open_output_stream(name) as stream:
                stream.write(argument.encode())
        elif there == fs.FileType.Directory:
            spoken.delete_dir(name)
        elif there == fs.FileType.File:
            spoken.delete_file(name)
        return None

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import json

        import pyarrow

        for _ in batches:
            pass
        try:
            answer = {"value": act()}
        except (OSError, ValueError, ImportError, pyarrow.ArrowException) as failure:
            answer = {"failure": f"{type(failure).__name__}: {failure}"}
        yield pyarrow.RecordBatch.from_pydict({"answer": [json.dumps(answer)]})

    return task
