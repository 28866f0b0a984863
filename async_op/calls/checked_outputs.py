"""Checks each output that a function returns, while it is still known which element it belongs to."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from async_op.functions.base import (
    AsyncBatchFunction,
    AsyncFunction,
    BlockingFunction,
    CallbackFunction,
    Function,
    ResultFuture,
)
from async_op.functions.context import InvocationContext
from async_op.outputs import PLAIN, UNAWAITED
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
        """Return whether an output certainly can be used as it is; quick, because this runs for every output."""
        ...


_F = TypeVar("_F", bound=Function)

_CHECKS = "_keygroups_output_checks"
"""The attribute of a function for the checks of what its coroutines return."""


class OutputChecks:
    """Checks what one call returns, and calls it a failure of the call if an output cannot be used.

    Parameters
    ----------
    outputs : OutputCheck or None
        Checks single outputs; None if any output will do that the function has awaited.
    keep : callable or None
        Checks an output that does not fit as it is, and returns what stays of it; None if all stay as they are.
    """

    __slots__ = ("_keep", "_outputs")

    def __init__(self, outputs: OutputCheck | None = None, keep: Callable[[Any], Any] | None = None) -> None:
        self._outputs = outputs
        self._keep = keep

    def __call__(self, result: Any) -> Sequence[Any]:
        """Return the outputs, which the function cannot change any more; raises if one cannot be used."""
        return self.of(result)[0]

    def of(self, result: Any) -> tuple[Sequence[Any], type, type | None]:
        """Return the outputs, their type, and the type of the single output if others of that type need no check."""
        outputs = self._outputs
        if outputs is None:
            found = checked_results(result)
            return found, type(found), type(found[0]) if len(found) == 1 else None
        if type(result) in PLAIN and len(result) == 1:  # the usual case: this runs for every row
            output = result[0]
            kind = type(output)
            if kind in outputs.certain:
                return result, type(result), kind
            if self._keep is not None and kind not in IMMUTABLE and kind not in UNAWAITED:
                return [self._keep(output)], list, None
            if outputs.fits(output):
                return result, type(result), None
        found = checked_results(result)
        if self._keep is not None:
            return list(map(self._keep, found)), list, None
        for output in found:
            outputs.check(output)
        return found, type(found), None


def checks_of(function: Function) -> OutputChecks:
    """Return the checks of what the coroutines of a function return; see `with_checked_outputs`."""
    checks: OutputChecks | None = getattr(function, _CHECKS, None)
    return checks or OutputChecks()


def with_checked_outputs(function: _F, outputs: OutputCheck, *, keep: Callable[[Any], Any] | None = None) -> _F:
    """Return a copy of a function whose calls fail if they return an output that cannot be used.

    It is a failure of the element, like any other failure of its call: the error names the element, none of its writes
    count, and the error policy applies.

    Outputs of coroutines are checked by the worker that awaits them, because a coroutine around each would cost a tenth
    of a call that returns at once. Outputs from other threads are checked there, before the thread can change them.

    Parameters
    ----------
    function : Function
        A function of any kind, except one of record batches.
    outputs : OutputCheck
        Checks the outputs.
    keep : callable, optional
        Checks an output that does not fit as it is, and returns what stays of it: something that the function cannot
        change any more.
    """
    checked, check = copy.copy(function), OutputChecks(outputs, keep)
    replaced: dict[str, Any] = {}
    if isinstance(checked, AsyncFunction):
        replaced[_CHECKS] = check
    else:
        replaced |= {name: _checked_coroutine(getattr(checked, name), check) for name in ("timeout", "on_timer")}
    if checked.knows_outputs:
        replaced["known_outputs"] = _checked_if_known(checked.known_outputs, check)
    if isinstance(checked, AsyncBatchFunction):
        replaced["async_invoke_batch"] = _checked_batch(checked.async_invoke_batch, check)
    elif isinstance(checked, BlockingFunction):
        replaced["invoke"] = _checked_call(checked.invoke, check)
    elif isinstance(checked, CallbackFunction):
        replaced["async_invoke"] = _checked_callback(checked.async_invoke, check)
    for name, method in replaced.items():
        # A function that is a frozen dataclass refuses ordinary assignment.
        object.__setattr__(checked, name, method)
    return checked


def _checked_coroutine(call: Callable[[Any, InvocationContext], Awaitable[Any]], check: Check) -> Any:
    async def invoke(value: Any, ctx: InvocationContext) -> Any:
        return check(await call(value, ctx))

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
