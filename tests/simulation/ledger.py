"""Keeps account of a simulated run and objects to the first step that breaks a promise.

Promises: nothing is lost and nothing comes twice; a finished call is not made again; the order of the mode and the
rules of watermarks hold; a key's elements follow each other; attempts, ids and budgets survive a restart; the keyed
state at every snapshot is what a loop over the elements, one after the other, would have made.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from async_op import InvocationContext
from async_op.resilience import Resilience
from async_op.testing import VirtualLoop
from snapshots import InFlightElement
from tests.simulation.limits import SubtaskLimits
from tests.simulation.payments import Payments
from tests.simulation.scenario import Item, Scenario
from tests.simulation.virtual_threads import Threads

EPSILON = 1e-6


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(eq=False)
class Call:
    """A call of the function, or of its fallback; its outcome counts until the element's time is over."""

    index: int
    number: int
    is_fallback: bool = False
    counts: bool = True


@dataclass
class Committed:
    """What the newest snapshot says."""

    accepted: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    """Elements whose call has ended for good; the others that were accepted are pending."""
    departed: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    """Those among the done whose call has failed for good."""
    outputs: dict[int, list[Any]] = field(default_factory=dict)
    pending: dict[int, InFlightElement] = field(default_factory=dict)
    stored: dict[int, InFlightElement] = field(default_factory=dict)
    """Completed elements that have not left."""


