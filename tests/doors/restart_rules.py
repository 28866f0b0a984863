"""Rules of restarts that hold at every entry point with snapshots: the runs of each, and what must come of them.

Functions only, without fixtures: worker processes import the module, and Spark's workers get it by value.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from async_op import AsyncFunction, InvocationContext, RestartPolicy, Retention, Runtime
from snapshots import SnapshotStore
from tests.doors.rules import (
    ITEMS,
    JOB,
    PROCESSES,
    RETRY,
    STORED_STREAM,
    Counting,
    Element,
    Failing,
    Listing,
    Plain,
    said,
)

ONE_SUBTASK = {STORED_STREAM: "it always has one subtask, so that outputs keep their order"}
NO_OPTION = {STORED_STREAM: "it has no such option: use `Job`"}

YOURS = {STORED_STREAM: "your loop gets the failure, and continues from the newest snapshot when it iterates again"}
NEVER_WAITS = dict.fromkeys((STORED_STREAM, JOB, PROCESSES), "its snapshots never wait, so it has no such option")

NAME = "rule"
"""The name of the folder with the snapshots, whatever an entry point calls it."""

PLACED = ("parallelism", "max_parallelism", "hash", "idempotency_namespace", "retention")
"""Options of an entry point, by the same name at all of them; the others are an operator's."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One run.

    Attributes
    ----------
    function : callable
        Makes the function; it gets a folder in which functions may leave notes.
    keys : str
        The keys of all elements of this run and of those before it.
    options : mapping
        Options of the entry point and of the operator.
    error : sequence of str
        Parts of the error with which it ends.
    warning : str or None
        The type of the warning that it gives.
    row_by_row : bool
        Whether a pipeline gets each row in an epoch of its own. The last epoch of `AsyncPipeline.run` waits for all
        calls.
    restart : RestartPolicy or None
        How it is restarted.
    delays : sequence of float
        The seconds before each restart.
    before, after : callable or None
        What is done to the snapshots before it, and what is looked at in them after it.
    """

    function: Callable[[Path], Any]
    keys: str
    options: Mapping[str, Any] = field(default_factory=dict)
    error: Sequence[str] = ()
    warning: str | None = None
    row_by_row: bool = False
    restart: RestartPolicy | None = None
    delays: Sequence[float] = ()
    before: Callable[[SnapshotStore], object] | None = None
    after: Callable[[SnapshotStore], None] | None = None


@dataclass(frozen=True, kw_only=True)
class RestartRule:
    """One rule: its runs, what they say together, in any order, and which entry points lack it for which reason."""

    runs: Sequence[Attempt]
    says: Sequence[str]
    lacks: Mapping[str, str] = field(default_factory=dict)


class Sized(AsyncFunction):
    """Says how many subtasks there are, and whether there was a snapshot."""

    async def open(self, runtime: Runtime) -> None:
        self.size = f"{runtime.parallelism}, restored: {runtime.restored}"

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        return said(self.size)


class Held(AsyncFunction):
    """Says at its first call which items it was opened with."""

    operator_states = (ITEMS,)

    async def open(self, runtime: Runtime) -> None:
        self.found = runtime.operator_state(ITEMS).get()

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        found, self.found = self.found, []
        return [row for item in found for row in said(item)]


class Given(Plain):
    """Gives its items at the cut."""

    operator_states = (ITEMS,)

    def snapshot_state(self, descriptor: Any) -> Any:
        return ["one", "other"]


class NotGiven(Given):
    """Has no items at the cut."""

    def snapshot_state(self, descriptor: Any) -> Any:
        raise ConnectionError("the consumer is gone")


@dataclass
class Noting(AsyncFunction):
    """Notes its idempotency key and fails; the next one says whether its key is the same."""

    note: Path

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        if self.note.exists():
            return said(self.note.read_text() == ctx.idempotency_key)
        self.note.write_text(ctx.idempotency_key)
        raise OSError


@dataclass
class Stumbling(AsyncFunction):
    """Notes its calls; the first ones fail after a moment."""

    note: Path
    failures: int

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        with self.note.open("a+") as calls:
            calls.write("I")
            calls.seek(0)
            count = len(calls.read())
        await asyncio.sleep(0.01)
        if count <= self.failures:
            raise OSError
        return said(f"call {count}")


@dataclass
class Deposing(Plain):
    """Claims the snapshots at its call, as another run does that takes over."""

    folder: Path

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        await asyncio.to_thread(SnapshotStore(self.folder, NAME).claim)
        return said(value["id"])


@dataclass
class Lasting(AsyncFunction):
    """Waits, at the first element, until a snapshot has its own call in flight."""

    folder: Path

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        store = SnapshotStore(self.folder, NAME)
        until = 1200 if value["id"] == 0 else 0  # the limit is only there to end a test that fails
        for _ in range(until):
            if (newest := store.latest()) is not None and newest.in_flight_count > 0:
                return said("in flight in a snapshot")
            await asyncio.sleep(0.05)
        return said(value["id"])


@dataclass
class AwaitedByAll(AsyncFunction):
    """Lasts longer than a snapshot waits by default, at the first element, and says whether there is one."""

    folder: Path

    async def async_invoke(self, value: Element, ctx: InvocationContext) -> Any:
        if value["id"] > 0:
            return said(value["id"])
        await asyncio.sleep(3)
        return said("no snapshot" if SnapshotStore(self.folder, NAME).latest() is None else "a snapshot")


def _counting(folder: Path) -> Any:
    return Counting()


def _plain(folder: Path) -> Any:
    return Plain()


def _sized(folder: Path) -> Any:
    return Sized()


_RETRY = {"retry": RETRY}
_COUNTED = Attempt(function=_counting, keys="ab", options=_RETRY | {"max_parallelism": 16})


def _refused(**changes: Any) -> tuple[Attempt, ...]:
    """Return a run that counts, and one that is refused for what has changed."""
    function, restart = changes.pop("function", _counting), changes.pop("restart", None)
    options, error = _COUNTED.options | changes, ("IncompatibleSnapshot",)
    return _COUNTED, Attempt(function=function, keys="aba", options=options, error=error, restart=restart)


QUICK = RestartPolicy(max_restarts=3, initial_delay=0.01, max_delay=0.03)


def _pin_first(store: SnapshotStore) -> None:
    store.pin(1)


def _stumbling(failures: int, **changes: Any) -> Attempt:
    """Return a run whose first calls fail."""
    return Attempt(function=lambda folder: Stumbling(folder / "calls", failures), keys="a", **changes)


def _only_pinned_and_newest(store: SnapshotStore) -> None:
    """Fail if a version of the runs before is left that is not pinned: they had at least the versions 1 and 2."""
    versions = store.versions()
    assert 1 in versions
    assert 2 not in versions
    assert len(versions) > 1


RESTART_RULES: dict[str, RestartRule] = {
    "A failed run goes on from its newest snapshot, and each output comes once": RestartRule(
        runs=(
            Attempt(function=lambda _: Failing(), keys="abc", error=("ElementFailed", "no price")),
            Attempt(function=_plain, keys="abc"),
        ),
        says=["0", "1", "2"],
    ),
    "An input that a run has finished is not called for again": RestartRule(
        runs=(Attempt(function=_plain, keys="abc"), Attempt(function=_plain, keys="abc")), says=["0", "1", "2"]
    ),
    "A snapshot waits for no call by default: calls are in flight in it, and continue": RestartRule(
        runs=(Attempt(function=Lasting, keys="ab", row_by_row=True),), says=["in flight in a snapshot", "1"]
    ),
    "`barrier_timeout=None` has a snapshot wait for all calls": RestartRule(
        runs=(Attempt(function=AwaitedByAll, keys="ab", options={"barrier_timeout": None}, row_by_row=True),),
        says=["no snapshot", "1"],
        lacks=NEVER_WAITS,
    ),
    "With a restart policy, a failed run restarts from its newest snapshot after growing delays": RestartRule(
        runs=(_stumbling(3, restart=QUICK, delays=[0.01, 0.02, 0.03]),), says=["call 4"], lacks=YOURS
    ),
    "The failure after `max_restarts` in a row is raised": RestartRule(
        runs=(
            _stumbling(
                4,
                restart=QUICK,
                delays=[0.01, 0.02, 0.03],
                error=("OSError", "was restarted 3 times in a row (max_restarts), and failed again"),
            ),
        ),
        says=[],
        lacks=YOURS,
    ),
    "Restarts are counted from zero again after a quiet time (`reset_after`)": RestartRule(
        runs=(_stumbling(5, restart=replace(QUICK, reset_after=0.001), delays=[0.01] * 5),),
        says=["call 6"],
        lacks=YOURS,
    ),
    "A run that another one has taken over from does not restart": RestartRule(
        runs=(
            Attempt(function=_plain, keys="a"),
            Attempt(function=Deposing, keys="aa", restart=QUICK, error=("WriterFenced",)),
        ),
        says=["0"],
        lacks=YOURS,
    ),
    "A run that does not fit the snapshot does not restart": RestartRule(
        runs=_refused(function=_plain, restart=QUICK), says=["a1", "b1"], lacks=YOURS
    ),
    "`retention` removes old versions while a run goes on; pinned ones stay": RestartRule(
        runs=(
            _COUNTED,
            Attempt(function=_counting, keys="aba", options=_COUNTED.options, before=_pin_first),
            Attempt(
                function=_counting,
                keys="abab",
                options=_COUNTED.options | {"retention": Retention(keep_last=1, min_age=0)},
                after=_only_pinned_and_newest,
            ),
        ),
        says=["a1", "b1", "a2", "b2"],
        lacks=NO_OPTION,
    ),
    "An element has the same idempotency key in the next run": RestartRule(
        runs=(
            Attempt(function=lambda folder: Noting(folder / "note"), keys="a", error=("OSError",)),
            Attempt(function=lambda folder: Noting(folder / "note"), keys="a"),
        ),
        says=["True"],
    ),
    "State goes on": RestartRule(
        runs=(
            Attempt(function=_counting, keys="ab", options=_RETRY),
            Attempt(function=_counting, keys="aba", options=_RETRY),
        ),
        says=["a1", "b1", "a2"],
    ),
    "State goes on at another parallelism": RestartRule(
        runs=(_COUNTED, Attempt(function=_counting, keys="aba", options=_COUNTED.options | {"parallelism": 3})),
        says=["a1", "b1", "a2"],
        lacks=ONE_SUBTASK,
    ),
    "Without a number, the parallelism is the newest snapshot's": RestartRule(
        runs=(
            Attempt(function=_sized, keys="a", options={"parallelism": 2}),
            Attempt(function=_sized, keys="aa", options={"parallelism": None}),
        ),
        says=["2, restored: False", "2, restored: True"],
        lacks=ONE_SUBTASK,
    ),
    "A repartition by the command counts if no number is passed": RestartRule(
        runs=(
            Attempt(function=_sized, keys="a"),
            Attempt(
                function=_sized, keys="aa", options={"parallelism": None}, before=lambda store: store.repartition(2)
            ),
        ),
        says=["1, restored: False", "2, restored: True"],
        lacks=ONE_SUBTASK,
    ),
    "A number that undoes a repartition warns": RestartRule(
        runs=(
            Attempt(function=_sized, keys="a"),
            Attempt(function=_sized, keys="aa", before=lambda store: store.repartition(2), warning="RepartitionUndone"),
        ),
        says=["1, restored: False", "1, restored: True"],
        lacks=ONE_SUBTASK,
    ),
    "Items of operator state are reassigned, each to one subtask": RestartRule(
        runs=(
            Attempt(function=lambda _: Listing(), keys="aaaa", options={"on_error": "skip"}),
            Attempt(function=lambda _: Held(), keys="aaaabcdefgh", options={"parallelism": 2}),
        ),
        says=["[0]", "[0, 1, 2]", "[0, 1, 2, 3]", "0", "1", "2", "3"],
        lacks=ONE_SUBTASK,
    ),
    "A function may give its items at the cut": RestartRule(
        runs=(Attempt(function=lambda _: Given(), keys="a"), Attempt(function=lambda _: Held(), keys="aa")),
        says=["0", "one", "other"],
    ),
    "A function that cannot give its items fails the cut by name": RestartRule(
        runs=(
            Attempt(
                function=lambda _: NotGiven(), keys="a", error=("ItemsNotGiven", "'items'", "the consumer is gone")
            ),
        ),
        says=[],
    ),
    "A state that the function no longer declares is refused": RestartRule(
        runs=_refused(function=_plain), says=["a1", "b1"]
    ),
    "Another hash is refused": RestartRule(runs=_refused(hash="flink"), says=["a1", "b1"], lacks=NO_OPTION),
    "Another number of key groups is refused": RestartRule(
        runs=_refused(max_parallelism=32), says=["a1", "b1"], lacks=NO_OPTION
    ),
    "Another namespace of idempotency keys is refused": RestartRule(
        runs=_refused(idempotency_namespace="other"), says=["a1", "b1"], lacks=NO_OPTION
    ),
    "Other key columns are refused where there is state": RestartRule(runs=_refused(key_by="id"), says=["a1", "b1"]),
}


def options_of(attempt: Attempt) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the entry point, and those of the operator."""
    options = {"mode": "ordered", "key_by": "key", "parallelism": 1, **attempt.options}
    placed = {name: options.pop(name) for name in PLACED if name in options}
    return placed, options
