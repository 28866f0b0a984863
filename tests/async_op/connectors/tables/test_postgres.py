"""What PostgreSQL alone has: limits on how long a server may take, and types that change what they are given."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

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

    assert (asked, target.numbers()) == (["100s", "100s", "7s", "7s", "0", "0"], [0, 1, 2])


DOMAINS = (
    "create domain amount as numeric(3, 1); create domain price as amount; create domain amounts as numeric(3, 1)[]; "
    "create domain day as date; create domain code as varchar(3); create type mood as enum ('good'); "
    "create type visit as (n int, day date)"
)
CHANGED: list[tuple[str, Any]] = [
    ("amount", Decimal("9.25")),
    ("price", Decimal("9.25")),
    ("amounts", [Decimal("9.25")]),
    ("amount[]", [Decimal("9.25")]),
    ("day", datetime(2024, 2, 29, 12)),
    ("code", "abc   "),
    ('"char"', "ab"),
    ("name", "é" * 32),
    ("oid", -1),
    ("money", Decimal("1.005")),
    ("interval(0)", timedelta(milliseconds=1)),
    ("interval day to minute", timedelta(seconds=61)),
    ("interval year to month", timedelta(days=400)),
    ("interval second(3)", timedelta(microseconds=1)),
    ("visit", (1, datetime(2024, 2, 29, 12))),
    ("visit[]", [(1, datetime(2024, 2, 29, 12))]),
]
KEPT: list[tuple[str, Any]] = [
    ("price", Decimal("9.5")),
    ("day", date(2024, 2, 29)),
    ("mood", "good"),
    ('"char"', "a"),
    ("name", "é" * 31),
    ("oid", 2**32 - 1),
    ("interval", timedelta(days=1, microseconds=1)),
    ("interval day to second(3)", timedelta(milliseconds=1)),
    ("interval hour", timedelta(hours=25)),
]


async def test_a_value_that_a_rarer_type_or_a_domain_would_change_is_refused(server: str) -> None:
    columns = {f"v{number}": case for number, case in enumerate([*CHANGED, *KEPT])}
    with psycopg.connect(server) as connection:
        connection.execute("drop schema if exists rare cascade; create schema rare; set search_path to rare, public")
        connection.execute(DOMAINS)
        connection.execute(f"create table rare ({', '.join(f'{name} {kind}' for name, (kind, _) in columns.items())})")
    rows = [{name: value} for name, (_, value) in columns.items()]
    sink = PostgresSink(server, "rare.rare", str(uuid4()))
    refused = {error.index: error.column for error in await sink.refused(rows)}
    assert list(refused) == list(range(len(CHANGED)))
    assert all(column.partition("[")[0] == f"v{index}" for index, column in refused.items())

    await sink.write(rows[len(CHANGED) :], 1)
    await sink.close()
    with psycopg.connect(server) as connection:
        found = connection.execute("select * from rare.rare").fetchall()
    assert [[value for value in row if value is not None] for row in found] == [[value] for _, value in KEPT]


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
