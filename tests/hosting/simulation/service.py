"""The service that the hosts call, and the operator that calls it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from async_op import AsyncFunction, InvocationContext
from async_op.elements import Element
from async_op.hosting.blueprint import CutPart
from async_op.hosting.operator import ResidentOperator
from keygroups import ValueState
from keygroups.descriptors import StateDescriptor
from snapshots import SubtaskHandle
from tests.hosting.simulation.scenario import Row, Scenario
from tests.hosting.simulation.storage import as_unpickled, table_of

if TYPE_CHECKING:
    from tests.hosting.simulation.cluster import Process

HISTORY = ValueState("history", pa.list_(pa.int64()), default=())
ARMED = ValueState("armed", pa.list_(pa.int64()), default=())


class Poisoned(Exception):
    """An element that fails for good."""


class Service:
    """Counts calls, and keeps what must hold of them."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.calls = Counter[int]()
        self.opened = self.closed = 0
        self.owed: dict[int, tuple[Process, int, float]] = {}
        """Rows that have failed a host between two epochs, while it was the truth: by H8 an epoch has to fail of it."""
        self.told: set[int] = set()

    async def call(self, process: Process, row: Row, ctx: InvocationContext) -> None:
        check(ctx.idempotency_key == f"row-{row.number}", f"{row} is called as {ctx.idempotency_key}")
        check(row.number not in process.done, f"{row} is paid for twice: it was in the snapshot")
        number = self.calls[row.number]
        self.calls[row.number] += 1
        self._check_told(process, row.number)
        await asyncio.sleep(self.scenario.seconds_of(row.number, number))
        if self.scenario.fails(row.number, number):
            if process.is_truth:
                self.owed[row.number] = (process, process.cluster.faults, asyncio.get_running_loop().time())
            raise Poisoned(row.number)

    def _check_told(self, caller: Process, row: int) -> None:
        """Check that no restart has hidden a failure: a host that began later calls for the row again."""
        process, faults, failed_at = self.owed.get(row, (caller, 0, 0.0))
        if caller.began_at > failed_at and process is not caller:
            del self.owed[row]
            is_same_run = process.cluster.generation == process.place[1] and process.cluster.faults == faults
            check(row in self.told or process.is_missed or not is_same_run, f"{row} has failed, and nobody was told")


def states_of(scenario: Scenario) -> tuple[StateDescriptor, ...]:
    """Return the keyed states of the function."""
    timed = (ARMED,) if scenario.timers else ()
    return (HISTORY, *timed) if scenario.stateful else ()


class Function(AsyncFunction):
    """Counts per key; with timers, arms one for each row."""

    def __init__(self, service: Service, process: Process) -> None:
        self.service = service
        self.process = process
        self.states = states_of(service.scenario)

    async def open(self, runtime: Any) -> None:
        self.service.opened += 1

    async def close(self) -> None:
        self.service.closed += 1

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        row = Row(*value)
        await self.service.call(self.process, row, ctx)
        if not self.service.scenario.stateful:
            return [("row", row.number, None)]
        history = (*ctx.state(HISTORY).value(), row.number)
        ctx.state(HISTORY).update(history)
        self._arm(row, ctx)
        return [("row", row.number, len(history))]

    def _arm(self, row: Row, ctx: InvocationContext) -> None:
        """Nothing to arm without timers."""


class TimedFunction(Function):
    """Fires once for each row."""

    def _arm(self, row: Row, ctx: InvocationContext) -> None:
        when = ctx.timers.processing_time + 700 + 10 * row.number
        ctx.timers.register(when)
        ctx.state(ARMED).update((*ctx.state(ARMED).value(), when))

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[Any]:
        await asyncio.sleep(0.1)
        ctx.state(ARMED).update([when for when in ctx.state(ARMED).value() if when != timestamp])
        return [("timer", ctx.key, timestamp)]


class Blueprint:
    """What hosts of one generation are made of."""

    def __init__(self, service: Service, process: Process, parallelism: int) -> None:
        self.service = service
        self.process = process
        self.parallelism = parallelism

    def operator(self, subtask_index: int, output: Callable[[Any], object]) -> ResidentOperator:
        scenario = self.service.scenario
        timed = scenario.timers and scenario.stateful
        return ResidentOperator(
            (TimedFunction if timed else Function)(self.service, self.process),
            output,
            mode=scenario.mode,  # type: ignore[arg-type]
            capacity=scenario.capacity,
            timeout=None if scenario.timeout is None else timedelta(seconds=scenario.timeout),
            key_by=lambda value: value[1],
            parallelism=self.parallelism,
            subtask_index=subtask_index,
            max_parallelism=scenario.max_parallelism,
        )

    def decoder(self, epoch: Any) -> Callable[[Any], Iterable[Element]]:
        return lambda rows: [(tuple(row), None, f"row-{row.number}") for row in rows]

    def bytes_of(self, rows: Any) -> int:
        return len(rows)

    def pack(self, outputs: list[Any]) -> Any:
        return outputs

    async def write(self, part: CutPart, target: Any) -> SubtaskHandle:
        await self.process.step("write", 0.05)
        pending = as_unpickled(target, self.process.folder)
        return pending.write_subtask(part.snapshot, table_of(output for run in part.runs for output in run))


class Violation(Exception):
    """Something that must never happen."""


_VIOLATIONS: list[Violation] = []


def check(promise: bool, broken: str) -> None:
    """Note a broken promise; what raises inside of an operator may be taken for a failed element."""
    if not promise:
        _VIOLATIONS.append(Violation(broken))


def heard() -> list[Violation]:
    """Return what was noted, and forget it."""
    found = list(_VIOLATIONS)
    _VIOLATIONS.clear()
    return found
