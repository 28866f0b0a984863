"""What a seed stands for: the input, the settings, how each call behaves, and how much goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from async_op.dead_letters import OnError
from keygroups.descriptors import StateDescriptor
from tests.hosting.simulation.states import SEEN, STATES

FOREVER = 3600.0

FIRST_OPERATOR = "first"

SHARED = 0.2
"""In so many runs a second operator calls the same service."""

HARMLESS = ("replay", "stranger")
"""What must not change anything, not even the number of calls."""

FAULTS = (
    "kill host",
    "kill host",
    "kill any host",
    "hang",
    "break",
    "break",
    "kill task",
    "kill driver",
    "cut off",
    *HARMLESS,
    "replay",
)
"""What may go wrong with processes and the network; storage and sinks fail, too."""


class Row(NamedTuple):
    """A row of the input."""

    number: int
    key: str


@dataclass(frozen=True)
class Scenario:
    """All that is random comes from here, and only from the seed."""

    seed: int
    batches: tuple[tuple[Row, ...], ...]
    mode: str
    capacity: int
    max_parallelism: int
    states: tuple[str, ...]
    """The names of the function's states, with and without a key."""
    timers: bool
    long_calls: float
    """The share of calls that take an hour."""
    poison: bool
    """Whether some elements fail the operator the first time that they are called for."""
    barrier_timeout: float
    fault_rate: float
    faults_max: int
    outputs_max: int
    timeout: float | None
    reserve_max: int
    faults: tuple[str, ...] = FAULTS
    fault_at: tuple[int, str] | None = None
    """A step and what goes wrong there."""
    operator: str = FIRST_OPERATOR
    is_shared: bool = False
    """Whether a second operator, whose elements have the same ids, calls the same service."""
    on_error: OnError = "fail"
    """What the sink does about an output that it refuses."""
    refused_share: float = 0.0

    def random(self, *names: object) -> random.Random:
        """Return the random numbers of one purpose, so that none moves another's."""
        own = () if self.operator == FIRST_OPERATOR else (self.operator,)
        return random.Random("/".join(map(str, (self.seed, *own, *names))))

    def seconds_of(self, row: int, call: int) -> float:
        """Return how long a call takes."""
        draw = self.random("call", row, call)
        if draw.random() < self.long_calls:
            return FOREVER if call == 0 and self.timeout is None else 30.0
        return draw.choice((0.0, 0.2, 1.0, 3.0 * draw.random()))

    def seconds_to_write(self, cut_id: str) -> float:
        """Return how long it takes to write a part, while calls go on and write to the state that was cut."""
        return self.random("write", cut_id).choice((0.05, 0.05, 1.5))

    def is_on_disk(self, process: str) -> bool:
        """Tell whether a process keeps its state on disk; the one that restores it later may keep it in memory."""
        return self.random("on disk", process).random() < 0.05

    def fails(self, row: int, call: int) -> bool:
        """Tell whether a call fails for good."""
        return self.poison and call == 0 and self.random("poison", row).random() < 0.1

    def is_refused(self, output: Any) -> bool:
        """Tell whether the sink has no place for an output."""
        return random.Random(f"{self.seed}/refused/{output}").random() < self.refused_share

    @property
    def operators(self) -> tuple[Scenario, ...]:
        """What each of the operators does that share a service."""
        return (self, replace(self, operator="second")) if self.is_shared else (self,)

    @property
    def keyed_states(self) -> tuple[StateDescriptor, ...]:
        """The states that rows write."""
        return tuple(state for state in STATES if state.name in self.states)

    @property
    def is_timed(self) -> bool:
        """Whether rows arm timers, which belong to their keys."""
        return self.timers and bool(self.states)

    def before(self, row: Row) -> list[int]:
        """Return the rows of the same key that come before a row."""
        rows = [other for batch in self.batches for other in batch]
        return [other.number for other in rows if other.key == row.key and other.number < row.number]

    @property
    def is_calm(self) -> bool:
        """Nothing harmful goes wrong: each row is paid for once."""
        has_faults = self.fault_at is not None or (self.fault_rate > 0 and not set(self.faults) <= set(HARMLESS))
        return not (has_faults or self.poison or (self.on_error == "fail" and self.refused_share > 0))


def only(scenario: Scenario, *faults: str) -> Scenario:
    """Return a scenario in which nothing else goes wrong, but that often."""
    return replace(scenario, faults=faults, fault_rate=0.1, faults_max=20, poison=False)


def _some_states(seed: int) -> tuple[str, ...]:
    """Draw the states: mostly one, because each costs files, and a list or a map in place of a value costs none."""
    draw = random.Random(f"{seed}/states")
    names = [state.name for state in draw.sample(STATES, draw.choice((1, 1, 1, 1, 1, 2)))]
    return (*names, *([SEEN.name] if draw.random() < 0.1 else []))


def scenario_of(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    draw = random.Random(f"{seed}/scenario")
    numbers = iter(range(10**6))
    keys = [f"key {number}" for number in range(draw.choice((1, 3, 8)))]
    batches = tuple(
        tuple(Row(next(numbers), draw.choice(keys)) for _ in range(draw.choice((0, 1, 2, 6))))
        for _ in range(draw.choice((1, 2, 4)))
    )
    calm = draw.random() < 0.2
    of_sink = random.Random(f"{seed}/sink")
    on_error: OnError = of_sink.choice(("fail", "skip", "dead_letter"))
    return Scenario(
        seed=seed,
        batches=batches,
        mode=draw.choice(("ordered", "unordered", "key_ordered")),
        capacity=draw.choice((1, 2, 3, 100)),
        max_parallelism=draw.choice((2, 4)),
        states=_some_states(seed) if draw.random() < 0.7 else (),
        timers=draw.random() < 0.3,
        long_calls=draw.choice((0.0, 0.0, 0.1)),
        poison=not calm and draw.random() < 0.25,
        barrier_timeout=draw.choice((0.0, 0.5, 2.0)),
        fault_rate=0.0 if calm else draw.choice((0.01, 0.03, 0.1)),
        faults_max=draw.choice((1, 3, 6)),
        outputs_max=draw.choice((1, 3, 100)),
        timeout=None if draw.random() < 0.8 else 1e5,
        reserve_max=draw.choice((0, 1, 3, 100)),
        is_shared=of_sink.random() < SHARED,
        on_error=on_error,
        refused_share=0.0 if calm and on_error == "fail" else of_sink.choice((0.0, 0.2, 0.5)),
    )
