"""Each rule of the protocol between processes is broken on purpose, and a seed of the simulation notices it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from async_op.job.processes import child_handles, child_loop, distributed_chain, messages, remote_channels
from tests.async_op.job.simulation.run import simulate
from tests.quick import first_is_quick
from tests.snapshot_kit import forget_stores

Patch = pytest.MonkeyPatch

_numbers = itertools.count()


def without_channel_state(patch: Patch) -> None:
    """What was under way between two children at a cut is in no part."""
    patch.setattr(messages, "late", lambda payload: payload)


def channel_state_is_not_delivered(patch: Patch) -> None:
    """What was under way between two children is in a part, and does not come in as well."""
    take = child_loop.ChildLoop._take_elements

    def mutant(self: child_loop.ChildLoop, inlet: Any, place: messages.Destination, elements: Any) -> None:
        take(self, inlet, place, elements)
        if place.is_late and not self._is_over:
            for _ in elements:
                inlet.elements.pop()

    patch.setattr(child_loop.ChildLoop, "_take_elements", mutant)


def channel_state_ends_too_late(patch: Patch) -> None:
    """What a child sends after its cut counts as channel state, too."""
    passed = distributed_chain.DistributedChain.passed

    def mutant(self: distributed_chain.DistributedChain, child: child_handles.Child, kind: int, payload: bytes) -> None:
        if kind == messages.ELEMENTS and self._unmarked:
            payload = messages.late(payload)
        passed(self, child, kind, payload)

    patch.setattr(distributed_chain.DistributedChain, "passed", mutant)


def the_mark_overtakes_elements(patch: Patch) -> None:
    """A child sends its mark before the elements that it had made before its cut."""
    patch.setattr(child_loop.ChildLoop, "_cut", _without_flush(child_loop.ChildLoop._cut))


def the_cut_overtakes_elements(patch: Patch) -> None:
    """The parent sends the cut before the elements whose positions it has cut."""
    patch.setattr(distributed_chain.DistributedChain, "cut", _without_flush(distributed_chain.DistributedChain.cut))


def the_answer_overtakes_elements(patch: Patch) -> None:
    """A child answers that a step is empty before it has sent the last outputs of the step."""

    async def mutant(self: child_loop.ChildLoop, name: str, is_final: bool) -> None:
        await self._running.drain_step(name, is_final=is_final)

    patch.setattr(child_loop.ChildLoop, "drain_step", mutant)


def a_child_opens_its_steps_alone(patch: Patch) -> None:
    """A child opens all of its steps, whatever is open in the others."""

    async def mutant(self: distributed_chain.DistributedChain, snapshot: Any) -> None:
        await self._children.start()
        self._is_begun = True
        for one in self._children.all:
            await one.ask("begin", self.parallelism, one.own, snapshot, self._are_timers_held)
            for number in reversed(range(len(self._names))):
                await one.ask("open_step", number)
        await self._children.ask("go")

    patch.setattr(distributed_chain.DistributedChain, "open", mutant)


def credits_are_not_returned(patch: Patch) -> None:
    """A receiver keeps the credits of its senders."""
    patch.setattr(remote_channels.CreditedInlet, "_flush", lambda self: self._credits.clear())


def ids_are_made_up_on_the_way(patch: Patch) -> None:
    """Elements get other ids where they come from another process."""

    def mutant(payload: bytes) -> Any:
        return [(value, at, f"made up {next(_numbers)}") for value, at, _ in made(payload)]

    made = messages.elements_in
    patch.setattr(messages, "elements_in", mutant)


def a_final_cut_is_like_others(patch: Patch) -> None:
    """A child goes on after a final cut."""
    received = child_loop.ChildLoop.received

    def mutant(self: child_loop.ChildLoop, kind: int, payload: bytes) -> None:
        received(self, kind, b"" if kind == messages.CUT else payload)

    patch.setattr(child_loop.ChildLoop, "received", mutant)


def a_death_is_not_noticed(patch: Patch) -> None:
    """The parent does not notice that a child has ended."""
    patch.setattr(child_handles.Child, "_give_up", lambda self, error: None)


def a_silence_is_not_noticed(patch: Patch) -> None:
    """The parent waits for ever for a child that is stopped."""
    patch.setattr(child_handles.Child, "look", lambda child: None)


def a_start_outlives_the_end(patch: Patch) -> None:
    """The end of the children does not wait for one that is being started."""
    end = child_handles.Child.end

    async def mutant(self: child_handles.Child) -> None:
        if self._launched is not None:
            await end(self)

    patch.setattr(child_handles.Child, "end", mutant)


def letters_of_the_source_are_dropped(patch: Patch) -> None:
    """The dead letters of the source, which the parent has, are in no part."""
    written = child_loop._written
    patch.setattr(
        child_loop, "_written", lambda pending, parts, outputs, letters: written(pending, parts, outputs, None)
    )


def _without_flush(method: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(self: Any, *, is_final: bool) -> Any:
        flush, self._sender.flush = self._sender.flush, lambda: None
        try:
            return method(self, is_final=is_final)
        finally:
            self._sender.flush = flush

    return mutant


MUTANTS = [
    (without_channel_state, 8),
    (channel_state_is_not_delivered, 0),
    (channel_state_ends_too_late, 1454),
    (the_mark_overtakes_elements, 8),
    (the_cut_overtakes_elements, 4),
    (the_answer_overtakes_elements, 69),
    (a_child_opens_its_steps_alone, 22),
    (credits_are_not_returned, 0),
    (ids_are_made_up_on_the_way, 0),
    (a_final_cut_is_like_others, 0),
    (a_death_is_not_noticed, 23),
    (a_silence_is_not_noticed, 23),
    (a_start_outlives_the_end, 79),
    (letters_of_the_source_are_dropped, 0),
]
_OTHER_SEEDS = 60


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("break_it", "seed"), first_is_quick(MUTANTS), ids=lambda one: getattr(one, "__name__", ""))
def test_a_broken_rule_is_noticed(break_it: Callable[[Patch], None], seed: int) -> None:
    simulate(seed, 2)
    assert is_noticed(break_it, seed), f"it survives {seed}; others notice it: {others(break_it)}"


def others(break_it: Callable[[Patch], None]) -> int | None:
    """Return the first seed that notices a mutant, to be written in the place of one that no longer does."""
    return next((seed for seed in range(_OTHER_SEEDS) if is_noticed(break_it, seed)), None)


def is_noticed(break_it: Callable[[Patch], None], seed: int) -> bool:
    """Return whether a seed fails with a rule broken."""
    with pytest.MonkeyPatch.context() as patch:
        break_it(patch)
        try:
            simulate(seed, 2)
        except Exception:  # noqa: BLE001 - whatever it is, a test would have failed
            return True
        finally:
            forget_stores()
    return False
