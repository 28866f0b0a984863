"""How Flink's async operator, its queues and its mailbox behave, and the tests that show how this project does.

Each row is one behaviour in our own words. `differs` tells where the project does otherwise on purpose; the tests then
show what it does instead. A row without tests is for what does not exist here, and says why.
"""

from __future__ import annotations

from typing import NamedTuple


class Behaviour(NamedTuple):
    """One behaviour and its tests, each as "module::function" below `tests/operator`."""

    what: str
    tests: tuple[str, ...] = ()
    differs: str = ""
    absent: str = ""


def _in(module: str, *names: str) -> tuple[str, ...]:
    return tuple(f"test_{module}::test_{name}" for name in names)


CONSTRUCTION = (
    Behaviour(
        "takes a function, a timeout, a capacity, a mode, a retry strategy and a clock; the capacity must be positive",
        _in("bad_input", "an_argument_that_can_never_work_is_refused_by_name"),
    ),
    Behaviour("the default capacity is 100", _in("modes", "a_hundred_elements_fit_unless_told_otherwise")),
    Behaviour(
        "only a strategy with a predicate makes the operator retry",
        _in(
            "retry_policy",
            "an_error_that_no_policy_looks_at_is_final",
            "results_are_final_unless_the_policy_looks_at_them",
            "the_policy_tells_which_errors_are_tried_again",
        ),
        differs="a policy without a predicate retries every error and no result",
    ),
    Behaviour(
        "a timeout of zero or less means none without retries, and is refused with them",
        _in("bad_input", "an_argument_that_can_never_work_is_refused_by_name")
        + _in("timeouts", "without_a_timeout_there_is_no_timer"),
        differs="None means none; zero or less is refused always",
    ),
    Behaviour(
        "operators are chained into one thread, opened from tail to head",
        _in("modes", "two_operators_in_a_row_work_as_one") + _in("stream", "streams_follow_each_other"),
        differs="there are no chains: streams are composed by hand, and the taker is ready before the giver",
    ),
    Behaviour(
        "one thread owns the operator; callbacks of other threads only leave mail for it",
        _in(
            "threads",
            "a_future_may_be_completed_from_any_thread",
            "many_results_from_many_threads_all_arrive",
        )
        + _in("modes", "outputs_are_any_iterable_and_are_consumed_on_the_thread_of_the_loop"),
    ),
)

QUEUE_AND_MODES = (
    Behaviour(
        "the queue refuses what does not fit, tells what may leave, and gives its content for a snapshot",
        _in(
            "queues",
            "a_full_queue_takes_the_next_element_once_one_has_left",
            "the_queue_of_a_snapshot_is_in_the_order_of_the_input",
        ),
    ),
    Behaviour(
        "a watermark takes a place in either mode",
        _in("queues", "a_watermark_takes_a_place_in_a_full_queue", "a_full_queue_also_holds_a_watermark_back"),
    ),
    Behaviour(
        "while the queue is full the input waits, and everything else goes on",
        _in("modes", "a_full_operator_makes_its_caller_wait_while_calls_and_snapshots_go_on"),
    ),
    Behaviour("ordered: only the head leaves", _in("queues", "an_ordered_queue_lets_only_its_head_leave")),
    Behaviour(
        "unordered: free between watermarks, and no record passes one in either direction",
        _in("queues", "an_unordered_queue_is_free_between_watermarks_and_strict_across_them"),
    ),
    Behaviour(
        "one element leaves per mail, so that the owner's thread is never taken over",
        _in("modes", "everything_that_may_leave_leaves_at_one_completion"),
        differs="all that may leave leaves together: the output does not block, and a turn of the loop each costs more",
    ),
    Behaviour(
        "a completion that the closed mailbox refuses is dropped: the element comes back with the restore",
        _in("threads", "a_completion_after_close_goes_nowhere")
        + _in("lifecycle", "results_that_come_after_close_go_nowhere"),
    ),
    Behaviour(
        "outputs carry the timestamp of their input",
        _in(
            "modes",
            "ordered_outputs_and_watermarks_leave_in_the_order_of_the_input",
            "one_element_may_have_none_or_several_outputs",
        ),
    ),
)

