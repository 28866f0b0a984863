"""Handles the outcomes of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from async_op.calls.known_outputs import KnownOutputs
from async_op.context import InvocationContext
from async_op.errors import failure_of, is_failure
from async_op.in_flight.entries import Block, Entry
from async_op.in_flight.key_order import KeyGate
from async_op.in_flight.queues import ElementQueue
from async_op.resilience.cache import OutputCache
from async_op.retry import RetryPolicy
from keygroups.state import commit


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
    give_up : callable
        Called with an entry that has failed for good, and its error; returns the outputs that replace the entry's, or
        None if the operator has failed.
    try_again : callable
        Called with an entry and the delay of its next attempt in seconds.
    call : callable
        Called with an entry whose key has become free; makes its call.
    crash : callable
        Called with an error of a callback; it ends the operator.
    element_id_of : callable
        Returns the id of an entry.

    Attributes
    ----------
    retries, late_results : int
        Further attempts, and results that arrived after their element had got another outcome.
    """

    __slots__ = (
        "_cache",
        "_call",
        "_element_id_of",
        "_gate",
        "_give_up",
        "_known",
        "_queue",
        "_retry",
        "_stopped",
        "_try_again",
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
        *,
        give_up: Callable[[Entry, BaseException], Sequence[Any] | None],
        try_again: Callable[[Entry, float], None],
        call: Callable[[Entry], None],
        crash: Callable[[BaseException], None],
        element_id_of: Callable[[Entry], str],
    ) -> None:
        self._queue = queue
        self._gate = gate
        self._retry = retry
        self._cache = cache
        self._known = known
        self._give_up = give_up
        self._try_again = try_again
        self._call = call
        self.crash = crash
        self._element_id_of = element_id_of
        self._stopped = False
        self.retries = self.late_results = 0

    @property
    def may_need_no_call(self) -> bool:
        """Whether the cache or the function may have outputs without a call."""
        return self._cache is not None or self._known is not None

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
            self.crash(self._failure_of(entry, error))
            return
        if entry.invocation is not invocation:
            self.late_results += not isinstance(error, asyncio.CancelledError)
            return
        delay = None
        if self._retry is not None and not entry.expired:
            try:
                delay = self._retry.delay_after_error(entry.attempt, error)
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
            self.crash(self._failure_of(entry, error))
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
            return self._give_up(entry, error)
        except BaseException as raised:  # noqa: BLE001 - the receiver of dead letters has failed
            self.crash(raised)
            return None

    def _failure_of(self, entry: Entry, error: BaseException) -> BaseException:
        return failure_of(entry.value, entry.key, entry.attempt, error, self._element_id_of(entry))

    def _forget(self, entry: Entry) -> None:
        """Let the cache hold nothing for an element that needs no call, or no other one."""
        if self._cache is not None:
            self._cache.forget(entry)

    def _repeat(self, entry: Entry, invocation: InvocationContext, delay: float) -> None:
        invocation.abandon()
        self.retries += 1
        entry.attempt += 1
        self._try_again(entry, delay)
