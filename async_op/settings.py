"""The settings of an operator, checked before anything runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from async_op.dead_letters import DeadLetter, OnError
from async_op.functions import Function, Runtime
from async_op.resilience import Resilience
from async_op.retry import RetryPolicy
from keygroups.descriptors import StateDescriptor
from keygroups.errors import ConfigError
from keygroups.hashing import key_hasher
from keygroups.ranges import KeyGroupRange, check_parallelism, default_max_parallelism, range_of
from keygroups.state import DiskStateBackend, KeyedStateBackend, MemoryBackend
from keygroups.state.timers import TIMER_STATES
from snapshots import SubtaskRestore
from snapshots.restore import RestoredGroup

Mode = Literal["unordered", "ordered", "key_ordered"]

StateBackend: TypeAlias = Literal["memory"] | DiskStateBackend
"""Where keyed state is while the operator runs; its snapshots are the same."""

_WAITING_MIN = 1000
_WAITING_PER_CAPACITY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """What `AsyncWaitOperator` documents.

    Raises
    ------
    ConfigError
        A setting can never work.
    """

    function: Function
    mode: Mode
    capacity: int
    timeout: float | None
    retry: RetryPolicy | None
    key_by: Callable[[Any], Hashable] | None
    parallelism: int
    subtask_index: int
    max_parallelism: int | None
    on_error: OnError
    dead_letters: Callable[[DeadLetter], object] | None
    hash: str
    resilience: Resilience | None
    state_backend: StateBackend

    def __post_init__(self) -> None:
        _check_choice("mode", self.mode, get_args(Mode))
        key_hasher(self.hash)
        _check_choice("on_error", self.on_error, get_args(OnError))
        groups = default_max_parallelism(self.parallelism) if self.max_parallelism is None else self.max_parallelism
        check_parallelism(self.parallelism, groups)
        if not 0 <= self.subtask_index < self.parallelism:
            raise ConfigError("subtask_index", self.subtask_index, f"there are subtasks 0 to {self.parallelism - 1}")
        if self.capacity < 1:
            raise ConfigError("capacity", self.capacity, "at least one element must fit")
        if self.timeout is not None and self.timeout <= 0:
            raise ConfigError("timeout", self.timeout, "use None for no timeout")
        if self.key_by is None and (self.states or self.mode == "key_ordered"):
            raise ConfigError("key_by", None, f"{self._needs_keys()}, so its elements need a key")
        if (self.on_error == "dead_letter") != (self.dead_letters is not None):
            raise ConfigError("dead_letters", self.dead_letters, "it belongs to on_error='dead_letter', and only to it")
        if self.state_backend != "memory" and not isinstance(self.state_backend, DiskStateBackend):
            raise ConfigError("state_backend", self.state_backend, "use 'memory' or a DiskStateBackend")

        if self.resilience is not None:
            self.resilience.check_fits(self.function)

    def runtime(self, restore: SubtaskRestore | None) -> Runtime:
        """Return where the function runs, with the number of key groups of what is restored.

        Raises
        ------
        IncompatibleSnapshot
            What is to be restored is made for another operator.
        """
        groups = self.max_parallelism
        if groups is None:
            groups = default_max_parallelism(self.parallelism) if restore is None else restore.manifest.max_parallelism
        if restore is not None:
            restore.check_fits(self.subtask_index, self.parallelism, groups, self.hash)
        owned = range_of(self.subtask_index, self.parallelism, groups)
        return Runtime(self.subtask_index, self.parallelism, groups, owned)

    async def open_state(
        self,
        owned: KeyGroupRange,
        restored: Mapping[str, Mapping[int, RestoredGroup]] | None,
        since: str | None,
        wall_time: Callable[[], int],
    ) -> KeyedStateBackend:
        """Return the keyed state of the subtask; parameters as of `MemoryBackend`."""
        if self.state_backend == "memory":
            return MemoryBackend(self.states, owned, restored, since, wall_time)
        return await asyncio.to_thread(self.state_backend.open, self.states, owned, restored, since, wall_time)

    async def close_state(self, backend: KeyedStateBackend) -> None:
        """Give up the keyed state; files are removed beside the event loop."""
        if self.state_backend == "memory":
            backend.close()
        else:
            await asyncio.to_thread(backend.close)

    def _needs_keys(self) -> str:
        reason = "declares keyed state" if self.function.states else "runs in mode 'key_ordered'"
        reason = "defines on_timer" if self.function.has_timers else reason
        return f"{type(self.function).__name__} {reason}"

    @property
    def states(self) -> tuple[StateDescriptor, ...]:
        """The keyed states: the function's, and those of its timers."""
        return (*self.function.states, *(TIMER_STATES.values() if self.function.has_timers else ()))

    @property
    def waiting_max(self) -> int:
        """How many elements may wait for their key, in mode "key_ordered", before the input waits."""
        return max(_WAITING_MIN, _WAITING_PER_CAPACITY * self.capacity)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(name, value, f"use one of {', '.join(choices)}")