TIMEOUTS = (
    Behaviour(
        "each record has a timer from its acceptance, which is cancelled at its completion",
        _in(
            "timeouts",
            "one_timer_serves_all_elements_and_none_is_left_after_close",
            "the_clock_of_an_element_starts_when_it_is_accepted",
            "elements_time_out_one_by_one_each_at_its_own_time",
        ),
        differs="one timer serves all; it may fire once in vain after the last completion",
    ),
    Behaviour(
        "a timeout asks the function; by default that fails the job",
        _in("timeouts", "an_element_without_a_result_in_time_fails_the_operator", "timeout_may_give_a_fallback"),
    ),
    Behaviour(
        "the timeout covers all attempts; it cancels a pending delay and ends the attempts",
        _in(
            "retry_timeouts",
            "one_budget_covers_all_attempts_and_ends_them",
            "a_timeout_in_the_delay_gives_the_fallback_at_once_and_no_further_call",
        ),
    ),
    Behaviour(
        "a result after the timeout is ignored, and so is a second completion",
        _in(
            "timeouts",
            "a_result_that_comes_after_the_timeout_is_ignored",
            "an_error_that_comes_after_the_timeout_is_ignored",
        )
        + _in("threads", "the_first_completion_counts", "many_threads_completing_one_future_give_one_result"),
    ),
    Behaviour(
        "a timer that fires after the completion does nothing",
        _in(
            "timeouts",
            "a_timer_that_fires_after_the_result_finds_nothing_to_do",
            "a_result_and_the_timeout_at_the_same_moment_give_one_output",
        ),
    ),
    Behaviour(
        "a timeout() that neither returns nor fails keeps the place for ever",
        _in("timeouts", "a_fallback_that_never_comes_keeps_its_place_and_blocks_no_snapshot_nor_close"),
    ),
    Behaviour(
        "after a restore the timers and the attempts start anew",
        _in(
            "timeouts",
            "a_restored_element_goes_on_with_the_time_that_was_left",
            "a_restored_element_whose_time_is_over_is_not_called_again",
        )
        + _in("retry_attempts", "attempts_and_the_rest_of_a_delay_survive_a_restart", "no_attempt_is_won_by_a_restart"),
        differs="what an element has used is kept: its attempts, its time and the rest of its delay",
    ),
)

FAILURES = (
    Behaviour(
        "a failure names the input, frees whoever waits, and the first one counts",
        _in(
            "failures",
            "a_failing_element_fails_the_operator_by_name",
            "a_failure_reaches_who_waits_for_a_place",
            "a_failure_reaches_who_waits_for_the_end",
            "every_later_use_of_a_failed_operator_raises_the_first_failure",
        ),
    ),
    Behaviour(
        "no collection at all is refused, with the advice to return an empty one",
        _in("failures", "a_result_that_is_no_collection_of_outputs_is_refused"),
    ),
)

RETRIES = (
    Behaviour(
        "a strategy decides from the number of attempts, the result and the error",
        _in("retry_policy", "the_policy_tells_which_errors_are_tried_again", "a_result_may_be_asked_for_again"),
    ),
    Behaviour(
        "attempts count from 1, and a maximum of n makes 1 call and n retries",
        _in("retry_policy", "the_last_error_of_too_many_fails_the_operator"),
        differs="a maximum of n makes n calls, the first included",
    ),
    Behaviour(
        "the outcome of the last attempt is final",
        _in(
            "retry_policy", "the_last_error_of_too_many_fails_the_operator", "the_last_result_of_too_many_is_the_result"
        ),
    ),
    Behaviour(
        "completions that repeat while a retry is due are dropped",
        _in("retry_attempts", "a_function_that_completes_again_and_again_has_one_result_each"),
    ),
    Behaviour(
        "an element keeps its place during the delay",
        _in("retry_attempts", "an_element_keeps_its_place_during_the_delay"),
    ),
    Behaviour(
        "fixed and exponential delays, for empty results and for errors",
        _in("retry_policy", "an_error_is_tried_again_after_the_delay", "delays_grow_for_each_element_on_its_own"),
        differs="the delay is computed from the attempt, so elements do not make each other wait; with full jitter",
    ),
    Behaviour(
        "at the end of the input every element that waits gets one attempt at once, and outcomes are final",
        _in("retry_attempts", "at_the_end_the_last_attempt_comes_at_once_and_is_final", "at_the_end_an_error_is_final"),
    ),
    Behaviour(
        "at the end of the input an attempt that runs may be made a second time",
        _in("retry_attempts", "at_the_end_a_running_attempt_is_not_made_twice"),
        differs="it is not: the service sees one call",
    ),
)

