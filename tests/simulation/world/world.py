"""One world of one seed: operators with real content, their snapshots, a storage that fails, and others beside them."""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from async_op import ElementFailed, InvocationContext, Watermark
from async_op.testing import VirtualLoop
from keygroups.descriptors import StateDescriptor
from snapshots import (
    CommitConflict,
    CommitOutcomeUnknown,
    IncompatibleSnapshot,
    IncompleteSnapshot,
    SnapshotStore,
    WriterFenced,
)
from snapshots.format import file_lists
from snapshots.testing.wrappers import Operation
from snapshots.versions import expired_version
from tests.simulation.abandon import run_alone
from tests.simulation.fed import NAMESPACE, FedRun
from tests.simulation.histories import HISTORY, STATES, BatchHistorian, Event, numbers_of
from tests.simulation.luck import without_luck
from tests.simulation.remembered import remembered
from tests.simulation.wild import KEYS, KEYS_OF_FLINK
from tests.simulation.world import damage
from tests.simulation.world.function import NOTE, BatchInWorld, InWorld
from tests.simulation.world.life import Life
from tests.simulation.world.neighbours import Neighbours
from tests.simulation.world.oracle import Oracle, Truth
from tests.simulation.world.storage import REQUEST_FAULTS, SYNC_FAULTS, Process, Storage
from tests.simulation.world.thresholds import buggified
from tests.simulation.world.upkeep import Upkeep

LIVES_MAX = 30
CALM_AFTER = 4
"""So many lives have faults, that every run ends."""

WILD_SHARE = 0.2
"""In so many worlds the keys are wild."""

HOW_MANY_STATES = (1, 1, 1, 2, 3, 6)
"""So many kinds of states a world may have, beside the history and the note."""

NEIGHBOURS_SHARE = 0.4
"""In so many worlds other operators call the same service."""

KINDS = frozenset(
    {*REQUEST_FAULTS, *SYNC_FAULTS, *damage.KINDS, "stall", "pause", "clock jump", "others", "cancellation"}
)


class WorldLoop(VirtualLoop):
    """A virtual loop whose wall clock can be set."""

    ahead_ms = 0

    def wall_time(self) -> int:
        """Return the processing time in milliseconds since the epoch."""
        return super().wall_time() + self.ahead_ms


