"""What each version must hold, by a loop over the rows, one after the other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from snapshots import Snapshot
from tests.hosting.simulation.scenario import Row
from tests.hosting.simulation.service import check
from tests.hosting.simulation.states import LIVING, SEEN, after
from tests.hosting.simulation.storage import Version, epoch_of, is_row
from tests.simulation.plain import without_nothing

if TYPE_CHECKING:
    from tests.hosting.simulation.cluster import Cluster

PARALLELISM_MAX = 3


class Oracle:
    """Compares each version with a loop over the rows, one after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.out: set[int] = set()
        self.timers: set[Any] = set()
        self.done: dict[int, frozenset[int]] = {}
        self._draw = cluster.scenario.random("oracle")
        self._compared: int | None = None
        self._seen: tuple[Counter[int], set[int]] = (Counter(), set())

    def done_in(self, snapshot: Snapshot | None) -> frozenset[int]:
        """Return the rows whose calls have returned in a version and those before it."""
        return frozenset() if snapshot is None else self.done[snapshot.version]

    def look(self, version: Version) -> None:
        """Check a version that has just come."""
        if epoch_of(version.snapshot) != version.number:
            self.done[version.number] = self.done[version.number - 1]  # a claim, over the files of the one before
            return
        fed = [row for batch in self.cluster.scenario.batches[: version.batch + 1] for row in batch]
        for kind, subject, place in version.outputs:
            gone, name = (self.out, subject) if kind == "row" else (self.timers, (subject, place))
            check(name not in gone, f"{kind} {name} leaves twice")
            gone.add(name)
        kept = [element for element in version.in_flight if is_row(element)]
        self._check_bound(version, [element.value[0] for element in kept])
        names = [element.value[0] for element in kept]
        check(len(names) == len(set(names)), f"in flight twice: {names}")
        check(not self.out & set(names), f"in flight and gone: {self.out & set(names)}")
        check(self.out | set(names) == {row.number for row in fed}, f"of {fed}, {self.out} are gone, {names} in flight")
        for element in kept:
            check(element.element_id == f"row-{element.value[0]}", f"{element.value} has lost its id")
        done = self.out | {element.value[0] for element in kept if element.completed}
        self.done[version.number] = frozenset(done)
        if self.cluster.scenario.states:
            self._check_order(fed, done)
        # What is lost is missing from most of the later versions, too, and the calls for later rows look as well.
        if self.cluster.draw.random() < 0.25:
            self._check_content(version, [row for row in fed if row.number in done])

    def look_at_the_end(self, version: Version) -> None:
        """Check the last version, which must have what all rows have done."""
        if epoch_of(version.snapshot) != self._compared:
            self._check_content(version, [row for batch in self.cluster.scenario.batches for row in batch])

    def _check_bound(self, version: Version, in_flight: Sequence[int]) -> None:
        """Check that rows of earlier batches are no more than hosts have room for: calls, and those in reserve.

        Hosts that are restored may have taken over calls of others. Rows that wait for their key have a bound of their
        own, which these runs do not reach.
        """
        scenario = self.cluster.scenario
        newest = {row.number for row in scenario.batches[version.batch]} if version.batch >= 0 else set()
        earlier = [number for number in in_flight if number not in newest]
        bound = PARALLELISM_MAX * (scenario.capacity + max(scenario.capacity, scenario.reserve_max))
        check(scenario.mode == "key_ordered" or len(earlier) <= bound, f"{len(earlier)} rows wait, at most {bound} may")

    def _check_order(self, fed: Sequence[Row], done: set[int]) -> None:
        waiting: dict[str, Row] = {}
        for row in fed:
            if row.number not in done:
                waiting.setdefault(row.key, row)
            check(row.number not in done or row.key not in waiting, f"{row} has overtaken {waiting.get(row.key)}")

    def _check_content(self, version: Version, done: Sequence[Row]) -> None:
        """Look at the state with a key and without as hosts of some parallelism would restore it."""
        self._compared = epoch_of(version.snapshot)
        parallelism = self._draw.choice((1, 1, version.snapshot.max_parallelism))
        self._check_states(version, parallelism, done)
        if SEEN.name in self.cluster.scenario.states:
            self._check_seen(version.items(SEEN, parallelism), {row.number for row in done})

    def _check_states(self, version: Version, parallelism: int, done: Sequence[Row]) -> None:
        """Compare each state with what the rows have made of it, one after the other, entry by entry."""
        numbers: dict[str, list[int]] = defaultdict(list)
        for row in done:
            numbers[row.key].append(row.number)
        service = self.cluster.service
        now = service.wall_time()
        for state in self.cluster.scenario.keyed_states:
            found = version.table(state, now, parallelism)
            if state is LIVING:
                check(found.keys() <= numbers.keys(), f"{found} has keys without rows")
                for key in numbers:
                    service.check_living(numbers[key], found.get(key) or {}, now)
                continue
            expected = without_nothing({key: after(state, rows).held for key, rows in numbers.items()})
            found = without_nothing(found)
            check(found == expected, f"{state.name} is {found}, not {expected}")

    def _check_seen(self, seen: Counter[int], done: set[int]) -> None:
        """What calls have written without a key counts at once: at least once where a call was in flight, else once."""
        before, done_before = self._seen
        check(before <= seen, f"{before - seen} were seen, and no more are")
        again = {row for row in done_before if seen[row] != before[row]}
        check(not again, f"{again} are seen again, although their calls had returned")
        calls = self.cluster.service.calls
        check(done <= seen.keys() and seen <= calls, f"{seen} were seen of the calls {calls} for {done}")
        self._seen = seen, done
