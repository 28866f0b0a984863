"""Snapshots of what is in flight, and what comes back at a restore."""

from __future__ import annotations

from tests.operator.catalogue.behaviour import Behaviour, shown_in

SNAPSHOTS = (
    Behaviour(
        "the queue is operator state, dealt out in turns",
        shown_in(
            "rescale",
            "after_a_rescale_an_element_is_where_its_key_is",
            "elements_without_a_key_are_dealt_in_runs_of_equal_length",
            "elements_without_a_key_stay_where_they_are_at_the_same_parallelism",
        ),
        differs="elements follow their key; only those without one are dealt",
    ),
    Behaviour(
        "it holds every element as it came in, in the order of the queue, watermarks included",
        shown_in("restore", "timestamps_and_watermarks_come_back_in_their_places")
        + shown_in("queues", "the_queue_of_a_snapshot_is_in_the_order_of_the_input"),
    ),
    Behaviour(
        "results that have not left are not stored, and their calls are made again",
        shown_in(
            "restore",
            "a_finished_call_is_not_made_again",
            "results_that_wait_behind_a_watermark_are_kept_too",
        )
        + shown_in("state", "a_restored_element_applies_its_writes_once"),
        differs="they are stored and emitted: a finished call is never paid for twice",
    ),
    Behaviour(
        "each snapshot replaces the one before as a whole",
        shown_in("snapshots", "elements_that_have_left_are_in_no_later_snapshot"),
    ),
    Behaviour(
        "what cannot be stored is an error, and nothing is stored",
        shown_in("bad_input", "a_snapshot_of_what_cannot_be_stored_names_it_and_commits_nothing"),
    ),
    Behaviour(
        "elements are processed again during open, which may emit",
        shown_in(
            "restore",
            "completed_heads_leave_during_open",
            "pending_elements_are_called_again_in_their_order_and_before_new_ones",
        ),
    ),
    Behaviour(
        "more elements than fit can be restored",
        shown_in("restore", "more_elements_than_fit_are_restored_and_new_ones_wait_for_a_place"),
    ),
    Behaviour(
        "after a rescale the order of a key and the place of a watermark are lost",
        shown_in(
            "rescale",
            "merged_subtasks_keep_the_order_within_each_and_the_lower_watermark",
            "both_halves_of_a_split_subtask_keep_its_watermarks",
        )
        + shown_in("key_ordered", "the_order_within_a_key_survives_a_restart_at_another_parallelism"),
        differs="they are kept: an old subtask is a channel, and the watermark is the least of its channels",
    ),
    Behaviour(
        "emitted results are exactly once, calls at least once",
        shown_in("snapshots", "a_snapshot_counts_the_outputs_before_it")
        + shown_in("rescale", "the_idempotency_key_is_the_same_after_every_restore"),
    ),
)
