"""The command `get`: one key, whatever its type, with what is in flight for it."""

from __future__ import annotations

import base64
import datetime as dt
import shlex
from collections.abc import Hashable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keygroups import ListState, MapState, StateTtl, ValueState, key_group_of, subtask_of
from keygroups.state import Expiring
from snapshots import Snapshot, SnapshotStore
from snapshots.inspection import find_key
from snapshots.inspection.one_key import KEYS_MAX, keys_from
from snapshots.testing import CountingFolder
from tests.quick import first_are_quick
from tests.snapshot_kit import G, parts, record, words
from tests.snapshots.aged_operator import folder_of
from tests.snapshots.cli_kit import Cli

VISITS, TAGS, PRICES = ValueState("visits", pa.int64()), ListState("tags"), MapState("prices", pa.float64())


@pytest.fixture
def uri(tmp_path: Path) -> str:
    made = SnapshotStore(tmp_path, "enrich")
    made.bootstrap(
        {
            VISITS: [("ann", 3), ("bob", 1)],
            TAGS: [("ann", ["new", {"since": dt.date(2026, 1, 2)}])],
            PRICES: [("ann", {"apple": 1.5, "pear": 2.0})],
        },
        parallelism=2,
        max_parallelism=G,
    )
    return made.uri


def test_a_key_is_shown_with_all_its_state(cli: Cli, uri: str) -> None:
    answer = cli("get", uri, "ann", "--json")

    group = key_group_of("ann", G)
    assert (answer.code, answer.err) == (0, "")
    assert answer.json == {
        "version": 1,
        "key": "ann",
        "key_group": group,
        "subtask": subtask_of(group, 2, G),
        "states": [
            {"name": "visits", "kind": "value", "rows": [{"entry": None, "value": 3, "expires_at": None}]},
            {
                "name": "tags",
                "kind": "list",
                "rows": [
                    {"entry": 0, "value": "new", "expires_at": None},
                    {"entry": 1, "value": {"since": "2026-01-02"}, "expires_at": None},
                ],
            },
            {
                "name": "prices",
                "kind": "map",
                "rows": [
                    {"entry": "apple", "value": 1.5, "expires_at": None},
                    {"entry": "pear", "value": 2.0, "expires_at": None},
                ],
            },
        ],
        "in_flight": [],
    }


def test_people_see_the_same(cli: Cli, uri: str) -> None:
    answer = cli("get", uri, "--state", "tags", "ann")

    for expected in ('key "ann" of snapshot 1', "tags (list)", "position", '{"since": "2026-01-02"}'):
        assert expected in answer.out
    assert "visits" not in answer.out


@pytest.mark.parametrize("arguments", [["carl"], ["bob", "--state", "tags"], ["ann", "7"]])
def test_a_key_that_is_not_there_is_exit_code_3(cli: Cli, uri: str, arguments: list[str]) -> None:
    answer = cli("get", uri, *arguments)

    assert (answer.code, answer.out) == (3, "")
    assert "nothing is in flight for it" in answer.err


def test_an_unknown_state_is_a_usage_error(cli: Cli, uri: str) -> None:
    answer = cli("get", uri, "ann", "--state", "absent")

    assert (answer.code, answer.out) == (2, "")
    assert "['visits', 'tags', 'prices']" in answer.err


def test_what_is_in_flight_for_a_key_is_shown(cli: Cli, tmp_path: Path) -> None:
    made = SnapshotStore(tmp_path, "enrich")
    elements = [
        record("a", 0, attempt=3),
        record("a", 1, completed=True, outputs=("A",)),
        record("b", 2, channel=record("a", 0).channel),
    ]
    made.write(parts({"count": {"c": 1}}, in_flight=elements))

    report = cli("get", made.uri, "a", "--json").json

    assert report["states"] == []
    found = [(one["element_id"], one["completed"], one["attempt"], one["outputs"]) for one in report["in_flight"]]
    first = elements[0].element_id
    assert found == [(first, False, 3, None), (elements[1].element_id, True, 1, ["A"])]
    assert "pending" in cli("get", made.uri, "a").out
    assert cli("get", made.uri, "c", "--json").json["in_flight"] == []


KEYS: list[tuple[Hashable, list[str]]] = [
    ("42", ["42"]),
    (42, ["42"]),
    (42.0, ["42.0"]),
    (float("nan"), ["nan"]),
    (True, ["true"]),
    (b"\x00\xff", [base64.b64encode(b"\x00\xff").decode()]),
    (dt.date(2026, 1, 2), ["2026-01-02"]),
    (dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), ["2026-01-02T04:00:00+01:00"]),
    (Decimal("1.50"), ["1.50"]),
    (("ann", 7), ["ann", "7"]),
    (("7", 7, Decimal("7.0")), ["7", "7", "7.0"]),
    ("two words", ["two words"]),
    ("-7", ["--", "-7"]),
]


@pytest.mark.parametrize(("key", "texts"), KEYS, ids=lambda value: repr(value))
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_key_is_read_by_the_type_of_the_stored_keys(
    tmp_path: Path, cli: Cli, key: Hashable, texts: list[str], is_alone: bool
) -> None:
    others: list[tuple[Any, int]] = [] if is_alone else [("x", 0), (1, 0), ((1, "x"), 0)]
    made = SnapshotStore(tmp_path, "enrich")
    made.bootstrap({VISITS: [(key, 5), *others]}, parallelism=2, max_parallelism=G)

    report = cli("get", made.uri, "--state", "visits", "--json", *texts).json

    assert report["states"][0]["rows"][0]["value"] == 5


