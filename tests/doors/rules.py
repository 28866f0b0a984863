"""Rules that hold at every entry point: what each is tried with, and what must come out; written once for all of them.

Functions only, without fixtures: worker processes import the module, and Spark's workers get it by value.
"""

from __future__ import annotations

import asyncio
import decimal
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from async_op import (
    AsyncBatchFunction,
    AsyncFunction,
    BlockingFunction,
    BlocksEventLoop,
    Budget,
    Cache,
    CallbackFunction,
    FixedDelayRetry,
    InvocationContext,
    RateLimit,
    Resilience,
    RetryAfter,
    Runtime,
    SingleFlight,
    WaitStrategies,
)
from async_op.threads import watchdog
from keygroups import OperatorListState, ValueState

STREAM, STORED_STREAM, JOB, PROCESSES = "stream", "stream with snapshots", "job", "job with processes"
TRANSFORM, PIPELINE = "DataFrame", "pipeline"
ENTRY_POINTS = (STREAM, STORED_STREAM, JOB, PROCESSES, TRANSFORM, PIPELINE)
HOST = "host"
"""Where the operators of a pipeline live; without Spark, so that all rules of a pipeline can be tried in a second."""

Element = dict[str, Any]
Letter = tuple[int, int, str]
"""The number of the element, how often it was called for, and the type of its error."""

COUNT = ValueState("count", default=0)
ITEMS = OperatorListState("items")

