"""What becomes of the outcome of a call: its element completes, is retried, or has failed for good."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from async_op.calls.known_outputs import KnownOutputs
from async_op.dead_letters import DeadLetter, InPlace, OnError, is_told
from async_op.errors import failure_of, is_failure
from async_op.functions.context import InvocationContext
from async_op.in_flight.entries import Block, Entry, forget_attempts
from async_op.in_flight.key_assignment import KeyAssignment
from async_op.in_flight.key_order import KeyGate
from async_op.in_flight.queues import ElementQueue
from async_op.lifecycle import Lifecycle
from async_op.resilience.cache import OutputCache
from async_op.retry import RetryPolicy, checked_delay
from async_op.timers.backoff import Backoff
from keygroups.arguments import not_awaitable
from keygroups.representation import counted
from keygroups.safe_text import text_of
from keygroups.state import commit
from keygroups.state.detached import own_copy

_log = logging.getLogger(__package__)


class Completion:
    """Decides for each outcome whether its element has completed, is retried, or has failed for good.

    Only the thread of the event loop may call it.

    Parameters
    ----------
    queue : ElementQueue
        The queue of the entries.
    gate : KeyGate or None
        Knows the next entry of the same key.
    retry : RetryPolicy or None
        Decides which outcomes are retried, and when.
    cache : OutputCache or None
        Outputs of earlier calls.
    known : KnownOutputs or None
        Outputs that the function knows without a call.
    errors : ErrorPolicy
        Has the outputs of an element that failed for good.
    backoff : Backoff
        Takes entries until their next attempt.
    lifecycle : Lifecycle
        Ends the operator.
    call : callable
        Called with an entry whose key has become free; makes its call.

    Attributes
    ----------
    crash : callable
        Ends the operator with an error of a callback.
    retries, late_results : int
        Further attempts, and results that arrived after their element had got another outcome.
    """

    __slots__ = (
        "_backoff",
        "_cache",
        "_call",
        "_errors",
        "_gate",
        "_known",
        "_queue",
        "_retry",
        "_stopped",
        "crash",
        "late_results",
        "retries",
    )

    def __init__(
        self,
        queue: ElementQueue,
        gate: KeyGate | None,
        retry: RetryPolicy | None,
        cache: OutputCache | None,
        known: KnownOutputs | None,
        errors: ErrorPolicy,
        backoff: Backoff,
        lifecycle: Lifecycle,
        call: Callable[[Entry], None],
    ) -> None:
        self._queue = queue
        self._gate = gate
        self._retry = retry
        self._cache = cache
        self._known = known
        self._errors = errors
        self._backoff = backoff
        self._call = call
        self.crash = lifecycle.fail
        self._stopped = False
        self.retries = self.late_results = 0

    @property
    def may_need_no_call(self) -> bool:
        """Whether the cache or the function may have outputs without a call."""
        return self._cache is not None or self._known is not None

    @property
    def shortcut(self) -> Callable[[Entry], None] | None:
        """What completes an entry whose outputs are set and whose writes are applied; None if `complete` has to.

        It has to where a call may be retried or a cache keeps its outputs.
        """
        if self.may_need_no_call or self._retry is not None:
            return None
        return self._queue.complete if self._gate is None else self.free_key

    def complete(self, entry: Entry, invocation: InvocationContext, outputs: Sequence[Any]) -> None:
        """Take the outputs of a call, unless they are to be retried or their element has been given up."""
        if self._stopped:
            return
        if entry.invocation is not invocation:
            self.late_results += 1
            return
        if self._retry is not None and not entry.expired:
            try:
                delay = self._retry.delay_after_result(entry.attempt, outputs)
                if delay is not None:
                    delay = checked_delay(self._retry, entry.attempt, delay)
            except Exception as error:  # noqa: BLE001 - an error of the policy fails the element
                self._fail(entry, invocation, error)
                return
            if delay is not None:
                self._repeat(entry, invocation, delay)
                return
        entry.invocation = None
        commit(invocation.handles)
        if self._cache is not None:
            self._cache.put(entry, outputs)
        self.finish(entry, outputs)

    def free_key(self, entry: Entry) -> None:
        """Complete an entry whose outputs are set and whose writes are applied; none of its key may need no call."""
        assert self._gate is not None, "called only if there are keys"
        following = self._gate.leave(entry)
        self._queue.complete(entry)
        if following is not None:
            self._call(following)

    def complete_block(self, block: Block, outputs: Sequence[Sequence[Any]]) -> bool:
        """Take the outputs of a whole block; returns False if each element has to be handled separately."""
        if self._stopped:
            return True
        if self._retry is not None:
            delay_after = self._retry.delay_after_result
            try:
                if any(delay_after(1, outputs_of_one) is not None for outputs_of_one in outputs):
                    return False
            except Exception:  # noqa: BLE001 - raised again for the element that caused it
                return False
        block.outputs = outputs
        self._queue.complete_block(block)
        return True

    def end(self, entry: Entry, invocation: InvocationContext, error: BaseException) -> None:
        """Retry a failed call, or let its element fail for good."""
        if self._stopped:
            return
        if not is_failure(error):
            self.crash(self._errors.failure_of(entry, error))
            return
        if entry.invocation is not invocation:
            self.late_results += not isinstance(error, asyncio.CancelledError)
            return
        delay = None
        if self._retry is not None and not entry.expired:
            try:
                wanted = self._retry.delay_after_error(entry.attempt, error)
                delay = checked_delay(self._retry, entry.attempt, wanted)
            except Exception as raised:  # noqa: BLE001 - an error of the policy fails the element
                error = raised
        if delay is None:
            self._fail(entry, invocation, error)
        else:
            self._repeat(entry, invocation, delay)

    def refuse(self, entry: Entry, error: Exception) -> None:
        """Let an element fail for good because no call can be made for it."""
        entry.attempt = 0
        outputs = self._outputs_of_failed(entry, error)
        if outputs is not None:
            entry.outputs = outputs
            self._queue.complete(entry)

    def known_outputs(self, entry: Entry) -> Sequence[Any] | None:
        """Return outputs that need no call: of the cache, of the function, or of a failure to find out."""
        if not self.may_need_no_call or entry.expired or self._stopped:
            return None
        try:
            outputs = None if self._cache is None else self._cache.get(entry)
            if outputs is None and self._known is not None:
                outputs = self._known.of(entry)
        except Exception as error:  # noqa: BLE001 - the user's code failed, or the cache key is unhashable
            entry.attempt -= 1  # the attempt that was due is never made
            return self._outputs_of_failed(entry, error)
        except BaseException as error:  # noqa: BLE001 - treated like an error of the function itself
            self.crash(self._errors.failure_of(entry, error))
            return None
        if outputs is not None:
            self._forget(entry)
        return outputs

    def finish(self, entry: Entry, outputs: Sequence[Any]) -> None:
        """Complete an entry, and then the next entries of its key that need no call either."""
        while True:
            entry.outputs = outputs
            following = None if self._gate is None else self._gate.leave(entry)
            self._queue.complete(entry)
            if following is None:
                return
            known = self.known_outputs(following)
            if known is None:
                self._call(following)
                return
            entry, outputs = following, known

    def take_all_as_final(self) -> None:
        """Retry nothing from now on: every outcome is final."""
        self._retry = None

    def stop(self) -> None:
        """Ignore outcomes from now on."""
        self._stopped = True

    def _fail(self, entry: Entry, invocation: InvocationContext, error: BaseException) -> None:
        """Let the element of an invocation fail for good."""
        invocation.abandon()
        outputs = self._outputs_of_failed(entry, error)
        if outputs is not None:
            self.finish(entry, outputs)

    def _outputs_of_failed(self, entry: Entry, error: BaseException) -> Sequence[Any] | None:
        """Return the outputs for an element that failed for good, or None if its failure ended the operator."""
        self._forget(entry)
        try:
            return self._errors.apply(entry, error)
        except BaseException as raised:  # noqa: BLE001 - the receiver of dead letters has failed
            self.crash(raised)
            return None

    def _forget(self, entry: Entry) -> None:
        """Let the cache hold nothing for an element that needs no call, or no other one."""
        if self._cache is not None:
            self._cache.forget(entry)

    def _repeat(self, entry: Entry, invocation: InvocationContext, delay: float) -> None:
        invocation.abandon()
        self.retries += 1
        entry.attempt += 1
        self._backoff.add(entry, delay)


class ErrorPolicy:
    """Decides what becomes of an element that failed for good: it fails the operator, is skipped, or is a dead letter.

    Only the thread of the event loop may call it.

    Parameters
    ----------
    on_error : {"fail", "skip", "dead_letter"}
        The policy.
    dead_letters : callable or None
        Receives the dead letters.
    keys : KeyAssignment
        Has the idempotency key of an entry.
    lifecycle : Lifecycle
        Ends the operator.

    Attributes
    ----------
    skipped, dead_letters : int
        How many elements were skipped, and how many passed on.
    """

    __slots__ = ("_collect", "_keys", "_lifecycle", "_on_error", "dead_letters", "skipped")

    def __init__(
        self,
        on_error: OnError,
        dead_letters: Callable[[DeadLetter], object] | None,
        keys: KeyAssignment,
        lifecycle: Lifecycle,
    ) -> None:
        self._on_error = on_error
        self._collect = dead_letters
        self._keys = keys
        self._lifecycle = lifecycle
        self.skipped = self.dead_letters = 0

    def failure_of(self, entry: Entry, error: BaseException) -> BaseException:
        """Return the error that ends the operator because an element has failed."""
        return failure_of(entry.value, entry.key, entry.attempt, error, self._keys.idempotency_key_of(entry))

    def apply(self, entry: Entry, error: BaseException) -> Sequence[Any] | None:
        """Return the outputs that replace a failed element's, or None if the operator has failed."""
        if self._on_error == "fail":
            failure = self.failure_of(entry, error)
            forget_attempts(entry)  # if a snapshot is taken of it, its failure is forgotten after a restore
            self._lifecycle.fail(failure)
            return None
        if self._collect is None:
            self.skipped += 1
            if is_told(self.skipped):
                so_far, failure = counted(self.skipped, "element"), self.failure_of(entry, error)
                _log.warning("%s skipped so far, the newest: %s", so_far, text_of(failure))
            return ()
        self.dead_letters += 1
        letter = DeadLetter(
            value=own_copy(entry.value),
            timestamp=entry.timestamp,
            key=entry.key,
            idempotency_key=self._keys.idempotency_key_of(entry),
            attempts=entry.attempt,
            error=error,
        )
        if isinstance(self._collect, InPlace):
            return self._collect(letter)
        not_awaitable("dead_letters", self._collect(letter))
        return ()