SNAPSHOTS = (
    Behaviour(
        "the queue is operator state, dealt out in turns",
        _in(
            "rescale",
            "after_a_rescale_an_element_is_where_its_key_is",
            "elements_without_a_key_are_dealt_in_runs_of_equal_length",
            "elements_without_a_key_stay_where_they_are_at_the_same_parallelism",
        ),
        differs="elements follow their key; only those without one are dealt",
    ),
    Behaviour(
        "it holds every element as it came in, in the order of the queue, watermarks included",
        _in("restore", "timestamps_and_watermarks_come_back_in_their_places")
        + _in("queues", "the_queue_of_a_snapshot_is_in_the_order_of_the_input"),
    ),
    Behaviour(
        "results that have not left are not stored, and their calls are made again",
        _in(
            "restore",
            "a_finished_call_is_not_made_again",
            "results_that_wait_behind_a_watermark_are_kept_too",
        )
        + _in("state", "a_restored_element_applies_its_writes_once"),
        differs="they are stored and emitted: a finished call is never paid for twice",
    ),
    Behaviour(
        "each snapshot replaces the one before as a whole",
        _in("snapshots", "elements_that_have_left_are_in_no_later_snapshot"),
    ),
    Behaviour(
        "what cannot be stored is an error, and nothing is stored",
        _in("bad_input", "a_snapshot_of_what_cannot_be_stored_names_it_and_commits_nothing"),
    ),
    Behaviour(
        "elements are processed again during open, which may emit",
        _in(
            "restore",
            "completed_heads_leave_during_open",
            "pending_elements_are_called_again_in_their_order_and_before_new_ones",
        ),
    ),
    Behaviour(
        "more elements than fit can be restored",
        _in("restore", "more_elements_than_fit_are_restored_and_new_ones_wait_for_a_place"),
    ),
    Behaviour(
        "after a rescale the order of a key and the place of a watermark are lost",
        _in(
            "rescale",
            "merged_subtasks_keep_the_order_within_each_and_the_lower_watermark",
            "both_halves_of_a_split_subtask_keep_its_watermarks",
        )
        + _in("key_ordered", "the_order_within_a_key_survives_a_restart_at_another_parallelism"),
        differs="they are kept: an old subtask is a channel, and the watermark is the least of its channels",
    ),
    Behaviour(
        "emitted results are exactly once, calls at least once",
        _in("snapshots", "a_snapshot_counts_the_outputs_before_it")
        + _in("rescale", "the_idempotency_key_is_the_same_after_every_restore"),
    ),
)

OTHER_ELEMENTS = (
    Behaviour(
        "a watermark with nothing before it leaves at once",
        _in("queues", "a_watermark_leaves_at_once_where_nothing_stands_before_it"),
    ),
    Behaviour(
        "latency markers go past the queue", absent="there are no latency markers: latencies are counted in place"
    ),
    Behaviour(
        "watermark status goes past the queue", absent="there is no idle status: a source that is idle sends nothing"
    ),
    Behaviour(
        "where objects are reused, a record is copied before it is queued",
        _in("modes", "the_function_gets_the_very_object_that_was_processed"),
        differs="nothing is copied: Python sources do not reuse their objects",
    ),
    Behaviour(
        "results may be made on the owner's thread",
        _in("modes", "outputs_are_any_iterable_and_are_consumed_on_the_thread_of_the_loop"),
    ),
    Behaviour(
        "a full queue delays a snapshot",
        _in("modes", "a_full_operator_makes_its_caller_wait_while_calls_and_snapshots_go_on")
        + _in("threads", "a_snapshot_does_not_wait_for_a_blocking_call"),
        differs="it does not: a snapshot never waits for a call",
    ),
)

