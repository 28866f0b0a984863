"""The doors by which values leave Python for a column, a file or a table, and come back; all of them are real."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import itertools
import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import psycopg
import pyarrow as pa
from pyarrow import feather, parquet
from pyiceberg.catalog import load_catalog

from async_op import AsyncFunction
from async_op.connectors import DeltaSink, FileSink, IcebergSink, PostgresSink, Sink, UnsupportedColumn, UnwritableValue
from keygroups import KeyGroupsError, ListState, MapState, UnstorableValue, ValueState
from keygroups.values import array_of, values_of
from snapshots import Snapshot, SnapshotStore
from snapshots.cli import app
from snapshots.inspection import export
from tests.async_op.kit import Instant, Service, commit, new_store, opened
from tests.doors import values

COLUMN = "c"


@dataclass(frozen=True)
class Refusal:
    """A value that a door has refused.

    Attributes
    ----------
    error : KeyGroupsError
        Why.
    column, id : str or None
        What the error names: the column or the state, and the row, the key or the element. None is only right for a
        column of which the door refuses all values.
    """

    error: KeyGroupsError
    column: str | None
    id: str | None


class Door(ABC):
    """A way out and back.

    Attributes
    ----------
    plain : mapping
        The types of columns that the door has, each with values that it must keep; None is a column without a type.
    lacks : frozenset
        Types of which the door refuses all values.
    """

    plain: Mapping[Any, Any] = values.PLAIN
    lacks: frozenset[Any] = frozenset()

    @abstractmethod
    def through(self, type_: Any, sent: Sequence[Any]) -> list[Any]:
        """Return for each value, as row 0, 1 and so on of the column `c`, what came back, or its `Refusal`."""

    def same(self, type_: Any, value: Any, back: Any) -> bool:
        """Return whether a value is what it was."""
        return values.same_in(type_, value, back)


UNTYPED: dict[Any, list[Any]] = {None: values.UNTYPED}


# State.


@dataclass(frozen=True)
class Kind:
    """A kind of state, with what puts a value into it and gets it back."""

    make: Callable[..., Any]
    put: Callable[[Any, Any], None]
    get: Callable[[Any], Any]


def _map_state(name: str, type_: pa.DataType | None) -> MapState:
    return MapState(name, type_ and pa.map_(pa.int64(), type_))


KINDS = {
    "value": Kind(ValueState, lambda handle, value: handle.update(value), lambda handle: handle.value()),
    "list": Kind(ListState, lambda handle, value: handle.add(value), lambda handle: handle.get()[0]),
    "map": Kind(_map_state, lambda handle, value: handle.put(0, value), lambda handle: handle.get(0)),
}


class Putting(AsyncFunction):
    """Puts the value of each element's number into the state of its key."""

    def __init__(self, state: Any, kind: Kind, sent: Sequence[Any]) -> None:
        self.states = (state,)
        self._kind = kind
        self._sent = sent

    async def async_invoke(self, value: int, ctx: Any) -> list[int]:
        self._kind.put(ctx.state(self.states[0]), self._sent[value])
        return [value]


class Getting(AsyncFunction):
    """Reads the state of the key of each element."""

    def __init__(self, state: Any, kind: Kind) -> None:
        self.states = (state,)
        self._kind = kind

    async def async_invoke(self, value: int, ctx: Any) -> list[Any]:
        return [(value, self._kind.get(ctx.state(self.states[0])))]


class StateDoor(Door):
    """Keyed state, through a snapshot and a restore."""

    def __init__(self, kind: str, backend: Any, *, is_typed: bool) -> None:
        self._kind = KINDS[kind]
        self._backend = backend
        self._is_typed = is_typed
        if not is_typed:
            self.plain = UNTYPED

    def same(self, type_: Any, value: Any, back: Any) -> bool:
        return super().same(type_, value, back) if self._is_typed else values.same_exactly(value, back)

    def through(self, type_: Any, sent: Sequence[Any]) -> list[Any]:
        state = self._kind.make(COLUMN, type_ if self._is_typed else None)
        return asyncio.run(self._through(state, sent))

    async def _through(self, state: Any, sent: Sequence[Any]) -> list[Any]:
        letters: list[Any] = []
        options: dict[str, Any] = {"key_by": str, "state_backend": self._backend, "mode": "ordered"}
        to_letters = {"on_error": "dead_letter", "dead_letters": letters.append}
        async with opened(Putting(state, self._kind, sent), **to_letters, **options) as bench:
            for number in range(len(sent)):
                await bench.operator.process(number, element_id=f"row-{number}")
            await bench.operator.finish()
            kept, snapshot = bench.shown, await commit(await bench.operator.snapshot())
        async with opened(Getting(state, self._kind), restore=snapshot.restore(0), **options) as bench:
            await bench.feed(*kept)
            await bench.operator.finish()
            found: dict[int, Any] = dict(bench.shown)
        refused = {one.value: Refusal(one.error, _named(one.error), one.idempotency_key) for one in letters}
        return [(found | refused)[number] for number in range(len(sent))]


