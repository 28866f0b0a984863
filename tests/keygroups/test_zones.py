"""Times of a column have zones of Python, also where Arrow makes zones of pytz."""

from __future__ import annotations

import datetime as dt
import importlib.util
import os
import subprocess
import sys
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from keygroups.codec import pack
from keygroups.values import columns, values_of
from keygroups.values.zones import has_zones_of_pytz, zone_of

AUTUMN = dt.datetime(2026, 10, 25, tzinfo=dt.UTC)
"""In Berlin, the clocks are set back an hour after this."""
ZONES = {"UTC": ZoneInfo("UTC"), "Europe/Berlin": ZoneInfo("Europe/Berlin"), "+00:00": dt.UTC}
ZONES |= {
    f"{sign}05:30": dt.timezone(number * dt.timedelta(hours=5, minutes=30)) for sign, number in (("+", 1), ("-", -1))
}


@pytest.fixture(params=["as Arrow makes it", "as it is made of a zone of pytz"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "pytz" in request.param:
        monkeypatch.setattr(columns, "has_zones_of_pytz", lambda: True)


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("name", ZONES)
def test_a_time_has_a_zone_of_python_wherever_it_is(name: str) -> None:
    moments = [AUTUMN + dt.timedelta(minutes=15 * step) for step in range(10)]
    column = pa.array([*moments, None], pa.timestamp("us", name))
    rows = range(len(column))
    lists = pa.ListArray.from_arrays([*rows, len(column)], column)
    structs = pa.StructArray.from_arrays([column], ["at"])
    maps = pa.MapArray.from_arrays([0, len(column)], pa.array(rows), column)

    expected = shown([*(moment.astimezone(ZONES[name]) for moment in moments), None])
    assert shown(values_of(column)) == expected
    assert shown(values_of(pa.chunked_array([column[:2], column[2:]]))) == expected
    assert shown([value for (value,) in values_of(lists)]) == expected
    assert shown([struct["at"] for struct in values_of(structs)]) == expected
    assert [shown([*one.values()]) for one in values_of(maps)] == [expected]


def shown(values: list[dt.datetime | None]) -> list[tuple[str, int] | None]:
    return [value and (repr(value), value.fold) for value in values]


@pytest.mark.parametrize("name", ZONES)
def test_a_zone_is_one_of_python_whatever_arrow_returns_for_its_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytz = pytest.importorskip("pytz")
    minutes = int(ZONES[name].utcoffset(None).total_seconds() // 60) if ":" in name else 0
    zone = pytz.FixedOffset(minutes) if ":" in name else pytz.timezone(name)
    monkeypatch.setattr(pa.lib, "string_to_tzinfo", lambda _: zone)
    zone_of.cache_clear()

    assert repr(zone_of(name)) == repr(ZONES[name])

    zone_of.cache_clear()


def test_where_pytz_is_not_installed_arrow_makes_no_zones_of_it() -> None:
    assert importlib.util.find_spec("pytz") is not None or not has_zones_of_pytz()


WITHOUT_A_DATABASE = """
import datetime as dt, importlib.metadata
import pyarrow as pa
from keygroups.codec import unpack
from keygroups.values import values_of

print(unpack(bytes.fromhex("{packed}")), *values_of(pa.array([0], pa.timestamp("us", "UTC"))))
print(any(one.startswith("tzdata") for one in importlib.metadata.requires("keygroups")))
"""


def test_zones_are_known_on_a_system_that_has_none() -> None:
    """As on small images of containers."""
    packed = pack(AUTUMN.astimezone(ZoneInfo("Europe/Berlin")), "a value").hex()
    program = WITHOUT_A_DATABASE.format(packed=packed)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONTZPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["2026-10-25 02:00:00+02:00 1970-01-01 00:00:00+00:00", "True"]
