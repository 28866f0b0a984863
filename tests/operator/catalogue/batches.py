"""Batches: one call for many elements."""

from __future__ import annotations

from tests.operator.catalogue.behaviour import Behaviour, shown_in

BATCHES = (
    Behaviour(
        "a batch is called when it is full, after its delay since its first element, and at the end of the input",
        shown_in(
            "batches",
            "a_full_batch_is_called_at_once_and_gives_each_element_its_outputs",
            "a_batch_waits_no_longer_than_its_delay_after_its_first_element",
            "the_end_of_the_input_calls_for_what_is_there",
        ),
    ),
    Behaviour("at most one timer runs for the batch", shown_in("batches", "a_full_batch_takes_its_timer_along")),
    Behaviour("the size must be positive", shown_in("batches", "limits_that_can_never_work_are_refused")),
    Behaviour(
        "the base is unordered, another operator is ordered",
        shown_in("batches", "batches_run_beside_each_other", "ordered_batches_leave_in_the_order_of_the_input"),
    ),
    Behaviour(
        "there is no bound on what is in flight",
        shown_in("batches", "a_batch_is_never_larger_than_what_may_be_in_flight"),
        differs="the capacity holds for batches, too",
    ),
    Behaviour(
        "what waits for its batch is lost at a failure, and outputs lose their timestamps",
        shown_in("batch_snapshots", "what_waits_for_its_batch_and_what_is_in_one_are_in_the_snapshot"),
        differs="neither",
    ),
    Behaviour(
        "retry after a fixed delay", shown_in("batch_failures", "the_failed_part_of_a_batch_is_tried_again_with_others")
    ),
    Behaviour("retry after growing delays", shown_in("batch_failures", "a_batch_is_tried_again_after_growing_delays")),
    Behaviour("retry by result", shown_in("batch_failures", "results_of_a_batch_may_be_asked_for_again")),
    Behaviour(
        "too many retries keep the cause",
        shown_in("batch_failures", "a_batch_that_fails_too_often_keeps_its_last_error"),
    ),
    Behaviour(
        "an error that does not match is final",
        shown_in("batch_failures", "an_error_that_does_not_match_is_not_tried_again"),
    ),
    Behaviour(
        "a timeout fails the job",
        shown_in("batch_timeouts", "a_batch_that_times_out_fails_the_operator_without_a_fallback"),
    ),
    Behaviour(
        "a timeout may give part of the results, or none",
        shown_in(
            "batch_timeouts", "a_batch_that_times_out_may_give_nothing", "elements_of_a_batch_time_out_one_by_one"
        ),
    ),
    Behaviour("a batch in time does not time out", shown_in("batch_timeouts", "a_batch_in_time_does_not_time_out")),
)