SHOWN = ['a "word"', "a\\b", '"', "line\nline", "\u202e\x1b[31m", *(key for key, texts in KEYS if texts[0] != "--")]


@pytest.mark.parametrize(("key",), first_are_quick(5, [(key,) for key in SHOWN]), ids=ascii)  # noqa: PT006 - a key may be a tuple
def test_a_key_that_a_command_shows_can_be_pasted(tmp_path: Path, cli: Cli, key: Hashable) -> None:
    made = SnapshotStore(tmp_path, "enrich")
    made.bootstrap({VISITS: [(key, 5)]}, parallelism=2, max_parallelism=G)
    made.edit().put(VISITS, [(key, 6)]).commit()

    inspected = cli("inspect", made.uri, "--largest", "1", "--history", "0").out.splitlines()[-2].split("│")[1]
    changed = cli("diff", made.uri, "1", "2", "--rows").out.splitlines()[-2].split("│")[3]
    found = cli("get", made.uri, "--json", "--", *shlex.split(inspected))

    assert inspected.strip() == changed.strip()
    assert (found.code, found.json["states"][0]["rows"][0]["value"]) == (0, 6)


@pytest.mark.parametrize("type_", [pa.int32(), pa.int64()])
def test_flinks_integers_and_longs_are_found(tmp_path: Path, cli: Cli, type_: pa.DataType) -> None:
    made = SnapshotStore(tmp_path, "enrich")
    rows = pa.table({"key": pa.array([7, -1234567], type_), "value": pa.array([1, 5])})
    made.bootstrap({VISITS: rows}, parallelism=2, max_parallelism=G, hash="flink")

    report = cli("get", made.uri, "--json", "--", "-1234567").json

    assert report["states"][0]["rows"][0]["value"] == 5


def big_snapshot(rows: int) -> Snapshot:
    store = SnapshotStore(f"memory://get-{rows}", "enrich")
    visits = pa.table({"key": words(rows), "value": pa.repeat(1, rows)})
    other = pa.table({"key": words(rows), "value": pa.repeat("x" * 50, rows)})
    return store.latest() or store.bootstrap(
        {VISITS: visits, ValueState("other", pa.string()): other},
        parallelism=4,
        max_parallelism=128,
    )


def test_only_the_row_groups_of_the_key_are_read() -> None:
    snapshot = big_snapshot(200_000)
    folder = CountingFolder(folder_of(SnapshotStore.at("memory://get-200000/enrich")))
    counted = Snapshot(folder, snapshot.manifest)

    found = find_key(counted, ["key 77"], "visits")

    assert found is not None
    footers = max(file.footer_bytes for file in snapshot.manifest.files_of("keyed"))
    state = sum(file.bytes for file in snapshot.manifest.files_of("keyed", state="visits"))
    assert folder.operations["read"] <= 3  # the footer that tells the type, that of the key's file, and its row group
    assert folder.bytes_read <= 2 * footers + state / 16


def test_an_absent_key_of_a_big_state_costs_no_more() -> None:
    snapshot = big_snapshot(200_000)
    folder = CountingFolder(folder_of(SnapshotStore.at("memory://get-200000/enrich")))

    assert find_key(Snapshot(folder, snapshot.manifest), ["absent"], "visits") is None
    assert folder.operations["read"] <= 4


def test_values_that_expire_say_when(cli: Cli, tmp_path: Path) -> None:
    made = SnapshotStore(tmp_path, "enrich")
    seen = ValueState("seen", pa.int64(), ttl=StateTtl(3600))
    far = 2**43  # no cut is as late
    made.write(parts({"seen": {"ann": Expiring(1, far)}}, [seen]))

    (row,) = cli("get", made.uri, "ann", "--json").json["states"][0]["rows"]

    assert row == {"entry": None, "value": 1, "expires_at": far}
    assert " d " in cli("get", made.uri, "ann").out.partition("expires")[2]


def test_a_long_value_is_cut_for_people_and_whole_for_programs(cli: Cli, tmp_path: Path) -> None:
    made = SnapshotStore(tmp_path, "enrich")
    many = [f"item {number}" for number in range(200)]
    made.bootstrap({ValueState("text"): [("ann", "x" * 5000)], TAGS: [("ann", many)]}, parallelism=1)

    people, programs = cli("get", made.uri, "ann").out, cli("get", made.uri, "ann", "--json").json

    assert "(5,002 characters)" in people
    assert "the first 50 of 200" in people
    assert [len(state["rows"]) for state in programs["states"]] == [1, 200]
    assert len(programs["states"][0]["rows"][0]["value"]) == 5000


@given(st.lists(st.text(), min_size=1, max_size=8))
def test_any_text_is_read_as_a_bounded_number_of_keys_and_as_text_among_them(texts: list[str]) -> None:
    keys = list(keys_from(texts, like=tuple(str for _ in texts) if len(texts) > 1 else str))

    assert 1 <= len(keys) <= KEYS_MAX
    assert keys[0] == (tuple(texts) if len(texts) > 1 else texts[0])