NO_STATE = {TRANSFORM: "state needs snapshots: use `AsyncPipeline`"}
_PERIODIC = "watermarks come five times a second, as in Flink, because several partitions agree on them"
FROM_TIME_TO_TIME = {
    STORED_STREAM: _PERIODIC,
    JOB: _PERIODIC,
    PROCESSES: _PERIODIC,
    PIPELINE: "the watermark moves between two epochs, so that an epoch that runs again sees the same one",
}
MORE_TO_COME = {PIPELINE: "a query may follow the run, and its rows come later"}
NO_REAL_LOOP = {HOST: "it runs in virtual time, which stands still while a call blocks"}
LATER = {PIPELINE: "hosts close their functions after the last epoch; the host's log has the error"}
NO_THREAD = dict.fromkeys(
    (STREAM, STORED_STREAM, JOB, PROCESSES, HOST), "only threads of Spark's tasks wait as it says, an event loop never"
)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule.

    Attributes
    ----------
    function : callable
        Makes the function.
    keys : str
        The keys of the elements, which have the numbers 0, 1 and so on.
    options : mapping or callable
        Options by the names that all entry points give them, or what makes them where they are refused when they are
        made.
    says : sequence of str or None
        The outputs, in their order; None if the rule says nothing about them.
    letters : sequence of Letter
        The dead letters.
    error : sequence of str
        Parts of the error with which the run ends.
    has_event_time : bool
        Whether the elements have timestamps: their numbers in seconds.
    blocks : bool
        Whether a call blocks the event loop. Virtual time stands still meanwhile.
    lacks : mapping
        Entry points that cannot have the rule, with the reason.
    """

    function: Callable[[], Any]
    keys: str = "aaa"
    options: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = field(default_factory=dict)
    says: Sequence[str] | None = ()
    letters: Sequence[Letter] = ()
    error: Sequence[str] = ()
    has_event_time: bool = False
    blocks: bool = False
    lacks: Mapping[str, str] = field(default_factory=dict)

    @property
    def elements(self) -> list[Element]:
        """The elements."""
        return elements_of(self.keys)


def elements_of(keys: str) -> list[Element]:
    """Return an element for each key; a dash is the key None."""
    return [{"id": number, "key": None if key == "-" else key} for number, key in enumerate(keys)]


def timestamp_of(value: Element) -> int:
    """Return the timestamp of an element of a rule that has event time."""
    number: int = value["id"]
    return 1000 * number


def said(text: object) -> list[dict[str, str]]:
    return [{"said": str(text)}]


# Functions. Their state between calls is made in `open`, since instances are sent to processes.


class Plain(AsyncFunction):
    """Says the number of each element."""

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        return said(value["id"])


class Failing(Plain):
    """Fails at the element 1, always."""

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        if value["id"] == 1:
            raise LookupError("no price")
        return said(value["id"])


@dataclass
class Flaky(AsyncFunction):
    """Raises what it is told until the third attempt, and says which attempt it is."""

    error: Callable[[], Exception] = OSError

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        if ctx.attempt < 3:
            raise self.error()
        return said(ctx.attempt)


class Empty(AsyncFunction):
    """Has no output until the third attempt."""

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        return said(ctx.attempt) if ctx.attempt == 3 else []


class Silent(AsyncFunction):
    """Fails at the first attempt and never returns from the second one."""

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        if ctx.attempt == 1:
            raise OSError
        await asyncio.Event().wait()


class Substituting(Silent):
    """Has a fallback."""

    async def timeout(self, value: Element, ctx: InvocationContext) -> Any:
        return said("fallback")


class Behind(AsyncFunction):
    """The call of the first element waits for that of the last."""

    async def open(self, runtime: Runtime) -> None:
        self.last = asyncio.Event()

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        if value["id"] == 2:
            self.last.set()
        if value["id"] == 0:
            await self.last.wait()
        return said(value["id"])


class Crowd(AsyncFunction):
    """Waits until three calls run, and says in the end how many ran at once, and in which order they began."""

    async def open(self, runtime: Runtime) -> None:
        self.running, self.most = 0, 0
        self.begun: list[int] = []
        self.begins = asyncio.Condition()

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        self.begun.append(value["id"])
        async with self.begins:
            self.begins.notify_all()
            await self.begins.wait_for(lambda: len(self.begun) >= value["id"] // 3 * 3 + 3)
        self.running -= 1
        return said(f"{self.most} at once, {self.begun}") if value["id"] == 8 else []


class Counting(AsyncFunction):
    """Counts the elements of each key; the first attempt at each fails after its writes."""

    states = (COUNT,)

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        if ctx.attempt == 1:
            raise OSError
        return said(f"{ctx.key}{count.value()}")


class Alone(AsyncFunction):
    """Says how many calls of its key run."""

    states = (COUNT,)

    async def open(self, runtime: Runtime) -> None:
        self.running = 0

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        self.running += 1
        for _ in range(10):
            await asyncio.sleep(0)
        running, self.running = self.running, self.running - 1
        return said(running)


class Alarm(AsyncFunction):
    """Registers a timer that is due at once, and counts its key when it fires."""

    states = (COUNT,)

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        ctx.timers.register(ctx.timers.processing_time)
        return []

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> Any:
        return said(f"{ctx.key}{ctx.state(COUNT).value()}")


@dataclass
class Expecting(AsyncFunction):
    """Registers a timer of event time at each element that has one here; says which timers fire, and maybe elements."""

    timers: Mapping[int, int]
    says_elements: bool = False
    states = (COUNT,)

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        assert ctx.timestamp == timestamp_of(value)
        ctx.state(COUNT).update(ctx.state(COUNT).value() + 1)
        if value["id"] in self.timers:
            ctx.timers.register(self.timers[value["id"]], event_time=True)
        return said(value["id"]) if self.says_elements else []

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> Any:
        return said(f"{ctx.key}{ctx.state(COUNT).value()} at {timestamp}")


class Blocks(AsyncFunction):
    """Blocks the event loop until its process was warned of it."""

    async def open(self, runtime: Runtime) -> None:
        watchdog._found.clear()  # a process warns of each function once, and some entry points share one

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", BlocksEventLoop)
            until = time.monotonic() + 60  # only there to end a test that fails
            while not caught and time.monotonic() < until:
                time.sleep(0.01)  # noqa: ASYNC251 - it blocks
        return said([one.message.function for one in caught if isinstance(one.message, BlocksEventLoop)])


class Batches(AsyncBatchFunction):
    """Fails at the element 1 of a batch of three."""

    max_batch_size = 3
    max_batch_delay = 60.0

    async def async_invoke_batch(self, values: list[Element], ctxs: Any) -> Any:
        return [LookupError() if one["id"] == 1 else said(f"{one['id']} of {len(values)}") for one in values]


def _loop_of_thread() -> str:
    return "no loop" if asyncio._get_running_loop() is None else "a loop"


class Blocking(BlockingFunction):
    """Says whether its thread has an event loop."""

    def invoke(self, value: Element, ctx: InvocationContext) -> Any:
        return said(_loop_of_thread())


class Calling(CallbackFunction):
    """Completes from a thread of its own."""

    def async_invoke(self, value: Element, result_future: Any) -> None:
        threading.Thread(target=lambda: result_future.complete(said(_loop_of_thread()))).start()


async def coroutine_function(value: Element) -> dict[str, str]:
    return {"said": str(value["id"])}


def generator_function(value: Element) -> Any:
    yield from said(value["id"]) * value["id"]


class Scalar(AsyncFunction):
    """Returns no collection of outputs at the element 1."""

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        return 3 if value["id"] == 1 else said(value["id"])


class Naming(AsyncFunction):
    """Says in the end how many idempotency keys its calls had, each of which was made twice."""

    async def open(self, runtime: Runtime) -> None:
        self.names: list[str] = []

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        self.names.append(ctx.idempotency_key)
        if ctx.attempt == 1:
            raise OSError
        return said(f"{len(set(self.names))} of {len(self.names)}") if len(self.names) == 6 else []


class Precise(AsyncFunction):
    """Changes a context variable, and says how it has found it."""

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        found = decimal.getcontext().prec
        decimal.getcontext().prec = 3
        return said(found)


class Changing(AsyncFunction):
    """Changes its element before it fails."""

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        found = value["id"]
        value["id"] = 99
        if ctx.attempt == 1 or found == 1:
            raise OSError
        return said(found)


class Shared(AsyncFunction):
    """Says how many calls were made; none returns before all elements have come."""

    async def open(self, runtime: Runtime) -> None:
        self.calls = 0

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        self.calls += 1
        for _ in range(10):
            await asyncio.sleep(0)
        return said(f"{self.calls} calls")


class Knowing(Failing):
    """Knows the output of the element 1, for which a call would fail."""

    def known_outputs(self, value: Element, ctx: InvocationContext) -> Any:
        return said("known") if value["id"] == 1 else None


class Closed(Plain):
    """Cannot be opened."""

    async def open(self, runtime: Runtime) -> None:
        raise ConnectionError("no route")


class Unclosed(Plain):
    """Cannot be closed."""

    async def close(self) -> None:
        raise ConnectionError("the line is dead")


class Cancelling(Plain):
    """Raises the error of a cancelled task at the element 1, as a client may whose own task was cancelled."""

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        if value["id"] == 1:
            raise asyncio.CancelledError
        return said(value["id"])


class Exiting(Plain):
    """Ends the program, as a command line's parser does."""

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        raise SystemExit(3)


