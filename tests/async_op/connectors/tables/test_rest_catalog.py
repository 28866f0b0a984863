"""An Iceberg table in a catalog that is asked by HTTP, as managed catalogs are, and what such a catalog may answer."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from werkzeug.wrappers import Response

from async_op import FixedDelayRetry, Job
from async_op.connectors import IcebergSink, SinkRefused, SinkUnavailable, TargetMissing
from tests.async_op.connectors.tables.rest_catalog import RestCatalog, refusal
from tests.async_op.job.kit import new_job
from tests.loopback import serving
from tests.quick import first_is_quick

PAGE = "<html>\n<title>502 Bad Gateway</title>\n</html>"


@pytest.fixture(scope="module")
def served() -> Iterator[RestCatalog]:
    with serving(RestCatalog()) as found:
        yield found


@pytest.fixture
def catalog(served: RestCatalog, tmp_path: Path) -> RestCatalog:
    served.begin(f"file://{tmp_path}")
    return served


async def as_row(number: int) -> dict[str, Any]:
    return {"n": number, "name": str(number)}


def job_into(catalog: RestCatalog, folder: Path, *numbers: int, name: str = "job", **properties: str) -> Job:
    sink = IcebergSink("sales.orders", name, catalog=catalog.properties | properties, retry=FixedDelayRetry(3, delay=0))
    return new_job([*numbers], as_row, sink, snapshots=str(folder / name))


def numbers_in(catalog: RestCatalog) -> list[int]:
    client = load_catalog(**catalog.properties)
    try:
        return sorted(client.load_table("sales.orders").scan().to_arrow()["n"].to_pylist())
    finally:
        client.close()


def fails_once(catalog: RestCatalog, route: str, answer: Response, *, is_done: bool) -> None:
    """Have a request answered wrongly, before or after the catalog has done what was asked."""
    left = [answer]
    catalog.fault = lambda asked, done: left.pop() if left and (asked, done) == (route, is_done) else None


async def test_an_epoch_asks_for_the_table_and_for_its_commit_and_for_no_token(catalog: RestCatalog) -> None:
    oauth = {"credential": "someone:secret", "oauth2-server-uri": f"{catalog.url}/v1/oauth/tokens"}
    sink = IcebergSink("sales.orders", "job", catalog=catalog.properties | oauth)
    await sink.open()
    await sink.write([{"n": 1, "name": "1"}], 1)
    for epoch in (2, 3):
        catalog.asked.clear()
        await sink.write([{"n": epoch, "name": ""}], epoch)
        assert catalog.asked == ["table", "commit"]
    assert pickle.loads(pickle.dumps(sink)).name == "job"
    await sink.close()


async def test_each_epoch_is_there_once(catalog: RestCatalog, tmp_path: Path) -> None:
    for count in (2, 3):
        await job_into(catalog, tmp_path, *range(count)).run()
    assert numbers_in(catalog) == [0, 1, 2]
    oauth = {"credential": "someone:secret", "oauth2-server-uri": f"{catalog.url}/v1/oauth/tokens"}
    await job_into(catalog, tmp_path, 3, name="another", **oauth).run()
    assert numbers_in(catalog) == [0, 1, 2, 3]


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("route", "status"),
    [
        ("commit", 409),
        *first_is_quick(itertools.product(("table", "commit"), (429, 401, 419, 500, 502, 503, 504))),
    ],
)
async def test_what_may_pass_costs_no_row_and_repeats_none(
    catalog: RestCatalog, tmp_path: Path, route: str, status: int, is_done: bool
) -> None:
    await job_into(catalog, tmp_path, 0).run()
    fails_once(catalog, route, refusal(status, "Busy"), is_done=is_done)
    await job_into(catalog, tmp_path, 0, 1).run()
    assert numbers_in(catalog) == [0, 1]


@pytest.mark.parametrize("status", [400, 403, 422])
async def test_what_is_refused_is_not_tried_again(catalog: RestCatalog, tmp_path: Path, status: int) -> None:
    await job_into(catalog, tmp_path, 0).run()
    fails_once(catalog, "commit", refusal(status, "Refused", "a line\nanother"), is_done=False)
    with pytest.raises(SinkRefused, match=r"sales\.orders refuses writes: \w+: Refused: a line( another)?; correct"):
        await job_into(catalog, tmp_path, 0, 1).run()
    await job_into(catalog, tmp_path, 0, 1).run()
    assert numbers_in(catalog) == [0, 1]


async def test_the_page_of_a_proxy_is_told_in_one_line(catalog: RestCatalog, tmp_path: Path) -> None:
    catalog.fault = lambda route, is_done: Response(PAGE, 502)
    with pytest.raises(SinkUnavailable, match="could not be opened for the first epoch, at 3 attempts") as raised:
        await job_into(catalog, tmp_path, 0).run()
    assert "\n" not in str(raised.value)


async def test_a_table_that_was_dropped_is_not_made_again(catalog: RestCatalog, tmp_path: Path) -> None:
    await job_into(catalog, tmp_path, 0).run()
    client = load_catalog(**catalog.properties)
    client.drop_table("sales.orders")
    client.close()
    with pytest.raises(TargetMissing):
        await job_into(catalog, tmp_path, 0, 1).run()


async def test_jobs_that_write_at_once_lose_nothing(catalog: RestCatalog, tmp_path: Path) -> None:
    jobs = [job_into(catalog, tmp_path, *range(first, first + 10), name=f"job{first}") for first in (0, 10, 20)]
    await asyncio.gather(*(job.run() for job in jobs))
    assert numbers_in(catalog) == [*range(30)]
