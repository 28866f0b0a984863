"""Resources that functions share: made once, closed once, after the last user."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from async_op import (
    AsyncDataStream,
    AsyncFunction,
    AsyncWaitOperator,
    OperatorInterrupted,
    RestartPolicy,
    Runtime,
    SharedOutsideOpen,
    Step,
    shared,
)
from keygroups import ConfigError
from tests.async_op.job.kit import Epochs, new_job
from tests.async_op.kit import settle


class Client:
    """A client that counts what happens to it."""

    def __init__(self, log: list[str] | None = None) -> None:
        self.log = [] if log is None else log
        self.log.append("made")

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.log.append("closed")


class Asking(AsyncFunction):
    """Uses a shared client from `open` to `close`."""

    def __init__(self, factory: Callable[[], Any], key: str = "client") -> None:
        self.factory = factory
        self.key = key
        self.client: Any = None
        self.log: list[str] = []

    async def open(self, runtime: Runtime) -> None:
        self.client = await shared(self.key, self.factory)

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        return [self.client]

    async def close(self) -> None:
        if self.client is not None:
            self.client.log.append("function closed")


class Gated:
    """A factory whose client comes when the test says so."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.begun = self.cancelled = 0
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def __call__(self) -> Client:
        self.begun += 1
        try:
            await asyncio.shield(self.answer)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Client(self.log)


def operator_of(function: AsyncFunction) -> AsyncWaitOperator:
    return AsyncWaitOperator(function, lambda output: None)


async def test_operators_share_one_client_which_is_closed_after_the_last_function() -> None:
    log: list[str] = []
    functions = [Asking(lambda: Client(log)) for _ in range(3)]
    operators = [operator_of(function) for function in functions]
    await asyncio.gather(*(operator.open() for operator in operators))
    assert len({function.client for function in functions}) == 1
    for operator in operators:
        assert "closed" not in log
        await operator.close()
        await operator.close()

    assert log == ["made", "function closed", "function closed", "function closed", "closed"]


async def test_streams_share_a_resource_and_the_next_one_makes_it_again() -> None:
    log: list[str] = []
    for _ in range(2):
        one, other = (AsyncDataStream.ordered_wait(range(2), Asking(lambda: Client(log))) for _ in range(2))
        pairs = [(first, second) async for first, second in zip_streams(one, other)]
        assert len({client for pair in pairs for client in pair}) == 1

    assert [entry for entry in log if entry != "function closed"] == ["made", "closed"] * 2


async def test_the_subtasks_of_a_job_share() -> None:
    log: list[str] = []

    class Counting(Asking):
        async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
            self.client.log.append("called")
            return [value]

    sink = Epochs()
    await new_job(range(20), [Counting(lambda: Client(log)), Counting(lambda: Client(log))], sink, parallelism=3).run()
    assert sorted(sink.values) == list(range(20))
    assert (log[0], log.count("made"), log.count("called"), log.count("closed"), log[-1]) == (
        "made",
        1,
        40,
        1,
        "closed",
    )


async def zip_streams(one: Any, other: Any) -> AsyncIterator[Any]:
    while True:
        try:
            yield await anext(one), await anext(other)
        except StopAsyncIteration:
            async for _ in other:
                pass
            return


async def test_whoever_comes_while_it_is_made_waits_for_it() -> None:
    gated = Gated()
    opening = [asyncio.create_task(operator.open()) for operator in [operator_of(Asking(gated)) for _ in range(3)]]
    await settle()
    assert gated.begun == 1
    for task in opening:
        task.cancel()
    await asyncio.wait(opening)
    assert (gated.begun, gated.cancelled, gated.log) == (1, 1, [])


@pytest.mark.parametrize("who", [0, 1])
async def test_a_cancelled_user_does_not_disturb_the_others(who: int) -> None:
    gated = Gated()
    operators = [operator_of(Asking(gated)) for _ in range(2)]
    opening = [asyncio.create_task(operator.open()) for operator in operators]
    await settle()
    opening[who].cancel()
    await asyncio.wait([opening[who]])
    gated.answer.set_result(None)
    await opening[1 - who]
    assert (gated.begun, gated.log) == (1, ["made"])
    await operators[1 - who].close()
    assert gated.log == ["made", "function closed", "closed"]


async def test_the_error_of_a_factory_reaches_all_who_wait_and_the_next_one_tries_again() -> None:
    gated = Gated()
    opening = [asyncio.create_task(operator_of(Asking(gated)).open()) for _ in range(3)]
    await settle()
    gated.answer.set_exception(ConnectionError("down"))
    done, _ = await asyncio.wait(opening)
    assert [str(task.exception()) for task in done] == ["down"] * 3
    assert gated.begun == 1
    async with shared("client", Client) as client:
        assert client.log == ["made"]