BATCHES = (
    Behaviour(
        "a batch is called when it is full, after its delay since its first element, and at the end of the input",
        _in(
            "batches",
            "a_full_batch_is_called_at_once_and_gives_each_element_its_outputs",
            "a_batch_waits_no_longer_than_its_delay_after_its_first_element",
            "the_end_of_the_input_calls_for_what_is_there",
        ),
    ),
    Behaviour("at most one timer runs for the batch", _in("batches", "a_full_batch_takes_its_timer_along")),
    Behaviour("the size must be positive", _in("batches", "limits_that_can_never_work_are_refused")),
    Behaviour(
        "the base is unordered, another operator is ordered",
        _in("batches", "batches_run_beside_each_other", "ordered_batches_leave_in_the_order_of_the_input"),
    ),
    Behaviour(
        "there is no bound on what is in flight",
        _in("batches", "a_batch_is_never_larger_than_what_may_be_in_flight"),
        differs="the capacity holds for batches, too",
    ),
    Behaviour(
        "what waits for its batch is lost at a failure, and outputs lose their timestamps",
        _in("batch_snapshots", "what_waits_for_its_batch_and_what_is_in_one_are_in_the_snapshot"),
        differs="neither",
    ),
    Behaviour(
        "retry after a fixed delay", _in("batch_failures", "the_failed_part_of_a_batch_is_tried_again_with_others")
    ),
    Behaviour("retry after growing delays", _in("batch_failures", "a_batch_is_tried_again_after_growing_delays")),
    Behaviour("retry by result", _in("batch_failures", "results_of_a_batch_may_be_asked_for_again")),
    Behaviour(
        "too many retries keep the cause", _in("batch_failures", "a_batch_that_fails_too_often_keeps_its_last_error")
    ),
    Behaviour(
        "an error that does not match is final",
        _in("batch_failures", "an_error_that_does_not_match_is_not_tried_again"),
    ),
    Behaviour(
        "a timeout fails the job", _in("batch_timeouts", "a_batch_that_times_out_fails_the_operator_without_a_fallback")
    ),
    Behaviour(
        "a timeout may give part of the results, or none",
        _in("batch_timeouts", "a_batch_that_times_out_may_give_nothing", "elements_of_a_batch_time_out_one_by_one"),
    ),
    Behaviour("a batch in time does not time out", _in("batch_timeouts", "a_batch_in_time_does_not_time_out")),
)

