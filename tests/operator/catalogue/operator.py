"""The operator: construction, queue and modes, failures, and the elements that are no records."""

from __future__ import annotations

from tests.operator.catalogue.behaviour import Behaviour, shown_in

CONSTRUCTION = (
    Behaviour(
        "takes a function, a timeout, a capacity, a mode, a retry strategy and a clock; the capacity must be positive",
        shown_in("bad_input", "an_argument_that_can_never_work_is_refused_by_name"),
    ),
    Behaviour("the default capacity is 100", shown_in("modes", "a_hundred_elements_fit_unless_told_otherwise")),
    Behaviour(
        "only a strategy with a predicate makes the operator retry",
        shown_in(
            "retry_policy",
            "an_error_that_no_policy_looks_at_is_final",
            "results_are_final_unless_the_policy_looks_at_them",
            "the_policy_tells_which_errors_are_tried_again",
        ),
        differs="a policy without a predicate retries every error and no result",
    ),
    Behaviour(
        "a timeout of zero or less means none without retries, and is refused with them",
        shown_in("bad_input", "an_argument_that_can_never_work_is_refused_by_name")
        + shown_in("timeouts", "without_a_timeout_there_is_no_timer"),
        differs="None means none; zero or less is refused always",
    ),
    Behaviour(
        "operators are chained into one thread, opened from tail to head",
        shown_in("modes", "two_operators_in_a_row_work_as_one") + shown_in("stream", "streams_follow_each_other"),
        differs="there are no chains: streams are composed by hand, and the taker is ready before the giver",
    ),
    Behaviour(
        "one thread owns the operator; callbacks of other threads only leave mail for it",
        shown_in(
            "threads",
            "a_future_may_be_completed_from_any_thread",
            "many_results_from_many_threads_all_arrive",
        )
        + shown_in("modes", "outputs_are_any_iterable_and_are_consumed_on_the_thread_of_the_loop"),
    ),
)

QUEUE_AND_MODES = (
    Behaviour(
        "the queue refuses what does not fit, tells what may leave, and gives its content for a snapshot",
        shown_in(
            "queues",
            "a_full_queue_takes_the_next_element_once_one_has_left",
            "the_queue_of_a_snapshot_is_in_the_order_of_the_input",
        ),
    ),
    Behaviour(
        "a watermark takes a place in either mode",
        shown_in("queues", "a_watermark_takes_a_place_in_a_full_queue", "a_full_queue_also_holds_a_watermark_back"),
    ),
    Behaviour(
        "while the queue is full the input waits, and everything else goes on",
        shown_in("modes", "a_full_operator_makes_its_caller_wait_while_calls_and_snapshots_go_on"),
    ),
    Behaviour("ordered: only the head leaves", shown_in("queues", "an_ordered_queue_lets_only_its_head_leave")),
    Behaviour(
        "unordered: free between watermarks, and no record passes one in either direction",
        shown_in("queues", "an_unordered_queue_is_free_between_watermarks_and_strict_across_them"),
    ),
    Behaviour(
        "one element leaves per mail, so that the owner's thread is never taken over",
        shown_in("modes", "everything_that_may_leave_leaves_at_one_completion"),
        differs="all that may leave leaves together: the output does not block, and a turn of the loop each costs more",
    ),
    Behaviour(
        "a completion that the closed mailbox refuses is dropped: the element comes back with the restore",
        shown_in("threads", "a_completion_after_close_goes_nowhere")
        + shown_in("lifecycle", "results_that_come_after_close_go_nowhere"),
    ),
    Behaviour(
        "outputs carry the timestamp of their input",
        shown_in(
            "modes",
            "ordered_outputs_and_watermarks_leave_in_the_order_of_the_input",
            "one_element_may_have_none_or_several_outputs",
        ),
    ),
)

FAILURES = (
    Behaviour(
        "a failure names the input, frees whoever waits, and the first one counts",
        shown_in(
            "failures",
            "a_failing_element_fails_the_operator_by_name",
            "a_failure_reaches_who_waits_for_a_place",
            "a_failure_reaches_who_waits_for_the_end",
            "every_later_use_of_a_failed_operator_raises_the_first_failure",
        ),
    ),
    Behaviour(
        "no collection at all is refused, with the advice to return an empty one",
        shown_in("failures", "a_result_that_is_no_collection_of_outputs_is_refused"),
    ),
)

OTHER_ELEMENTS = (
    Behaviour(
        "a watermark with nothing before it leaves at once",
        shown_in("queues", "a_watermark_leaves_at_once_where_nothing_stands_before_it"),
    ),
    Behaviour(
        "latency markers go past the queue", absent="there are no latency markers: latencies are counted in place"
    ),
    Behaviour(
        "watermark status goes past the queue", absent="there is no idle status: a source that is idle sends nothing"
    ),
    Behaviour(
        "where objects are reused, a record is copied before it is queued",
        shown_in("modes", "the_function_gets_the_very_object_that_was_processed"),
        differs="nothing is copied: Python sources do not reuse their objects",
    ),
    Behaviour(
        "results may be made on the owner's thread",
        shown_in("modes", "outputs_are_any_iterable_and_are_consumed_on_the_thread_of_the_loop"),
    ),
    Behaviour(
        "a full queue delays a snapshot",
        shown_in("modes", "a_full_operator_makes_its_caller_wait_while_calls_and_snapshots_go_on")
        + shown_in("threads", "a_snapshot_does_not_wait_for_a_blocking_call"),
        differs="it does not: a snapshot never waits for a call",
    ),
)
