"""Real tables for the sinks: a Delta table, an Iceberg table in an SQLite catalog, and a PostgreSQL server."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import deltalake
import psycopg
import pyarrow as pa
from pyiceberg.catalog import load_catalog

from async_op.connectors import DeltaSink, IcebergSink, PostgresSink

SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string())])


class Target(ABC):
    """A table that a test reads without the sink."""

    arguments: tuple[Any, ...]
    keywords: ClassVar[dict[str, Any]] = {}
    kind: type

    def sink(self, name: str = "job") -> Any:
        return self.kind(*self.arguments, name, **self.keywords)

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]: ...

    def notes_epochs(self) -> bool:
        """Whether there is anything beside the rows of the table; only a database has that."""
        return False

    def numbers(self) -> list[int]:
        return sorted(row["n"] for row in self.rows())


class Delta(Target):
    kind = DeltaSink

    def __init__(self, folder: Path) -> None:
        self.arguments = (str(folder / "delta"),)

    def rows(self) -> list[dict[str, Any]]:
        if not deltalake.DeltaTable.is_deltatable(self.arguments[0]):
            return []
        return pa.table(deltalake.QueryBuilder().register("t", self._table()).execute("select * from t")).to_pylist()

    def _table(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.arguments[0])


class Iceberg(Target):
    kind = IcebergSink

    def __init__(self, folder: Path) -> None:
        self.arguments = ("sales.orders",)
        catalog = {
            "name": "test",
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db?timeout=300",  # for which a writer waits for the others
            "warehouse": f"file://{folder}",
        }
        self.keywords = {"catalog": catalog}
        self.catalog = catalog
        load_catalog(**catalog).close()  # an SQL catalog makes its own tables, and not twice at once

    def rows(self) -> list[dict[str, Any]]:
        with warnings.catch_warnings():
            catalog = load_catalog(**self.catalog)
        try:
            if not catalog.table_exists("sales.orders"):
                return []
            return catalog.load_table("sales.orders").scan().to_arrow().to_pylist()
        finally:
            catalog.close()


class Postgres(Target):
    kind = PostgresSink

    def __init__(self, url: str) -> None:
        self.url = url
        self.arguments = (url, "public.orders")
        with psycopg.connect(url) as connection:
            connection.execute("drop table if exists orders, keygroups_epochs")
            connection.execute("create table orders (n bigint, name text, seen timestamptz default now(), extra jsonb)")

    def notes_epochs(self) -> bool:
        with psycopg.connect(self.url) as connection:
            return connection.execute("select to_regclass('keygroups_epochs')").fetchone() != (None,)

    def rows(self) -> list[dict[str, Any]]:
        with psycopg.connect(self.url) as connection:
            return [{"n": n, "name": name} for n, name in connection.execute("select n, name from orders")]
