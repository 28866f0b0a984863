"""Checks each output that a function returns, while it is still known which element it belongs to."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from async_op.context import InvocationContext
from async_op.functions import (
    AsyncBatchFunction,
    AsyncFunction,
    BlockingFunction,
    CallbackFunction,
    Function,
    ResultFuture,
)
from async_op.outputs import PLAIN
from async_op.outputs import checked as checked_results
from keygroups.state.detached import IMMUTABLE

Check = Callable[[Any], Any]


class OutputCheck(Protocol):
    """Checks single outputs: for a table's columns, or for a snapshot."""

    certain: frozenset[type]
    """Immutable types whose values always pass the check."""

    def check(self, output: Any) -> None:
        """Raise an error if an output cannot be used."""
        ...

    def fits(self, output: Any) -> bool:
        """Return whether an output certainly can be used; quick, because this runs for every output."""
        ...


_F = TypeVar("_F", bound=Function)


def with_checked_outputs(function: _F, outputs: OutputCheck, *, keep: Callable[[Any], Any] | None = None) -> _F:
    """Return a copy of a function whose calls fail if they return an output that cannot be used.

    It is a failure of the element, like any other failure of its call: the error names the element, none of its writes
    count, and the error policy applies.

    Parameters
    ----------
    function : Function
        A function of any kind, except one of record batches.
    outputs : OutputCheck
        Checks the outputs.
    keep : callable, optional
        Returns what stays of an output that was checked: a copy, if the function may still change the output.
    """
    checked = copy.copy(function)

    def check(result: Any) -> Any:
        found = checked_results(result)
        for output in found:
            outputs.check(output)
        return found if keep is None else [keep(output) for output in found]

    replaced: dict[str, Any] = {
        "timeout": _checked_coroutine(checked.timeout, check, outputs, keep),
        "on_timer": _checked_coroutine(checked.on_timer, check, outputs, keep),
    }
    if checked.knows_outputs:
        replaced["known_outputs"] = _checked_if_known(checked.known_outputs, check)
    if isinstance(checked, AsyncBatchFunction):
        replaced["async_invoke_batch"] = _checked_batch(checked.async_invoke_batch, check)
    elif isinstance(checked, AsyncFunction):
        replaced["async_invoke"] = _checked_coroutine(checked.async_invoke, check, outputs, keep)
    elif isinstance(checked, BlockingFunction):
        replaced["invoke"] = _checked_call(checked.invoke, check)
    elif isinstance(checked, CallbackFunction):
        replaced["async_invoke"] = _checked_callback(checked.async_invoke, check)
    for name, method in replaced.items():
        # A function that is a frozen dataclass refuses ordinary assignment.
        object.__setattr__(checked, name, method)
    return checked


def _checked_coroutine(
    call: Callable[[Any, InvocationContext], Awaitable[Any]],
    check: Check,
    outputs_check: OutputCheck,
    keep: Callable[[Any], Any] | None,
) -> Any:
    fits, certain = outputs_check.fits, outputs_check.certain

    async def invoke(value: Any, ctx: InvocationContext) -> Any:
        outputs = await call(value, ctx)
        # The usual cases, without a further call: this runs for every row.
        if type(outputs) in PLAIN and len(outputs) == 1:
            kind = type(output := outputs[0])
            if kind in certain:
                return outputs
            if fits(output):
                return outputs if keep is None or kind in IMMUTABLE else [keep(output)]
        return check(outputs)

    return invoke


def _checked_batch(call: Callable[[Any, Any], Awaitable[Any]], check: Check) -> Any:
    def check_one(result: Any) -> Any:
        try:
            return result if isinstance(result, BaseException) else check(result)
        except Exception as error:  # noqa: BLE001
            return error  # fails this element, not the others in its batch

    async def invoke(values: Sequence[Any], ctxs: Sequence[InvocationContext]) -> Any:
        results = await call(values, ctxs)
        return [check_one(result) for result in results] if isinstance(results, Sequence) else results

    return invoke


def _checked_call(call: Callable[[Any, InvocationContext], Any], check: Check) -> Any:
    return lambda value, ctx: check(call(value, ctx))


def _checked_if_known(known_outputs: Callable[[Any, InvocationContext], Any], check: Check) -> Any:
    def known(value: Any, ctx: InvocationContext) -> Any:
        outputs = known_outputs(value, ctx)
        return None if outputs is None else check(outputs)

    return known


def _checked_callback(call: Callable[[Any, ResultFuture], None], check: Check) -> Any:
    def invoke(value: Any, result_future: ResultFuture) -> None:
        def deliver(outputs: Iterable[Any] | None, error: BaseException | None) -> None:
            if error is not None:
                result_future.complete_exceptionally(error)
                return
            try:
                rows = check(outputs)
            except Exception as failure:  # noqa: BLE001 - fails the element
                result_future.complete_exceptionally(failure)
            else:
                result_future.complete(rows)

        call(value, ResultFuture(result_future.ctx, deliver))

    return invoke
