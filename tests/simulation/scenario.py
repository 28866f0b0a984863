"""What a seed stands for: the settings of a run, its input, and how each call behaves."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, NamedTuple

from async_op import ExponentialBackoffRetry, FixedDelayRetry, Resilience, RetryPolicy, Watermark
from keygroups import key_group_of
from tests.simulation.limits import resilience_of

FOREVER = 1e6

THREADED = ("blocking", "threaded callback")
"""The kinds of functions whose calls run on threads."""


class Item(NamedTuple):
    """A record of the input. `value` is what the operator gets."""

    index: int
    key: str | None
    key_group: int
    timestamp: int

    @property
    def value(self) -> tuple[Any, ...]:
        return (self.index, self.key)


class Plan(NamedTuple):
    """How one call behaves.

    Attributes
    ----------
    delay : float
        Seconds until it ends; negative for one that returns without waiting at all.
    ending : str
        "outputs", "retry" (a result that asks to be tried again), "error" or "after" (an error with a delay).
    outputs : int
        How many.
    stubborn : bool
        It goes on when it is cancelled.
    """

    delay: float
    ending: str
    outputs: int
    stubborn: bool


@dataclass(frozen=True)
class Scenario:
    """All that is random in a run comes from here, and only from the seed."""

    seed: int
    mode: str
    kind: str
    capacity: int
    timeout: float | None
    groups: int
    keyed: bool
    stateful: bool
    retry: RetryPolicy | None
    retry_delay: float | None
    on_error: str
    fallback: bool
    rough: bool
    """Whether calls fail."""
    slow: bool
    """Whether calls may take longer than the timeout."""
    stubborn: bool
    """Whether calls may go on when they are cancelled."""
    named: bool
    """Whether the source gives its records ids."""
    items: tuple[Item | Watermark, ...]
    resilience: Resilience | None

    @property
    def is_threaded(self) -> bool:
        """Whether calls run on threads."""
        return self.kind in THREADED

    @property
    def is_awaited(self) -> bool:
        """Whether outputs go to a consumer that is awaited."""
        return self.random("consumer").random() < 0.4

    def random(self, *names: object) -> random.Random:
        """Return the random numbers of one purpose, so that none moves another's."""
        return random.Random("/".join(map(str, (self.seed, *names))))

    def plan(self, index: int, call: int) -> Plan:
        """Return how a call behaves: the `call`-th for this element, over all restarts."""
        draw = self.random("call", index, call)
        delay = draw.choice((-1.0, -1.0, 0.0, 0.5, 1.0, 1.0, draw.random(), 3 * draw.random()))
        if self.slow and draw.random() < 0.15:
            delay = FOREVER if self.timeout is not None and draw.random() < 0.5 else 8.0
        ending = "outputs"
        # A bound on failures, so that every run ends.
        if self.rough and call < 6 and draw.random() < (0.3 if self.retry or self.on_error != "fail" else 0.03):
            ending = draw.choice(("error", "retry", "after")) if self.retry else "error"
        return Plan(delay, ending, draw.choice((0, 1, 1, 1, 2, 3)), self.stubborn and draw.random() < 0.2)

    def consumes_for(self, *names: object) -> float | None:
        """Return how long the consumer takes for an output in seconds; None if it takes it at once."""
        draw = self.random("consumes", *names)
        return draw.choice((None, 0.0, 0.0, 0.1 * draw.random(), draw.random())) if self.is_awaited else None


def scenario_of(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    draw = random.Random(f"{seed}/scenario")
    mode = draw.choice(("ordered", "unordered", "key_ordered"))
    keyed = mode == "key_ordered" or draw.random() < 0.7
    groups = draw.choice((1, 2, 3, 5, 16))
    retry, retry_delay = _retry(draw)
    kind = draw.choice(("coroutine", "coroutine", "callback", "batch", *THREADED))
    timeout = draw.choice((None, None, 2.0, 5.0))
    return Scenario(
        seed=seed,
        mode=mode,
        kind=kind,
        capacity=draw.choice((1, 2, 3, 5, 10, 100)),
        timeout=timeout,
        groups=groups,
        keyed=keyed,
        stateful=keyed and draw.random() < 0.7,
        retry=retry,
        retry_delay=retry_delay,
        on_error=draw.choice(("fail", "fail", "skip", "dead_letter")),
        fallback=draw.random() < 0.8,
        rough=draw.random() < 0.6,
        slow=draw.random() < 0.6,
        stubborn=draw.random() < 0.3,
        named=draw.random() < 0.5,
        items=_items(draw, groups, keyed=keyed),
        resilience=resilience_of(seed),
    )


def _retry(draw: random.Random) -> tuple[RetryPolicy | None, float | None]:
    """Return a policy and the least delay between two attempts."""

    def asks(outputs: Any) -> bool:
        return any(output[2] == "retry" for output in outputs)

    attempts = draw.choice((2, 3, 4))
    match draw.choice(("none", "none", "fixed", "exponential")):
        case "fixed":
            delay = draw.choice((0.0, 0.5, 3.0))
            return FixedDelayRetry(attempts, delay, retry_if_result=asks), delay
        case "exponential":
            return ExponentialBackoffRetry(attempts, 0.25, 1.0, jitter=False, retry_if_result=asks), 0.25
    return None, None


def _items(draw: random.Random, groups: int, *, keyed: bool) -> tuple[Item | Watermark, ...]:
    keys = [f"k{number}" for number in range(draw.choice((1, 2, 4, 9)))]
    watermarks = draw.choice((0.0, 0.1, 0.3))
    items: list[Item | Watermark] = []
    newest = 0
    for index in range(draw.randrange(10, 60)):
        if draw.random() < watermarks:
            newest += draw.randrange(1, 10)
            items.append(Watermark(newest))
        key = draw.choice(keys) if keyed else None
        # Without a key, a share of the source takes the place of the key group.
        group = index % groups if key is None else key_group_of(key, groups)
        items.append(Item(index, key, group, newest + draw.randrange(1, 20)))
    return tuple(items)
