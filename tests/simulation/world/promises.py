"""What is promised for each kind of fault, with the defences that keep the promise and what notices their loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.simulation.world import mutants


class Mutant(NamedTuple):
    """A defence that is taken out, and the world that notices: its seed, its kinds of faults, and its storage."""

    break_it: Callable[[pytest.MonkeyPatch], None]
    seed: int
    kinds: frozenset[str] = frozenset()
    on_disk: bool | None = None

    @property
    def name(self) -> str:
        return self.break_it.__name__

    @property
    def world(self) -> tuple[int, tuple[str, ...], bool | None]:
        """What a world is made with."""
        return self.seed, tuple(sorted(self.kinds)), self.on_disk

    @property
    def what(self) -> str:
        return (self.break_it.__doc__ or "").strip().removesuffix(".")


class Promise(NamedTuple):
    """A fault, what becomes of it, the defences that a world misses, and tests that show the rest."""

    fault: str
    outcome: str
    mutants: tuple[Mutant, ...] = ()
    tests: tuple[str, ...] = ()


def _with(*kinds: str) -> frozenset[str]:
    return frozenset(kinds)


_FOLDERS = "snapshots/filesystem/test_folders.py"
_HOSTS = "hosting/simulation/test_protocol.py"
_RETENTION = "snapshots/upkeep/retention"
_EVERY_FAULT = "simulation/test_storage.py: after a fault the newest snapshot is the old or the new one"
_A_WORLD = "simulation/world/test_world.py: every promise holds in a world"

PROMISES: dict[str, tuple[Promise, ...]] = {
    "Storage": (
        Promise(
            "a request gets lost",
            "survived: a commit asks again, and reads back what there is",
            (Mutant(mutants.no_answer_means_done, 0, _with("lost request")),),
        ),
        Promise(
            "a reply gets lost",
            "survived: who finds its own manifest has committed",
            (Mutant(mutants.a_lost_reply_means_a_lost_race, 0, _with("lost reply")),),
        ),
        Promise(
            "the storage cannot be asked whether a commit took place",
            "noticed: `CommitOutcomeUnknown`, and nothing is deleted",
            tests=(
                "snapshots/commit/test_commit_outcome.py: what cannot be read back is unknown and nothing is deleted",
            ),
        ),
        Promise(
            "a request takes effect late",
            "survived: late files have names that nobody uses, and a late hint is only a place to look from",
            (Mutant(mutants.a_hint_is_the_truth, 0, _with("late request", "others")),),
        ),
        Promise(
            "a listing lags",
            "survived: what it does not show is looked up by name. Listings of `expired/` and `pins/` must be"
            " up to date, because nothing else names those files; S3, GCS, Azure and POSIX systems ensure that",
            tests=("snapshots/test_missing_manifests.py: a late listing hides nothing that is there", _EVERY_FAULT),
        ),
        Promise(
            "the power fails, and what was not synced is gone or torn",
            "survived: what was committed is there and whole",
            (
                Mutant(mutants.content_is_not_synced, 6, _with("power loss"), True),
                Mutant(mutants.names_are_not_synced, 6, _with("power loss"), True),
            ),
        ),
        Promise(
            "the disk is full",
            "noticed: `StorageFull`; what was committed stays, and there is no half of a version",
            tests=(_A_WORLD,),
        ),
        Promise(
            "the storage stalls in the middle of a commit",
            "survived: the operators go on, and the cut does not change",
            tests=(_A_WORLD,),
        ),
        Promise(
            "a bit rots",
            "noticed when it is read: `SnapshotCorrupted` names the file",
            (Mutant(mutants.row_groups_have_no_digests, 0, _with("bit rot")),),
            ("snapshots/format/test_corruption.py: a flipped bit in the content of a page is noticed by every reader",),
        ),
        Promise(
            "a data file or an old manifest is lost",
            "noticed when it is read: `SnapshotCorrupted`, `SnapshotNotFound`",
            tests=("snapshots/format/test_corruption.py: a missing file",),
        ),
        Promise(
            "the newest manifest is lost",
            "noticed: `ManifestMissing`, unless the hint `latest` is lost or older: then it cannot be noticed here,"
            " and a pipeline on Spark raises `UnrelatedHistories`",
            tests=(
                "snapshots/test_missing_manifests.py: what was there is missed by everybody",
                "spark/test_history.py: older snapshots are refused",
            ),
        ),
        Promise(
            "creation is not atomic",
            "noticed where it can be tried out: `UnsafeFilesystem`; a filesystem that lies about it cannot be noticed",
            tests=(
                "snapshots/filesystem/test_folders.py: a filesystem without hard links is refused at the first create",
            ),
        ),
    ),
    "Processes": (
        Promise(
            "a coordinator dies at any operation",
            "survived: the newest version is the old one or the new one, and is whole",
            (Mutant(mutants.a_manifest_is_a_file_like_any_other, 6, _with("crash"), False),),
            (_EVERY_FAULT,),
        ),
        Promise(
            "operators die and are restored, with any parallelism",
            "survived: what was in flight goes on with its attempts, in its order, behind its watermark",
            (
                Mutant(mutants.attempts_are_forgotten, 0),
                Mutant(mutants.the_fastest_channel_leads, 3),
            ),
        ),
        Promise(
            "others commit, compact, edit or rewrite meanwhile",
            "noticed by who is late: `CommitConflict`, `WriterFenced`, `IncompatibleSnapshot`",
            tests=(_A_WORLD, "snapshots/commit/test_delta.py: parts that were written on another parent are refused"),
        ),
        Promise(
            "two runs begin at the same time, with nothing to restore",
            "noticed: `CommitConflict` for the one that commits later",
            tests=(
                "async_op/job/test_committing.py: of two jobs that begin with nothing the later one does not continue "
                "from what it has not restored",
                "spark/test_history.py: of two queries that start with nothing the later one does not continue from "
                "what it has not restored",
            ),
        ),
        Promise(
            "a coordinator is paused until its version has been taken and has expired",
            "noticed: `CommitConflict` or `WriterFenced`",
            tests=(f"{_RETENTION}/test_concurrency.py: a writer that slept while its version expired is fenced",),
        ),
        Promise(
            "others continue from a version, and it expires, before its writer has read it back",
            "survived: the writer is told that it was committed, or `CommitOutcomeUnknown` if the next version has"
            " expired, too",
            tests=(
                f"{_RETENTION}/test_concurrency.py: a version that expires within its commit is committed;"
                " of a version that expires with its successor the outcome is unknown",
            ),
        ),
        Promise(
            "a collection runs beside commits and pins",
            "survived: what is younger than `min_age`, or pinned, stays. A coordinator that is paused for longer gets"
            " `IncompleteSnapshot`; if its files go between its last look and its commit, only readers notice"
            " (`SnapshotCorrupted`)",
            (
                Mutant(mutants.all_files_are_old, 6, _with("others", "pause")),
                Mutant(mutants.lists_are_garbage, 24, _with("others")),
            ),
            (f"{_RETENTION}/test_pins.py: a pin beside a collection is refused or safe",),
        ),
        Promise(
            "a host, a task or the driver dies at any step of an epoch",
            "survived: the newest manifest is restored, and calls since then are made again",
            tests=(f"{_HOSTS}: one fault at every step of a run; a broken rule is seen",),
        ),
        Promise(
            "a process dies between a service's act and the snapshot",
            "cannot be noticed here: the call is made again with the same idempotency key, which no other element has",
            (
                Mutant(mutants.timers_share_keys, 0),
                Mutant(mutants.a_lineage_is_not_kept, 2, _with("crash")),
                Mutant(mutants.a_first_claim_draws_a_lineage, 8, _with("crash")),
            ),
            ("spark/test_resident.py: a host that is killed is replaced and only its calls are repeated",),
        ),
        Promise(
            "another operator, or a copy of this one, calls the same service for elements with the same ids",
            "survived: no two lineages share an idempotency key, so the service answers each with its own result",
            (
                Mutant(mutants.all_have_one_lineage, 0, _with("neighbours")),
                Mutant(mutants.a_copy_keeps_the_lineage, 1, _with("neighbours", "others")),
            ),
        ),
    ),
    "State": (
        Promise(
            "a snapshot has only what has changed since the one before",
            "survived: it has each value, element, entry and timer that was written, and says which ones are gone",
            (
                Mutant(mutants.a_value_is_noted_once, 0),
                Mutant(mutants.a_delta_replaces_a_list, 0),
                Mutant(mutants.a_removed_entry_is_not_noted, 21),
                Mutant(mutants.a_timer_that_is_gone_is_not_noted, 0),
            ),
        ),
        Promise(
            "keys move to other subtasks",
            "survived: they take along all that they have, and nothing is counted twice",
            (
                Mutant(mutants.a_rescale_loses_entries, 2),
                Mutant(mutants.a_rescale_loses_accumulators, 2),
                Mutant(mutants.a_reduced_value_counts_twice, 2),
            ),
        ),
        Promise(
            "time passes between a snapshot and its restore",
            "survived: values expire when they would have expired without it",
            (Mutant(mutants.values_live_anew, 3),),
        ),
        Promise(
            "state without a key moves to other subtasks",
            "survived: each item has one owner, and each subtask a copy of what all have",
            (
                Mutant(mutants.everybody_gets_all_items, 2),
                Mutant(mutants.everybody_keeps_all_items, 6, _with("others")),
                Mutant(mutants.new_subtasks_have_no_copy, 2),
            ),
        ),
    ),
    "Threads": (
        Promise(
            "another thread uses state or an operator",
            "noticed: `StateOfAnotherThread`, `WrongEventLoop`",
            tests=(
                "keygroups/state/test_keyed_state.py: a second thread is refused and told whose the state is",
                "async_op/operator/test_owner.py: another event loop is refused and the operator continues",
            ),
        ),
        Promise(
            "threads complete calls in any order, late or twice",
            "survived: the first completion counts",
            tests=("simulation/test_simulation.py: every promise holds in a random run",),
        ),
        Promise(
            "a thread never returns",
            "noticed with a `timeout`: `AsyncTimeoutError`; what the thread still does cannot be noticed",
            tests=("async_op/calls/test_adapters.py: close does not wait for a thread that hangs",),
        ),
    ),
    "Clocks": (
        Promise(
            "the clock of a machine jumps",
            "survived: a timer fires when the clock shows its time, and once; values expire by the clock that is shown."
            " That it jumped cannot be noticed",
            (Mutant(mutants.timers_follow_the_time_that_has_passed, 1, _with("clock jump")),),
        ),
        Promise(
            "the clocks of machine and storage differ",
            "survived: the age of a file is measured by the clock that stamps it",
            tests=(f"{_RETENTION}/test_garbage.py: how old is measured by the clock that stamps the files",),
        ),
    ),
    "Network": (
        Promise(
            "a connection breaks, is half open, or is slow",
            "survived: another attempt fences it; the feeder that is left behind gets `HostLost` or `FeederFenced`",
            tests=(f"{_HOSTS}: every promise holds whatever goes wrong; one fault at every step of a run",),
        ),
        Promise(
            "a machine is cut off from its driver",
            "survived: its hosts end with their lease",
            tests=(f"{_HOSTS}: every promise holds whatever goes wrong; a broken rule is seen",),
        ),
        Promise(
            "old messages come again, or strangers send some",
            "survived: they change nothing, and cost no call",
            tests=(f"{_HOSTS}: what zombies and strangers say costs no call",),
        ),
    ),
}

MUTANTS = [mutant for promises in PROMISES.values() for promise in promises for mutant in promise.mutants]

WORLDS = sorted({mutant.world for mutant in MUTANTS}, key=str)
"""The worlds that notice a mutant: without it, each of them must pass."""
