"""What the same work takes without the operator: a blocking client that makes one call at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pandas as pd
import valkey

from demo.enrichment import enriched, lookup_keys
from demo.latency import Latency

_SAMPLE_ROWS = 20


@dataclass(frozen=True, slots=True)
class Baseline:
    """What was measured.

    Attributes
    ----------
    rows : int
        Flights in the sample.
    seconds : float
        Wall time of the sample.
    """

    rows: int
    seconds: float

    def extrapolated(self, rows: int) -> float:
        """Seconds that so many flights would take at the pace of the sample."""
        return self.seconds / self.rows * rows


def measure_baseline(flights: pd.DataFrame, socket: str, latency: Latency) -> Baseline:
    """Enrich flights from all over the stream, one after the other."""
    step = max(1, len(flights) // _SAMPLE_ROWS)
    sample = flights.iloc[::step].head(_SAMPLE_ROWS)
    records = sample.assign(aircraft=sample["tailnum"]).astype(object).to_dict("records")
    previous: dict[Any, float] = {}
    begun = time.perf_counter()
    with valkey.Valkey(unix_socket_path=socket) as client:
        for flight in records:
            found: Any = client.mget(lookup_keys(flight))
            time.sleep(latency.of(flight["flight_id"]))
            enriched(flight, found, previous.get(flight["aircraft"]))
            previous[flight["aircraft"]] = flight["arr_delay"]
    return Baseline(len(records), time.perf_counter() - begun)