OPERATOR_TESTS = (
    Behaviour(
        "event time, ordered: records and watermarks in exactly their order",
        _in("modes", "ordered_outputs_and_watermarks_leave_in_the_order_of_the_input"),
    ),
    Behaviour(
        "event time, unordered: the watermark in its place, the records before it in any order",
        _in("modes", "unordered_outputs_leave_as_they_come_but_stay_on_their_side_of_a_watermark"),
    ),
    Behaviour(
        "processing time, ordered: more records than fit, in order",
        _in("modes", "more_elements_than_fit_leave_in_order_without_watermarks_too"),
    ),
    Behaviour(
        "processing time, unordered: the same records in any order",
        _in("modes", "more_elements_than_fit_leave_as_their_calls_return"),
    ),
    Behaviour(
        "two async operators with a map between them",
        _in("modes", "two_operators_in_a_row_work_as_one") + _in("stream", "streams_follow_each_other"),
    ),
    Behaviour(
        "a snapshot of blocked elements is restored into another capacity, followed by new input and another snapshot",
        _in(
            "restore",
            "pending_elements_are_called_again_in_their_order_and_before_new_ones",
            "the_mode_and_the_capacity_may_change_at_a_restore",
        )
        + _in("snapshots", "a_snapshot_changes_nothing_in_the_operator_and_nothing_changes_the_snapshot"),
    ),
    Behaviour(
        "reused objects are copied",
        _in("modes", "the_function_gets_the_very_object_that_was_processed"),
        differs="nothing is copied",
    ),
    Behaviour(
        "a timeout fails the job, and only what was in time leaves",
        _in("timeouts", "an_element_without_a_result_in_time_fails_the_operator"),
    ),
    Behaviour("a timeout may emit a fallback, in order", _in("timeouts", "timeout_may_give_a_fallback")),
    Behaviour(
        "no timer is left after the completion",
        _in("timeouts", "one_timer_serves_all_elements_and_none_is_left_after_close"),
        differs="the one timer may fire once in vain",
    ),
    Behaviour(
        "a completion just before the timer: no timeout, one output",
        _in("timeouts", "a_timer_that_fires_after_the_result_finds_nothing_to_do"),
    ),
    Behaviour(
        "an error of the function frees the element, is reported, and close does not hang (each mode)",
        _in(
            "failures",
            "a_failing_element_fails_the_operator_by_name",
            "close_ends_the_calls_that_a_failure_has_left",
        ),
    ),
    Behaviour(
        "the same with retries (each mode)",
        _in("retry_attempts", "a_failing_function_with_retries_does_not_hang_close")
        + _in("retry_policy", "the_last_error_of_too_many_fails_the_operator"),
    ),
    Behaviour(
        "a function that never completes is ended by the timeout, and close returns (each mode)",
        _in("timeouts", "a_call_that_never_ends_is_cancelled_by_its_timeout_and_close_returns"),
    ),
    Behaviour(
        "the same with retries (each mode)",
        _in("retry_timeouts", "a_timeout_without_fallback_ends_the_attempts_of_a_function_that_always_fails"),
    ),
    Behaviour("a full queue is restored", _in("restore", "a_full_queue_is_restored_whole")),
    Behaviour(
        "completions in reverse order while the task ends without the end of its input: no output and no error",
        _in("lifecycle", "results_that_come_after_close_go_nowhere"),
    ),
    Behaviour("the same with retries", _in("lifecycle", "a_call_that_fails_after_close_is_not_tried_again")),
    Behaviour(
        "odd inputs stay empty however often they are tried; even ones come out, in order or sorted",
        _in("retry_policy", "a_result_may_be_asked_for_again"),
    ),
    Behaviour(
        "a function that completes repeatedly has one result each (each mode)",
        _in("retry_attempts", "a_function_that_completes_again_and_again_has_one_result_each"),
    ),
    Behaviour(
        "timeout() gives a fallback while retries go on (each mode)",
        _in("retry_timeouts", "one_budget_covers_all_attempts_and_ends_them"),
    ),
    Behaviour(
        "after the timeout no further attempt is made",
        _in(
            "retry_timeouts",
            "a_timeout_without_fallback_ends_the_attempts_of_a_function_that_always_fails",
            "a_retry_and_the_timeout_at_the_same_moment_give_one_result",
        ),
    ),
    Behaviour(
        "results may be supplied on the owner's thread, and so may errors",
        _in("modes", "outputs_are_any_iterable_and_are_consumed_on_the_thread_of_the_loop")
        + _in("failures", "an_iterable_of_outputs_that_fails_midway_gives_none_of_them"),
    ),
    Behaviour(
        "elements tried before and never tried are restored together",
        _in("restore", "elements_tried_before_and_never_tried_are_restored_side_by_side"),
    ),
)

QUEUE_TESTS = (
    Behaviour("ordered completion order", _in("queues", "an_ordered_queue_lets_only_its_head_leave")),
    Behaviour(
        "unordered completion order over three segments",
        _in("queues", "an_unordered_queue_is_free_between_watermarks_and_strict_across_them"),
    ),
    Behaviour("putting a watermark and a record", _in("queues", "a_watermark_takes_a_place_in_a_full_queue")),
    Behaviour(
        "popping a watermark alone, and a record once it is complete, with its timestamp",
        _in("queues", "a_watermark_leaves_at_once_where_nothing_stands_before_it")
        + _in("modes", "one_element_may_have_none_or_several_outputs"),
    ),
    Behaviour("putting on a full queue", _in("queues", "a_full_queue_takes_the_next_element_once_one_has_left")),
    Behaviour("adjacent watermarks leave in order", _in("queues", "watermarks_side_by_side_leave_in_their_order")),
)

