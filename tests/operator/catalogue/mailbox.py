"""The mailbox, its processor and its executors: what Flink's tests of them show, and their rules."""

from __future__ import annotations

from tests.operator.catalogue.behaviour import Behaviour, shown_in

MAILBOX_TESTS = (
    Behaviour("first in, first out", shown_in("mailbox", "mail_is_taken_in_the_order_in_which_it_was_put")),
    Behaviour("many writers, blocking or not", shown_in("mailbox", "many_threads_may_put_while_the_owner_takes")),
    Behaviour(
        "closing and quiescing end the writers",
        shown_in("mailbox", "the_end_of_a_mailbox_reaches_every_thread_that_puts"),
    ),
    Behaviour(
        "quiesced: no put, takes go on", shown_in("mailbox", "a_quiesced_mailbox_gives_what_it_has_and_takes_nothing")
    ),
    Behaviour("closed: neither", shown_in("mailbox", "a_closed_mailbox_gives_and_takes_nothing")),
    Behaviour(
        "urgent mail and priorities", shown_in("mailbox", "urgent_mail_comes_first_and_a_priority_hides_what_is_below")
    ),
    Behaviour(
        "the lowest priority reads urgent mail first and then by arrival",
        shown_in("mailbox", "the_main_loop_takes_urgent_mail_and_then_by_arrival_not_by_priority"),
    ),
    Behaviour(
        "every way of taking empties the batch first",
        shown_in("mailbox", "a_batch_is_taken_before_what_came_after_it_was_made", "a_batch_of_nothing_is_none"),
    ),
    Behaviour(
        "draining gives the batch and then the queue", shown_in("mailbox", "draining_gives_the_batch_and_then_the_rest")
    ),
    Behaviour(
        "a priority looks past the batch", shown_in("mailbox", "a_priority_looks_past_a_batch_that_has_nothing_for_it")
    ),
    Behaviour(
        "an exclusive block is not interrupted",
        shown_in("mailbox", "nobody_closes_a_mailbox_in_the_middle_of_an_exclusive_block"),
    ),
    Behaviour(
        "urgent mail overtakes the rest of a batch", shown_in("mailbox", "urgent_mail_overtakes_the_rest_of_a_batch")
    ),
    Behaviour(
        "without a batch urgent mail comes first, and the normal mail behind it follows",
        shown_in("mailbox", "without_a_batch_urgent_mail_comes_first_and_the_rest_follows"),
    ),
    Behaviour(
        "urgent mail, then the batch, then the queue, for every way of taking",
        shown_in("mailbox", "urgent_mail_comes_first_then_the_batch_then_the_queue"),
    ),
    Behaviour("single urgent mails", shown_in("mailbox", "single_urgent_mails_between_others_each_come_first")),
)

PROCESSOR_TESTS = (
    Behaviour(
        "mail is refused after the preparation of the end",
        shown_in("processor", "mail_is_refused_once_the_end_is_near"),
    ),
    Behaviour("an error comes out of the loop", shown_in("processor", "an_error_comes_out_of_the_loop")),
    Behaviour("closing cancels what is left", shown_in("processor", "what_is_left_at_the_end_is_cancelled")),
    Behaviour("the default action and mail both run", shown_in("processor", "the_default_action_and_mail_both_run")),
    Behaviour(
        "the default action runs until it is stopped",
        shown_in("processor", "the_default_action_runs_until_the_loop_is_ended"),
    ),
    Behaviour(
        "suspended at 3, resumed by mail, ended at 6",
        shown_in("processor", "a_suspended_default_action_waits_for_its_resumption_and_mail_goes_on"),
    ),
    Behaviour(
        "ten thousand suspensions, resumed by another thread",
        shown_in("processor", "ten_thousand_suspensions_are_each_ended_by_another_thread"),
    ),
    Behaviour(
        "completing after the close is harmless",
        shown_in("processor", "ending_the_loop_after_it_was_closed_does_no_harm"),
    ),
    Behaviour(
        "mail that causes mail does not starve",
        shown_in("processor", "mail_that_causes_mail_does_not_starve_the_default_action"),
    ),
    Behaviour("a paused loop keeps its mail", shown_in("processor", "a_paused_loop_leaves_mail_for_the_next_run")),
    Behaviour("a completed loop never runs again", shown_in("processor", "a_completed_loop_never_runs_again")),
    Behaviour(
        "paused before the start", shown_in("processor", "a_loop_that_is_paused_before_it_starts_can_be_run_again")
    ),
)

