"""The small server beside a job: what it answers, and what a client cannot do to it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_op import AddressUnavailable
from async_op.serving import http
from async_op.serving.http import Response, address_of, serving
from keygroups import ConfigError

ANYWHERE = "127.0.0.1:0"


def failing() -> Response:
    raise ValueError("no")


PAGES = {"/": lambda: Response("höme"), "/broken": failing}


async def asked(address: str, request: bytes) -> bytes:
    """Return all that is answered to some bytes."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        with suppress(ConnectionError):
            writer.write(request)
            await writer.drain()
            return await reader.read()
        return b""
    finally:
        writer.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


async def test_a_page_is_sent_whole_and_the_connection_closed() -> None:
    async with serving(ANYWHERE, PAGES) as address:
        answer = await asked(address, b"GET /?now HTTP/1.1\r\nHost: x\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status(answer) == 200
    assert body.decode() == "höme"
    assert f"Content-Length: {len(body)}".encode() in head


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [("GET /else HTTP/1.1", 404), ("POST / HTTP/1.1", 405), ("GET /broken HTTP/1.1", 500), ("HEAD / HTTP/1.1", 200)],
)
async def test_what_is_missing_or_fails_is_reported(request_line: str, expected: int) -> None:
    async with serving(ANYWHERE, PAGES) as address:
        answer = await asked(address, f"{request_line}\r\n\r\n".encode())
    assert status(answer) == expected
    assert request_line.startswith("HEAD") == answer.endswith(b"\r\n\r\n")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=5))
def test_no_bytes_of_a_client_stop_the_server(requests: list[bytes]) -> None:
    async def go() -> None:
        async with serving(ANYWHERE, PAGES) as address:
            for request in requests:
                answer = await asked(address, request + b"\r\n\r\n")
                assert status(answer) in (0, 200, 404, 405)
            assert status(await asked(address, b"GET / HTTP/1.1\r\n\r\n")) == 200

    asyncio.run(go())


async def test_a_request_that_is_too_long_gets_no_answer() -> None:
    async with serving(ANYWHERE, PAGES) as address:
        assert await asked(address, b"GET / HTTP/1.1\r\nX: " + 20_000 * b"x" + b"\r\n\r\n") == b""


async def test_a_client_that_sends_nothing_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_SECONDS_MAX", 0.05)
    async with serving(ANYWHERE, PAGES) as address:
        assert await asked(address, b"GET ") == b""


async def test_clients_above_the_limit_are_refused_and_the_end_waits_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_CLIENTS_MAX", 2)
    async with serving(ANYWHERE, PAGES) as address:
        host, _, port = address.removeprefix("http://").rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        assert await asked(address, b"GET / HTTP/1.1\r\n\r\n") == b""

        silent.pop()[1].close()
        while status(await asked(address, b"GET / HTTP/1.1\r\n\r\n")) != 200:
            pass
    for _, writer in silent:
        writer.close()


async def test_an_address_that_is_taken_is_named() -> None:
    async with serving(ANYWHERE, PAGES) as address:
        with pytest.raises(AddressUnavailable, match="choose another port"):
            async with serving(address.removeprefix("http://"), PAGES):
                pass


@pytest.mark.parametrize("wrong", ["8080", "127.0.0.1:", ":8080", "127.0.0.1:99999", "127.0.0.1:http", None, ""])
def test_a_wrong_address_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="host and port"):
        address_of(wrong)