class Placed(AsyncFunction):
    """Says which subtask it is."""

    async def open(self, runtime: Runtime) -> None:
        self.place = f"{runtime.subtask_index} of {runtime.parallelism}, restored: {runtime.restored}"

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        return said(self.place)


class Listing(AsyncFunction):
    """Keeps a list without a key; what a call adds is there at once, even if the call fails."""

    operator_states = (ITEMS,)

    async def open(self, runtime: Runtime) -> None:
        self.items = runtime.operator_state(ITEMS)

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        self.items.add(value["id"])
        if value["id"] == 1:
            raise OSError
        return said(self.items.get())


@dataclass(frozen=True)
class Telling:
    """A wait strategy that does not wait, but says that it was asked."""

    def idle(self, idle_count: int, arrival: Any) -> int:
        raise NotImplementedError("this strategy was asked")


class Misdeclared(AsyncFunction):
    """Has states that are none."""

    states = ("count",)  # type: ignore[assignment]

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        return []


def is_empty(outputs: Sequence[Any]) -> bool:
    return not outputs


def by_nothing(value: Element) -> str:
    return "same"


def one_each(value: Element) -> int:
    return 1


def no_cost(value: Element) -> Any:
    return "a lot"


def ten_at_the_second(value: Element) -> int:
    return 10 if value["id"] == 1 else 1


