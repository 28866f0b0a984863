"""The demo's data is real and messy, and stays so on its way into the stream."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from demo.data import FLIGHT_COLUMNS, load_flights, load_planes, load_weather, write_stream, write_tables
from demo.latency import MEDIAN_SECONDS, Latency
from demo.workspace import TIMEOUT_SECONDS

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    return load_flights()


def test_no_row_is_lost(flights: pd.DataFrame) -> None:
    assert len(flights) == 336_776
    assert flights["flight_id"].is_unique
    assert len(load_weather()) == 26_115
    assert len(load_planes()) == 3_322


def test_what_is_unknown_stays_unknown(flights: pd.DataFrame) -> None:
    weather = flights.merge(load_weather(), how="left", on=["origin", "time_hour"], indicator=True)
    planes = flights.merge(load_planes(), how="left", on="tailnum", indicator=True)

    assert flights["tailnum"].isna().sum() == 2_512
    assert flights["arr_delay"].isna().sum() == 9_430
    assert (weather["_merge"] == "left_only").sum() == 1_556
    assert (planes["_merge"] == "left_only").sum() == 52_606


def test_each_hour_has_one_weather_and_each_tail_number_one_plane() -> None:
    assert not load_weather().duplicated(["origin", "time_hour"]).any()
    assert load_planes()["tailnum"].is_unique


def test_a_flight_number_never_looks_like_a_tail_number(flights: pd.DataFrame) -> None:
    unknown = flights[flights["tailnum"].isna()]
    stand_ins = set(unknown["carrier"] + unknown["flight"].astype(str))

    assert stand_ins.isdisjoint(flights["tailnum"].dropna())


def test_flights_come_in_order_of_departure_and_the_row_breaks_ties(flights: pd.DataFrame) -> None:
    order = flights[["scheduled_departure", "flight_id"]]

    assert order.equals(order.sort_values(["scheduled_departure", "flight_id"]))
    assert flights.duplicated(["tailnum", "scheduled_departure"]).any(), "without ties nothing needs breaking"


def test_departures_are_instants() -> None:
    # The package's first row: New Year 2013, 5:15 in Newark, which is five hours behind UTC.
    flights = load_flights().set_index("flight_id")

    assert flights["scheduled_departure"].loc[0] == pd.Timestamp("2013-01-01T10:15Z")


def test_the_stream_is_the_flights_in_files_of_their_order(flights: pd.DataFrame, tmp_path: Path) -> None:
    first = flights.head(1_000)

    write_stream(first, tmp_path, 8)

    files = sorted(tmp_path.glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    assert len(files) == 8
    assert files == sorted(files), "Spark reads by modification time"
    assert [row for file in files for row in pq.read_table(file)["flight_id"].to_pylist()] == list(first["flight_id"])
    assert pq.read_schema(files[0]).names == list(FLIGHT_COLUMNS)


def test_a_missing_value_is_null_in_the_files(flights: pd.DataFrame, tmp_path: Path) -> None:
    write_stream(flights[flights["tailnum"].isna()], tmp_path, 1)
    write_tables(tmp_path)

    (file,) = tmp_path.glob("flights-*")
    assert pq.read_table(file)["tailnum"].null_count == 2_512
    assert pq.read_table(file)["arr_delay"].null_count == 2_512
    assert pq.read_table(tmp_path / "weather.parquet")["temp"].null_count == 1


@pytest.mark.thorough
def test_the_timeout_is_longer_than_all_calls_for_the_busiest_aircraft(flights: pd.DataFrame) -> None:
    latency = Latency(MEDIAN_SECONDS, seed=2013)
    aircraft = flights["tailnum"].fillna(flights["carrier"] + flights["flight"].astype(str))
    seconds = flights["flight_id"].map(latency.of).groupby(aircraft).sum()

    assert 1.5 * seconds.max() < TIMEOUT_SECONDS
