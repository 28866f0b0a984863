from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pyarrow as pa
import pytest

from keygroups import ConfigError, KeyGroupRange
from snapshots import IncompatibleSnapshot, SnapshotCorrupted
from snapshots.format import manifest_head
from snapshots.format.manifest import (
    FORMAT_VERSION,
    Channel,
    DataFile,
    Manifest,
    OperatorStateInfo,
    encode_schema,
    manifest_name,
)
from snapshots.format.manifest_head import Head
from snapshots.format.manifest_schema import STATES_MAX
from snapshots.format.schemas import state_info
from snapshots.format.sealing import check_json
from tests.snapshot_kit import COUNT, PROFILE

PATH = "/operators/enrich/manifests/7.json"

KEYED = DataFile(
    kind="keyed",
    state="profile",
    subtask=1,
    version=7,
    key_groups=KeyGroupRange(64, 127),
    file_key_groups=KeyGroupRange(0, 127),
    path="data/4a1/keyed-profile-64-127.parquet",
    rows=10,
    bytes=1000,
    sha256="ab" * 32,
    footer_bytes=500,
    footer_sha256="cd" * 32,
)
DELTA = dataclasses.replace(
    KEYED,
    kind="delta",
    version=8,
    parent_id="4" * 32,
    folds=True,
    key_groups=KeyGroupRange(70, 80),
    path="data/4a1/delta-profile-64-127.parquet",
    rows=1,
)
IN_FLIGHT = dataclasses.replace(KEYED, kind="in_flight", state=None, path="data/4a1/in_flight-64-127.parquet", rows=3)
SAMPLE = Manifest(
    version=7,
    snapshot_id="5" * 32,
    parent_version=6,
    parent_id="4" * 32,
    created_at="2026-01-02T03:04:05.000+00:00",
    operator_id="enrich",
    max_parallelism=128,
    parallelism=2,
    hash="xxhash64",
    key_encoding="columns-1",
    states=(state_info(COUNT, None), state_info(PROFILE, None)),
    operator_states=(OperatorStateInfo("offsets", "split"),),
    files=(KEYED, DELTA, IN_FLIGHT),
    channels=(
        Channel(subtask=0, key_groups=KeyGroupRange(0, 63), watermark=None, cut_id="c0", keyless=0),
        Channel(subtask=1, key_groups=KeyGroupRange(64, 127), watermark=1_700_000_000_000, cut_id=None, keyless=2),
    ),
    in_flight_count=3,
    output_schema=encode_schema(pa.schema([("id", pa.int64()), ("name", pa.string())])),
    source_position={"topic": "flüge", "offsets": [1, 2], "share": 1.0, "done": False, "at": None},
    metrics={"rows": 100},
    required_features=("delta",),
    written_by={"pyarrow": "1.2.3"},
)