def both_errors() -> Exception:
    return ExceptionGroup("both", [ValueError(), OSError()])


def wait_a_moment() -> Exception:
    return RetryAfter(0.001)


def _rate(cost: Callable[[Element], Any]) -> RateLimit:
    return RateLimit(1000, 5, cost=cost, unit="coins")


LETTERS = {"on_error": "dead_letter"}
RETRY = FixedDelayRetry(5, 0.001)


RULES: dict[str, Rule] = {
    # What becomes of failures.
    "An element that fails for good ends the run, with its number and the error in the message": Rule(
        function=Failing, says=None, error=("element", "LookupError", "no price")
    ),
    '`on_error="skip"` drops the element, and the others come out': Rule(
        function=Failing, options={"on_error": "skip"}, says=["0", "2"]
    ),
    '`on_error="dead_letter"` keeps the element with its error, and the others come out': Rule(
        function=Failing, options=LETTERS, says=["0", "2"], letters=[(1, 1, "LookupError")]
    ),
    "A result that is no collection of outputs is the fault of its element": Rule(
        function=Scalar, options=LETTERS, says=["0", "2"], letters=[(1, 1, "InvalidFunctionResult")]
    ),
    "An element without a key is a dead letter, if the function needs keys": Rule(
        function=Counting,
        keys="a-a",
        options=LETTERS | {"retry": RETRY},
        says=["a1", "a2"],
        letters=[(1, 0, "NullKey")],
        lacks=NO_STATE,
    ),
    "A function that cannot be opened ends the run with its error": Rule(
        function=Closed, says=None, error=("no route",)
    ),
    "A function that cannot be closed ends the run with its error, and its name": Rule(
        function=Unclosed, says=None, error=("close() of Unclosed raised this", "the line is dead"), lacks=LATER
    ),
    "A `CancelledError` of the function is the fault of its element": Rule(
        function=Cancelling, options=LETTERS, says=["0", "2"], letters=[(1, 1, "CancelledError")]
    ),
    "`SystemExit` in a call ends the run, whatever `on_error` says, and its element is named": Rule(
        function=Exiting, options={"on_error": "skip"}, says=None, error=("ElementFailed", "SystemExit: 3")
    ),
    # Retries.
    "A failed call is made again, with the number of the attempt": Rule(
        function=Flaky, options={"retry": RETRY}, says=["3"] * 3
    ),
    "After the last attempt the element has failed for good": Rule(
        function=Flaky, keys="a", options=LETTERS | {"retry": FixedDelayRetry(2, 0.001)}, letters=[(0, 2, "OSError")]
    ),
    "An error that `retry_on` does not name is final": Rule(
        function=Flaky,
        keys="a",
        options=LETTERS | {"retry": FixedDelayRetry(5, 0.001, retry_on=ValueError)},
        letters=[(0, 1, "OSError")],
    ),
    "`retry_on` looks into groups of exceptions": Rule(
        function=lambda: Flaky(both_errors),
        keys="a",
        options={"retry": FixedDelayRetry(5, 0.001, retry_on=OSError)},
        says=["3"],
    ),
    "`RetryAfter` is retried whatever `retry_on` names": Rule(
        function=lambda: Flaky(wait_a_moment),
        keys="a",
        options={"retry": FixedDelayRetry(5, 0.001, retry_on=ValueError)},
        says=["3"],
    ),
    "A result may be retried, too": Rule(
        function=Empty, keys="a", options={"retry": FixedDelayRetry(5, 0.001, retry_if_result=is_empty)}, says=["3"]
    ),
    # Timeouts.
    "A timeout is for all attempts at an element together": Rule(
        function=Silent,
        keys="a",
        options=LETTERS | {"retry": RETRY, "timeout": 1.0},
        letters=[(0, 2, "AsyncTimeoutError")],
    ),
    "`timeout` of the function may give a fallback": Rule(
        function=Substituting, keys="a", options={"retry": RETRY, "timeout": 1.0}, says=["fallback"]
    ),
    # Order and capacity.
    "As many calls as `capacity` run at once, and they begin in the order of the input": Rule(
        function=Crowd,
        keys="a" * 9,
        options={"mode": "unordered", "capacity": 3},
        says=[f"3 at once, {list(range(9))}"],
    ),
    "ordered: outputs leave in the order of the input": Rule(
        function=Behind, options={"mode": "ordered"}, says=["0", "1", "2"]
    ),
    "unordered: outputs leave as calls return": Rule(
        function=Behind, options={"mode": "unordered"}, says=["1", "2", "0"]
    ),
    "key_ordered: outputs of one key leave in the order of its inputs; different keys do not wait for each other": Rule(
        function=Behind, keys="aab", options={"mode": "key_ordered"}, says=["2", "0", "1"]
    ),
    # State.
    "State belongs to a key, and the writes of a failed attempt are gone": Rule(
        function=Counting, keys="aba", options={"retry": RETRY}, says=["a1", "b1", "a2"], lacks=NO_STATE
    ),
    "With keyed state, one call of a key runs at a time, whatever the order": Rule(
        function=Alone, options={"mode": "unordered"}, says=["1"] * 3, lacks=NO_STATE
    ),
    "A timer fires once it is due, and sees the state of its key": Rule(
        function=Alarm, keys="a", says=["a1"], lacks=NO_STATE
    ),
    "Timers of event time fire in their order, once the watermark has reached them": Rule(
        function=lambda: Expecting({0: 1500, 1: 1200}),
        keys="abc",
        says=["b1 at 1200", "a1 at 1500"],
        has_event_time=True,
        lacks=NO_STATE,
    ),
    "Timers of event time fire before the call for an element with a later timestamp, if `capacity` is 1": Rule(
        function=lambda: Expecting({0: 1500, 1: 1200}, says_elements=True),
        keys="abc",
        options={"capacity": 1},
        says=["0", "1", "b1 at 1200", "a1 at 1500", "2"],
        has_event_time=True,
        lacks=NO_STATE | FROM_TIME_TO_TIME,
    ),
    "At the end of a bounded input, the timers of event time that are left fire": Rule(
        function=lambda: Expecting({0: 10**12}),
        keys="ab",
        says=[f"a1 at {10**12}"],
        has_event_time=True,
        lacks=NO_STATE | MORE_TO_COME,
    ),
    "Operator state has no key, and a write counts at once": Rule(
        function=Listing, options={"on_error": "skip"}, says=["[0]", "[0, 1, 2]"], lacks=NO_STATE
    ),
    # What a call sees.
    "No two elements share an idempotency key, and all attempts at an element do": Rule(
        function=Naming, options={"retry": RETRY}, says=["3 of 6"]
    ),
    "A call sees no context variable of another call": Rule(function=Precise, says=["28"] * 3),
    "What a call changes in its element is seen by no other attempt and no dead letter": Rule(
        function=Changing,
        options=LETTERS | {"retry": FixedDelayRetry(2, 0.001)},
        says=["0", "2"],
        letters=[(1, 2, "OSError")],
    ),
    "A function is opened for its subtask, and told whether there was a snapshot": Rule(
        function=Placed, keys="a", says=["0 of 1, restored: False"]
    ),
    # Kinds of functions.
    "A batch function gets a batch, and one of its elements may fail": Rule(
        function=Batches,
        keys="a" * 12,  # several batches come at once
        options=LETTERS | {"key_by": None},  # so that elements are collected in blocks
        says=[f"{number} of 3" for number in range(12) if number != 1],
        letters=[(1, 1, "LookupError")],
    ),
    "A blocking function runs on a thread": Rule(function=Blocking, keys="a", says=["no loop"]),
    "A callback may come from any thread": Rule(function=Calling, keys="a", says=["no loop"]),
    "A plain coroutine function returns one output": Rule(function=lambda: coroutine_function, says=["0", "1", "2"]),
    "A generator function yields none, one or several": Rule(function=lambda: generator_function, says=["1", "2", "2"]),
    "An output that the function knows needs no call": Rule(function=Knowing, says=["0", "known", "2"]),
    # Limits.
    "A budget is exact: what does not fit fails with `BudgetSpent`": Rule(
        function=Plain,
        options=LETTERS | {"resilience": Resilience(budget=Budget(2, "calls", cost=one_each))},
        says=["0", "1"],
        letters=[(2, 1, "BudgetSpent")],
        lacks=NO_STATE,
    ),
    "A call that costs more than the whole burst of a rate fails with `CostAboveLimit`, without a retry": Rule(
        function=Plain,
        options=lambda: LETTERS | {"retry": RETRY, "resilience": Resilience(rate_limit=_rate(ten_at_the_second))},
        says=["0", "2"],
        letters=[(1, 1, "CostAboveLimit")],
    ),
    "A cost that is no number is the fault of its element": Rule(
        function=Plain,
        keys="a",
        options=lambda: LETTERS | {"resilience": Resilience(rate_limit=_rate(no_cost))},
        letters=[(0, 1, "ConfigError")],
    ),
    "Identical calls at the same time are one": Rule(
        function=Shared,
        options={"resilience": Resilience(single_flight=SingleFlight(by_nothing))},
        says=["1 calls"] * 3,
    ),
    "An element whose outputs are in the cache needs no call": Rule(
        function=Shared,
        options={"capacity": 1, "resilience": Resilience(cache=Cache(key=by_nothing, max_entries=10))},
        says=["1 calls"] * 3,
    ),
    # Waiting.
    "A wait strategy of your own acts": Rule(
        function=Behind,
        options={"wait_strategies": WaitStrategies(source=Telling(), consume=Telling(), back_pressure=Telling())},
        says=None,
        error=("this strategy was asked",),
        lacks=NO_THREAD,
    ),
    "A call that blocks the event loop for over a second is warned of": Rule(
        function=Blocks, keys="a", says=["['Blocks.async_invoke']"], blocks=True, lacks=NO_REAL_LOOP
    ),
    # What can never work.
    "A capacity of zero is refused by name": Rule(
        function=Plain, options={"capacity": 0}, says=None, error=("ConfigError", "capacity=0")
    ),
    "A number in place of a retry policy is refused by name": Rule(
        function=Plain, options={"retry": 3}, says=None, error=("ConfigError", "retry=3")
    ),
    "An error policy that does not exist is refused by name": Rule(
        function=Plain, options={"on_error": "ignore"}, says=None, error=("ConfigError", "on_error='ignore'")
    ),
    "A rate of zero is refused by name": Rule(
        function=Plain,
        options=lambda: {"resilience": Resilience(rate_limit=RateLimit(0))},
        says=None,
        error=("ConfigError", "per_second=0"),
    ),
    "A number in place of a rate limit is refused by name": Rule(
        function=Plain,
        options=lambda: {"resilience": Resilience(rate_limit=5)},  # type: ignore[arg-type]
        says=None,
        error=("ConfigError", "rate_limit=5"),
    ),
    "A rate limit outside of `Resilience` is refused by name": Rule(
        function=Plain, options={"resilience": RateLimit(5)}, says=None, error=("ConfigError", "resilience=RateLimit(")
    ),
    "A budget without an amount is refused by name": Rule(
        function=Plain,
        options=lambda: {"resilience": Resilience(budget=Budget(0, "calls"))},
        says=None,
        error=("ConfigError", "limit=0"),
    ),
    "A state that is none is refused by name": Rule(
        function=Misdeclared, says=None, error=("ConfigError", "states", "'count'")
    ),
}


def default_options(rule: Rule) -> dict[str, Any]:
    """Return the options of a rule: ordered, so that outputs have one order, and with a key."""
    options = rule.options() if callable(rule.options) else rule.options
    return {"mode": "ordered", "key_by": "key", **options}