MAILBOX_TESTS = (
    Behaviour("first in, first out", _in("mailbox", "mail_is_taken_in_the_order_in_which_it_was_put")),
    Behaviour("many writers, blocking or not", _in("mailbox", "many_threads_may_put_while_the_owner_takes")),
    Behaviour(
        "closing and quiescing end the writers", _in("mailbox", "the_end_of_a_mailbox_reaches_every_thread_that_puts")
    ),
    Behaviour(
        "quiesced: no put, takes go on", _in("mailbox", "a_quiesced_mailbox_gives_what_it_has_and_takes_nothing")
    ),
    Behaviour("closed: neither", _in("mailbox", "a_closed_mailbox_gives_and_takes_nothing")),
    Behaviour(
        "urgent mail and priorities", _in("mailbox", "urgent_mail_comes_first_and_a_priority_hides_what_is_below")
    ),
    Behaviour(
        "the lowest priority reads urgent mail first and then by arrival",
        _in("mailbox", "the_main_loop_takes_urgent_mail_and_then_by_arrival_not_by_priority"),
    ),
    Behaviour(
        "every way of taking empties the batch first",
        _in("mailbox", "a_batch_is_taken_before_what_came_after_it_was_made", "a_batch_of_nothing_is_none"),
    ),
    Behaviour(
        "draining gives the batch and then the queue", _in("mailbox", "draining_gives_the_batch_and_then_the_rest")
    ),
    Behaviour(
        "a priority looks past the batch", _in("mailbox", "a_priority_looks_past_a_batch_that_has_nothing_for_it")
    ),
    Behaviour(
        "an exclusive block is not interrupted",
        _in("mailbox", "nobody_closes_a_mailbox_in_the_middle_of_an_exclusive_block"),
    ),
    Behaviour("urgent mail overtakes the rest of a batch", _in("mailbox", "urgent_mail_overtakes_the_rest_of_a_batch")),
    Behaviour(
        "without a batch urgent mail comes first, and the normal mail behind it follows",
        _in("mailbox", "without_a_batch_urgent_mail_comes_first_and_the_rest_follows"),
    ),
    Behaviour(
        "urgent mail, then the batch, then the queue, for every way of taking",
        _in("mailbox", "urgent_mail_comes_first_then_the_batch_then_the_queue"),
    ),
    Behaviour("single urgent mails", _in("mailbox", "single_urgent_mails_between_others_each_come_first")),
)

PROCESSOR_TESTS = (
    Behaviour(
        "mail is refused after the preparation of the end", _in("processor", "mail_is_refused_once_the_end_is_near")
    ),
    Behaviour("an error comes out of the loop", _in("processor", "an_error_comes_out_of_the_loop")),
    Behaviour("closing cancels what is left", _in("processor", "what_is_left_at_the_end_is_cancelled")),
    Behaviour("the default action and mail both run", _in("processor", "the_default_action_and_mail_both_run")),
    Behaviour(
        "the default action runs until it is stopped",
        _in("processor", "the_default_action_runs_until_the_loop_is_ended"),
    ),
    Behaviour(
        "suspended at 3, resumed by mail, ended at 6",
        _in("processor", "a_suspended_default_action_waits_for_its_resumption_and_mail_goes_on"),
    ),
    Behaviour(
        "ten thousand suspensions, resumed by another thread",
        _in("processor", "ten_thousand_suspensions_are_each_ended_by_another_thread"),
    ),
    Behaviour(
        "completing after the close is harmless", _in("processor", "ending_the_loop_after_it_was_closed_does_no_harm")
    ),
    Behaviour(
        "mail that causes mail does not starve",
        _in("processor", "mail_that_causes_mail_does_not_starve_the_default_action"),
    ),
    Behaviour("a paused loop keeps its mail", _in("processor", "a_paused_loop_leaves_mail_for_the_next_run")),
    Behaviour("a completed loop never runs again", _in("processor", "a_completed_loop_never_runs_again")),
    Behaviour("paused before the start", _in("processor", "a_loop_that_is_paused_before_it_starts_can_be_run_again")),
)