class World(FedRun):
    """All lives of one seed.

    Parameters
    ----------
    seed : int
        Decides everything.
    kinds : frozenset of str, optional
        The kinds of faults; by default some, which the seed decides.
    """

    def __init__(self, seed: int, kinds: frozenset[str] | None = None, *, on_disk: bool | None = None) -> None:
        draw = random.Random(f"{seed}/world")
        super().__init__(draw, seed, WorldLoop())
        # Fewer than elsewhere: each version is read key group by key group.
        self.groups = draw.choice((1, 2, 3, 4))
        self.states = self._some_states()
        self.function = BatchInWorld if self.function is BatchHistorian else InWorld
        drawn = frozenset(kind for kind in sorted(KINDS) if draw.random() < 0.5)
        has_neighbours = random.Random(f"{seed}/neighbours").random() < NEIGHBOURS_SHARE
        self.kinds = drawn | ({"neighbours"} if has_neighbours else set()) if kinds is None else kinds
        is_local = draw.random() < 0.5
        self.storage = Storage(random.Random(f"{seed}/storage"), on_disk=is_local if on_disk is None else on_disk)
        self.storage.interrupt = self._interrupt
        self.clean = SnapshotStore.on(self.storage.shared)
        self.oracle = Oracle(seed, self.states, self.clean, self.times)
        self.upkeep = Upkeep(self)
        self.neighbours = Neighbours(self)
        self.hashes: tuple[str, ...] = ("xxhash64", "flink")
        if draw.random() < WILD_SHARE:
            self._go_wild(draw)
        self.draw = random.Random(f"{seed}/steps")
        self.lives = self.disturbances = self.depth = 0
        self.attempts: Counter[tuple[str, Event]] = Counter()
        self.answered: set[tuple[str, Event]] = set()
        self.errors: list[Any] = []
        self.restored_from: int | None = None
        """The version that the operators may still read; nobody else gives up its pin."""
        self._attempts_begun = 0
        self.begin(Truth(), is_restored=False)

    def _some_states(self) -> tuple[StateDescriptor, ...]:
        """Draw the states: in most worlds a few, so that there is time for more worlds, and in some all of them."""
        draw = random.Random(f"{self.seed}/states")
        kinds = [state for state in STATES if state is not HISTORY]
        return (HISTORY, NOTE, *draw.sample(kinds, draw.choice(HOW_MANY_STATES)))

    def _go_wild(self, draw: random.Random) -> None:
        """Let the keys be of all types."""
        names = dict.fromkeys(item[1] for item in self.items if not isinstance(item, Watermark))
        wild = dict(zip(names, draw.sample(sorted(KEYS), len(names)), strict=True))
        if not {*wild.values()} <= KEYS_OF_FLINK:
            self.hashes = ("xxhash64",)
        self.items = [item if isinstance(item, Watermark) else (item[0], wild[item[1]]) for item in self.items]

    @property
    def is_calm(self) -> bool:
        """Whether nothing fails any more."""
        return self.lives >= CALM_AFTER

    async def go(self) -> None:
        """Live again and again until the input has come to its end."""
        while not await Life(self, self.lives).run():
            self.lives += 1
            assert self.lives < LIVES_MAX, "the run never ends"
            self._between_lives()
        self.storage.settle()
        self.oracle.check_all()
        assert not self.errors, self.errors

    def _between_lives(self) -> None:
        if self.storage.has_lost_power:
            self.storage.restart()
            self.upkeep.sleepers.clear()
        self.errors.clear()
        self.storage.shared.now += self.draw.choice((0.0, 100.0, 400.0))
        if self.is_calm:
            self.storage.settle()
            self.upkeep.sleepers.clear()
        self.oracle.check()

    # What the operators' function and their coordinator ask.

    def begin(self, truth: Truth, *, is_restored: bool) -> None:
        """Begin a life with what a snapshot holds."""
        self.begin_life()
        self.truth, self.is_restored = truth, is_restored
        self.accepted, self.places = set(truth.accepted), truth.places
        self.attempts, self.answered = Counter(truth.attempts), set()
        self.is_finishing = False

    def call_as(self, lineage: str) -> None:
        """Make calls with a lineage, which an operator keeps from its first start on."""
        assert self.lineage in (NAMESPACE, lineage), f"the lineage is {lineage}, and calls were made as {self.lineage}"
        self.lineage = lineage

    def note(self, key: str, done: int) -> int:
        """Return the note of a key after so many events."""
        return self.truth.notes.get(key, 0) + done - len(self.truth.histories.get(key, ()))

    def call_begins(self, key: str, event: Event, ctx: InvocationContext) -> None:
        """Check the id, and that no call is made again that has ended for good."""
        super().call_begins(key, event, ctx)
        if ctx.attempt == 1 and (key, event) in self.answered:
            # A timer that was registered again is another element.
            self.answered.remove((key, event))
            del self.attempts[key, event]
        self.attempts[key, event] += 1
        expected = self.attempts[key, event]
        assert ctx.attempt == expected, f"{event} of {key} is at its attempt {ctx.attempt}, not {expected}"
        if event[0] == "record":
            done = numbers_of(self.truth.histories.get(key, ()))
            assert event[1] not in done, f"{event} of {key} is paid for twice"

    def may_be_at(self, key: str, event: Event) -> set[int]:
        """Return the attempts at which a pending element may be; an answer that is not applied yet changes nothing."""
        ran = self.attempts.get((key, event), 0)
        return {ran, ran + 1} | ({1} if (key, event) in self.answered else set())

    def accepted_by(self, histories: dict[str, list[Any]], pending: set[int]) -> frozenset[int]:
        """Return the records that a snapshot has."""
        return frozenset(number for history in histories.values() for number in numbers_of(history)) | pending

    def is_complete(self, truth: Truth) -> bool:
        """Check the end: all records were applied, and everything has left."""
        records = {item[0] for item in self.items if not isinstance(item, Watermark)}
        assert truth.accepted == records, f"{records - truth.accepted} never came in"
        assert not truth.in_flight, f"{truth.in_flight} are in flight after the end"
        return True

    # What is committed, and what else happens.

    def begin_attempt(self, truth: Truth) -> str:
        """Note what an attempt to commit would make true."""
        self._attempts_begun += 1
        attempt = f"attempt {self._attempts_begun}"
        self.oracle.truths[attempt, truth.marks] = truth
        return attempt

    def refuse(self, attempt: str, error: Exception, process: Any) -> None:
        """Note what the writer was told; only some errors say that there is no effect."""
        if isinstance(error, CommitConflict | WriterFenced | IncompleteSnapshot):
            self.oracle.refused.add(attempt)
        if isinstance(error, CommitOutcomeUnknown):
            self.disturbances += 1
        self.excuse(error, process)

    def excuse(self, error: Exception, process: Any) -> None:
        """Object to an error that nothing which went wrong explains."""
        if self.violations:
            raise self.violations[0]
        reasons = [error, *([error.__cause__] if isinstance(error, ElementFailed) else [])]
        if not any(self._is_explained(reason, process) for reason in reasons):
            raise error
        self.storage.met[type(error).__name__] += 1

    def _is_explained(self, error: BaseException | None, process: Process) -> bool:
        match error:
            case CommitConflict() | WriterFenced() | IncompatibleSnapshot():
                return self.disturbances > 0
            case IncompleteSnapshot():
                return self.upkeep.is_late
            case CommitOutcomeUnknown(version=version) if version <= expired_version(self.clean.folder):
                return True  # others have built on it, and retention has removed it, before its writer looked
            case CommitOutcomeUnknown() | ConnectionError() | TimeoutError():
                return process.is_faulty
            case OSError(errno=errno.ENOSPC):
                return process.is_faulty and "disk full" in self.kinds
        return False

    def step(self) -> None:
        """Let somebody else do something, and compare what there is with what was promised."""
        if self.depth == 0:
            # What is interrupted takes no time: the grace period must exceed the longest commit.
            self.storage.shared.now += self.draw.choice((0.0, 1.0, 10.0))
            if "clock jump" in self.kinds and self.draw.random() < 0.2:
                self.storage.met["clock jump"] += 1
                self.times()
                self.loop.ahead_ms += self.draw.choice((-10_000, -500, 500, 10_000, 3_600_000))
        damages = sorted(self.kinds & damage.KINDS)
        if damages and self.depth == 0 and self.draw.random() < 0.15:
            damage.damage_something(self, self.draw.choice(damages), self.draw)
        if "others" in self.kinds:
            self.upkeep.step()
        self.oracle.check()

    def _interrupt(self, operation: Operation) -> None:
        may_be_overtaken = "others" in self.kinds and not self.is_calm and not self.upkeep.is_late
        # The last moment before a commit is the worst one.
        rate = 0.1 if operation == "create" else 0.01
        if may_be_overtaken and self.depth < 2 and self.draw.random() < rate:
            self.depth += 1
            try:
                self.upkeep.step()
            finally:
                self.depth -= 1


def _none_of(infos: object) -> dict[Any, Any]:
    return {}


@contextmanager
def installed(world: World) -> Iterator[None]:
    """Let the library use this world's storage and its thresholds, and nothing depend on luck."""
    with ExitStack() as patches:
        patches.enter_context(without_luck(world.seed))
        # A process has what it has read, and this one stands for many.
        patches.enter_context(mock.patch.object(file_lists, "held_lists", _none_of))
        if world.storage.disk is not None:
            patches.enter_context(world.storage.disk.installed())
        patches.enter_context(remembered())
        patches.enter_context(buggified(random.Random(f"{world.seed}/thresholds")))
        yield


def simulate(seed: int, kinds: frozenset[str] | None = None, *, on_disk: bool | None = None) -> World:
    """Run a seed to its end; raises what goes wrong."""
    world = World(seed, kinds, on_disk=on_disk)
    world.loop.set_exception_handler(lambda _, context: world.errors.append(context))
    with installed(world):
        run_alone(world.loop, world.go())
    return world
