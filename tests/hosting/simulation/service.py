"""The service that the hosts call, and the operator that calls it."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from async_op import AsyncFunction, InvocationContext
from async_op.elements import Element
from async_op.functions.runtime import Runtime
from async_op.hosting.fed_subtask import CutPart
from async_op.subtask.operator import ResidentOperator
from async_op.testing import VirtualLoop
from keygroups.descriptors import StateDescriptor
from snapshots import SubtaskHandle
from tests.backends import ON_DISK
from tests.hosting.simulation.scenario import Row, Scenario
from tests.hosting.simulation.states import ARMED, LIVING, SEEN, TTL_MS, after, write
from tests.hosting.simulation.storage import as_unpickled, table_of
from tests.simulation.payments import Payments
from tests.simulation.plain import seen_through

if TYPE_CHECKING:
    from tests.hosting.simulation.cluster import Process


class Poisoned(Exception):
    """An element that fails for good."""


class _Owed:
    """The failure of a host of which an epoch has to hear, and how things were when it failed."""

    def __init__(self, process: Process, failed_at: float) -> None:
        assert process.cluster.latest is not None, "it is the truth"
        self.process = process
        self.failed_at = failed_at
        self.version = process.cluster.latest.version
        self.faults = process.cluster.faults


class Service:
    """Counts calls, and keeps what must hold of them."""

    def __init__(self, scenario: Scenario, payments: Payments) -> None:
        self.scenario = scenario
        self.payments = payments
        self.calls = Counter[int]()
        self.opened = self.closed = 0
        self.owed: dict[int, _Owed] = {}
        """Rows that have failed a host between two epochs, while it was the truth: by H8 an epoch has to fail of it."""
        self.told: set[int] = set()
        self.written: dict[int, list[int]] = defaultdict(list)
        """When calls for a row have written: the processing time."""

    async def call(self, process: Process, row: Row, ctx: InvocationContext) -> None:
        check(ctx.idempotency_key == f"{process.lineage}/row-{row.number}", f"{row} is called as {ctx.idempotency_key}")
        self.pay(ctx, row.number)
        check(row.number not in process.done, f"{row} is paid for twice: it was in the snapshot")
        number = self.calls[row.number]
        self.calls[row.number] += 1
        self._check_told(process, row.number)
        await asyncio.sleep(self.scenario.seconds_of(row.number, number))
        if self.scenario.fails(row.number, number):
            if process.is_truth:
                self.owed[row.number] = _Owed(process, asyncio.get_running_loop().time())
            raise Poisoned(row.number)

    def pay(self, ctx: InvocationContext, *names: Hashable) -> None:
        """Pay for an element, unless another one has used its key."""
        own = (self.scenario.operator, *names)
        check(self.payments.pay(ctx.idempotency_key, own) == own, "; ".join(self.payments.mistakes[-1:]))

    def wall_time(self) -> int:
        """Return the processing time."""
        loop: VirtualLoop = asyncio.get_running_loop()  # type: ignore[assignment]
        return loop.wall_time()

    def check_shown(self, row: Row, state: StateDescriptor, shown: Any, now: int) -> None:
        """Check what a call sees: what the rows before have written, one after the other."""
        before = self.scenario.before(row)
        if state is LIVING:
            self.check_living(before, {name: (number, None) for name, number in shown.items()}, now)
            return
        expected = seen_through(after(state, before), state)
        check(shown == expected, f"{row} finds {shown} as its {state.name}, not {expected}")

    def check_living(self, numbers: Iterable[int], found: dict[str, tuple[int, int | None]], now: int) -> None:
        """Check entries, each with the row that has written it and, if that is known, when it expires."""
        left = dict(found)
        for number in numbers:
            ends = {when + TTL_MS for when in self.written[number]}
            written, expires_at = left.pop(f"row {number}", (None, None))
            if written is None:
                check(any(end <= now for end in ends), f"the entry of row {number} is lost at {now}, of {ends}")
            else:
                check(written == number, f"row {number} has the entry of row {written}")
                check(
                    any(end > now and expires_at in (None, end) for end in ends),
                    f"{number} lives until {expires_at}, of {ends}",
                )
        check(not left, f"nobody has written {left}")

    def _check_told(self, caller: Process, row: int) -> None:
        """Check that no restart has hidden a failure: a host that began later calls for the row again."""
        owed = self.owed.get(row)
        # What begins with an older version is the slower attempt at an epoch that is committed: it counts for nothing.
        if owed is not None and caller.began_at > owed.failed_at and caller.version >= owed.version:
            del self.owed[row]
            process = owed.process
            is_same_run = process.cluster.generation == process.place[1] and process.cluster.faults == owed.faults
            check(row in self.told or process.is_missed or not is_same_run, f"{row} has failed, and nobody was told")


class Function(AsyncFunction):
    """Does to its states what each row does, after a look at what those before it have made of them."""

    def __init__(self, service: Service, process: Process) -> None:
        self.service = service
        self.process = process
        self.written = service.scenario.keyed_states
        self.states = self.written
        self.operator_states = (SEEN,) if SEEN.name in service.scenario.states else ()

    async def open(self, runtime: Runtime) -> None:
        self.service.opened += 1
        self.seen = runtime.operator_state(SEEN) if self.operator_states else None

    async def close(self) -> None:
        self.service.closed += 1

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        row = Row(*value)
        if self.seen is not None:
            self.seen.add(row.number)
        await self.service.call(self.process, row, ctx)
        now = self.service.wall_time()
        for state in self.written:
            handle = ctx.state(state)
            self.service.check_shown(row, state, seen_through(handle, state), now)
            write(state, handle, row.number)
        self.service.written[row.number].append(now)
        self._arm(row, ctx)
        return [("row", row.number, None)]

    def _arm(self, row: Row, ctx: InvocationContext) -> None:
        """Nothing to arm without timers."""


class TimedFunction(Function):
    """Fires once for each row."""

    def __init__(self, service: Service, process: Process) -> None:
        super().__init__(service, process)
        self.states = (*self.written, ARMED)

    def _arm(self, row: Row, ctx: InvocationContext) -> None:
        when = ctx.timers.processing_time + 700 + 10 * row.number
        ctx.timers.register(when)
        ctx.state(ARMED).update((*ctx.state(ARMED).value(), when))

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[Any]:
        self.service.pay(ctx, ctx.key, timestamp)
        await asyncio.sleep(0.1)
        ctx.state(ARMED).update([when for when in ctx.state(ARMED).value() if when != timestamp])
        return [("timer", ctx.key, timestamp)]


class OperatorFactory:
    """What hosts of one generation are made of."""

    def __init__(self, service: Service, process: Process, parallelism: int) -> None:
        self.service = service
        self.process = process
        self.parallelism = parallelism

    def operator(self, subtask_index: int, output: Callable[[Any], object]) -> ResidentOperator:
        scenario = self.service.scenario
        return ResidentOperator(
            (TimedFunction if scenario.is_timed else Function)(self.service, self.process),
            output,
            mode=scenario.mode,  # type: ignore[arg-type]
            capacity=scenario.capacity,
            timeout=None if scenario.timeout is None else timedelta(seconds=scenario.timeout),
            key_by=lambda value: value[1],
            parallelism=self.parallelism,
            subtask_index=subtask_index,
            max_parallelism=scenario.max_parallelism,
            idempotency_namespace=self.process.lineage,
            state_backend=ON_DISK if scenario.is_on_disk(self.process.address.path) else "memory",
        )

    def decoder(self, epoch: Any) -> Callable[[Any], Iterable[Element]]:
        return lambda rows: [(tuple(row), None, f"row-{row.number}") for row in rows]

    def bytes_of(self, rows: Any) -> int:
        return len(rows)

    def pack(self, outputs: list[Any]) -> Any:
        return outputs

    async def write(self, part: CutPart, target: Any) -> SubtaskHandle:
        await self.process.step("write", self.service.scenario.seconds_to_write(part.cut_id))
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
