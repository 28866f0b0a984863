"""`Step`: one operator of a job, and what a job makes of its list of steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

import pyarrow as pa

from async_op.dead_letters import DeadLetter, OnError, check_on_error
from async_op.functions.plain import AnyFunction, as_function, name_of
from async_op.operator.key_columns import KeyBy, key_getter
from async_op.options import Mode, OperatorOptions, SharedOptions, StateBackend
from keygroups.arguments import check_instance
from keygroups.errors import ConfigError
from keygroups.names import STEP_NAME
from keygroups.representation import representation
from keygroups.values import is_exact

SOURCE = "source"
"""The name of the source among the steps of a snapshot."""


@dataclass(frozen=True, slots=True)
class Step(SharedOptions):
    """One step of a `Job`: a function, and how it is called.

    Parameters
    ----------
    function : AsyncFunction, AsyncBatchFunction, BlockingFunction, CallbackFunction or a plain function
        What to invoke for each element; what it returns are the elements of the next step.
    name : str, optional
        The name under which snapshots keep the state and the elements in flight; by default the function's.
        Two steps with state need different names, and a step keeps its name as long as its snapshots matter.
    key_by : callable, column name or list of them, optional
        How to get the key of a value. Elements go to the subtask that owns the key. Without it they stay on their
        subtask.
    mode, capacity, timeout, retry, resilience, state_backend
        As for `AsyncWaitOperator`.
    on_error : {"fail", "skip", "dead_letter"}
        What happens to an element that fails for good: it fails the job, is dropped, or goes to the job's
        `dead_letters`.
    value_type : pyarrow.DataType, optional
        The type of the values that come in, such as a struct of their columns: the column of the elements in flight in
        snapshots. A value that it would change is stored as msgpack beside it. Without a declared
        type it is found for each subtask, if all of its values have one.

    Raises
    ------
    ConfigError
        An argument is invalid.

    Examples
    --------
    >>> async def price(order):
    ...     return order | {"price": 3}
    >>> Step(price, key_by="item", timeout=2.0).name is None
    True
    """

    function: AnyFunction
    name: str | None = None
    _: KW_ONLY
    key_by: KeyBy | None = None
    mode: Mode = "unordered"
    on_error: OnError = "fail"
    state_backend: StateBackend = "memory"
    value_type: pa.DataType | None = None

    def __post_init__(self) -> None:
        check_on_error(self.on_error)  # before `options` compares it
        if self.name is not None:
            STEP_NAME.check("name", self.name)
        if self.name == SOURCE:
            raise ConfigError("name", self.name, "the source has this name in snapshots: choose another one")
        if self.value_type is not None:
            check_instance("value_type", self.value_type, pa.DataType, reason="pass a type, such as pyarrow.string()")
            if not is_exact(self.value_type):
                raise ConfigError("value_type", str(self.value_type), "no file returns its values as they were")
        self.options("xxhash64", lambda _: None)

    def __repr__(self) -> str:
        # The fields of the base class come first by themselves, before the function.
        first = {"function": self.function, "name": self.name}
        return representation(self, first | {field.name: getattr(self, field.name) for field in fields(self)})

    def options(self, hash_: str, dead_letters: Callable[[DeadLetter], object]) -> OperatorOptions:
        """Return the options of this step's operators; `dead_letters` gets its dead letters, if it has any."""
        return OperatorOptions.of(
            self.function,
            mode=self.mode,
            key_by=key_getter(self.key_by),
            on_error=self.on_error,
            dead_letters=dead_letters if self.on_error == "dead_letter" else None,
            hash=hash_,
            state_backend=self.state_backend,
            **self.shared(),
        )

    @property
    def has_state(self) -> bool:
        """Whether the function declares state, with or without keys, or timers, or a budget has some."""
        function = as_function(self.function)
        has_budget = self.resilience is not None and bool(self.resilience.budgets)
        return bool(function.states or function.has_timers or function.operator_states or has_budget)


def steps_of(steps: Any) -> dict[str, Step]:
    """Return the steps of a job by their names, in order.

    Parameters
    ----------
    steps : function, Step or list of them
        As a user has passed them. Steps without state whose functions have the same name get numbers.

    Raises
    ------
    ConfigError
        There is no step, or two of them have the same name and one of these has state.
    """
    given = list(steps) if isinstance(steps, list | tuple) else [steps]
    if not given:
        raise ConfigError("steps", steps, "pass at least one function or Step")
    named: dict[str, Step] = {}
    for step in (one if isinstance(one, Step) else Step(one) for one in given):
        name = _default_name(step) if step.name is None else step.name
        if name in named and (step.name is not None or step.has_state or named[name].has_state):
            raise ConfigError("steps", name, "two steps have this name: tell them apart with Step(function, name=...)")
        named[_unused(name, named)] = step
    return named


def _default_name(step: Step) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", name_of(as_function(step.function))).strip("-")[:60]
    return "step" if name in ("", SOURCE, "lambda") else name


def _unused(name: str, used: Iterable[str]) -> str:
    number, unused = 1, name
    while unused in used:
        number += 1
        unused = f"{name}-{number}"
    return unused