EXECUTOR_TESTS = (
    Behaviour(
        "when a processor is idle", shown_in("processor", "a_processor_is_idle_while_it_is_suspended_and_has_no_mail")
    ),
    Behaviour(
        "mail of another thread is run by the taker", shown_in("processor", "mail_of_another_thread_runs_on_the_owners")
    ),
    Behaviour(
        "deferrable mail is left to the main loop", shown_in("processor", "deferrable_mail_waits_for_the_main_loop")
    ),
    Behaviour(
        "an executor of its priority may run deferrable mail on purpose",
        absent="nothing here needs it: deferrable mail waits for the main loop",
    ),
    Behaviour("closing in the middle", shown_in("processor", "after_the_end_nothing_can_be_run_in_between")),
    Behaviour("trying to run one", shown_in("processor", "trying_to_run_one_mail_tells_whether_there_was_any")),
    Behaviour("waiting for one", shown_in("processor", "running_one_mail_waits_for_it")),
)

MAILBOX_RULES = (
    Behaviour(
        "a step runs the mail that was there, waits while suspended, then acts once",
        shown_in("processor", "mail_that_causes_mail_does_not_starve_the_default_action"),
    ),
    Behaviour(
        "a priority hides what is below, so an action in the middle does not run mail of those before it",
        shown_in("processor", "mail_of_lower_priority_is_out_of_reach_in_the_middle_of_an_action")
        + shown_in("mailbox", "a_reader_that_waits_for_its_priority_is_not_woken_for_good_by_less"),
    ),
    Behaviour(
        "urgent goes to the front; deferrable is for the main loop",
        shown_in("mailbox", "urgent_mail_overtakes_the_rest_of_a_batch", "deferrable_mail_is_only_for_the_main_loop"),
    ),
    Behaviour(
        "running mail in the middle of an action lets its errors through",
        shown_in("processor", "an_error_of_mail_that_is_run_in_between_reaches_who_runs_it"),
    ),
    Behaviour(
        "a suspension is made by the owner, once at a time, and ended by any thread",
        shown_in(
            "processor",
            "suspending_twice_is_an_error",
            "resuming_twice_or_after_the_end_does_no_harm",
            "a_suspension_that_has_ended_does_not_end_the_next_one",
        ),
    ),
    Behaviour(
        "open, quiesced, closed; the close cancels what is left and gathers errors; draining runs it",
        shown_in(
            "processor",
            "all_that_is_left_is_cancelled_although_one_cancellation_fails",
            "what_is_left_may_be_run_before_the_end",
        )
        + shown_in("mailbox", "a_closed_mailbox_does_not_become_quiesced"),
        differs="of several errors the first is raised",
    ),
    Behaviour(
        "control mail goes first; a reported error comes out of the loop",
        shown_in("processor", "an_error_that_another_thread_reports_comes_out_of_the_loop"),
    ),
    Behaviour(
        "mails, their latency, the size of the queue and the time suspended are measured",
        shown_in("processor", "the_default_action_and_mail_both_run", "waiting_for_mail_is_counted_by_its_reason")
        + shown_in("mailbox", "the_owner_is_told_once_for_all_the_mail_that_comes_before_it_looks"),
        differs="the latency that is measured is that of the calls",
    ),
)
