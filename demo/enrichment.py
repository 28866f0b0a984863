"""The asynchronous function: weather and plane from the service, the aircraft's last delay from keyed state."""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import valkey.asyncio

from async_op import AsyncFunction
from demo.keys import plane_key, weather_key
from demo.latency import Latency
from keygroups import ValueState

PREVIOUS_ARRIVAL_DELAY = ValueState("previous_arrival_delay", pa.float64())

OUTPUT_SCHEMA = """
    flight_id bigint, aircraft string, scheduled_departure timestamp, carrier string, flight bigint,
    origin string, dest string, arr_delay double,
    temp double, wind_speed double, visib double,
    manufacturer string, model string, seats bigint,
    previous_arrival_delay double
"""

_PASSED_ON = ("flight_id", "aircraft", "scheduled_departure", "carrier", "flight", "origin", "dest", "arr_delay")
_NO_WEATHER: dict[str, Any] = {"temp": None, "wind_speed": None, "visib": None}
_NO_PLANE: dict[str, Any] = {"manufacturer": None, "model": None, "seats": None}

_CONNECTIONS = 16
_SAMPLE_INTERVAL_S = 0.1


def lookup_keys(flight: Mapping[str, Any]) -> list[str]:
    """Name what the service is asked for about a flight, in one call."""
    return [weather_key(flight["origin"], flight["time_hour"]), plane_key(flight["tailnum"])]


def enriched(flight: Mapping[str, Any], found: list[bytes | None], previous: float | None) -> dict[str, Any]:
    """Join a flight with what the service found, and with how late its aircraft last landed."""
    weather, plane = found
    return {
        **{name: flight[name] for name in _PASSED_ON},
        **(json.loads(weather) if weather else _NO_WEATHER),
        **(json.loads(plane) if plane else _NO_PLANE),
        "previous_arrival_delay": previous,
    }


class FlightEnrichment(AsyncFunction):
    """Enrich a flight by one call to the service, and remember its arrival for the aircraft's next flight.

    Parameters
    ----------
    socket : str
        Unix socket of the service.
    latency : Latency
        How long the service takes to answer.
    samples : Path
        Folder for the figures of the plot.
    """

    states = (PREVIOUS_ARRIVAL_DELAY,)

    def __init__(self, socket: str, latency: Latency, samples: Path) -> None:
        self.socket = socket
        self.latency = latency
        self.samples = samples
        self.in_flight = 0
        self.completed = 0

    async def open(self, runtime: Any) -> None:
        """Connect to the service, and start to take samples."""
        # Calls share a few connections, since a connection each would soon be more than a process may have open.
        # The client's own timeouts are off: the pipeline's covers the whole call.
        pool = valkey.asyncio.BlockingConnectionPool(
            connection_class=valkey.asyncio.UnixDomainSocketConnection,
            path=self.socket,
            max_connections=_CONNECTIONS,
            timeout=None,
            socket_timeout=None,
        )
        self.client = valkey.asyncio.Valkey.from_pool(pool)
        self.sampler = asyncio.create_task(self._sample())

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[dict[str, Any]]:
        """Enrich one flight."""
        self.in_flight += 1
        try:
            found = await self.client.mget(lookup_keys(value))
            await asyncio.sleep(self.latency.of(value["flight_id"]))
        finally:
            self.in_flight -= 1
        self.completed += 1
        state = ctx.state(PREVIOUS_ARRIVAL_DELAY)
        previous = state.value()
        # A flight that never arrived says nothing of how late the aircraft is.
        if value["arr_delay"] is not None:
            state.update(value["arr_delay"])
        return [enriched(value, found, previous)]

    async def close(self) -> None:
        """Stop the samples and leave the service."""
        self.sampler.cancel()
        await self.client.aclose()

    async def _sample(self) -> None:
        path = self.samples / f"{os.getpid()}-{uuid.uuid4().hex}.jsonl"
        with path.open("a") as file:
            while True:
                sample = {"at": time.time(), "in_flight": self.in_flight, "completed": self.completed}
                # Flushed line by line, so that a kill loses none.
                file.write(json.dumps(sample) + "\n")
                file.flush()
                await asyncio.sleep(_SAMPLE_INTERVAL_S)