def _named(error: Any) -> str | None:
    """Return the column if an error of state names it."""
    return COLUMN if isinstance(error, UnstorableValue) and f"state {COLUMN!r}" in str(error) else None


class BootstrapDoor(Door):
    """State that is made of a user's pairs."""

    def __init__(self, kind: str, *, is_typed: bool) -> None:
        self._kind = kind
        self._is_typed = is_typed
        if not is_typed:
            self.plain = UNTYPED

    def same(self, type_: Any, value: Any, back: Any) -> bool:
        return super().same(type_, value, back) if self._is_typed else values.same_exactly(value, back)

    def through(self, type_: Any, sent: Sequence[Any]) -> list[Any]:
        state = KINDS[self._kind].make(COLUMN, type_ if self._is_typed else None)
        found, snapshot = bootstrapped(state, self._kind, sent)
        if snapshot is not None:
            found |= asyncio.run(read_state(snapshot, state, self._kind))
        return [found[number] for number in range(len(sent))]


async def read_state(snapshot: Snapshot, state: Any, kind: str) -> dict[int, Any]:
    """Return the state of all keys, as a restored operator sees it."""
    async with opened(Getting(state, KINDS[kind]), restore=snapshot.restore(0), key_by=str) as bench:
        await bench.feed(*map(int, snapshot.to_arrow(COLUMN).column("key").to_pylist()))
        await bench.operator.finish()
        return dict(bench.shown)


def bootstrapped(
    state: Any, kind: str, sent: Sequence[Any], store: SnapshotStore | None = None
) -> tuple[dict[int, Any], Snapshot | None]:
    """Return what a state refuses of values, and a snapshot with the others, under their numbers as keys."""
    wholes = [{"value": value, "list": [value], "map": {0: value}}[kind] for value in sent]
    refused: dict[int, Any] = {}
    for number, whole in enumerate(wholes):
        try:
            new_store().bootstrap({state: [(str(number), whole)]}, parallelism=1)
        except UnstorableValue as error:
            id_ = f"row-{number}" if f"key '{number}'" in str(error) else None
            refused[number] = Refusal(error, _named(error), id_)
    kept = [(str(number), whole) for number, whole in enumerate(wholes) if number not in refused]
    return refused, (store or new_store()).bootstrap({state: kept}, parallelism=1) if kept else None


class ExportDoor(Door):
    """State that is exported into a file: by the command if it has no type, and else by the function behind that."""

    def __init__(self, ending: str, *, is_typed: bool) -> None:
        self._ending = ending
        self._is_typed = is_typed
        if not is_typed:
            self.plain = UNTYPED

    def through(self, type_: Any, sent: Sequence[Any]) -> list[Any]:
        found, snapshot = bootstrapped(ValueState(COLUMN, type_ if self._is_typed else None), "value", sent)
        if snapshot is not None:
            with tempfile.TemporaryDirectory() as folder:
                found |= self._exported(snapshot, Path(folder) / f"state.{self._ending}")
        return [found[number] for number in range(len(sent))]

    def _exported(self, snapshot: Snapshot, path: Path) -> dict[int, Any]:
        if self._is_typed:
            export(snapshot, COLUMN, path)
        else:
            command(["export", snapshot.folder.uri, "--state", COLUMN, "--to", str(path)])
        match self._ending:
            case "jsonl":
                rows = map(json.loads, path.read_text().split("\n")[:-1])
                return {int(row["key"]): row["value"] for row in rows}
            case "csv":
                with path.open(newline="") as file:
                    return {int(row["key"]): row["value"] for row in csv.DictReader(file)}
        table = parquet.read_table(path) if self._ending == "parquet" else feather.read_table(path)
        found = values_of(table.column("value"))
        if not self._is_typed:
            found = [None if text is None else json.loads(text) for text in found]
        return dict(zip(map(int, table.column("key").to_pylist()), found, strict=True))

    def same(self, type_: Any, value: Any, back: Any) -> bool:
        is_table = self._ending in ("parquet", "arrow")
        if is_table and self._is_typed:
            return super().same(type_, value, back)
        # A column has Python values of its own: a decimal for a whole number, lists for tuples.
        (held,) = values_of(array_of([value], type_)) if self._is_typed else (value,)
        return (
            values.same_in_csv_export(held, back) if self._ending == "csv" else values.same_in_json_export(held, back)
        )