EXECUTOR_TESTS = (
    Behaviour(
        "when a processor is idle", _in("processor", "a_processor_is_idle_while_it_is_suspended_and_has_no_mail")
    ),
    Behaviour(
        "mail of another thread is run by the taker", _in("processor", "mail_of_another_thread_runs_on_the_owners")
    ),
    Behaviour("deferrable mail is left to the main loop", _in("processor", "deferrable_mail_waits_for_the_main_loop")),
    Behaviour(
        "an executor of its priority may run deferrable mail on purpose",
        absent="nothing here needs it: deferrable mail waits for the main loop",
    ),
    Behaviour("closing in the middle", _in("processor", "after_the_end_nothing_can_be_run_in_between")),
    Behaviour("trying to run one", _in("processor", "trying_to_run_one_mail_tells_whether_there_was_any")),
    Behaviour("waiting for one", _in("processor", "running_one_mail_waits_for_it")),
)

MAILBOX_RULES = (
    Behaviour(
        "a step runs the mail that was there, waits while suspended, then acts once",
        _in("processor", "mail_that_causes_mail_does_not_starve_the_default_action"),
    ),
    Behaviour(
        "a priority hides what is below, so an action in the middle does not run mail of those before it",
        _in("processor", "mail_of_lower_priority_is_out_of_reach_in_the_middle_of_an_action")
        + _in("mailbox", "a_reader_that_waits_for_its_priority_is_not_woken_for_good_by_less"),
    ),
    Behaviour(
        "urgent goes to the front; deferrable is for the main loop",
        _in("mailbox", "urgent_mail_overtakes_the_rest_of_a_batch", "deferrable_mail_is_only_for_the_main_loop"),
    ),
    Behaviour(
        "running mail in the middle of an action lets its errors through",
        _in("processor", "an_error_of_mail_that_is_run_in_between_reaches_who_runs_it"),
    ),
    Behaviour(
        "a suspension is made by the owner, once at a time, and ended by any thread",
        _in(
            "processor",
            "suspending_twice_is_an_error",
            "resuming_twice_or_after_the_end_does_no_harm",
            "a_suspension_that_has_ended_does_not_end_the_next_one",
        ),
    ),
    Behaviour(
        "open, quiesced, closed; the close cancels what is left and gathers errors; draining runs it",
        _in(
            "processor",
            "all_that_is_left_is_cancelled_although_one_cancellation_fails",
            "what_is_left_may_be_run_before_the_end",
        )
        + _in("mailbox", "a_closed_mailbox_does_not_become_quiesced"),
        differs="of several errors the first is raised",
    ),
    Behaviour(
        "control mail goes first; a reported error comes out of the loop",
        _in("processor", "an_error_that_another_thread_reports_comes_out_of_the_loop"),
    ),
    Behaviour(
        "mails, their latency, the size of the queue and the time suspended are measured",
        _in("processor", "the_default_action_and_mail_both_run", "waiting_for_mail_is_counted_by_its_reason")
        + _in("mailbox", "the_owner_is_told_once_for_all_the_mail_that_comes_before_it_looks"),
        differs="the latency that is measured is that of the calls",
    ),
)

CATALOGUE: dict[str, tuple[Behaviour, ...]] = {
    "construction": CONSTRUCTION,
    "queue and modes": QUEUE_AND_MODES,
    "timeouts": TIMEOUTS,
    "failures": FAILURES,
    "retries": RETRIES,
    "snapshots": SNAPSHOTS,
    "other elements": OTHER_ELEMENTS,
    "batches": BATCHES,
    "tests of the operator": OPERATOR_TESTS,
    "tests of the queues": QUEUE_TESTS,
    "tests of the mailbox": MAILBOX_TESTS,
    "tests of the processor": PROCESSOR_TESTS,
    "tests of the executor": EXECUTOR_TESTS,
    "rules of the mailbox": MAILBOX_RULES,
}
