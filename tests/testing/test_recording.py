"""Recorded services: what a client has answered once is answered again, and nothing else."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_op.testing import CallNotRecorded, NotRecordable, OperatorHarness, RecordedService
from tests.examples import scaled

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)

NAMES = st.sampled_from(["count", "größe"])


class Client:
    """A client with one method of each kind, which counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def echo(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        return {"arguments": list(arguments), "options": options}

    async def wait(self, value: Any) -> Any:
        self.calls += 1
        await asyncio.sleep(0)
        return value

    async def connect(self) -> str:
        """Use the network, which a virtual loop does not have."""
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.close()
        return socket.AF_INET.name


@given(st.lists(JSON, max_size=3), st.dictionaries(NAMES, JSON, max_size=2))
@settings(max_examples=scaled(100))
def test_what_was_recorded_is_answered(tmp_path_factory: Any, arguments: list[Any], options: dict[str, Any]) -> None:
    path, client = tmp_path_factory.mktemp("recorded") / "answers.json", Client()
    with RecordedService(path, record=client) as service:
        first = service.echo(*arguments, **options)
        waited = asyncio.run(service.wait(arguments))
    with RecordedService(path) as service:
        assert service.echo(*arguments, **options) == first
        assert asyncio.run(service.wait(arguments)) == waited == arguments
    assert client.calls == 2


def test_an_answer_that_was_changed_is_answered_unchanged(tmp_path: Path) -> None:
    with RecordedService(tmp_path / "answers.json", record=Client()) as service:
        service.echo(1)["arguments"].append(2)
    with RecordedService(tmp_path / "answers.json") as service:
        service.echo(1)["arguments"].append(2)
        assert service.echo(1)["arguments"] == [1]


def test_a_call_without_a_record_is_named(tmp_path: Path) -> None:
    with RecordedService(tmp_path / "answers.json", record=Client()) as service:
        service.echo("tea", count=3)
    with RecordedService(tmp_path / "answers.json") as service:
        for call in (lambda: service.echo("tea", count=4), lambda: service.echo("tea"), lambda: service.other(1)):
            with pytest.raises(CallNotRecorded, match=r"answers.json has no record of (echo\('tea'|other\(1\))"):
                call()


def test_recording_again_forgets_what_is_not_asked_for_any_more(tmp_path: Path) -> None:
    for value in (1, 2):
        with RecordedService(tmp_path / "answers.json", record=Client()) as service:
            service.echo(value)
    with RecordedService(tmp_path / "answers.json") as service, pytest.raises(CallNotRecorded):
        service.echo(1)


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, float("nan"), b"bytes", object], ids=str)
def test_an_answer_that_json_would_change_is_refused(tmp_path: Path, value: Any) -> None:
    class Odd:
        def get(self) -> Any:
            return value

    with RecordedService(tmp_path / "answers.json", record=Odd()) as service, pytest.raises(NotRecordable, match="get"):
        service.get()


def test_what_cannot_be_recorded_is_not_asked_for(tmp_path: Path) -> None:
    client = Client()
    with RecordedService(tmp_path / "answers.json", record=client) as service, pytest.raises(NotRecordable):
        service.echo(b"bytes")
    assert client.calls == 0


def test_a_call_that_raises_is_not_recorded(tmp_path: Path) -> None:
    class Broken:
        def get(self) -> Any:
            raise OSError("down")

    with RecordedService(tmp_path / "answers.json", record=Broken()) as service, pytest.raises(OSError, match="down"):
        service.get()
    with RecordedService(tmp_path / "answers.json") as service, pytest.raises(CallNotRecorded):
        service.get()


def test_a_client_with_sockets_is_recorded_in_virtual_time(tmp_path: Path) -> None:
    def outputs(service: RecordedService) -> list[Any]:
        async def ask(value: int) -> Any:
            return await service.connect()

        with OperatorHarness(ask) as harness:
            harness.process(1)
            harness.process(2)
            harness.finish()
            assert harness.seconds == 0
            return harness.outputs

    with RecordedService(tmp_path / "answers.json", record=Client()) as service:
        recorded = outputs(service)
    with RecordedService(tmp_path / "answers.json") as service:
        assert outputs(service) == recorded == ["AF_INET", "AF_INET"]


def test_names_that_begin_with_an_underscore_are_no_calls(tmp_path: Path) -> None:
    """Notebooks, copies and pickles look for such methods."""
    assert not hasattr(RecordedService(tmp_path / "answers.json"), "_repr_html_")
