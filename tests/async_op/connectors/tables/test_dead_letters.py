"""Every shipped sink takes the dead letters of a job, whatever the failed elements are, in any epoch."""

from __future__ import annotations

import csv
import datetime as dt
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyarrow import parquet

from async_op import Job, LetterWithoutValue, Step, letter_key, letter_value
from async_op.connectors import DeltaSink, FileSink, IcebergSink, KafkaSink, PostgresSink, Source
from tests.async_op.connectors.kafka.brokers import broker, make_topic, read_messages
from tests.async_op.connectors.tables.targets import Iceberg
from tests.quick import first_are_quick

RECORD = {"topic": "orders", "partition": 0, "offset": 7, "key": None, "value": b'{"n": \xff}', "headers": []}
VALUES: list[Any] = [
    RECORD,
    None,
    b"\xff\x00",
    b'{"n": 1',
    "half an emoji \ud83d",
    {"n": float("nan")},
    {"at": dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC), "price": Decimal("1.50")},
    object(),
    7,
]
DDL = (
    "create table letters (step text, value text, value_encoding text, timestamp bigint, key text, "
    "idempotency_key text, attempts integer, error_type text, error_message text, error_traceback text)"
)

Rows = Callable[[], list[dict[str, Any]]]


async def refuse(value: Any) -> Any:
    raise ValueError(f"no answer for half an emoji \ud83d and \0 {type(value)}")


def key_of(value: Any) -> Any:
    return b"\xff" if value == 7 else "a"


def to_callable(folder: Path) -> tuple[Any, Rows]:
    found: dict[int, list[Any]] = {}
    return lambda values, epoch: found.update({epoch: values}), lambda: [row for rows in found.values() for row in rows]


def to_json(folder: Path) -> tuple[Any, Rows]:
    files = folder / "json"
    return FileSink(files, "json"), lambda: [
        json.loads(line) for file in sorted(files.glob("*.jsonl")) for line in file.read_text().splitlines()
    ]


def to_csv(folder: Path) -> tuple[Any, Rows]:
    files = folder / "csv"
    return FileSink(files, "csv"), lambda: [
        row for file in sorted(files.glob("*.csv")) for row in csv.DictReader(file.read_text().splitlines())
    ]


def to_parquet(folder: Path) -> tuple[Any, Rows]:
    files = folder / "parquet"
    # Files whose types were inferred from each epoch would have a column of nulls, and no common schema.
    return FileSink(files, "parquet"), lambda: pa.concat_tables(
        parquet.read_table(file) for file in sorted(files.glob("*.parquet"))
    ).to_pylist()


def to_delta(folder: Path) -> tuple[Any, Rows]:
    import deltalake

    table = str(folder / "delta")
    return DeltaSink(table, "job"), lambda: pa.table(
        deltalake.QueryBuilder().register("t", deltalake.DeltaTable(table)).execute("select * from t")
    ).to_pylist()


def to_iceberg(folder: Path) -> tuple[Any, Rows]:
    target = Iceberg(folder)
    return IcebergSink("sales.orders", "job", catalog=target.catalog), target.rows


SINKS = [to_json, to_delta, to_callable, to_csv, to_parquet, to_iceberg]


class Growing(Source[Any]):
    """A source with one element more in each run."""

    bounded = True

    def __init__(self, count: int) -> None:
        self.count = count

    def partitions(self) -> list[int]:
        return [0]

    def read(self, partition: Any, position: Any = None) -> Iterator[Any]:
        for number in range(position or 0, self.count):
            yield VALUES[number], None, number + 1


async def run(sink: Any, folder: Path) -> None:
    """Each element is an epoch of its own for the sink, so that its first one has a bad record and nothing else."""
    for count in range(1, len(VALUES) + 1):
        step = Step(refuse, "pay", on_error="dead_letter", key_by=key_of)
        await Job(Growing(count), step, print, snapshots=folder / "s", job_id="job", dead_letters=sink).run()


def check(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == len(VALUES)
    rows = sorted(rows, key=lambda row: int(row["idempotency_key"].rpartition("@")[2]))
    for value, row in zip(VALUES, rows, strict=True):
        if type(value) is object:
            assert row["value_encoding"] == "repr"
            with pytest.raises(LetterWithoutValue):
                letter_value(row)
        else:
            assert repr(letter_value(row)) == repr(value)
        assert letter_key(row) == key_of(value)
        # What no snapshot can hold is refused before its call.
        is_refused = type(value) in (object, str)
        assert (row["step"], row["error_type"]) == ("pay", "UnstorableValue" if is_refused else "ValueError")
        assert is_refused or "half an emoji \\ud83d and \\x00" in row["error_message"]


@pytest.mark.parametrize("target", first_are_quick(2, SINKS))
async def test_a_sink_takes_dead_letters_of_any_values(
    target: Callable[[Path], tuple[Any, Rows]], tmp_path: Path
) -> None:
    sink, rows = target(tmp_path)
    await run(sink, tmp_path)
    check(rows())


async def test_a_table_of_postgresql_takes_dead_letters_of_any_values(server: str, tmp_path: Path) -> None:
    with psycopg.connect(server) as connection:
        connection.execute("drop table if exists letters, keygroups_epochs")
        connection.execute(DDL)
    await run(PostgresSink(server, "letters", "job"), tmp_path)
    with psycopg.connect(server, row_factory=psycopg.rows.dict_row) as connection:
        check(connection.execute("select * from letters").fetchall())


async def test_a_topic_takes_dead_letters_of_any_values(tmp_path: Path) -> None:
    with broker() as address:
        make_topic(address, "letters")
        await run(KafkaSink("letters", "job", {"bootstrap.servers": address}), tmp_path)
        messages = read_messages(address, "letters")
    rows = [json.loads(message.value()) for message in messages]
    check(rows)
    assert [message.key().decode() for message in messages] == [row["idempotency_key"] for row in rows]
