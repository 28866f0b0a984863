"""The one place that creates the parts of an operator and connects them.

Attributes of a part are not set from outside after its construction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from async_op.calls.adapters import calls_of, with_timers
from async_op.calls.batch_calls import BatchCalls
from async_op.calls.batch_filling import Batching
from async_op.calls.checked_outputs import checks_of
from async_op.calls.completion import Completion, ErrorPolicy
from async_op.calls.dispatch import Dispatch
from async_op.calls.isolation import CallContexts
from async_op.calls.known_outputs import KnownOutputs
from async_op.calls.state_loading import Loading
from async_op.calls.value_checks import Vet
from async_op.calls.workers import Workers
from async_op.clock import Clock, LoopClock
from async_op.elements import Record, Watermark
from async_op.functions.base import AsyncBatchFunction, Function
from async_op.functions.context import Scope
from async_op.functions.plain import name_of
from async_op.functions.runtime import Runtime
from async_op.in_flight.entries import WatermarkEntry
from async_op.in_flight.idempotency_keys import Identity
from async_op.in_flight.in_flight import InFlight
from async_op.in_flight.key_assignment import KeyAssignment
from async_op.in_flight.key_order import KeyGate
from async_op.in_flight.waiters import Waiters
from async_op.lifecycle import Lifecycle
from async_op.operator.admission import Intake
from async_op.operator.back_pressure import BackPressure
from async_op.operator.operator_states import restored_operator_states
from async_op.operator.owned_state import OwnedState
from async_op.operator.recovery import Recovery
from async_op.operator.subtask_info import SubtaskInfo
from async_op.options import OperatorOptions
from async_op.resilience import Limits, SharedLimits
from async_op.resilience.lending import Allowance
from async_op.statistics import LatencyHistogram, ObservedLatency, Times
from async_op.threads.loop_mailbox import LoopMailbox
from async_op.timers.backoff import Backoff
from async_op.timers.deadlines import Deadlines
from async_op.timers.service import RestoredTimers, TimerService
from keygroups.state import KeyedStateBackend
from keygroups.state.timers import TIMER_STATES
from snapshots import SubtaskRestore


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Surroundings:
    """What the parts of an operator need from outside.

    Attributes
    ----------
    runtime : Runtime
        The subtask of the operator.
    backend : KeyedStateBackend
        The keyed state.
    restored_timers : mapping of str to mapping
        The content of the timers' states in the snapshot.
    clock : Clock
        The source of time.
    output : callable
        Called with every record and watermark that leaves.
    lifecycle : Lifecycle
        Knows whether elements may be admitted, and takes the error that ends the operator.
    waiters : Waiters
        Woken when an element has left.
    is_in_chain : bool
        Whether it is a step of a job; see `SubtaskInfo`.
    vet : Vet or None
        Refuses values.
    limits : SharedLimits or None
        The limits that it shares with other operators in this process; None if it has its own share of them.
    identity : Identity
        What all its idempotency keys have in common.
    allowance : mapping of str to Allowed or None
        What the driver allows it of its limits; None if its share stays as it is.
    """

    runtime: Runtime
    backend: KeyedStateBackend
    restored_timers: Mapping[str, RestoredTimers]
    clock: Clock
    output: Callable[[Record | Watermark], object]
    lifecycle: Lifecycle
    waiters: Waiters
    is_in_chain: bool
    vet: Vet | None
    limits: SharedLimits | None
    identity: Identity
    allowance: Allowance | None


class Parts:
    """The parts of one operator, created in the order of their dependencies.

    The dependencies have circles, all through `dispatch` and `workers`: an element goes to its call through them, and
    timeouts, backoffs, timers, freed keys and loaded key groups send it there again. Parts in such a circle that are
    created first get a lambda, which looks `self.dispatch` or `self.workers` up when it is called. The parts call
    these lambdas for entries only, and the first entry comes in when the constructor has returned.

    Parameters
    ----------
    options : OperatorOptions
        The options of the operator.
    around : Surroundings
        What the parts need from outside.
    """

    def __init__(self, options: OperatorOptions, around: Surroundings) -> None:
        clock, lifecycle, runtime, function = around.clock, around.lifecycle, around.runtime, options.function
        self._function = function
        self._around = around
        self.runtime = runtime
        self.times = Times(clock)
        self.keys = _keys_of(options, around)
        self.in_flight = self._make_in_flight(options, around)
        self.deadlines = Deadlines(clock, self.in_flight.queue, lambda entry: self.dispatch.expire(entry))
        self.backoff = Backoff(clock, lambda entry: self.dispatch.ready(entry))
        self.timers = self._make_timers(options, around) if function.has_timers else None
        self.gate = self._make_gate(options)
        self.errors = ErrorPolicy(options.on_error, options.dead_letters, self.keys, lifecycle)
        self.latency = ObservedLatency(function=name_of(function), subtask_index=runtime.subtask_index)
        self.limits = self._make_limits(options, around)
        self.cache = None if self.limits is None else self.limits.cache
        hold = None if self.limits is None else self.limits.hold
        states = runtime.operator_states
        self.scope = Scope(around.backend, self.keys, clock, options.timeout, states, self.timers, hold)
        self.contexts = CallContexts()
        known = KnownOutputs(function, self.scope, self.contexts) if function.knows_outputs else None
        self.completion = Completion(
            self.in_flight.queue,
            self.gate,
            options.retry,
            self.cache,
            known,
            self.errors,
            self.backoff,
            lifecycle,
            call=lambda entry: self.dispatch.call(entry),
        )
        self.mailbox = LoopMailbox(clock)
        self.calls = calls_of(function, self.mailbox)
        self.workers = self._make_workers(options, around)
        self.batches = self._make_batches(function, options.capacity, around)
        self.loading = self._make_loading(around)
        self.dispatch = Dispatch(
            self.gate, self.loading, self.backoff, self.deadlines, self.batches, self.workers, self.completion
        )
        self.intake = self._make_intake(options, around)
        self.back_pressure = self._make_back_pressure(options, around)
        self.recovery = Recovery(self.in_flight, self.dispatch, self.timers, clock, options.timeout, self.completion)

    def finish(self, hurry: bool) -> None:
        """Handle the end of the input; with `hurry`, make the last attempts now and treat all outcomes as final."""
        self.dispatch.finish(hurry)
        if self.timers is not None:
            self.timers.finish()

    def is_finished(self) -> bool:
        """Return whether nothing is in flight, and no timer will be: one that is due is put into the queue later."""
        return not self.in_flight and (self.timers is None or self.timers.is_finished())

    def stop(self) -> None:
        """Begin no more calls and emit nothing; running calls continue, but their outcomes are ignored."""
        self.in_flight.stop()
        if self.timers is not None:
            self.timers.stop()
        self.ignore_calls()
        self.calls.stop()
        if self.limits is not None:
            self.limits.stop()
        obstacle = self._around.lifecycle.obstacle
        assert obstacle is not None, "an operator that has not ended is not stopped"
        self._around.waiters.end(obstacle)

    def ignore_calls(self) -> None:
        """Begin no more calls, and ignore the outcomes of those under way."""
        self.completion.stop()
        self.dispatch.stop()

    def cancel(self) -> None:
        """Cancel all calls at once: none that is waited for can still end well. `close` waits until they have ended."""
        self.workers.cancel()
        if self.batches is not None:
            self.batches.cancel()

    async def close(self) -> None:
        """Cancel all calls and wait until they have ended."""
        self.stop()
        if self.loading is not None:
            await self.loading.close()
        self.mailbox.close()
        await self.calls.close()
        if self.batches is not None:
            await self.batches.close()
        await self.workers.close()
        await self.in_flight.deliveries.close()

    def _fire_before(self, watermark: WatermarkEntry) -> bool:
        return self.timers is not None and self.timers.fire_before(watermark)

    def _make_in_flight(self, options: OperatorOptions, around: Surroundings) -> InFlight:
        return InFlight(
            options.mode,
            around.output,
            self.times.idle,
            around.waiters,
            around.lifecycle,
            self._fire_before if options.function.has_timers else None,
            lambda: self.workers.feed_on(),
        )

    def _make_timers(self, options: OperatorOptions, around: Surroundings) -> TimerService:
        return TimerService(
            around.backend,
            around.restored_timers,
            around.clock,
            self.in_flight,
            options.capacity,
            options.timeout,
            self.deadlines,
            start=lambda entries: self.dispatch.start(entries),
        )

    def _make_limits(self, options: OperatorOptions, around: Surroundings) -> Limits | None:
        if options.resilience is None:
            return None
        runtime, shared = around.runtime, around.limits
        if shared is None:
            share = runtime.subtask_index, runtime.parallelism
            shared = SharedLimits(options.resilience, options.capacity, around.clock, share, around.allowance)
        return Limits(shared, runtime, self.latency)

    def _make_gate(self, options: OperatorOptions) -> KeyGate | None:
        if self.timers is not None:
            return self.timers.gate
        return KeyGate() if options.states or options.mode == "key_ordered" else None

    def _make_workers(self, options: OperatorOptions, around: Surroundings) -> Workers:
        function, limits = options.function, self.limits
        invoke = with_timers(function.on_timer, self.calls.invoke) if function.has_timers else self.calls.invoke
        if limits is not None:
            invoke = limits.protect(invoke)
        return Workers(
            invoke,
            function.timeout,
            self.scope,
            self.contexts,
            options.capacity,
            self._call_latency,
            self.completion,
            checks_of(function),
            around.lifecycle.turn,
            are_decoded=around.vet is not None and around.vet.are_decoded,
        )

    @property
    def _call_latency(self) -> LatencyHistogram:
        """The histogram for callers of the function; with limits, the limits measure the calls without their waits."""
        return self.latency if self.limits is None else LatencyHistogram()

    def _make_batches(self, function: Function, capacity: int, around: Surroundings) -> Batching | None:
        if not isinstance(function, AsyncBatchFunction):
            return None
        queue = self.in_flight.queue
        calls = BatchCalls(
            function,
            self.scope,
            self.contexts,
            capacity,
            queue,
            self._call_latency,
            self.completion,
            self.limits,
            around.lifecycle.turn,
        )
        completion, deadlines = self.completion, self.deadlines
        return Batching(function, self.scope, capacity, self.in_flight, deadlines, calls, around.vet, completion)

    def _make_loading(self, around: Surroundings) -> Loading | None:
        # Timers are loaded before everything else.
        tables = [table for table in around.backend.tables.values() if table.descriptor.name not in TIMER_STATES]
        if not any(table.unloaded() for table in tables):
            return None
        return Loading(tables, lambda entry: self.dispatch.ready(entry), around.lifecycle)

    def _make_intake(self, options: OperatorOptions, around: Surroundings) -> Intake | Batching:
        checks_each = self.gate is not None or self.completion.may_need_no_call
        if self.batches is not None and options.key_by is None and not checks_each:
            return self.batches
        return Intake(
            self.in_flight,
            self.dispatch,
            self.completion,
            self.deadlines,
            None if options.key_by is None else self.keys,
            self.scope,
            # In a job the element stays in flight, as after a failed call, so that its last snapshot has all others.
            drops=options.on_error != "fail" or around.is_in_chain,
            vet=around.vet,
        )

    def _make_back_pressure(self, options: OperatorOptions, around: Surroundings) -> BackPressure:
        return BackPressure(
            options,
            around.lifecycle,
            self.in_flight,
            self.intake,
            self.dispatch,
            self.gate if options.mode == "key_ordered" else None,
            around.waiters,
            self.times.back_pressured,
        )


async def assemble(
    options: OperatorOptions,
    subtask_info: SubtaskInfo,
    restore: SubtaskRestore | None,
    *,
    state: OwnedState,
    clock: Clock | None,
    output: Callable[[Record | Watermark], object],
    lifecycle: Lifecycle,
    waiters: Waiters,
) -> Parts:
    """Open the state of an operator, restored from a snapshot if there is one, and create the parts around it.

    Raises
    ------
    IncompatibleSnapshot
        The snapshot does not fit the operator.
    """
    clock = LoopClock(asyncio.get_running_loop()) if clock is None else clock
    subtask_info.check_fits(options.hash, restore)
    operator_states = await restored_operator_states(options.operator_states, restore)
    runtime = subtask_info.runtime(restore, operator_states)
    restored = None if restore is None else restore.states(options.states, clock.wall_time())
    since = None if restore is None else restore.snapshot_id
    around = Surroundings(
        runtime=runtime,
        backend=await state.open(options.states, runtime.key_groups, restored, since, clock.wall_time),
        restored_timers=restored or {},
        clock=clock,
        output=output,
        lifecycle=lifecycle,
        waiters=waiters,
        is_in_chain=subtask_info.is_in_chain,
        vet=subtask_info.vet,
        limits=subtask_info.limits,
        identity=subtask_info.identity or Identity.of_run(None if restore is None else restore.manifest.lineage),
        allowance=subtask_info.allowance,
    )
    parts = Parts(options, around)
    lifecycle.assembled(parts)
    return parts


def _keys_of(options: OperatorOptions, around: Surroundings) -> KeyAssignment:
    runtime = around.runtime
    return KeyAssignment(
        options.hash,
        runtime.subtask_index,
        runtime.max_parallelism,
        runtime.key_groups,
        options.key_by,
        around.identity,
    )
