"""The stream of a state: the rows of its table, a piece at a time."""

from __future__ import annotations

import pytest

from keygroups import ConfigError, KeyGroupRange
from snapshots import Snapshot
from tests.snapshot_kit import new_store, parts
from tests.snapshots.inspection.kit import rows_of


def test_a_stream_has_the_rows_of_the_table(versions: list[Snapshot]) -> None:
    for snapshot in versions:
        for name in snapshot.state_names:
            stream, table = snapshot.to_reader(name), snapshot.to_arrow(name)
            assert stream.schema == table.schema
            streamed = stream.read_all()
            assert rows_of(streamed) == rows_of(table)
            assert streamed.column("key_group").to_pylist() == sorted(table.column("key_group").to_pylist())


def test_a_stream_of_some_key_groups_has_only_their_rows(versions: list[Snapshot]) -> None:
    snapshot = versions[-1]
    wanted = KeyGroupRange(3, 9)

    for name in snapshot.state_names:
        expected = [row for row in snapshot.to_arrow(name).to_pylist() if row["key_group"] in wanted]
        assert rows_of(snapshot.to_reader(name, wanted).read_all()) == sorted(expected, key=repr)


def test_a_state_that_is_not_there_is_named() -> None:
    snapshot = new_store().write(parts({"count": {"a": 1}}))

    with pytest.raises(ConfigError, match="state_name='absent'"):
        snapshot.to_reader("absent")
