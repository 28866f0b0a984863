"""A bounded run: each chunk of its stored input is the input of an epoch, and a drain finishes what is in flight."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyspark.sql import DataFrame

from async_op.epochs.position import BEGINNING, SourcePosition
from async_op.spark.bounded.storing import chunk_frame, stored_input
from async_op.spark.chain import PipelineChain, join_chain
from async_op.spark.epoch.delivery import Outlet, epoch_of
from async_op.spark.epoch.history import check_keys
from async_op.spark.epoch.orders import Chunk
from async_op.spark.errors import UnfinishedRun
from async_op.spark.rows.routing import Routing
from async_op.spark.stage import Stage
from snapshots.filesystem import Folder
from snapshots.folder_hints import newest_or_empty
from snapshots.format.delivered import last_delivered
from snapshots.inputs import StoredInput, load_input, remove_input

_log = logging.getLogger(__package__)


def run_bounded(
    frame: DataFrame,
    stages: Sequence[Stage],
    routings: Sequence[Routing],
    outlet: Outlet,
    *,
    run_id: str,
    chunk_rows: int | None,
) -> None:
    """Run a bounded DataFrame through a chain, from where an earlier call with this run id has stopped.

    Raises
    ------
    UnfinishedRun
        Another run has not finished, or the stored input of this one is lost.
    """
    first = stages[0]
    folder = first.store.folder
    stored = None
    if not _has_finished(first, run_id):
        _check(first, routings[0], run_id)
        join_chain(stages, routings, None)
        stored = stored_input(folder, frame, run_id, chunk_rows, _order(first))
    elif not _is_over(stages):
        join_chain(stages, routings, None)
    else:
        said = "run %r of %s has finished before, so its rows are not read: for other rows pass another run_id"
        _log.warning(said, run_id, first.store.uri)
        remove_input(folder, run_id)
        return
    _run(frame, PipelineChain.begin(frame.sparkSession, stages, routings, outlet, 0), folder, stored)
    remove_input(folder, run_id)


def _run(frame: DataFrame, chain: PipelineChain, folder: Folder, stored: StoredInput | None) -> None:
    """Run all chunks that are not in the state, and finish what is in flight; close the chain in any case."""
    spark, has_failed = frame.sparkSession, True
    try:
        chunks = 0 if stored is None else len(stored.chunks)
        for number in range(chunks):
            assert stored is not None, "it has chunks"
            chunk = Chunk(stored.run_id, stored.input_id, number, chunks)
            if not chunk.is_in(chain.first.position):
                rows = chunk_frame(spark, folder, stored, number)
                chain.first.run_input(rows, chunk)
        chain.drain(spark)
        has_failed = False
    finally:
        chain.close(spark, failed=has_failed)


def _has_finished(first: Stage, run_id: str) -> bool:
    return run_id in SourcePosition.of(newest_or_empty(first.store.folder)).finished_runs


def _is_over(stages: Sequence[Stage]) -> bool:
    """Tell whether nothing of a finished run is left to do: a query may be running by now, and is not disturbed."""
    if not SourcePosition.of(newest_or_empty(stages[0].store.folder)).is_in_run:
        return True  # a query has taken over what was left
    seen = None
    for stage in stages:
        latest = newest_or_empty(stage.store.folder)
        position = SourcePosition.of(latest)
        if latest is None or latest.in_flight_count or last_delivered(latest.folder) != epoch_of(latest):
            return False
        if seen is not None and position.upstream != seen:
            return False
        seen = position.ref
    return seen != BEGINNING


def _check(first: Stage, routing: Routing, run_id: str) -> None:
    latest = newest_or_empty(first.store.folder)
    check_keys(latest, routing)
    run = SourcePosition.of(latest).run
    if run is None:
        return
    stored = load_input(first.store.folder, run_id)
    if run.run_id != run_id or stored is None or stored.input_id != run.input_id:
        raise UnfinishedRun(first.store.uri, run.run_id, run.done, run.chunks)


def _order(first: Stage) -> list[str]:
    """Return the columns by which the input is divided into chunks: with event time the watermark follows the rows."""
    event_time = first.settings.event_time
    return list(dict.fromkeys([*([] if event_time is None else [event_time]), *first.order_by]))