def sealed(body: object) -> bytes:
    """Return what a writer would write, with whatever is in it."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f'{{"manifest":{text},"sha256":"{digest}"}}'.encode(errors="surrogatepass")


def body() -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(Head(SAMPLE).to_bytes())["manifest"]
    return fields


def refused(data: bytes) -> SnapshotCorrupted:
    with pytest.raises(SnapshotCorrupted) as error:
        Head.from_bytes(data, PATH)
    assert error.value.path == PATH
    assert error.value.key_groups is None
    return error.value


def test_a_manifest_comes_back_as_it_was() -> None:
    assert Head.from_bytes(Head(SAMPLE).to_bytes(), PATH).manifest == SAMPLE


def test_the_same_manifest_is_the_same_bytes() -> None:
    assert Head.from_bytes(Head(SAMPLE).to_bytes(), PATH).to_bytes() == Head(SAMPLE).to_bytes() == sealed(body())


def test_names_sort_like_versions() -> None:
    assert manifest_name(7) == "manifests/00000000000000000007.json"
    assert manifest_name(9) < manifest_name(10) < manifest_name(10**19)


def test_totals_are_those_of_all_files_and_files_are_found_by_kind_and_state() -> None:
    assert (SAMPLE.rows_total, SAMPLE.bytes_total) == (14, 3000)
    assert SAMPLE.files_of("keyed") == SAMPLE.files_of("keyed", state="profile") == (KEYED,)
    assert SAMPLE.files_of("keyed", "delta") == (KEYED, DELTA)
    assert SAMPLE.files_of("in_flight") == (IN_FLIGHT,)
    assert SAMPLE.files_of("keyed", state="count") == SAMPLE.files_of("output") == ()


def test_a_file_of_which_two_ranges_hold_counts_once() -> None:
    rest = dataclasses.replace(KEYED, key_groups=KeyGroupRange(0, 3))
    twice = dataclasses.replace(SAMPLE, files=(rest, KEYED))

    assert Head.from_bytes(Head(twice).to_bytes(), PATH).manifest == twice
    assert (twice.rows_total, twice.bytes_total) == (KEYED.rows, KEYED.bytes)


@pytest.mark.thorough
def test_no_flipped_bit_goes_unseen() -> None:
    data = Head(SAMPLE).to_bytes()
    for offset in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[offset] ^= 1 << bit
            refused(bytes(changed))


def test_no_other_byte_goes_unseen_in_a_number() -> None:
    """1.0 and 1e0 are one number, but one manifest has one form."""
    data = Head(SAMPLE).to_bytes()
    start = data.index(b'"share":1.0') + len(b'"share":')
    for offset in range(start, start + 3):
        for byte in set(range(256)) - {data[offset]}:
            refused(data[:offset] + bytes([byte]) + data[offset + 1 :])


def test_no_missing_end_goes_unseen() -> None:
    data = Head(SAMPLE).to_bytes()
    for length in range(len(data)):
        refused(data[:length])


@pytest.mark.parametrize("extra", [b"\n", b" ", b"\x00", b"}", b"{}"])
def test_nothing_may_be_added(extra: bytes) -> None:
    refused(Head(SAMPLE).to_bytes() + extra)
    refused(extra + Head(SAMPLE).to_bytes())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PAR1",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"7",
        b"{}",
        b'{"manifest":{}}',
        b"[" * 100_000,
        sealed(None),
        sealed([]),
        sealed("text"),
    ],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_no_manifest_is_corruption(data: bytes) -> None:
    refused(data)


def test_the_checksum_of_other_content_does_not_match() -> None:
    mine, other = Head(SAMPLE).to_bytes(), Head(dataclasses.replace(SAMPLE, version=8)).to_bytes()
    split = mine.rindex(b',"sha256":"') + len(b',"sha256":"')

    assert "checksum" in refused(mine[:split] + other[-len(mine[split:]) :]).damage


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "data/../../other/manifests/1.json",
        "data/..",
        "../data/x.parquet",
        "manifests/00000000000000000001.json",
        "x.parquet",
        "",
        "file:///etc/passwd",
        7,
        None,
        ["data/x"],
    ],
)
def test_a_file_outside_of_the_data_folder_is_refused(path: object) -> None:
    fields = body()
    fields["files"][0]["path"] = path

    refused(sealed(fields))


MISSING = object()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, MISSING) for name in ("version", "operator_id", "files", "states", "channels", "source_position")),
        ("parallelism", 0),
        ("parallelism", 129),
        ("parallelism", "2"),
        ("max_parallelism", 32769),
        ("files", None),
        ("files", [7]),
        ("files", [{}]),
        ("states", [{"name": "a"}]),
        ("states", 7),
        ("states", [{"name": "a"}] * (STATES_MAX + 1)),
        ("channels", None),
        ("channels", [{}]),
        ("channels", [{}] * (2**15 + 1)),
        ("required_features", 7),
    ],
)
def test_a_wrong_field_is_corruption_even_if_the_checksum_matches(name: str, value: object) -> None:
    fields = body() | {name: value}
    if value is MISSING:
        del fields[name]

    assert "field" in refused(sealed(fields)).damage


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sha256", MISSING),
        ("kind", "another"),
        ("rows", -1),
        ("rows", 2**60),
        ("bytes", -1),
        ("bytes", 2**60),
        ("bytes", 499),
        ("footer_bytes", -1),
        ("footer_bytes", 2**40),
        ("file_key_groups", {"start": 65, "end": 127}),
        ("file_key_groups", MISSING),
        ("key_groups", {"start": 5, "end": 4}),
        ("key_groups", {"start": 0, "end": 32768}),
        ("key_groups", {"start": "0", "end": "1"}),
        ("key_groups", None),
    ],
)
def test_a_wrong_field_of_a_file_is_corruption_too(name: str, value: object) -> None:
    fields = body()
    fields["files"][0][name] = value
    if value is MISSING:
        del fields["files"][0][name]

    assert "field" in refused(sealed(fields)).damage


def test_unknown_fields_are_optional_ones_of_a_newer_release() -> None:
    fields = body() | {"unknown": 1}
    fields["files"][0]["unknown"] = fields["channels"][0]["unknown"] = fields["states"][0]["unknown"] = 2

    assert Head.from_bytes(sealed(fields), PATH).manifest == SAMPLE


def test_a_feature_that_is_not_known_is_refused_by_name() -> None:
    fields = body() | {"required_features": ["delta", "teleport"]}

    with pytest.raises(IncompatibleSnapshot, match="newer release") as error:
        Head.from_bytes(sealed(fields), PATH)
    assert (error.value.what, error.value.found) == ("a required feature", "teleport")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
def test_json_that_no_writer_writes_is_corruption(value: object) -> None:
    refused(sealed(body() | {"source_position": {"at": value}}))


@pytest.mark.parametrize("found", [FORMAT_VERSION + 1, FORMAT_VERSION - 1, "1", None])
def test_another_format_is_not_guessed_at(found: object) -> None:
    fields = body() | {"format_version": found, "a field of that format": 1}

    with pytest.raises(IncompatibleSnapshot, match="newer release") as error:
        Head.from_bytes(sealed(fields), PATH)
    assert (error.value.what, error.value.expected, error.value.found) == ("format version", FORMAT_VERSION, found)


def test_the_format_version_is_missing() -> None:
    fields = body()
    del fields["format_version"]

    with pytest.raises(IncompatibleSnapshot):
        Head.from_bytes(sealed(fields), PATH)


def test_a_manifest_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Head(SAMPLE).to_bytes()
    monkeypatch.setattr(manifest_head, "MANIFEST_BYTES_MAX", len(data))
    assert Head.from_bytes(data, PATH).manifest == SAMPLE

    monkeypatch.setattr(manifest_head, "MANIFEST_BYTES_MAX", len(data) - 1)
    assert "more than a manifest may have" in refused(data).damage


@pytest.mark.parametrize("value", [None, {}, {"offsets": {"0": [1, 2.5, True, None]}}, ["ä"]])
def test_what_json_gives_back_may_be_a_source_position(value: object) -> None:
    check_json("source_position", value)


@pytest.mark.parametrize(
    "value",
    [{0: 1}, {"a": 1, 0: 2}, {"a": (1,)}, {"a": {1}}, {"a": b""}, {"a": float("nan")}, {"a": "\ud800"}, object],
    ids=repr,
)
def test_what_json_would_change_may_not(value: object) -> None:
    with pytest.raises(ConfigError, match="source_position"):
        check_json("source_position", value)
