"""What PostgreSQL alone has: limits on how long a server may take."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from async_op.connectors import PostgresSink
from async_op.connectors.epoch_rows import OutputRows
from async_op.connectors.tables import postgres
from tests.async_op.connectors.tables.targets import Postgres


async def test_a_statement_that_waits_for_another_writer_ends(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Postgres(server)
    sink = target.sink()
    await sink.write([{"n": 1}], 1)
    with psycopg.connect(server) as other, monkeypatch.context() as patch:
        other.execute("select epoch from keygroups_epochs for update")
        patch.setattr(postgres, "_STATEMENT_SECONDS_MAX", 1)
        with pytest.raises(psycopg.errors.QueryCanceled):
            await sink.write([{"n": 2}], 2)
    await sink.write([{"n": 2}], 2)
    await sink.close()

    assert target.numbers() == [1, 2]


async def test_a_limit_of_the_user_wins(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_STATEMENT_SECONDS_MAX", 100)
    asked: list[str] = []
    target = Postgres(server)

    def look(self: PostgresSink, connection: psycopg.Connection) -> int:
        asked.append(connection.execute("show statement_timeout").fetchone()[0])
        return lock(self, connection)

    lock = PostgresSink._lock
    monkeypatch.setattr(PostgresSink, "_lock", look)
    for number, own in enumerate(({}, {"options": "-c statement_timeout=7s"}, {"options": "-c statement_timeout=0"})):
        sink = PostgresSink(make_conninfo(server, **own), "orders", "job")
        await sink.write([{"n": number}], number)
        await sink.close()

    assert (asked, target.numbers()) == (["100s", "7s", "0"], [0, 1, 2])


@pytest.mark.parametrize(("own", "seconds"), [("", 30), ("?connect_timeout=3", "3")])
def test_connecting_is_bounded(own: str, seconds: object, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def connect(url: str, *, connect_timeout: object, **others: object) -> None:
        seen.append(connect_timeout)
        raise psycopg.OperationalError

    monkeypatch.delenv("PGCONNECT_TIMEOUT", raising=False)
    monkeypatch.setattr(psycopg, "connect", connect)
    with pytest.raises(psycopg.OperationalError):
        PostgresSink("postgresql://db.example/sales" + own, "orders", "job").write_rows(OutputRows([{"n": 1}]), 1)
    assert seen == [seconds]
