"""Snapshots of every format version that was ever released, as they were written then."""

from __future__ import annotations

import hashlib
import json
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest

from keygroups import MissingCodec, codec
from keygroups.codec import unpack
from keygroups.state import MISSING, identity_of
from keygroups.state.timers import TIMER_STATES
from snapshots import SnapshotCorrupted, SnapshotStore
from snapshots.format.delivered import last_delivered
from snapshots.format.manifest import decode_schema
from snapshots.format.manifest_head import FEATURES, Head
from snapshots.format.parquet import ParquetReader
from snapshots.format.sink_notes import SinkNotes
from snapshots.inputs import load_input
from snapshots.lineage import lineage_of
from tests.snapshots.format.golden import damaged, damaged_lists, generate

VERSIONS = sorted(path.name for path in generate.FOLDER.glob("v*"))
DAMAGED = sorted(path.name for path in generate.FOLDER.glob("damaged-v*"))
DAMAGED_LISTS = sorted(path.name for path in generate.FOLDER.glob("damaged-lists-v*"))


@pytest.fixture(params=VERSIONS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    shutil.copytree(generate.FOLDER / request.param, tmp_path / "golden")
    return SnapshotStore(tmp_path / "golden", generate.OPERATOR_ID)


def expected(version: int) -> dict[str, dict[Any, Any]]:
    content = {
        state: {identity_of(key): value for key, value in values.items()} for state, values in generate.FIRST.items()
    }
    for state, changes in generate.CHANGES.items() if version == 2 else ():
        for key, value in changes.items():
            content[state][identity_of(key)] = value
    return {state: {k: v for k, v in values.items() if v is not MISSING} for state, values in content.items()}


def test_there_is_one_of_the_first_version() -> None:
    assert VERSIONS[0] == "v1"


@pytest.mark.parametrize("version", [1, 2])
def test_it_is_sound_and_reads_as_it_was_written(store: SnapshotStore, version: int) -> None:
    snapshot = store.load(version)
    found: dict[str, dict[Any, object]] = {state.name: {} for state in generate.STATES}
    for subtask in range(2):
        for state, groups in snapshot.restore(subtask, 2).states(generate.STATES).items():
            for group in groups.values():
                found[state] |= group.load()

    assert store.verify(version).ok
    assert found == expected(version)
    assert snapshot.source_position == {"offset": 42}
    queue = snapshot.restore(0, 1).queue()
    assert (queue.elements, queue.watermark) == (generate.ELEMENTS, 3)
    assert snapshot.restore(0, 1).operator_state("offsets") == list(generate.OPERATOR_STATE.items)


def test_it_can_be_continued(store: SnapshotStore) -> None:
    assert store.repartition(2).version == 3
    assert store.compact().version == 4
    assert store.load(4).to_arrow("count").num_rows == len(expected(2)["count"])


def test_files_of_a_compacted_snapshot_are_read_by_anything_that_reads_parquet(
    store: SnapshotStore, tmp_path: Path
) -> None:
    snapshot = store.compact()
    (file,) = snapshot.manifest.files_of("keyed", state="count")
    path = str(tmp_path / "golden" / generate.OPERATOR_ID / file.path)
    frame = pd.read_parquet(path)
    rows = duckdb.sql(f"SELECT key, value FROM read_parquet('{path}')").fetchall()

    for found in (
        dict(zip(frame["key"], frame["value"], strict=True)),
        dict(rows),
        {row["key"]: row["value"] for row in pq.read_table(path).to_pylist()},
    ):
        assert found == expected(2)["count"]
    (file,) = snapshot.manifest.files_of("keyed", state="place")
    path = str(tmp_path / "golden" / generate.OPERATOR_ID / file.path)
    assert duckdb.sql(f"SELECT value.tags[1] FROM read_parquet('{path}') WHERE key = 'a'").fetchall() == [("x",)]


def test_a_snapshot_with_deltas_is_read_as_one_table(store: SnapshotStore) -> None:
    table = store.load(2).to_arrow("count")
    assert table.schema.names == ["key_group", "key", "value"]
    rows = duckdb.from_arrow(table).project("key, value").fetchall()

    assert dict(rows) == expected(2)["count"]
    assert dict(zip(table.to_pandas()["key"], table.to_pandas()["value"], strict=True)) == expected(2)["count"]


def test_lists_and_maps_read_as_they_were_written(tmp_path: Path) -> None:
    shutil.copytree(generate.FOLDER / "entries-v1", tmp_path / "golden")
    snapshot = SnapshotStore(tmp_path / "golden", generate.OPERATOR_ID).load(2)
    found: dict[str, dict[Any, Any]] = {}
    for state, groups in snapshot.restore(0, 1).states(generate.ENTRY_STATES).items():
        found[state] = {}
        for group in groups.values():
            found[state] |= group.load()

    assert {file.kind for file in snapshot.manifest.files_of("keyed", "delta")} == {"keyed", "delta"}
    assert {key: list(clicks) for key, clicks in found["clicks"].items()} == {"a": [*range(21)], "b": [1, 2]}
    assert dict(found["prices"]["b"]) == generate.MANY
    assert dict(found["prices"]["a"]) == {key: price for key, price in generate.MANY.items() if key != "x"}
    assert found["anything"].keys() == {"a"}
    anything = found["anything"]["a"]
    assert [anything[identity_of(key)] for key in (1, 1.0, ("t", 2))] == [1, "float", [1]]
    assert found["highest"] == {"a": 7, "b": 7}


def test_timers_and_values_that_expire_read_as_they_were_written(tmp_path: Path) -> None:
    shutil.copytree(generate.FOLDER / "timed-v1", tmp_path / "golden")
    snapshot = SnapshotStore(tmp_path / "golden", generate.OPERATOR_ID).load(2)
    restore = snapshot.restore(0, 1)
    now = generate.NOW + 118_000
    found: dict[str, dict[Any, Any]] = {}
    for state, groups in restore.states(generate.TIMED_STATES, now).items():
        found[state] = {key: content for group in groups.values() for key, content in group.load().items()}

    assert set(snapshot.manifest.required_features) == {"delta", "entries", "operator_state", "timers", "ttl"}
    visits = {key: [visit.value for visit in held if visit.expires_at > now] for key, held in found["visits"].items()}
    assert visits == {"key 0": [2, 0], "key 1": [2, 1]} | {f"key {n}": [1, n] for n in range(19, 30)}
    assert {key: name.expires_at for key, name in found["name"].items()} == {
        f"key {n}": generate.NOW + 100_000 + (1000 * n if n > 1 else 90_000 + 1000 * n) for n in (0, 1, *range(19, 30))
    }
    for state in TIMER_STATES:
        assert {key: list(timers) for key, timers in found[state].items()} == {f"key {n}": [n] for n in range(30)}
    assert restore.queue().elements == generate.TIMER_ELEMENTS


def test_lists_of_files_read_as_they_were_written(tmp_path: Path) -> None:
    shutil.copytree(generate.FOLDER / "lists-v1", tmp_path / "golden")
    store = SnapshotStore(tmp_path / "golden", generate.OPERATOR_ID)
    for version in (1, 2):
        snapshot = store.load(version)
        manifest = snapshot.manifest
        assert "file_lists" in manifest.required_features
        assert {len(one.files) for one in manifest.file_lists if not one.channels} <= {1, 2}
        assert sum(len(one.channels) for one in manifest.file_lists) == 1
        groups = snapshot.restore(0, 1).states(generate.STATES)
        found = {
            state: {k: v for one in held.values() for k, v in one.load().items()} for state, held in groups.items()
        }
        assert found == expected(version)
        assert snapshot.restore(0, 1).queue().elements == generate.LISTED_ELEMENTS
        assert store.verify(version).ok
    assert store.repartition(2).version == 3
    assert store.compact().to_arrow("count").num_rows == len(expected(2)["count"])


@pytest.mark.parametrize("folder", DAMAGED_LISTS)
def test_damaged_lists_are_refused_with_the_error_that_says_what_they_are(folder: str) -> None:
    store = SnapshotStore(generate.FOLDER / folder, generate.OPERATOR_ID)
    assert len(store.load(1).manifest.file_lists) == 2
    for version, damage in enumerate(damaged_lists.DAMAGES, 2):
        with pytest.raises(SnapshotCorrupted, match=damage.says) as refused:
            store.load(version)
        assert type(refused.value) is SnapshotCorrupted, damage.name


def test_outputs_read_as_they_were_written(tmp_path: Path) -> None:
    shutil.copytree(generate.FOLDER / "outputs-v1", tmp_path / "golden")
    store = SnapshotStore(tmp_path / "golden", generate.OPERATOR_ID)

    for version, outputs in ((1, [generate.OUTPUTS]), (2, [])):
        snapshot = store.load(version)
        assert snapshot.manifest.output_schema is not None
        assert decode_schema(snapshot.manifest.output_schema) == generate.OUTPUTS.schema
        files = snapshot.manifest.files_of("output")
        assert [ParquetReader(snapshot.folder, file).read_all() for file in files] == outputs


def test_snapshots_from_before_schemas_were_stored_with_outputs_say_that_they_do_not_know(tmp_path: Path) -> None:
    shutil.copytree(generate.FOLDER / "v1", tmp_path / "golden")
    assert SnapshotStore(tmp_path / "golden", generate.OPERATOR_ID).load(1).manifest.output_schema is None


def test_the_steps_of_a_job_read_as_they_were_written(tmp_path: Path) -> None:
    shutil.copytree(generate.FOLDER / "job-v1", tmp_path / "golden")
    store = SnapshotStore(tmp_path / "golden", generate.OPERATOR_ID)
    for version in (1, 2):
        snapshot = store.load(version)
        enrich, source = (snapshot.restore(0, 1, step=step) for step in ("enrich", "source"))
        groups = enrich.states(generate.STATES)
        found = {
            state: {k: v for one in held.values() for k, v in one.load().items()} for state, held in groups.items()
        }
        assert found == expected(version)
        assert enrich.queue().elements == generate.ELEMENTS
        assert source.operator_state("offsets") == list(generate.OPERATOR_STATE.items)
        assert (source.states(()), source.queue().elements) == ({}, ())
        assert store.verify(version).ok

    assert snapshot.step_names == ("source", "enrich")
    assert "steps" in snapshot.manifest.required_features
    assert [file.state for file in snapshot.manifest.files_of("delta")] == ["enrich.count", "enrich.profile"]
    expected_outputs = {1: generate.OUTPUTS, 2: generate.OUTPUTS.slice(1)}
    assert {one.version: one.to_arrow() for one in snapshot.undelivered()} == expected_outputs


def test_other_hashes_codecs_and_modes_read_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(generate.FOLDER / "others-v1", tmp_path / "golden")
    store = SnapshotStore(tmp_path / "golden", generate.OPERATOR_ID)
    snapshot = store.load(1)
    for registry in ("_codecs", "_codecs_of_types"):
        monkeypatch.setattr(codec, registry, {})
    with pytest.raises(MissingCodec, match=generate.FRACTION):
        snapshot.restore(0, 1).states(generate.OTHER_STATES)
    generate.register_fraction()
    found = {
        state: {key: value for group in groups.values() for key, value in group.load().items()}
        for state, groups in snapshot.restore(0, 1).states(generate.OTHER_STATES).items()
    }
    keys = {identity_of(key): number for number, key in enumerate(generate.OTHER_KEYS)}

    assert snapshot.manifest.hash == "flink"
    assert found["share"] == {key: Fraction(number, 3) for key, number in keys.items()}
    assert found["mean"] == {key: [number + 1, 2] for key, number in keys.items()}
    for subtask in range(2):
        rules, seen = (snapshot.restore(subtask, 2).operator_state(name) for name in ("rules", "seen"))
        assert (rules, seen) == tuple(list(state.items) for state in generate.OPERATOR_STATES[1:])
    stored = load_input(store.folder, "run-1")
    assert stored is not None
    assert ParquetReader(store.folder, stored.chunks[0][0]).read_all() == generate.OUTPUTS
    assert last_delivered(store.folder) == generate.DELIVERED


def test_lineages_refused_records_contents_and_notes_of_sinks_read_as_they_were_written(tmp_path: Path) -> None:
    shutil.copytree(generate.FOLDER / "refusals-v1", tmp_path / "golden")
    store = SnapshotStore(tmp_path / "golden", generate.OPERATOR_ID)
    snapshot = store.load(1)
    enrich, source = (snapshot.restore(0, 1, step=step) for step in ("enrich", "source"))
    (epoch,) = snapshot.undelivered()
    notes = SinkNotes(store.folder)

    assert (store.folder.read("lineage"), snapshot.manifest.lineage) == (generate.LINEAGE.encode(), generate.LINEAGE)
    assert lineage_of(store.folder, None) == lineage_of(store.folder, snapshot.manifest) == generate.LINEAGE
    assert enrich.queue().elements == (generate.ELEMENTS[0], generate.REFUSED)
    for state in generate.SOURCE_STATES:
        assert source.operator_state(state.name) == list(state.items)
    assert notes.refused(epoch.identity) == {1: generate.REFUSED_OUTPUT}
    assert notes.was_written("outputs", generate.TARGET)
    assert not notes.was_written("dead_letters", generate.TARGET)
    assert store.verify(1).ok


def test_what_the_format_says_of_them_is_what_is_stored() -> None:
    folder = generate.FOLDER / "refusals-v1" / generate.OPERATOR_ID
    manifest = Head.from_bytes((folder / "manifests" / f"{1:020}.json").read_bytes(), "").manifest
    (file,) = manifest.files_of("in_flight")
    rows = pq.read_table(folder / file.path).to_pylist()
    refused = next(row for row in rows if row["kind"] == "refused")
    (output,) = manifest.files_of("output")

    assert unpack(refused["value"]) == [generate.REFUSED.value.text, generate.REFUSED.value.reason]
    assert (refused["completed"], refused["outputs"]) == (False, None)
    assert json.loads((folder / "sink").read_bytes()) == {
        "targets": {"outputs": hashlib.sha256(generate.TARGET.encode()).hexdigest()[:32]},
        "refused": [
            {
                "epoch": [1, output.footer_sha256],
                "outputs": {"1": {"error_type": "UnwritableValue", "error_message": "there is no place for it"}},
            }
        ],
    }


def test_elements_are_columns_for_everybody(tmp_path: Path) -> None:
    shutil.copytree(generate.FOLDER / "elements-v1", tmp_path / "golden")
    snapshot = SnapshotStore(tmp_path / "golden", generate.OPERATOR_ID).load(1)
    assert snapshot.restore(0, 1).queue().elements == generate.TYPED_ELEMENTS

    (file,) = snapshot.manifest.files_of("in_flight")
    path = snapshot.folder.path(file.path)
    rows = f"FROM read_parquet('{path}') WHERE kind = 'record' ORDER BY sequence"
    assert duckdb.sql(f"SELECT value.user, value.tags, outputs[1].n, key.region {rows}").fetchall() == [
        (7, ["a", None], None, "eu"),
        (8, [], 1.5, None),
        (None, None, None, None),
    ]
    values = pd.read_parquet(path).set_index("sequence")["value"]
    assert values[0]["user"] == 7
    rest = dict(zip(*snapshot.in_flight().select(["sequence", "rest"]).to_pydict().values(), strict=True))
    assert {sequence: unpack(one) for sequence, one in rest.items() if one is not None} == {
        3: {"value": {"user": "a text"}},
        4: {"value": ["{'id': 2}", "no JSON"]},
    }


def test_every_feature_and_kind_of_state_has_a_golden_snapshot() -> None:
    manifests = [
        Head.from_bytes(path.read_bytes(), path.name).manifest
        for path in sorted(generate.FOLDER.glob("*/*/manifests/*.json"))
        if path.parts[-4] not in {*DAMAGED, *DAMAGED_LISTS}
    ]

    assert {feature for manifest in manifests for feature in manifest.required_features} == FEATURES
    kinds = {state.kind for manifest in manifests for state in manifest.states}
    assert kinds == {"value", "list", "map", "reducing", "aggregating"}
    modes = {state.mode for manifest in manifests for state in manifest.operator_states}
    assert modes == {"split", "union", "broadcast"}
    assert {file.kind for manifest in manifests for file in manifest.files} == {
        *("keyed", "delta", "in_flight", "operator", "output")
    }
    assert all("keygroups" in manifest.written_by for manifest in manifests), "which release has made it"


@pytest.mark.parametrize("folder", DAMAGED)
def test_a_damaged_one_is_refused_with_the_error_that_says_what_it_is(folder: str) -> None:
    store = SnapshotStore(generate.FOLDER / folder, generate.OPERATOR_ID)
    assert dict(zip(*store.load(1).to_arrow("count").select(["key", "value"]).to_pydict().values(), strict=True)) == (
        damaged.CONTENT
    )
    for version, damage in enumerate(damaged.DAMAGES, 2):
        with pytest.raises(damage.error, match=damage.says) as refused:
            store.load(version).to_arrow("count")
        assert type(refused.value) is damage.error, damage.name
