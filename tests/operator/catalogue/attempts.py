"""Attempts at an element: how long they may take, how often they are made, and when."""

from __future__ import annotations

from tests.operator.catalogue.behaviour import Behaviour, shown_in

TIMEOUTS = (
    Behaviour(
        "each record has a timer from its acceptance, which is cancelled at its completion",
        shown_in(
            "timeouts",
            "one_timer_serves_all_elements_and_none_is_left_after_close",
            "the_clock_of_an_element_starts_when_it_is_accepted",
            "elements_time_out_one_by_one_each_at_its_own_time",
        ),
        differs="one timer serves all; it may fire once in vain after the last completion",
    ),
    Behaviour(
        "a timeout asks the function; by default that fails the job",
        shown_in("timeouts", "an_element_without_a_result_in_time_fails_the_operator", "timeout_may_give_a_fallback"),
    ),
    Behaviour(
        "the timeout covers all attempts; it cancels a pending delay and ends the attempts",
        shown_in(
            "retry_timeouts",
            "one_budget_covers_all_attempts_and_ends_them",
            "a_timeout_in_the_delay_gives_the_fallback_at_once_and_no_further_call",
        ),
    ),
    Behaviour(
        "a result after the timeout is ignored, and so is a second completion",
        shown_in(
            "timeouts",
            "a_result_that_comes_after_the_timeout_is_ignored",
            "an_error_that_comes_after_the_timeout_is_ignored",
        )
        + shown_in("threads", "the_first_completion_counts", "many_threads_completing_one_future_give_one_result"),
    ),
    Behaviour(
        "a timer that fires after the completion does nothing",
        shown_in(
            "timeouts",
            "a_timer_that_fires_after_the_result_finds_nothing_to_do",
            "a_result_and_the_timeout_at_the_same_moment_give_one_output",
        ),
    ),
    Behaviour(
        "a timeout() that neither returns nor fails keeps the place for ever",
        shown_in("timeouts", "a_fallback_that_never_comes_keeps_its_place_and_blocks_no_snapshot_nor_close"),
    ),
    Behaviour(
        "after a restore the timers and the attempts start anew",
        shown_in(
            "timeouts",
            "a_restored_element_goes_on_with_the_time_that_was_left",
            "a_restored_element_whose_time_is_over_is_not_called_again",
        )
        + shown_in(
            "retry_attempts", "attempts_and_the_rest_of_a_delay_survive_a_restart", "no_attempt_is_won_by_a_restart"
        ),
        differs="what an element has used is kept: its attempts, its time and the rest of its delay",
    ),
)

RETRIES = (
    Behaviour(
        "a strategy decides from the number of attempts, the result and the error",
        shown_in("retry_policy", "the_policy_tells_which_errors_are_tried_again", "a_result_may_be_asked_for_again"),
    ),
    Behaviour(
        "attempts count from 1, and a maximum of n makes 1 call and n retries",
        shown_in("retry_policy", "the_last_error_of_too_many_fails_the_operator"),
        differs="a maximum of n makes n calls, the first included",
    ),
    Behaviour(
        "the outcome of the last attempt is final",
        shown_in(
            "retry_policy", "the_last_error_of_too_many_fails_the_operator", "the_last_result_of_too_many_is_the_result"
        ),
    ),
    Behaviour(
        "completions that repeat while a retry is due are dropped",
        shown_in("retry_attempts", "a_function_that_completes_again_and_again_has_one_result_each"),
    ),
    Behaviour(
        "an element keeps its place during the delay",
        shown_in("retry_attempts", "an_element_keeps_its_place_during_the_delay"),
    ),
    Behaviour(
        "fixed and exponential delays, for empty results and for errors",
        shown_in("retry_policy", "an_error_is_tried_again_after_the_delay", "delays_grow_for_each_element_on_its_own"),
        differs="the delay is computed from the attempt, so elements do not make each other wait; with full jitter",
    ),
    Behaviour(
        "at the end of the input every element that waits gets one attempt at once, and outcomes are final",
        shown_in(
            "retry_attempts", "at_the_end_the_last_attempt_comes_at_once_and_is_final", "at_the_end_an_error_is_final"
        ),
    ),
    Behaviour(
        "at the end of the input an attempt that runs may be made a second time",
        shown_in("retry_attempts", "at_the_end_a_running_attempt_is_not_made_twice"),
        differs="it is not: the service sees one call",
    ),
)
