"""What Flink's own tests of the operator and of its queues show."""

from __future__ import annotations

from tests.operator.catalogue.behaviour import Behaviour, shown_in

OPERATOR_TESTS = (
    Behaviour(
        "event time, ordered: records and watermarks in exactly their order",
        shown_in("modes", "ordered_outputs_and_watermarks_leave_in_the_order_of_the_input"),
    ),
    Behaviour(
        "event time, unordered: the watermark in its place, the records before it in any order",
        shown_in("modes", "unordered_outputs_leave_as_they_come_but_stay_on_their_side_of_a_watermark"),
    ),
    Behaviour(
        "processing time, ordered: more records than fit, in order",
        shown_in("modes", "more_elements_than_fit_leave_in_order_without_watermarks_too"),
    ),
    Behaviour(
        "processing time, unordered: the same records in any order",
        shown_in("modes", "more_elements_than_fit_leave_as_their_calls_return"),
    ),
    Behaviour(
        "two async operators with a map between them",
        shown_in("modes", "two_operators_in_a_row_work_as_one") + shown_in("stream", "streams_follow_each_other"),
    ),
    Behaviour(
        "a snapshot of blocked elements is restored into another capacity, followed by new input and another snapshot",
        shown_in(
            "restore",
            "pending_elements_are_called_again_in_their_order_and_before_new_ones",
            "the_mode_and_the_capacity_may_change_at_a_restore",
        )
        + shown_in("snapshots", "a_snapshot_changes_nothing_in_the_operator_and_nothing_changes_the_snapshot"),
    ),
    Behaviour(
        "reused objects are copied",
        shown_in("modes", "the_function_gets_the_very_object_that_was_processed"),
        differs="nothing is copied",
    ),
    Behaviour(
        "a timeout fails the job, and only what was in time leaves",
        shown_in("timeouts", "an_element_without_a_result_in_time_fails_the_operator"),
    ),
    Behaviour("a timeout may emit a fallback, in order", shown_in("timeouts", "timeout_may_give_a_fallback")),
    Behaviour(
        "no timer is left after the completion",
        shown_in("timeouts", "one_timer_serves_all_elements_and_none_is_left_after_close"),
        differs="the one timer may fire once in vain",
    ),
    Behaviour(
        "a completion just before the timer: no timeout, one output",
        shown_in("timeouts", "a_timer_that_fires_after_the_result_finds_nothing_to_do"),
    ),
    Behaviour(
        "an error of the function frees the element, is reported, and close does not hang (each mode)",
        shown_in(
            "failures",
            "a_failing_element_fails_the_operator_by_name",
            "close_ends_the_calls_that_a_failure_has_left",
        ),
    ),
    Behaviour(
        "the same with retries (each mode)",
        shown_in("retry_attempts", "a_failing_function_with_retries_does_not_hang_close")
        + shown_in("retry_policy", "the_last_error_of_too_many_fails_the_operator"),
    ),
    Behaviour(
        "a function that never completes is ended by the timeout, and close returns (each mode)",
        shown_in("timeouts", "a_call_that_never_ends_is_cancelled_by_its_timeout_and_close_returns"),
    ),
    Behaviour(
        "the same with retries (each mode)",
        shown_in("retry_timeouts", "a_timeout_without_fallback_ends_the_attempts_of_a_function_that_always_fails"),
    ),
    Behaviour("a full queue is restored", shown_in("restore", "a_full_queue_is_restored_whole")),
    Behaviour(
        "completions in reverse order while the task ends without the end of its input: no output and no error",
        shown_in("lifecycle", "results_that_come_after_close_go_nowhere"),
    ),
    Behaviour("the same with retries", shown_in("lifecycle", "a_call_that_fails_after_close_is_not_tried_again")),
    Behaviour(
        "odd inputs stay empty however often they are tried; even ones come out, in order or sorted",
        shown_in("retry_policy", "a_result_may_be_asked_for_again"),
    ),
    Behaviour(
        "a function that completes repeatedly has one result each (each mode)",
        shown_in("retry_attempts", "a_function_that_completes_again_and_again_has_one_result_each"),
    ),
    Behaviour(
        "timeout() gives a fallback while retries go on (each mode)",
        shown_in("retry_timeouts", "one_budget_covers_all_attempts_and_ends_them"),
    ),
    Behaviour(
        "after the timeout no further attempt is made",
        shown_in(
            "retry_timeouts",
            "a_timeout_without_fallback_ends_the_attempts_of_a_function_that_always_fails",
            "a_retry_and_the_timeout_at_the_same_moment_give_one_result",
        ),
    ),
    Behaviour(
        "results may be supplied on the owner's thread, and so may errors",
        shown_in("modes", "outputs_are_any_iterable_and_are_consumed_on_the_thread_of_the_loop")
        + shown_in("failures", "an_iterable_of_outputs_that_fails_midway_gives_none_of_them"),
    ),
    Behaviour(
        "elements tried before and never tried are restored together",
        shown_in("restore", "elements_tried_before_and_never_tried_are_restored_side_by_side"),
    ),
)

QUEUE_TESTS = (
    Behaviour("ordered completion order", shown_in("queues", "an_ordered_queue_lets_only_its_head_leave")),
    Behaviour(
        "unordered completion order over three segments",
        shown_in("queues", "an_unordered_queue_is_free_between_watermarks_and_strict_across_them"),
    ),
    Behaviour("putting a watermark and a record", shown_in("queues", "a_watermark_takes_a_place_in_a_full_queue")),
    Behaviour(
        "popping a watermark alone, and a record once it is complete, with its timestamp",
        shown_in("queues", "a_watermark_leaves_at_once_where_nothing_stands_before_it")
        + shown_in("modes", "one_element_may_have_none_or_several_outputs"),
    ),
    Behaviour("putting on a full queue", shown_in("queues", "a_full_queue_takes_the_next_element_once_one_has_left")),
    Behaviour("adjacent watermarks leave in order", shown_in("queues", "watermarks_side_by_side_leave_in_their_order")),
)