@pytest.mark.parametrize("raised", [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_whatever_a_factory_raises_reaches_its_user_as_an_exception(raised: Any) -> None:
    async def factory() -> None:
        raise raised("why")

    with pytest.raises(OperatorInterrupted, match="why"):
        async with shared("client", factory):
            pass


async def test_an_error_of_closing_reaches_the_last_user_once() -> None:
    class Broken(Client):
        async def aclose(self) -> None:
            await super().aclose()
            raise ConnectionError("lost")

    operators = [operator_of(Asking(Broken)) for _ in range(2)]
    for operator in operators:
        await operator.open()
    await operators[1].close()
    with pytest.raises(ConnectionError, match="lost"):
        await operators[0].close()
    await operators[0].close()


async def test_it_is_made_again_only_after_it_has_been_closed() -> None:
    log: list[str] = []
    closing = asyncio.Event()

    class Slow(Client):
        async def aclose(self) -> None:
            await closing.wait()
            self.log.append("closed")

    async def use() -> None:
        async with shared("client", lambda: Slow(log)):
            await asyncio.sleep(0)

    first = asyncio.create_task(use())
    await settle()
    others = [asyncio.create_task(use()) for _ in range(3)]
    await settle()
    assert log == ["made"]
    closing.set()
    await asyncio.gather(first, *others)
    assert log == ["made", "closed"] * 2


async def test_a_cancelled_close_continues_and_the_next_one_waits_for_it() -> None:
    log: list[str] = []
    closing = asyncio.Event()

    class Slow(Client):
        async def aclose(self) -> None:
            await closing.wait()
            self.log.append("closed")

    operator = operator_of(Asking(lambda: Slow(log)))
    await operator.open()
    task = asyncio.create_task(operator.close())
    await settle()
    task.cancel()
    await asyncio.wait([task])
    closing.set()
    await operator.close()
    assert log == ["made", "function closed", "closed"]


async def test_a_failing_open_gives_back_what_it_has() -> None:
    log: list[str] = []

    class Failing(Asking):
        async def open(self, runtime: Runtime) -> None:
            await super().open(runtime)
            raise ConnectionError("down")

    with pytest.raises(ConnectionError):
        await operator_of(Failing(lambda: Client(log))).open()
    assert log == ["made", "function closed", "closed"]


async def test_a_context_manager_is_entered_and_left_in_one_task() -> None:
    tasks = []

    @asynccontextmanager
    async def connected() -> AsyncIterator[str]:
        tasks.append(asyncio.current_task())
        yield "client"
        tasks.append(asyncio.current_task())

    async def use(until: asyncio.Event) -> None:
        async with shared("client", connected) as client:
            assert client == "client"
            await until.wait()

    until = [asyncio.Event(), asyncio.Event()]
    users = [asyncio.create_task(use(event)) for event in until]
    for event, user in zip(until, users, strict=True):  # the first user leaves first
        await settle()
        event.set()
        await user
    assert len(tasks) == 2
    assert tasks[0] is tasks[1]


@pytest.mark.parametrize("kind", ["aclose", "close", "close_async", "nothing"])
async def test_what_a_resource_has_closes_it(kind: str) -> None:
    closed = []

    class Sync:
        def close(self) -> None:
            closed.append("close")

    class Async:
        async def close(self) -> None:
            closed.append("close_async")

    class Both(Sync):
        async def aclose(self) -> None:
            closed.append("aclose")

        async def __aenter__(self) -> None:
            raise AssertionError("what can be closed is used as it is")

    factory: Any = {"aclose": Both, "close": Sync, "close_async": Async, "nothing": dict}[kind]
    async with shared("client", factory):
        pass
    assert closed == ([] if kind == "nothing" else [kind])


async def test_a_resource_may_use_another_one_as_long_as_it_lives() -> None:
    log: list[str] = []

    class Session:
        async def aclose(self) -> None:
            log.append("session closed")

    async def session() -> Session:
        await shared("client", lambda: Client(log))
        return Session()

    async with shared("session", session), shared("client", Client):
        assert log == ["made"]
    assert log == ["made", "session closed", "closed"]


async def test_a_factory_that_waits_for_itself_is_refused() -> None:
    async def client() -> Any:
        return await shared("client", client)

    with pytest.raises(ConfigError, match="waits for itself"):
        async with shared("client", client):
            pass


async def test_outside_of_open_it_cannot_be_awaited() -> None:
    class Late(Asking):
        async def open(self, runtime: Runtime) -> None:
            self.task = asyncio.create_task(self.later())

        async def later(self) -> None:
            await settle()
            self.client = await shared("client", Client)

    with pytest.raises(SharedOutsideOpen, match="async with shared"):
        await shared("client", Client)
    late = Late(Client)
    operator = operator_of(late)
    await operator.open()
    with pytest.raises(SharedOutsideOpen):
        await late.task
    await operator.close()


def test_what_cannot_make_anything_is_refused() -> None:
    with pytest.raises(ConfigError, match="factory"):
        shared("client", Client())  # type: ignore[call-overload]


async def test_each_event_loop_has_its_own() -> None:
    made = []

    async def use() -> None:
        async with shared("client", Client) as client:
            made.append(client)

    def elsewhere() -> None:
        asyncio.run(use())

    async with shared("client", Client) as here:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        await asyncio.to_thread(thread.join)
        assert made != [here]
        assert made[0].log == ["made", "closed"]
        assert here.log == ["made"]


async def test_an_abandoned_operator_is_closed_with_its_loop() -> None:
    log: list[str] = []

    async def leave_open() -> None:
        await operator_of(Asking(lambda: Client(log))).open()

    await asyncio.to_thread(lambda: asyncio.run(leave_open()))
    assert log == ["made", "function closed", "closed"]


class Session:
    """A session with a task in the background, which ends the session when it fails."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.is_broken = asyncio.Event()
        self.is_alive = True

    async def listen(self) -> None:
        await self.is_broken.wait()
        raise ConnectionResetError("the service has gone")


class Sessions:
    """Makes sessions, one after the other."""

    def __init__(self) -> None:
        self.made: list[Session] = []

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Session]:
        self.made.append(session := Session())
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(session.listen())
            yield session
            listening.cancel()
            session.log.append("closed")


async def until_failed(operator: AsyncWaitOperator) -> None:
    """Use an operator until it fails, but no longer than it could take."""
    for _ in range(1000):
        await operator.process(1)
        await asyncio.sleep(0)


async def test_a_resource_that_breaks_ends_all_that_use_it_and_the_next_one_makes_it_again() -> None:
    sessions = Sessions()
    functions = [Asking(sessions) for _ in range(3)]
    operators = [operator_of(function) for function in functions]
    for operator in operators:
        await operator.open()
    sessions.made[0].is_broken.set()
    for operator in operators:
        with pytest.raises(OperatorInterrupted, match="the service has gone"):
            await until_failed(operator)
        await operator.close()
    assert sessions.made[0].log == ["function closed"] * 3

    async with operator_of(functions[0]):
        assert functions[0].client is sessions.made[1]
    assert len(sessions.made) == 2


async def test_a_resource_that_breaks_ends_those_that_use_it_and_their_users() -> None:
    sessions = Sessions()

    async def client() -> Client:
        await shared("session", sessions)
        return Client()

    operator = operator_of(Asking(client))
    await operator.open()
    sessions.made[0].is_broken.set()
    with pytest.raises(OperatorInterrupted, match="the service has gone"):
        await until_failed(operator)
    await operator.close()


async def test_a_resource_whose_own_breaks_while_it_is_made_ends_its_users() -> None:
    sessions = Sessions()

    async def client() -> Client:
        session = await shared("session", sessions)
        session.is_broken.set()
        await settle()
        return Client()

    operator = operator_of(Asking(client))
    with pytest.raises(OperatorInterrupted, match="the service has gone"):
        async with operator:
            await until_failed(operator)


async def test_a_resource_that_breaks_while_its_user_opens_ends_the_user() -> None:
    sessions = Sessions()

    class Slow(Asking):
        async def open(self, runtime: Runtime) -> None:
            await super().open(runtime)
            self.client.is_broken.set()
            await settle()

    operator = operator_of(Slow(sessions))
    with pytest.raises(OperatorInterrupted, match="the service has gone"):
        async with operator:
            await until_failed(operator)


async def test_who_uses_a_resource_that_breaks_elsewhere_is_told_at_the_end() -> None:
    sessions = Sessions()
    with pytest.raises(ExceptionGroup) as raised:
        async with shared("session", sessions) as session:
            session.is_broken.set()
            await settle()
    assert isinstance(raised.value.exceptions[0], ConnectionResetError)


async def test_a_job_restarts_when_a_shared_resource_breaks_and_no_element_fails() -> None:
    sessions, sink, letters = Sessions(), Epochs(), Epochs()

    class Using(Asking):
        async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
            if value == 50 and len(sessions.made) == 1:
                self.client.is_broken.set()
            await asyncio.sleep(0)
            if self.client.log:
                raise ConnectionError("this session is closed")
            return [value]

    policy = RestartPolicy(max_restarts=1, initial_delay=0.0, max_delay=0.0)
    step = Step(Using(sessions), on_error="dead_letter")
    await new_job(range(100), step, sink, parallelism=2, restart=policy, dead_letters=letters).run()
    assert (sorted(sink.values), letters.values) == (list(range(100)), [])
    assert len(sessions.made) == 2
