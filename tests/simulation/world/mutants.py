"""Each defence of snapshots and operators, taken out; what the docstring says is then so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from immutables import Map

from async_op.in_flight import idempotency_keys
from async_op.timers.service import TimerService
from keygroups.state import MISSING
from keygroups.state.memory.table import MemoryTable
from keygroups.state.timers import TIMER_STATES
from snapshots import SubtaskRestore, lineage, store, versions
from snapshots.commit import claim, manifest_creation
from snapshots.errors import CommitConflict
from snapshots.filesystem import is_transient, local
from snapshots.format import in_flight_elements
from snapshots.format.manifest import Manifest, manifest_name
from snapshots.format.parquet import ParquetReader
from snapshots.format.schemas import EXPIRES_AT
from snapshots.restore import reader, share
from snapshots.restore.reader import ArrowGroup
from snapshots.upkeep import retention

Patch = pytest.MonkeyPatch


# Commits.


def a_manifest_is_a_file_like_any_other(patch: Patch) -> None:
    """A manifest is written, and not created in one step."""
    patch.setattr(
        manifest_creation, "_create", lambda folder, one, data: folder.write(manifest_name(one.version), data)
    )


def no_answer_means_done(patch: Patch) -> None:
    """A request that nobody has answered is taken for done."""

    def create(folder: Any, manifest: Any, data: bytes) -> None:
        try:
            folder.create(manifest_name(manifest.version), data)
        except OSError as error:
            if not is_transient(error):
                raise CommitConflict(folder.uri, manifest.version) from error

    patch.setattr(manifest_creation, "_create", create)
    patch.setattr(manifest_creation, "_is_in_place", lambda *_: True)


def a_lost_reply_means_a_lost_race(patch: Patch) -> None:
    """A writer does not recognize its own manifest when it reads it back."""
    winner = manifest_creation._winner
    patch.setattr(manifest_creation, "_winner", lambda folder, one: winner(folder, one) and "another's")


# Finding versions.


def a_hint_is_the_truth(patch: Patch) -> None:
    """The hint at the newest version is believed, also if it is old."""
    newest = versions._from_hint

    def believed(folder: Any, hint: int) -> int | None:
        return None if newest(folder, hint) is None else hint

    patch.setattr(versions, "_from_hint", believed)


# The disk.


def content_is_not_synced(patch: Patch) -> None:
    """A file is written without a sync."""

    def write(path: Any, data: bytes) -> None:
        local._make_directories(path.parent)
        with path.open("xb") as file:
            file.write(data)

    patch.setattr(local, "_write_durably", write)


def names_are_not_synced(patch: Patch) -> None:
    """A directory is not synced after a file in it has got its name."""
    patch.setattr(local, "_sync_directory", lambda directory: None)


# Damage.


def row_groups_have_no_digests(patch: Patch) -> None:
    """A row group is read without a look at its digest."""
    patch.setattr(ParquetReader, "_check_digests", lambda *_: None)


# Retention.


def all_files_are_old(patch: Patch) -> None:
    """A collection removes what a running commit has just written."""
    patch.setattr(retention, "_storage_now", lambda folder: float("inf"))


def lists_are_garbage(patch: Patch) -> None:
    """A collection removes the lists of files that a version names."""
    patch.setattr(Manifest, "objects", Manifest.whole_files)


# Operators.


def attempts_are_forgotten(patch: Patch) -> None:
    """A restored element begins with its first attempt."""
    read = share.in_flight_elements
    patch.setattr(share, "in_flight_elements", lambda table: [one._replace(attempt=1) for one in read(table)])


def the_fastest_channel_leads(patch: Patch) -> None:
    """The watermark of a restored subtask is the largest of its channels."""
    order = in_flight_elements._order
    patch.setattr(in_flight_elements, "_minimum", lambda found: max(found, key=order, default=None))


def timers_follow_the_time_that_has_passed(patch: Patch) -> None:
    """A clock that was set back does not hold timers back."""

    def now(service: Any) -> int:
        passed = round(1000 * service._clock.time() + service._ahead)
        return passed if service._last is None else service._last

    patch.setattr(TimerService, "_now", now)


# Kinds of state.


def _noted(patch: Patch, note: Callable[[MemoryTable, Any, set[Any], bool], tuple[set[Any], bool]]) -> None:
    """Change what is noted of the entries that a call has written: which ones, and whether all others are gone."""
    put_entries = MemoryTable.put_entries

    def put(table: Any, key_group: int, key: Any, content: Any, changed: Any, *, replaced: bool) -> None:
        noted, is_replaced = note(table, content, set(changed), replaced)
        put_entries(table, key_group, key, content, noted, replaced=is_replaced)

    patch.setattr(MemoryTable, "put_entries", put)


def _moved(patch: Patch, kind: str, change: Callable[[Any, dict[Any, Any]], dict[Any, Any]]) -> None:
    """Change what a key group of one kind of state has when it is restored with another parallelism."""
    stored_states = SubtaskRestore.stored_states

    def states(share: Any, *declared: Any) -> Any:
        with pytest.MonkeyPatch.context() as within:
            if share.parallelism != share.manifest.parallelism:
                within.setattr(reader, "ArrowGroup", Moved)
            return stored_states(share, *declared)

    class Moved(ArrowGroup):
        def load(self) -> dict[Any, Any]:
            loaded = super().load()
            is_changed = self._descriptor.kind == kind and not _is_of_timers(self._descriptor)
            return change(self._descriptor, loaded) if is_changed else loaded

    patch.setattr(SubtaskRestore, "stored_states", states)


def _is_of_timers(descriptor: Any) -> bool:
    return descriptor.name in TIMER_STATES


def a_value_is_noted_once(patch: Patch) -> None:
    """A delta does not have a value that was there before."""
    put = MemoryTable.put

    def put_new(table: Any, key_group: int, key: Any, value: Any) -> None:
        is_there = table.descriptor.kind == "value" and table.get(key_group, key) is not MISSING
        put(table, key_group, key, value)
        _, noted = table._opened[key_group]
        if is_there and noted is not None:
            noted.pop(key, None)

    patch.setattr(MemoryTable, "put", put_new)


def a_delta_replaces_a_list(patch: Patch) -> None:
    """A delta of a list has the new elements, and says that the others are gone."""
    _noted(patch, lambda table, content, changed, replaced: (changed, replaced or table.descriptor.kind == "list"))


def a_removed_entry_is_not_noted(patch: Patch) -> None:
    """A delta of a map does not say that an entry was removed."""

    def note(table: Any, content: Any, changed: set[Any], replaced: bool) -> tuple[set[Any], bool]:
        is_map = table.descriptor.kind == "map" and not _is_of_timers(table.descriptor)
        return {entry for entry in changed if entry in content} if is_map else changed, replaced

    _noted(patch, note)


def a_timer_that_is_gone_is_not_noted(patch: Patch) -> None:
    """A delta does not say that a timer was deleted or has fired."""

    def note(table: Any, content: Any, changed: set[Any], replaced: bool) -> tuple[set[Any], bool]:
        is_left = _is_of_timers(table.descriptor)
        return {entry for entry in changed if entry in content} if is_left else changed, replaced

    _noted(patch, note)


def a_rescale_loses_entries(patch: Patch) -> None:
    """Another parallelism restores the keys of a map without their entries."""
    _moved(patch, "map", lambda state, loaded: dict.fromkeys(loaded, Map()))


def a_rescale_loses_accumulators(patch: Patch) -> None:
    """Another parallelism restores empty accumulators."""
    _moved(patch, "aggregating", lambda state, loaded: {key: state.create() for key in loaded})


def a_reduced_value_counts_twice(patch: Patch) -> None:
    """A restored value of a reducing state is combined with itself."""
    load = ArrowGroup.load

    def doubled(group: Any) -> dict[Any, Any]:
        state, loaded = group._descriptor, load(group)
        return {key: state.reduce(one, one) for key, one in loaded.items()} if state.kind == "reducing" else loaded

    patch.setattr(ArrowGroup, "load", doubled)


def values_live_anew(patch: Patch) -> None:
    """A restored value lives as long as a new one."""
    values_of = ArrowGroup._values_of

    def anew(group: Any, table: Any) -> Any:
        return values_of(group, table.drop_columns(EXPIRES_AT) if EXPIRES_AT in table.schema.names else table)

    patch.setattr(ArrowGroup, "_values_of", anew)


def everybody_gets_all_items(patch: Patch) -> None:
    """Each subtask restores all items of an operator state that is split."""
    shares = share.shares
    patch.setattr(share, "shares", lambda manifest, parallelism, subtask: shares(manifest, 1, 0))


def everybody_keeps_all_items(patch: Patch) -> None:
    """Each subtask keeps all items of a union state, also items of other subtasks."""
    patch.setattr(share, "own_runs", lambda *_: {})


def new_subtasks_have_no_copy(patch: Patch) -> None:
    """A subtask that there was not before has no copy of a broadcast state."""
    shares = share.shares

    def without(manifest: Any, parallelism: int, subtask: int) -> Any:
        found = shares(manifest, parallelism, subtask)
        copied = {state.name for state in manifest.operator_states if state.mode == "broadcast"}
        is_new = subtask >= len(manifest.channels)
        return {name: slices for name, slices in found.items() if not (is_new and name in copied)}

    patch.setattr(share, "shares", without)


def timers_share_keys(patch: Patch) -> None:
    """Timers of one time have the same idempotency key, whatever keys they belong to."""
    name = idempotency_keys.timer_id
    patch.setattr(idempotency_keys, "timer_id", lambda timer, key: name(timer, None))


# Lineages.


def a_lineage_is_not_kept(patch: Patch) -> None:
    """An operator that begins with nothing draws a lineage, and stores it with its first snapshot only."""
    patch.setattr(lineage, "_minted", lambda folder: lineage.new_lineage())


def a_first_claim_draws_a_lineage(patch: Patch) -> None:
    """A claim without a snapshot commits another lineage than the folder keeps."""
    patch.setattr(claim, "first_lineage", lambda folder: lineage.new_lineage())


def all_have_one_lineage(patch: Patch) -> None:
    """All operators that begin with nothing, and all copies, have the same lineage."""
    patch.setattr(lineage, "new_lineage", lambda: "keygroups")


def a_copy_keeps_the_lineage(patch: Patch) -> None:
    """A copy that may run beside its original has the lineage of the original."""
    copy = store.copy_snapshot
    patch.setattr(store, "copy_snapshot", lambda source, folder, keep_lineage: copy(source, folder, keep_lineage=True))
