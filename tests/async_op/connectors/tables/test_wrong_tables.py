"""A table that cannot be opened or made: the error names it and says what to do, whichever package writes it."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, TimeType

from async_op.connectors import DeltaSink, IcebergSink, SinkRefused
from keygroups import ConfigError
from tests.async_op.connectors.tables.targets import SCHEMA, Delta, Iceberg


@pytest.mark.parametrize("place", ["file", "file/below", "unknown://bucket/table", "s3://"])
async def test_a_place_where_no_delta_table_can_be_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    table = place if ":" in place else str(tmp_path / place)
    sink = DeltaSink(table, "job")
    with pytest.raises(SinkRefused) as raised:
        await sink.write([{"n": 1}], 1)
    assert raised.value.target == table
    await sink.close()


@pytest.mark.parametrize("name", ["a%20b", "a[1]", "a\\b", "a^b", "a|b", "a\tb"], ids=ascii)
def test_a_folder_in_which_deltalake_would_panic_or_get_lost_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    for table in (str(tmp_path / name), "orders", f"s3://lake/{name}"):
        with pytest.raises(ConfigError, match="table=.*choose another one"):
            DeltaSink(table, "job")


@pytest.mark.parametrize(
    ("catalog", "error"),
    [
        ({"type": "unknown"}, ConfigError),
        ({}, ConfigError),
        ({"uri": "unknown://secret@host"}, ConfigError),
        ({"type": "sql", "uri": "sqlite://"}, SinkRefused),
    ],
    ids=["type", "no address", "unknown address", "no warehouse"],
)
async def test_a_catalog_in_which_no_iceberg_table_can_be_is_refused(
    catalog: dict[str, Any], error: type[Exception]
) -> None:
    sink = IcebergSink("sales.orders", "job", catalog=catalog)
    with pytest.raises(error):
        await sink.write([{"n": 1}], 1)
    await sink.close()


@pytest.mark.parametrize(
    "made", [lambda: DeltaSink("", "job"), lambda: IcebergSink("", "job", catalog={})], ids=["Delta", "Iceberg"]
)
def test_a_table_needs_a_name(made: Any) -> None:
    with pytest.raises(ConfigError, match="table="):
        made()


def of_orc(catalog: Catalog) -> None:
    schema = Schema(NestedField(1, "n", LongType()))
    catalog.create_table("sales.orders", schema, properties={"write.format.default": "orc"})


def by_time(catalog: Catalog) -> None:
    schema = Schema(NestedField(1, "n", TimeType()))
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "bucket"))
    catalog.create_table("sales.orders", schema, partition_spec=spec)


@pytest.mark.parametrize(
    ("make", "value", "reason"),
    [(of_orc, 1, "No writer registered for FileFormat.ORC"), (by_time, dt.time(12), "AttributeError")],
)
async def test_a_table_that_pyiceberg_cannot_write_is_named(
    tmp_path: Path, make: Callable[[Catalog], None], value: Any, reason: str
) -> None:
    target = Iceberg(tmp_path)
    with closing(load_catalog(**target.catalog)) as catalog:
        catalog.create_namespace("sales")
        make(catalog)
    sink = target.sink()
    with pytest.raises(SinkRefused, match=reason) as raised:
        await sink.write([{"n": value}], 1)
    assert raised.value.target == "sales.orders"
    await sink.close()


def give_feature(table: str, feature: str) -> None:
    """Let the newest commit of a table, its first, require a feature of its writers."""
    log = Path(table, "_delta_log", f"{0:020}.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [feature]}
    log.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


@pytest.mark.parametrize("feature", ["clustering", "rowTracking", "identityColumns", "featureOfTheFuture"])
async def test_a_feature_of_a_delta_table_that_deltalake_lacks_is_named_at_the_first_attempt(
    tmp_path: Path, feature: str
) -> None:
    target = Delta(tmp_path)
    deltalake.DeltaTable.create(target.arguments[0], SCHEMA)
    give_feature(target.arguments[0], feature)
    sink = target.sink()
    with pytest.raises(SinkRefused, match=rf"(?i)unsupported table features required.*{feature[:6]}"):
        await sink.write([{"n": 1, "name": "one"}], 1)
    await sink.close()
