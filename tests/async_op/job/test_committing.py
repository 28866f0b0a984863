"""Who commits the first version of a job."""

from __future__ import annotations

import pytest

from async_op.job.committing import Committer
from async_op.job.outputs import EpochOutputs
from snapshots import CommitConflict
from tests.snapshot_kit import new_store, parts


def test_of_two_jobs_that_begin_with_nothing_the_later_one_does_not_continue_from_what_it_has_not_restored() -> None:
    store = new_store()
    first, second = Committer(store), Committer(store)
    counts = {"first": 1, "second": 2}
    first.commit_cut(first.begin(), [("count", part) for part in parts({"count": counts})], EpochOutputs(), {})

    with pytest.raises(CommitConflict):
        second.commit_cut(second.begin(), [("count", part) for part in parts({"count": {}})], EpochOutputs(), {})

    assert store.versions() == [1]
