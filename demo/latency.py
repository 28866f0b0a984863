"""How long a call takes: most are quick, a few are very slow, and the same flight is as slow every time."""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

# The distribution is Pareto's with exponent 1, cut off where one call in a hundred is: at fifty times the median.
_SLOWEST = 50.0

MEDIAN_SECONDS = 0.1
"""Unless the reader chooses something else."""


@dataclass(frozen=True, slots=True)
class Latency:
    """A heavy-tailed distribution of latencies.

    Attributes
    ----------
    median : float
        Seconds. Nought means no added latency.
    seed : int
        Two runs with one seed wait alike, whatever the order of their calls.
    """

    median: float
    seed: int

    def of(self, flight_id: int) -> float:
        """Seconds that the call for this flight takes."""
        draw = xxhash.xxh64_intdigest(flight_id.to_bytes(8, "little"), seed=self.seed) / 2**64
        return self.median * min(0.5 / (1.0 - draw), _SLOWEST)
