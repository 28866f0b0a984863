"""Reads Spark's checkpoint: which query it belongs to, and how far that query has come."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession

from keygroups.spark.session import is_connect

_NONE = -1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as it is before its query starts.

    Attributes
    ----------
    location : str
        The folder of the checkpoint.
    query_id : str or None
        The id of the query that it belongs to; None before the first start.
    committed : int
        The newest batch that Spark counts as done; -1 before the first.
    begun : int
        The newest batch whose input Spark has fixed, at most one after `committed`; -1 before the first.
    """

    location: str
    query_id: str | None
    committed: int
    begun: int

    @classmethod
    def read(cls, spark: SparkSession, location: str) -> Checkpoint:
        """Read a checkpoint from any storage that Spark can use."""
        folder = _ServedFolder(spark, location) if is_connect(spark) else _Folder(spark, location)
        query_id = folder.query_id()
        if query_id is None:
            return cls(location, None, _NONE, _NONE)
        committed, begun = folder.newest("commits"), folder.newest("offsets")
        return cls(location, query_id, committed, max(committed, begun))


class _Folder:
    """A checkpoint's files, read through Hadoop: DataFrame readers would warn of missing files and start jobs."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._root = jvm.org.apache.hadoop.fs.Path(location)
        self._files = self._root.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())

    def query_id(self) -> str | None:
        """Return the query id in the file `metadata`, or None if there is no such file."""
        path = self._path("metadata")
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return _id_in(text)

    def newest(self, log: str) -> int:
        """Return the newest batch of a log, or -1 if there is none."""
        path = self._path(log)
        files = self._files.listStatus(path) if self._files.exists(path) else ()
        return _newest_of(str(file.getPath().getName()) for file in files)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)


class _ServedFolder:
    """A checkpoint's files, read by the server of Spark Connect: only that can reach the checkpoint's storage."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self._location = location.rstrip("/")

    def query_id(self) -> str | None:
        """Return the query id in the file `metadata`, or None if there is no such file."""
        # Twice, because the server would log the stack trace of a single path that does not exist.
        files = _rows(self._spark.read.text([f"{self._location}/metadata"] * 2, wholetext=True))
        return _id_in(files[0].value) if files else None

    def newest(self, log: str) -> int:
        """Return the newest batch of a log, or -1 if there is none."""
        files = self._spark.read.format("binaryFile").load(f"{self._location}/{log}")
        return _newest_of(file.path.rpartition("/")[2] for file in _rows(files.select("path")))


def _rows(files: DataFrame) -> list[Row]:
    """Return the rows of files, none if there are no files: the plan of a client is looked at when it is run."""
    try:
        return files.collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return []


def _id_in(metadata: str) -> str:
    query_id: str = json.loads(metadata)["id"]
    return query_id


def _newest_of(names: Iterable[str]) -> int:
    return max((int(name) for name in names if name.isdigit()), default=_NONE)
