"""What must be left when a simulated job has come to its end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from async_op.dead_letters import letter_value
from tests.async_op.job.simulation.scenario import as_row
from tests.async_op.job.simulation.sinks import is_of_sink, output_in
from tests.async_op.job.simulation.sources import row_in
from tests.async_op.job.simulation.world import World


class Oracle:
    """Compares what a world has with what its scenario must lead to."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.scenario = world.scenario
        letters = [letter for found in world.letters.values() for letter in found]
        self.letters = [letter for letter in letters if not is_of_sink(letter)]
        self.written = [value for epoch in sorted(world.epochs) for value in world.epochs[epoch]]
        self.refused = [output_in(letter) for letter in letters if is_of_sink(letter)]

    def check(self) -> None:
        """Check everything."""
        self._check_outputs()
        self._check_states()
        self._check_letters()
        self._check_keys()
        self._check_repeats()
        self._check_counters()

    def _check_outputs(self) -> None:
        """Each output is in the sink, or among the dead letters, or was left out, once."""
        world, scenario = self.world, self.scenario
        expected = {output for output in scenario.outputs() if scenario.is_refused(output)}
        if scenario.on_error == "skip":
            self.refused = [world.refused[output] for output in sorted(world.refused)]
        if scenario.fails_with_refused:
            self.refused = []
        elif not world.is_mended:
            found = {value[3] for value in self.refused}
            world.check(found == expected, f"the sink has refused {expected}, and {found} were left out")
        world.check({value[3] for value in self.refused} <= expected, "outputs were left out without a reason")
        self.values = [*self.written, *self.refused]
        names = [value[3] for value in self.values]
        world.check(sorted(names) == sorted(scenario.outputs()), "outputs are missing, or came twice")

    def _check_states(self) -> None:
        world = self.world
        counts = defaultdict(list)
        for key, count, seen, _ in self.values:
            counts[key].append(count)
            world.check(count == seen, "two states of a key disagree")
        for key, found in counts.items():
            world.check(sorted(found) == list(range(1, len(found) + 1)), f"the state of {key} is wrong: {found}")
        if self.scenario.second_mode != "unordered":
            self._check_order()
        stored = world.store.load().to_arrow("second.count")
        world.check(stored.num_rows == len(counts), "the last snapshot has other keys")

    def _check_order(self) -> None:
        """Each key's outputs keep their order in the sink, also over rescales and crashes."""
        counts, places = defaultdict(list), defaultdict(list)
        for key, count, _, (_, place, number) in self.written:
            counts[key].append(count)
            places[key].append((place, number))
        for key, found in counts.items():
            self.world.check(found == sorted(found), f"outputs of {key} are out of order: {found}")
        for key, names in places.items():
            # Where both steps have the same key.
            is_kept = not self.scenario.keyed_first or names == sorted(names)
            self.world.check(is_kept, f"the elements of {key} are out of order: {names}")

    def _check_letters(self) -> None:
        found = [self._row_in(letter)[:2] for letter in self.letters]
        bad = [row[:2] for row in self.scenario.rows() if self.scenario.is_bad(row)]
        self.world.check(sorted(found) == sorted(bad), "dead letters are missing, or came twice")

    def _row_in(self, letter: dict[str, Any]) -> Any:
        value = letter_value(letter)
        return row_in(value) if letter["step"] == "source" else as_row(value)

    def _check_keys(self) -> None:
        """The keys under which the job has paid have its lineage, its step, and what names the element."""
        lineage = self.world.store.load().manifest.lineage
        self.world.check(self.scenario.namespace in (None, lineage), f"the lineage is {lineage}")
        for key, (job, step, *names) in self.world.payments.paid.items():  # type: ignore[misc]
            if job == self.scenario.job:
                self.world.check(key.startswith(f"{lineage}/{step}/"), f"{names} was paid for as {key}")
                if self.scenario.source == "log" and names[0] != "timer":
                    self.world.check(key.endswith(self._id_of(*names)), f"{names} was paid for as {key}")

    def _id_of(self, partition: str, place: int, *number: int) -> str:
        return "/".join(map(str, (f"/{partition}@{place + 1}", *number)))

    def _check_repeats(self) -> None:
        """Nothing is written, and no call is made, more often than there were ends without a cut."""
        world, most = self.world, 1 + self.world.restarts
        for epoch, times in world.writes.items():
            world.check(times <= most + world.lost_marks, f"epoch {epoch} was delivered {times} times")
        results = Counter((step, key) for _, kind, step, key, *_ in _long(world.trace) if kind == "result")
        for call, times in results.items():
            world.check(times <= most, f"call {call} was made {times} times, with {most - 1} restarts")

    def _check_counters(self) -> None:
        """What the cuts have counted together is what has happened; what a crash has undone was not counted."""
        world, counted = self.world, Counter[str]()
        for version in world.store.versions():
            counted.update(world.store.load(version).manifest.metrics)
        rows = sum(map(self.scenario.is_record, self.scenario.rows()))
        of_steps = sum(letter["step"] != "source" for letter in self.letters)
        outputs = len(self.scenario.outputs()) + len(self.letters)
        world.check(counted["rows"] == rows, f"{counted['rows']} rows were counted")
        world.check(counted["outputs"] == outputs, f"{counted['outputs']} outputs were counted")
        world.check(counted["dead_letters"] == of_steps, f"{counted['dead_letters']} dead letters were counted")
        calls = sum(kind in ("call", "timer") for _, kind, *_ in world.trace)
        is_whole = counted["calls"] == calls if not world.restarts else counted["calls"] <= calls
        # A batch is counted before its coroutine takes its first step, which a rescale may prevent.
        world.check(
            is_whole or any(self.scenario.batched),
            f"{counted['calls']} of {calls} calls were counted, with {world.restarts} restarts",
        )


def _long(trace: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [event for event in trace if len(event) > 3]
