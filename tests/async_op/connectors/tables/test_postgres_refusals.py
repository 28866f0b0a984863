"""What PostgreSQL refuses is named with table, column and line, and values stay hidden."""

from __future__ import annotations

import pickle
import random
import traceback
from datetime import datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from async_op.connectors import PostgresSink, SinkRefused, UnwritableValue
from keygroups.errors import SHOW_VALUES

SECRET = "ann@example.org"
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.fixture
def table(server: str) -> str:
    """Make a table with each kind of constraint."""
    with psycopg.connect(server) as connection:
        connection.execute("drop table if exists constrained, known, keygroups_epochs cascade")
        connection.execute("create table known (id text primary key)")
        connection.execute(
            "create table constrained (n bigint unique, mail varchar(30), checked text check (checked like 'a%'), "
            "needed int not null default 1, known text references known, "
            "later text references known deferrable initially deferred, extra jsonb, amount numeric(3, 1))"
        )
    return "constrained"


def sink_into(server: str, table: str = "constrained") -> PostgresSink:
    return PostgresSink(server, table, "job")


def numbers(server: str) -> list[int]:
    with psycopg.connect(server) as connection:
        return [n for (n,) in connection.execute("select n from constrained order by n")]


REFUSED = {
    "number for text": ({"mail": 15}, "mail", "it is a int, not string"),
    "type": ({"n": SECRET}, "n", "it is a str, not int64"),
    "unique": ({"n": 1, "mail": SECRET}, None, "unique constraint 'constrained_n_key'"),
    "length": ({"mail": SECRET * 3}, "mail", "its length does not fit character varying(30)"),
    "amount": ({"amount": Decimal("99.25")}, "amount", "more than 1 digits after the point"),
    "check": ({"checked": f"z{SECRET}"}, None, "check constraint 'constrained_checked_check'"),
    "null": ({"needed": None, "mail": SECRET}, "needed", "is not null"),
    "foreign key": ({"known": SECRET}, None, "foreign key constraint 'constrained_known_fkey'"),
    "deferred foreign key": ({"later": SECRET}, None, "foreign key constraint 'constrained_later_fkey'"),
    "datetime in JSON": ({"extra": {"mail": SECRET, "at": datetime(2026, 1, 2)}}, "extra.at", "datetime"),
    "half an emoji in JSON": ({"extra": {"mail": SECRET, "face": "\ud83d"}}, "extra.face", "surrogate"),
    "deep JSON": ({"extra": DEEP}, "extra", "JSON"),
    "half an emoji": ({"mail": f"{SECRET}\ud83d"}, "mail", "surrogate"),
    "NUL": ({"mail": f"{SECRET}\0"}, "mail", "NUL"),
    "object": ({"mail": object()}, "mail", "object"),
    "unknown column": ({"other": SECRET}, "other", "no column 'other'"),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_a_refused_row_is_named_with_table_column_and_line_and_its_values_are_hidden(
    server: str, table: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SHOW_VALUES, raising=False)
    value, column, reason = REFUSED[kind]
    filled = {"needed": 1} if "needed" in value else {}
    rows = [{"n": 1, **filled}, {"n": 2, **filled}, value, {"n": 3, **filled}]
    sink = sink_into(server)
    with pytest.raises(UnwritableValue) as raised:
        await sink.write(rows, 1)
    await sink.close()

    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.target, error.column, error.index) == (table, column, 2)
    assert reason in error.reason
    for text in (str(error), error.reason, "".join(traceback.format_exception(raised.value))):
        assert SECRET not in text
    assert numbers(server) == []


@pytest.mark.parametrize("kind", ["unique"])
async def test_the_environment_shows_what_postgresql_says(
    server: str, table: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHOW_VALUES, "1")
    sink = sink_into(server)
    with pytest.raises(UnwritableValue, match=r"Key \(n\)=\(1\) already exists"):
        await sink.write([{"n": 1}, REFUSED[kind][0]], 1)
    await sink.close()


async def test_all_rows_that_are_refused_are_found_and_nothing_is_written(server: str, table: str) -> None:
    rows = [{"n": n} for n in range(2_000)]
    wrong = {0: "type", 7: "foreign key", 8: "deferred foreign key", 1023: "check", 1024: "null", 1999: "NUL"}
    for place, kind in wrong.items():
        rows[place] = REFUSED[kind][0]
    rows = [{"needed": 1, **row} for row in rows]
    rows[1500] = rows[3]
    sink = sink_into(server)
    found = await sink.refused(rows)
    await sink.close()

    assert [error.index for error in found] == sorted([*wrong, 1500])
    assert numbers(server) == []


TRIGGER = (
    "create function refuse_13() returns trigger language plpgsql as $$ begin "
    "if new.n = 13 then {action} end if; return new; end $$; "
    "create trigger refusing {when} insert on choosy for each row execute function refuse_13()"
)
OWN_ERROR = "raise exception 'no thirteen' using errcode = 'KG001';"
LONG = {"mail": " ".join(map("{:x}".format, range(200_000)))}
WIDE = ", ".join(f"c{number} char(30)" for number in range(1000))
CHOOSY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "error of its own before": ("", TRIGGER.format(when="before", action=OWN_ERROR), {"n": 13}),
    "error of its own after": ("", TRIGGER.format(when="after", action=OWN_ERROR), {"n": 13}),
    "unknown function": ("", TRIGGER.format(when="before", action="perform unknown();"), {"n": 13}),
    "index": ("mail text", "create index on choosy (mail)", {"mail": random.Random(1).randbytes(8000).hex()}),
    "page": (WIDE, "", {f"c{number}": "x" * 30 for number in range(1000)}),
    "dimensions": ("deep int[]", "", {"deep": [[[[[[[1]]]]]]]}),
    "text search": ("mail text, words tsvector generated always as (to_tsvector('simple', mail)) stored", "", LONG),
}


@pytest.mark.parametrize("kind", CHOOSY)
async def test_whatever_the_server_raises_for_one_row_is_that_rows_fault(server: str, kind: str) -> None:
    columns, more, bad = CHOOSY[kind]
    with psycopg.connect(server) as connection:
        connection.execute("drop table if exists choosy, keygroups_epochs; drop function if exists refuse_13")
        connection.execute(f"create table choosy ({', '.join(filter(None, ['n int', columns]))})")
        connection.execute(more)
    rows = [{"n": 1}, {"n": 2}, {"n": 3, **bad}, {"n": 4}, {"n": 5, **bad}]
    sink = sink_into(server, "choosy")
    with pytest.raises(UnwritableValue) as raised:
        await sink.write(rows, 1)
    assert raised.value.index == 2
    assert [error.index for error in await sink.refused(rows)] == [2, 4]
    await sink.close()


async def test_a_table_that_refuses_everything_is_named_without_values(server: str, table: str) -> None:
    with psycopg.connect(server) as connection:
        connection.execute("create or replace view only_read as select count(*) as n from constrained")
    sink = sink_into(server, "only_read")
    with pytest.raises(SinkRefused, match="only_read") as raised:
        await sink.write([{"n": 1}], 1)
    await sink.close()
    assert pickle.loads(pickle.dumps(raised.value)).target == "only_read"