def command(arguments: list[str]) -> None:
    """Run a command line in this process."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = app.run(arguments)
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    assert code == 0


# Elements in flight.


class Answering(AsyncFunction):
    """Answers each number with its value, but 0 only once there has been a restore: all others wait behind it."""

    def __init__(self, sent: Sequence[Any]) -> None:
        self._sent = sent

    async def async_invoke(self, value: int, ctx: Any) -> list[Any]:
        if value == 0:
            await asyncio.Event().wait()
        return [self._sent[value - 1]]


class InFlightDoor(Door):
    """Elements whose calls are running at the cut: the restored operator calls for them again."""

    plain = UNTYPED

    def same(self, type_: Any, value: Any, back: Any) -> bool:
        return values.same_exactly(value, back)

    def through(self, type_: Any, sent: Sequence[Any]) -> list[Any]:
        return asyncio.run(self._through(Service(), [0, *sent]))[1:]

    async def _through(self, function: AsyncFunction, elements: Sequence[Any]) -> list[Any]:
        letters: list[Any] = []
        async with opened(function, mode="ordered") as bench:
            for number, element in enumerate(elements, -1):
                await bench.operator.process(element, element_id=f"row-{number}")
            await bench.feed()
            snapshot = await commit(await bench.operator.snapshot())
        to_letters = {"on_error": "dead_letter", "dead_letters": letters.append}
        async with opened(Instant(), restore=snapshot.restore(0), mode="ordered", **to_letters) as bench:
            await bench.operator.finish()
            kept = iter(bench.shown)
        refused = {one.idempotency_key: Refusal(one.error, _part(one.error), one.idempotency_key) for one in letters}
        return [
            refused[id_] if (id_ := f"row-{number}") in refused else next(kept)
            for number in range(-1, len(elements) - 1)
        ]


def _part(error: Any) -> str | None:
    """Return the column if an error says which part of an element is bad; elements have no columns."""
    return COLUMN if "its value could not" in str(error) or "its outputs could not" in str(error) else None


class OutputsDoor(InFlightDoor):
    """Outputs of calls that have ended, but wait behind a call that has not: the restored operator emits them."""

    def through(self, type_: Any, sent: Sequence[Any]) -> list[Any]:
        return asyncio.run(self._through(Answering(sent), range(len(sent) + 1)))[1:]


# Files and tables.


class SinkDoor(Door):
    """A sink, asked in the way in which jobs and pipelines ask it."""

    @abstractmethod
    @contextlib.contextmanager
    def target(self, type_: Any) -> Iterator[tuple[Sink[Any], Callable[[], list[Any]]]]:
        """Yield a sink, and what reads its column `c` in the order of the column `n`."""

    def through(self, type_: Any, sent: Sequence[Any]) -> list[Any]:
        rows = {number: {"n": number, COLUMN: value} for number, value in enumerate(sent)}
        with self.target(type_) as (sink, read):
            try:
                refused = asyncio.run(_written(sink, rows))
            except UnsupportedColumn as error:
                return [Refusal(error, error.column, None)] * len(sent)
            found = read() if len(refused) < len(sent) else []
        kept = iter(found)
        assert len(found) == len(sent) - len(refused), "a row is missing, or is there twice"
        return [refused[number] if number in refused else next(kept) for number in rows]


async def _written(sink: Sink[Any], rows: dict[int, dict[str, Any]]) -> dict[int, Refusal]:
    """Write what a sink takes of rows as one epoch, and return the others."""
    refused: dict[int, Refusal] = {}
    await sink.open()
    try:
        while left := {number: row for number, row in rows.items() if number not in refused}:
            numbers, epoch = list(left), list(left.values())
            try:
                await sink.write(epoch, 1)
                break
            except UnwritableValue as error:
                failure = error
            errors = await sink.refused(epoch) or [failure]
            assert all(error.index is not None for error in errors), failure
            for error in errors:
                number = numbers[error.index]
                refused[number] = Refusal(error, error.column, f"row-{number}")
    finally:
        await sink.close()
    return refused


class FileDoor(SinkDoor):
    """Files of one epoch."""

    def __init__(self, format: str, *, has_schema: bool = False) -> None:
        self._format = format
        self._has_schema = has_schema
        if not has_schema:
            self.plain = {None: values.IN_FILES[format]}

    @contextlib.contextmanager
    def target(self, type_: Any) -> Iterator[tuple[Sink[Any], Callable[[], list[Any]]]]:
        schema = pa.schema([("n", pa.int64()), (COLUMN, type_)]) if self._has_schema else None
        with tempfile.TemporaryDirectory() as folder:
            yield FileSink(folder, self._format, schema=schema), partial(self._read, Path(folder))

    def _read(self, folder: Path) -> list[Any]:
        (path,) = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        match self._format:
            case "json":
                return [json.loads(line)[COLUMN] for line in path.read_text().split("\n")[:-1]]
            case "csv":
                with path.open(newline="") as file:
                    return [row[COLUMN] for row in csv.DictReader(file)]
            case _:
                return values_of(parquet.read_table(path).column(COLUMN))

    def same(self, type_: Any, value: Any, back: Any) -> bool:
        if self._format == "parquet":
            return super().same(type_ if self._has_schema else None, value, back)
        return (values.same_in_json if self._format == "json" else values.same_in_csv)(value, back)


_TIMES = frozenset({pa.time64("us"), pa.time32("s")})
_DURATIONS = frozenset({pa.duration("us"), pa.duration("ms")})
_TABLES_LACK = frozenset({*_DURATIONS, pa.uint64(), pa.timestamp("ns", "Europe/Berlin")})


class DeltaDoor(SinkDoor):
    """A table of Delta Lake that is made with a schema."""

    lacks = _TABLES_LACK | _TIMES

    @contextlib.contextmanager
    def target(self, type_: Any) -> Iterator[tuple[Sink[Any], Callable[[], list[Any]]]]:
        schema = pa.schema([("n", pa.int64()), (COLUMN, type_)])
        with tempfile.TemporaryDirectory() as folder:
            yield DeltaSink(folder, "job", schema=schema), lambda: self._read(folder)

    def _read(self, folder: str) -> list[Any]:
        query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(folder))
        return values_of(pa.table(query.execute(f"select {COLUMN} from t order by n")).column(COLUMN))


class IcebergDoor(SinkDoor):
    """A table of Apache Iceberg that is made with a schema."""

    lacks = _TABLES_LACK

    def __init__(self, folder: Path) -> None:
        self._catalog = {
            "name": "doors",
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db?timeout=300",
            "warehouse": f"file://{folder}",
        }
        self._numbers = itertools.count()
        load_catalog(**self._catalog).close()  # an SQL catalog makes its own tables

    @contextlib.contextmanager
    def target(self, type_: Any) -> Iterator[tuple[Sink[Any], Callable[[], list[Any]]]]:
        name, schema = f"doors.t{next(self._numbers)}", pa.schema([("n", pa.int64()), (COLUMN, type_)])
        yield IcebergSink(name, "job", catalog=self._catalog, schema=schema), lambda: self._read(name)

    def _read(self, name: str) -> list[Any]:
        catalog = load_catalog(**self._catalog)
        try:
            return values_of(catalog.load_table(name).scan().to_arrow().sort_by("n").column(COLUMN))
        finally:
            catalog.close()


class PostgresDoor(SinkDoor):
    """A table of PostgreSQL."""

    plain: Mapping[Any, list[Any]] = {
        "smallint": [7],
        "bigint": [-(2**63)],
        "real": [0.5],
        "double precision": [-0.0],
        "numeric": [*values.PLAIN[pa.decimal128(10, 2)]],
        "numeric(10,2)": [*values.PLAIN[pa.decimal128(10, 2)]],
        "boolean": [True],
        "text": ["é\u2028\x7f"],
        "varchar(3)": ["abc"],
        "bytea": [b"\xff\x00"],
        "date": [values.YEAR.date()],
        "time": [values.YEAR.time()],
        "interval": [*values.PLAIN[pa.duration("us")]],
        "timestamp": [*values.PLAIN[pa.timestamp("us")]],
        "timestamp(0)": [values.YEAR],
        "timestamptz": [*values.PLAIN[pa.timestamp("us", "UTC")]],
        "bigint[]": [[1, None]],
        "text[]": [[]],
        "timestamptz[]": [[*values.PLAIN[pa.timestamp("us", "UTC")]]],
        "jsonb": [{"a": [1, None, "é", {"b": -1.5}]}],
        "json": [{"a": [1, None, "é", {"b": -1.5}]}],
    }

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = itertools.count()

    @contextlib.contextmanager
    def target(self, type_: Any) -> Iterator[tuple[Sink[Any], Callable[[], list[Any]]]]:
        name = f"door_{next(self._numbers)}"
        with psycopg.connect(self._url) as connection:
            connection.execute(f"create table {name} (n bigint, {COLUMN} {type_})")
        yield PostgresSink(self._url, name, name), lambda: self._read(name)

    def _read(self, name: str) -> list[Any]:
        with psycopg.connect(self._url) as connection:
            return [value for (value,) in connection.execute(f"select {COLUMN} from {name} order by n")]

    def same(self, type_: Any, value: Any, back: Any) -> bool:
        if type_ == "real":
            # The driver reads the digits of 32 bits as a float of 64.
            return values.same_in(pa.float32(), value, back if back is None else float(np.float32(back)))
        return values.same_in_column(value, back)
