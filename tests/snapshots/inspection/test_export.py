"""The export of a state or of what is in flight, for programs and for people."""

from __future__ import annotations

import csv
import datetime as dt
import json
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keygroups import ConfigError
from snapshots import Snapshot, SnapshotStore, WrongStep
from snapshots.format.columns import is_packed
from snapshots.inspection import export
from snapshots.inspection.export import plain
from snapshots.restore.reader import decode_column
from tests.snapshot_kit import new_store, parts, record, words
from tests.snapshots.inspection.kit import EVERYTHING, NAN, rows_of


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_typed_export_has_the_columns_of_the_state_and_json_for_the_rest(
    versions: list[Snapshot], tmp_path: Path, ending: str
) -> None:
    snapshot, path = versions[-1], tmp_path / f"state.{ending}"
    for name in snapshot.state_names:
        told: list[tuple[int, int]] = []

        count = export(snapshot, name, path, progress=lambda done, total, told=told: told.append((done, total)))

        table = pq.read_table(path) if ending == "parquet" else pa.ipc.open_file(path).read_all()
        assert rows_of(table) == rows_of(with_json(snapshot.to_arrow(name)))
        assert table.num_rows == count
        assert all(0 < done <= total for done, total in told)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def with_json(table: pa.Table) -> pa.Table:
    """Return a state with JSON in place of msgpack."""
    for place, field in enumerate(table.schema):
        if is_packed(field):
            texts = [json.dumps(plain(value), ensure_ascii=False) for value in decode_column(table, field.name)]
            table = table.set_column(place, pa.field(field.name, pa.string()), pa.array(texts))
    return table


def test_other_programs_read_what_has_no_arrow_type(tmp_path: Path) -> None:
    cart = {"items": ["pear", "fig"], "paid": False}
    mixed = {"ann": cart, 7: None, (1, "b"): b"raw"}
    snapshot = new_store().write(parts({"profile": mixed}))
    export(snapshot, "profile", tmp_path / "cart.parquet")

    keys = "select key, value, value->'$.items[1]' from read_parquet(?) order by key"
    rows = duckdb.execute(keys, [str(tmp_path / "cart.parquet")]).fetchall()

    assert [(json.loads(key), value and json.loads(value), item) for key, value, item in rows] == [
        ("ann", cart, '"fig"'),
        (7, None, None),
        ([1, "b"], "cmF3", None),
    ]


def test_an_export_for_people_decodes_msgpack(versions: list[Snapshot], tmp_path: Path) -> None:
    snapshot = versions[-1]
    export(snapshot, "profile", tmp_path / "profile.jsonl")
    export(snapshot, "profile", tmp_path / "profile.csv")

    lines = [json.loads(line) for line in (tmp_path / "profile.jsonl").read_text().splitlines()]
    with (tmp_path / "profile.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert len(lines) == len(cells) == snapshot.to_arrow("profile").num_rows
    for line, cell in zip(lines, cells, strict=True):
        assert set(line) == {"key_group", "key", "value"}
        assert line["value"]["seen"][1] is None
        assert json.loads(cell["value"]) == line["value"]
        assert int(cell["key_group"]) == line["key_group"]


def test_in_flight_elements_are_exported_too(tmp_path: Path) -> None:
    snapshot = new_store().write(parts({}, in_flight=[record("a", 0), record(None, 1, channel=0), record("b", 2)]))

    assert export(snapshot, None, tmp_path / "all.jsonl") == 3
    assert export(snapshot, None, tmp_path / "keyed.jsonl", key_groups=EVERYTHING) == 2

    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert sorted(str(line["value"]["key"]) for line in lines) == ["None", "a", "b"]


def test_the_elements_of_one_step_of_a_job_have_their_own_columns(tmp_path: Path) -> None:
    values = {"enrich": {"user": "ann"}, "score": 1.5}
    steps = {step: parts({}, in_flight=[record("a", 0, value=value)]) for step, value in values.items()}
    snapshot = SnapshotStore(tmp_path, "job").write(steps)

    for step, value in values.items():
        assert export(snapshot, None, tmp_path / "one.parquet", step=step) == 1
        rows = pq.read_table(tmp_path / "one.parquet")
        assert "step" not in rows.column_names
        assert rows.column("value").to_pylist() == snapshot.in_flight(step=step).column("value").to_pylist() == [value]
    assert is_packed(snapshot.in_flight().schema.field("value"))
    for read in (lambda: export(snapshot, None, tmp_path / "x.csv", step="x"), lambda: snapshot.in_flight(step="x")):
        with pytest.raises(WrongStep):
            read()


def test_an_export_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "store", "enrich")
    snapshot = store.write(parts({"count": dict.fromkeys(words(300), 1)}))
    target = tmp_path / "state.csv"
    target.write_text("before")
    for file in (tmp_path / "store").glob("enrich/data/*/keyed-count-8-*.parquet"):
        file.write_bytes(b"damaged")

    with pytest.raises(Exception, match="damaged"):
        export(snapshot, "count", target)

    assert target.read_text() == "before"
    assert {file.name for file in tmp_path.iterdir()} == {"store", "state.csv"}


@pytest.mark.parametrize(("path", "message"), [("x.xlsx", "use one of .arrow, .csv"), ("gone/x.csv", "does not exist")])
def test_a_target_that_cannot_be_is_named(tmp_path: Path, path: str, message: str) -> None:
    snapshot = new_store().write(parts({"count": {"a": 1}}))

    with pytest.raises(ConfigError, match=message):
        export(snapshot, "count", tmp_path / path)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, 2.5, None]}, {"a": [1, 2.5, None]}),
        ({1: "a"}, [[1, "a"]]),
        ((b"\x00", {3, 1}), ["AA==", [1, 3]]),
        ([NAN, float("-inf")], ["nan", "-inf"]),
        (dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "2026-01-02T00:00:00+00:00"),
        (dt.timedelta(hours=1), "1:00:00"),
        (Decimal("1.50"), "1.50"),
        (2**70, 2**70),
    ],
)
def test_every_value_has_a_form_in_json(value: object, expected: object) -> None:
    assert plain(value) == expected
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == expected


@pytest.mark.parametrize(
    ("target", "message"), [("folder.csv", "a folder"), ("file/state.csv", "cannot be written to")]
)
def test_a_target_with_something_in_its_way_is_named(tmp_path: Path, target: str, message: str) -> None:
    snapshot = new_store().write(parts({"count": {"a": 1}}))
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match=message):
        export(snapshot, "count", tmp_path / target)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder.csv"]
