"""What a job and a pipeline check before they claim the newest snapshot."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from async_op import RepartitionUndone
from async_op.epochs.adoption import check_fixed, check_kind, check_steps, warn_of_repartition
from snapshots import IncompatibleSnapshot, Snapshot
from tests.snapshot_kit import G, new_store, parts


def of_an_operator() -> Snapshot:
    return new_store().write(parts({"count": {"ann": 1}}, parallelism=2))


def of_a_job() -> Snapshot:
    pending = new_store().begin()
    cuts = parts({"count": {"ann": 1}}, parallelism=2)
    return pending.commit([pending.write_subtask(cut, step=name) for name in ("source", "count") for cut in cuts])


@pytest.mark.parametrize("is_of_job", [True, False])
def test_neither_takes_over_the_snapshots_of_the_other(is_of_job: bool) -> None:
    own, other = of_an_operator(), of_a_job()
    if is_of_job:
        own, other = other, own
    check_kind(None, is_of_job=is_of_job)
    check_kind(own, is_of_job=is_of_job)
    with pytest.raises(IncompatibleSnapshot, match="choose another"):
        check_kind(other, is_of_job=is_of_job)


@pytest.mark.parametrize(
    ("options", "match"),
    [({"hash": "flink"}, "--parallelism 2 --hash flink"), ({"max_parallelism": 2 * G}, f"--max-parallelism {2 * G}")],
)
def test_what_is_fixed_is_refused_with_the_command_that_changes_it(options: dict[str, Any], match: str) -> None:
    latest = of_an_operator()
    fitting: dict[str, Any] = {"max_parallelism": G, "hash": "xxhash64", "parallelism": None}
    check_fixed(latest, **fitting)
    check_fixed(latest, **fitting | {"max_parallelism": None})
    with pytest.raises(IncompatibleSnapshot, match=match):
        check_fixed(latest, **fitting | options)
    check_fixed(None, **fitting | options)


def test_a_step_with_content_must_be_there() -> None:
    check_steps(of_a_job(), ["count", "source", "new"])
    with pytest.raises(IncompatibleSnapshot, match="count"):
        check_steps(of_a_job(), ["source", "new"])


@pytest.mark.parametrize(
    ("noted", "parallelism", "warns"),
    [(3, 4, True), (3, 3, True), (3, 2, False), (3, None, False), (2, 4, False), (None, 4, False)],
)
def test_only_a_start_that_undoes_what_somebody_has_chosen_warns(
    noted: int | None, parallelism: int | None, warns: bool
) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        warn_of_repartition(of_an_operator(), noted, parallelism)
        warn_of_repartition(None, noted, parallelism)
    assert [type(one.message) for one in warned] == [RepartitionUndone] * warns