class Ledger:
    """The account of one seed, over all restarts."""

    def __init__(self, scenario: Scenario, loop: VirtualLoop, threads: Threads | None) -> None:
        self.scenario = scenario
        self.now = loop.time
        self.threads = threads
        self.items: dict[int, Item] = {item.index: item for item in scenario.items if isinstance(item, Item)}
        self.committed = Committed()
        self.violations: list[Violation] = []
        self.calls: Counter[int] = Counter()
        self.timeouts: Counter[int] = Counter()
        self.foreign: set[asyncio.Task[None]] = set()
        self.restarts = -1
        self.active: dict[int, Call] = {}
        self.begin_run()

    def begin_run(self) -> None:
        """Start all over from the newest snapshot."""
        for call in self.active.values():
            call.counts = False
        self.restarts += 1
        self.finishing = False
        self.stopping = False
        self.crashed = False
        self.offered: dict[int, float] = dict.fromkeys(self.committed.accepted, self.now())
        self.active = {}
        self.running_keys: dict[str, Call] = {}
        self.outcomes: dict[int, Any] = {}
        self.dead: set[int] = set()
        self.timed_out: set[int] = set()
        self.attempts = {index: element.attempt - 1 for index, element in self.committed.pending.items()}
        self.not_before: dict[int, float] = {}
        self.deadlines: dict[int, float] = {}
        self.owners: dict[int, int] = {}
        self.limits: dict[int, SubtaskLimits] = {}
        self.payments = Payments()
        self.ids: dict[int, str] = {
            index: element.element_id for index, element in (self.committed.pending | self.committed.stored).items()
        }

    def check(self, promise: object, broken: str) -> None:
        """Object unless the promise holds; also where the operator would take the objection for an element's error."""
        if not promise:
            violation = Violation(f"{broken} (seed {self.scenario.seed}, restart {self.restarts})")
            self.violations.append(violation)
            raise violation

    def limit(self, subtask: int, parallelism: int) -> None:
        """Note what a subtask's calls may do."""
        settings = self.scenario.resilience or Resilience()
        rate = None if settings.rate_limit is None else settings.rate_limit.share(subtask, parallelism)
        sees_ends = self.scenario.kind in {"coroutine", "batch"}
        parts = (settings, rate, self.scenario.capacity, self.check, self.now)
        self.limits[subtask] = SubtaskLimits(*parts, sees_ends=sees_ends)

    def check_restored(self, restored: Sequence[int]) -> None:
        """All that was in flight is taken over, by one subtask each."""
        in_flight = sorted([*self.committed.pending, *self.committed.stored])
        self.check(sorted(restored) == in_flight, f"of the in-flight {in_flight}, {sorted(restored)} were restored")

    def commit(self, parts: Sequence[Committed]) -> None:
        """Take over what the parts of a new snapshot say."""
        old, new = self.committed, Committed()
        new.accepted = old.accepted.union(*(part.accepted for part in parts))
        new.done = old.done.union(*(part.done for part in parts))
        new.departed = old.departed.union(*(part.departed for part in parts))
        new.dropped = old.dropped.union(*(part.dropped for part in parts))
        new.outputs = old.outputs.copy()
        for part in parts:
            new.outputs |= part.outputs
            new.pending |= part.pending
            new.stored |= part.stored
        self.committed = new

    # -- calls

    def start_clock(self, index: int) -> None:
        """Note when an element's time will be over: it has just been accepted."""
        if self.scenario.timeout is not None:
            self.deadlines.setdefault(index, self.now() + self.scenario.timeout)

    def _start_clock_late(self, index: int, ctx: InvocationContext) -> None:
        """The call of an element may begin before its feeder learns that it was accepted, some time since it came."""
        if self.scenario.timeout is None or index in self.deadlines:
            return
        self.deadlines[index] = self.now() + (ctx.remaining or 0.0)
        accepted_at = self.deadlines[index] - self.scenario.timeout
        is_possible = self.offered[index] - EPSILON <= accepted_at <= self.now() + EPSILON
        self.check(is_possible, f"{index} has {ctx.remaining} s left, but came at {self.offered[index]}")

    def call_begins(self, index: int, ctx: InvocationContext) -> Call:
        now = self.now()
        call = Call(index, self.calls[index])
        self.calls[index] += 1
        self.check(not self.crashed, f"{index} is called after close")
        self.check(index in self.offered, f"{index} is called before it came")
        self._start_clock_late(index, ctx)
        self.check(index not in self.committed.done, f"{index} is paid for twice")
        self.check(index not in self.active, f"{index} is called while it runs")
        self.check(index not in self.timed_out, f"{index} is called after its time was over")
        self.check(now <= self.deadlines.get(index, now) + EPSILON, f"{index} is called although its time is over")
        attempt = self.attempts.get(index, 0) + 1
        self.check(ctx.attempt == attempt, f"{index} is at attempt {ctx.attempt}, not {attempt}")
        self.attempts[index] = attempt
        attempts_max = self.scenario.retry.max_attempts if self.scenario.retry else 1
        self.check(attempt <= attempts_max, f"{index} is tried once too often")
        early = now < self.not_before.get(index, 0.0) - EPSILON
        self.check(not early, f"{index} is tried again too early")
        self._check_context(index, ctx)
        self._enter(call)
        owner = self.owners[index]
        others = [other for other in self.active.values() if other.counts and not other.is_fallback]
        running = sum(self.owners[other.index] == owner for other in others)
        self.check(running <= self.scenario.capacity, f"{running} calls run at once")
        return call

    def timeout_begins(self, index: int, ctx: InvocationContext) -> Call:
        now = self.now()
        self.check(index not in self.committed.done, f"{index} times out although it is done")
        self.check(index not in self.timed_out, f"{index} times out twice")
        self.check(now >= self.deadlines[index] - EPSILON, f"{index} times out too early")
        self._check_context(index, ctx)
        if index in self.active:
            self._leave(self.active[index])
        self.timed_out.add(index)
        self.timeouts[index] += 1
        call = Call(index, -1, is_fallback=True)
        self._enter(call)
        return call

    def check_in_time(self, index: int) -> None:
        """A pending element whose time is over has been asked for its fallback, unless it waits for its key."""
        if self.scenario.mode != "key_ordered" and not self.scenario.stateful:
            is_over = asyncio.get_running_loop().time() > self.deadlines[index] + EPSILON
            self.check(not is_over or index in self.timed_out, f"{index} does not time out")

    def call_ends(self, call: Call, outcome: Any) -> None:
        """Note what a call returned, or raised."""
        if not call.counts:
            return
        self._leave(call)
        if isinstance(outcome, asyncio.CancelledError):
            return
        self.outcomes[call.index] = outcome
        delay = getattr(outcome, "seconds", self.scenario.retry_delay)
        self.not_before[call.index] = self.now() + (delay or 0.0)

    def _enter(self, call: Call) -> None:
        key = self.items[call.index].key
        if key is not None and (self.scenario.stateful or self.scenario.mode == "key_ordered"):
            other = self.running_keys.get(key)
            self.check(other is None, f"{call.index} runs beside another of its key, {other and other.index}")
            self.running_keys[key] = call
        self.active[call.index] = call

    def _leave(self, call: Call) -> None:
        call.counts = False
        del self.active[call.index]
        key = self.items[call.index].key
        if key is not None and self.running_keys.get(key) is call:
            del self.running_keys[key]

    def _check_context(self, index: int, ctx: InvocationContext) -> None:
        item = self.items[index]
        self.check((ctx.key, ctx.timestamp) == (item.key, item.timestamp), f"{index} has another element's context")
        known = self.ids.setdefault(index, ctx.idempotency_key)
        self.check(self.payments.pay(known, index) == index, f"{index} gets another element's result")
        self.check(ctx.idempotency_key == known, f"{index} has changed its id")
        self.check(not self.scenario.named or known == f"row-{index}", f"{index} has lost its id")
        if self.scenario.timeout is not None:
            left = self.deadlines[index] - self.now()
            self.check(abs((ctx.remaining or 0.0) - max(0.0, left)) < EPSILON, f"{index} has {ctx.remaining} s left")

    # -- snapshots

    def outputs_of(self, index: int) -> list[Any] | None:
        """Return the outputs that an element owes, or None if its last call has failed."""
        if index in self.committed.done:
            if index in self.committed.dropped:
                return None
            return self.committed.outputs[index]
        self.check(index in self.outcomes, f"{index} is complete without a call")
        outcome = self.outcomes[index]
        return None if isinstance(outcome, BaseException) else list(outcome)

    def check_state(self, cuts: Sequence[Any], accepted: set[int], pending: set[int], dropped: set[int]) -> None:
        """Compare the keyed state of all subtasks with that of a loop over the completed elements."""
        model: dict[str, list[int]] = defaultdict(list)
        for index in sorted(accepted - pending - dropped):
            key = self.items[index].key
            assert key is not None
            model[key].append(index)
        histories = {key: list(history) for key, history in stored(cuts, "history").items()}
        self.check(histories == dict(model), f"the histories are {histories}, not {dict(model)}")
        totals = stored(cuts, "total")
        sums = {key: sum(index + 1 for index in history) for key, history in model.items()}
        self.check(totals == sums, f"the totals are {totals}, not {sums}")
        listed = {key: list(elements) for key, elements in stored(cuts, "listed").items()}
        self.check(listed == dict(model), f"the lists are {listed}, not {dict(model)}")
        places = {key: dict(entries) for key, entries in stored(cuts, "places").items()}
        ordered = {key: {str(index): n for n, index in enumerate(history, 1)} for key, history in model.items()}
        self.check(places == ordered, f"the maps are {places}, not {ordered}")
        self.check(stored(cuts, "sum") == sums, f"the reduced sums are not {sums}")
        counts = {key: [len(history)] for key, history in model.items()}
        self.check(stored(cuts, "count") == counts, f"the aggregated counts are not {counts}")


def stored(cuts: Sequence[Any], state: str) -> dict[Any, Any]:
    """Return the content of a state over all subtasks."""
    content: dict[Any, Any] = {}
    for cut in cuts:
        for table in cut.states:
            if table.descriptor.name == state:
                for group in table.groups.values():
                    content |= group.load()
    return content
