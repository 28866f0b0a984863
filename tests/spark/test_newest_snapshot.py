"""What tasks are told about the newest snapshot."""

from __future__ import annotations

import pytest

from async_op.spark.task.newest_snapshot import Newest
from tests.snapshot_kit import new_store, parts


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (2, 2)])
def test_only_subtasks_that_keep_their_key_groups_have_a_cut(before: int, after: int) -> None:
    store = new_store()
    store.write(parts({}, parallelism=before))
    rescaled = store.repartition(after) if after != before else store.latest()
    assert rescaled is not None

    newest = Newest.of(rescaled, after)

    assert newest.manifest_id == rescaled.manifest.snapshot_id
    assert list(newest.cuts) == (list(range(after)) if after == before else [])
    restored = newest.restore(after - 1, after)
    assert restored is not None


def test_before_the_first_epoch_there_is_nothing_to_restore() -> None:
    newest = Newest.of(None, 2)

    assert (newest.manifest_id, newest.cuts, newest.restore(0, 2)) == (None, {}, None)
