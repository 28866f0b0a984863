"""What upkeep does to states without a key: it carries them, or changes them where it is told to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keygroups import ConfigError, OperatorListState, OperatorMapState, UnstorableValue, ValueState
from snapshots import Snapshot, SnapshotStore, WrongStep
from tests.snapshot_kit import new_store, parts
from tests.snapshots.job_kit import source_parts
from tests.snapshots.operator_states import OFFSETS, RULES, SEEN, held, written

UPKEEP: dict[str, Callable[[SnapshotStore], Snapshot]] = {
    "compact": lambda store: store.compact(),
    "repartition": lambda store: store.repartition(3),
    "rewrite": lambda store: store.repartition(3, rewrite=True),
    "another max parallelism": lambda store: store.repartition(3, max_parallelism=64, rewrite=True),
    "edit": lambda store: store.edit().drop("profile").commit(),
}


@pytest.mark.parametrize("name", UPKEEP)
def test_upkeep_carries_them(name: str) -> None:
    store, before = written()
    after = UPKEEP[name](store)

    assert held(after, after.parallelism) == held(before)
    assert after.operator_state_names == ("offsets", "seen", "rules")
    store.collect_garbage(keep_last=1, min_age=0, dry_run=False)
    assert store.verify().ok
    assert held(after, 4) == held(before)


def test_a_damaged_file_is_found() -> None:
    store, snapshot = written()
    file = snapshot.manifest.files_of("operator", state="offsets")[0]
    snapshot.folder.delete([file.path])
    assert [problem.path.endswith(file.path) for problem in store.verify().problems] == [True]


class TestEdit:
    def test_one_can_be_dropped_or_renamed(self) -> None:
        store, before = written()
        after = store.edit().drop("seen").rename("offsets", "positions").commit()

        expected = held(before)
        assert held(after) == {"positions": expected["offsets"], "rules": expected["rules"]}
        assert sorted(after.operator_state_names) == ["positions", "rules"]
        assert after.state_names == before.state_names
        assert store.verify().ok

    def test_dropping_all_of_them_drops_the_feature(self) -> None:
        store, _ = written()
        after = store.edit().drop("seen").drop("offsets").drop("rules").commit()
        assert (after.operator_state_names, "operator_state" in after.manifest.required_features) == ((), False)

    @pytest.mark.parametrize("parallelism", [1, 2, 5])
    def test_items_can_be_put(self, parallelism: int) -> None:
        store, _ = written()
        editor = store.edit().put_items(OFFSETS, [("p", n) for n in range(7)])
        after = (
            editor.put_items(SEEN, [])
            .put_items(RULES, {"z": 1, "a": 2})
            .put_items(OperatorListState("new"), ["x", "y"])
        )
        snapshot = after.commit()

        assert held(snapshot, parallelism) == {
            "offsets": [("p", n) for n in range(7)],
            "seen": [],
            "rules": [("a", 2), ("z", 1)],
            "new": ["x", "y"],
        }
        sizes = [len(snapshot.restore(n).operator_state("offsets")) for n in range(2)]
        assert sizes == [4, 3]
        assert store.verify().ok

    @pytest.mark.parametrize(
        ("edit", "named"),
        [
            (lambda editor: editor.drop("none"), r"\['count', 'profile', 'offsets', 'seen', 'rules'\]"),
            (lambda editor: editor.rename("offsets", "seen"), "there is a state of this name"),
            (lambda editor: editor.rename("offsets", "count"), "there is a state of this name"),
            (lambda editor: editor.rename("count", "offsets"), "there is a state of this name"),
            (lambda editor: editor.rename("offsets", "a/b"), "new='a/b'"),
            (lambda editor: editor.put_items(OperatorListState("count"), []), "a keyed state has this name"),
            (lambda editor: editor.put(ValueState("offsets"), []), "an operator state has this name"),
        ],
        ids=["unknown", "taken", "taken by a keyed one", "keyed, taken", "no name", "put, taken", "put keyed, taken"],
    )
    def test_names_are_checked(self, edit: Any, named: str) -> None:
        store, _ = written()
        with pytest.raises(ConfigError, match=named):
            edit(store.edit())

    def test_items_are_checked(self) -> None:
        store, _ = written()
        with pytest.raises(UnstorableValue, match="operator state 'offsets'"):
            store.edit().put_items(OFFSETS, [object()])
        with pytest.raises(UnstorableValue, match="operator state 'rules'"):
            store.edit().put_items(OperatorMapState("rules"), {"a": object()})


def test_a_copy_has_them(tmp_path: Path) -> None:
    store, before = written(store=SnapshotStore(tmp_path, "enrich"))
    copied = store.copy_to(SnapshotStore(tmp_path, "other"))
    assert held(copied) == held(before)


def test_those_of_a_job_belong_to_a_step() -> None:
    job = new_store()
    job.write({"source": source_parts(items=5), "enrich": parts({"count": {"a": 1}, "profile": {}})})
    positions, rules = OperatorListState("positions"), OperatorMapState("rules")
    editor = job.edit().put_items(positions, [(0, 1), (1, 2), (2, 3)], step="source")
    after = editor.put_items(rules, {"a": 1}, step="enrich").rename("enrich.rules", "source.rules").commit()

    assert after.operator_state_names == ("source.positions", "source.rules")
    assert [after.restore(n, step="source").operator_state("positions") for n in range(2)] == [
        [(0, 1), (1, 2)],
        [(2, 3)],
    ]
    assert [after.restore(n, 3, step="source").operator_state("rules") for n in range(3)] == [[("a", 1)]] * 3
    assert after.to_arrow("source.positions").num_rows == 3
    assert job.verify().ok
    with pytest.raises(WrongStep):
        job.edit().put_items(rules, {}, step="sink")
    with pytest.raises(WrongStep):
        job.edit().put_items(rules, {})
