"""The rules of operator state and of jobs, with the mutants that break them and what notices each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.async_op.job import mutants


class Case(NamedTuple):
    """The test that fails under a mutant, with its arguments."""

    path: str
    test: str
    arguments: tuple[Any, ...] = ()


class Mutant(NamedTuple):
    """A way to break a rule, and the seed of the simulation or the test that notices it."""

    break_it: Callable[[pytest.MonkeyPatch], None]
    caught_by: int | Case

    @property
    def name(self) -> str:
        return self.break_it.__name__

    @property
    def what(self) -> str:
        return (self.break_it.__doc__ or "").strip().removesuffix(".")

    @property
    def test(self) -> str:
        """What notices it, in words."""
        if isinstance(self.caught_by, Case):
            return f"`{self.caught_by.path.removeprefix('tests/')}`: `{self.caught_by.test}`"
        return f"simulation of jobs, seed {self.caught_by}"


_JOB = "tests/async_op/job"
_OPERATOR_STATE = "tests/async_op/operator/test_operator_state.py"

RULES: dict[str, tuple[Mutant, ...]] = {
    "All steps are cut in one turn of the loop": (
        Mutant(mutants.positions_cut_earlier, 17),
        Mutant(mutants.last_step_cut_earlier, 7),
    ),
    "Elements between two steps are in the snapshot, in channel order": (
        Mutant(mutants.without_what_is_between, 5),
        Mutant(mutants.reversed_channels, 5),
    ),
    "A snapshot waits for no call and for no sink": (
        Mutant(
            mutants.a_cut_that_waits_for_calls,
            Case(f"{_JOB}/test_rules.py", "test_a_snapshot_waits_for_no_call_and_no_sink"),
        ),
        Mutant(
            mutants.cuts_wait_for_the_sink,
            Case(f"{_JOB}/test_rules.py", "test_a_snapshot_waits_for_no_call_and_no_sink"),
        ),
    ),
    "A batch function gets all elements that an inbox hands over": (Mutant(mutants.a_full_batch_leaves_the_rest, 66),),
    "Steps open last to first": (Mutant(mutants.opened_first_to_last, 5),),
    "After a final cut nothing more happens": (
        Mutant(mutants.calls_go_on_after_a_final_cut, 7),
        Mutant(mutants.outputs_leave_after_a_final_cut, 0),
    ),
    "Unknown steps are refused": (
        Mutant(mutants.unknown_steps_are_ignored, Case(f"{_JOB}/test_job.py", "test_unknown_steps_are_refused")),
    ),
    "Elements go to the owner of their key group, and without a key to the same subtask": (
        Mutant(mutants.another_key_group, 5),
        Mutant(
            mutants.without_a_key_to_the_next_subtask,
            Case(f"{_JOB}/test_rules.py", "test_a_step_without_a_key_gets_the_elements_of_its_own_subtask"),
        ),
    ),
    "A position advances with its element": (Mutant(mutants.positions_run_ahead, 12),),
    "Positions are distributed at a start, and new partitions when they are found": (
        Mutant(mutants.positions_stay_where_they_were, 38),
        Mutant(
            mutants.all_partitions_to_the_first_subtask,
            Case(f"{_JOB}/test_rules.py", "test_new_partitions_go_to_the_emptiest_subtasks"),
        ),
        Mutant(
            mutants.one_look_for_partitions,
            Case(f"{_JOB}/test_run.py", "test_new_partitions_are_found_while_the_job_is_quiet"),
        ),
    ),
    "Ids come from partition and position, then from the parent and the number of the output": (
        Mutant(mutants.new_ids_of_elements, 4),
        Mutant(mutants.new_ids_of_later_steps, 4),
        Mutant(mutants.ids_without_the_number_of_the_output, 4),
    ),
    "An idempotency key is that of one element, in one step of one job, and stays the same": (
        Mutant(mutants.jobs_share_a_lineage, 25),
        Mutant(mutants.a_new_lineage_at_each_start, 113),
        Mutant(mutants.partitions_share_keys, 0),
        Mutant(mutants.steps_share_keys, 0),
        Mutant(mutants.kinds_of_timers_share_keys, 2),
    ),
    "A replaced input is refused, and never read in silence": (
        Mutant(mutants.contents_are_not_stored, 6),
        Mutant(mutants.contents_come_late, 7),
        Mutant(mutants.contents_are_not_restored, 6),
        Mutant(mutants.the_source_is_not_told, 13),
        Mutant(mutants.iterables_are_not_compared, 13),
        Mutant(mutants.files_are_not_compared, 59),
    ),
    "An output that the sink refuses ends the job, is left out or becomes a dead letter, once": (
        Mutant(mutants.refusals_are_not_noted, 284),
        Mutant(mutants.notes_of_another_epoch_count, 0),
        Mutant(mutants.an_index_counts_what_is_left, 20),
        Mutant(mutants.refused_outputs_have_no_dead_letters, 0),
        Mutant(mutants.a_refusal_loses_the_epoch, 0),
    ),
    "Outputs are stored with the snapshot, and delivered after its commit": (
        Mutant(mutants.outputs_are_not_stored, 4),
        Mutant(mutants.delivered_before_the_commit, 4),
        Mutant(
            mutants.spilled_outputs_come_last,
            Case(f"{_JOB}/test_run.py", "test_the_rows_of_an_epoch_keep_their_order_on_disk"),
        ),
    ),
    "An epoch that was not delivered comes after a restart, one that was does not": (
        Mutant(mutants.undelivered_epochs_are_forgotten, 22),
        Mutant(mutants.marks_come_first, 5),
        Mutant(mutants.marks_are_ignored, 15),
    ),
    "Back-pressure passes from the sink to the source": (
        Mutant(
            mutants.no_pause, Case(f"{_JOB}/test_rules.py", "test_two_epochs_that_wait_for_the_sink_pause_the_source")
        ),
        Mutant(
            mutants.timers_go_on,
            Case(f"{_JOB}/test_rules.py", "test_two_epochs_that_wait_for_the_sink_pause_periodic_timers"),
        ),
        Mutant(
            mutants.channels_without_a_bound,
            Case(f"{_JOB}/test_rules.py", "test_a_slow_step_holds_up_the_steps_before_it_and_the_source"),
        ),
    ),
    "Each dead letter comes once": (
        Mutant(mutants.dead_letters_twice, 2),
        Mutant(mutants.dead_letters_are_dropped, 2),
    ),
    "The watermark of a step is the smallest of its channels'; an idle subtask holds nothing back": (
        Mutant(
            mutants.the_largest_watermark,
            Case(f"{_JOB}/test_run.py", "test_a_quiet_partition_holds_back_no_watermark_if_it_is_idle"),
        ),
        Mutant(
            mutants.idle_subtasks_hold_back,
            Case(f"{_JOB}/test_run.py", "test_a_quiet_partition_holds_back_no_watermark_if_it_is_idle"),
        ),
    ),
    "Watermarks survive a restart, and the final one is in no snapshot": (
        Mutant(
            mutants.watermarks_of_partitions_are_lost,
            Case(f"{_JOB}/test_run.py", "test_a_restart_continues_with_the_watermarks_of_the_partitions"),
        ),
        Mutant(
            mutants.the_final_watermark_is_stored,
            Case(f"{_JOB}/test_run.py", "test_the_final_watermark_fires_all_timers_and_is_in_no_snapshot"),
        ),
    ),
    "A failed job restarts by its policy, and keeps what was asked of it": (
        Mutant(
            mutants.fenced_runs_restart,
            Case(f"{_JOB}/test_restarts.py", "test_a_fenced_job_does_not_restart"),
        ),
        Mutant(
            mutants.restarts_have_no_bound,
            Case(f"{_JOB}/test_restarts.py", "test_the_failure_after_the_last_restart_is_raised"),
        ),
        Mutant(
            mutants.stops_wait_for_the_restart,
            Case(
                f"{_JOB}/test_restarts.py",
                "test_a_stop_ends_the_pause_and_the_job_starts_once_more_to_drain",
            ),
        ),
        Mutant(
            mutants.restarts_forget_the_parallelism,
            Case(f"{_JOB}/test_restarts.py", "test_a_restart_keeps_the_parallelism_that_rescale_has_chosen"),
        ),
    ),
    "Operator state is in every snapshot, and its writes count at once": (
        Mutant(mutants.states_are_not_restored, Case(_OPERATOR_STATE, "test_no_restore_multiplies_it", ((2, 2, 2),))),
        Mutant(
            mutants.writes_wait_for_a_snapshot,
            Case(_OPERATOR_STATE, "test_a_write_counts_at_once_even_that_of_a_call_that_never_returns"),
        ),
    ),
    "Split state is distributed once, and no restore multiplies union state": (
        Mutant(mutants.dealt_twice, Case(_OPERATOR_STATE, "test_a_restore_distributes_it_at_any_parallelism", (3,))),
        Mutant(mutants.union_multiplies, Case(_OPERATOR_STATE, "test_no_restore_multiplies_it", ((2, 2, 2),))),
    ),
    "Broadcast state is written in open only, and all copies are equal": (
        Mutant(mutants.maps_are_written_anywhere, Case(_OPERATOR_STATE, "test_a_map_is_written_in_open_only")),
        Mutant(
            mutants.unequal_copies_are_committed,
            Case(_OPERATOR_STATE, "test_copies_of_a_map_that_differ_refuse_the_commit"),
        ),
    ),
    "What a snapshot has and the function does not declare is refused": (
        Mutant(
            mutants.undeclared_states_are_dropped, Case(_OPERATOR_STATE, "TestWhatASnapshotHas.test_must_be_declared")
        ),
    ),
}

MUTANTS = [mutant for found in RULES.values() for mutant in found]

SEEDS = {mutant.caught_by for mutant in MUTANTS if isinstance(mutant.caught_by, int)}
"""The seeds that notice a mutant."""
