"""What every source and every sink has, and the errors of connectors."""

from __future__ import annotations

import copy
import pickle

import pytest

from async_op.connectors import ConnectorNotInstalled, Sink, Source
from async_op.shared_objects import Use


class Empty(Source[int]):
    def partitions(self):
        return []

    def read(self, partition, position):
        return iter(())


class Forgetful(Sink[int]):
    async def write(self, values, epoch):
        return None


async def test_opening_and_closing_may_be_left_out() -> None:
    for connector in (Empty(), Forgetful()):
        await connector.open()
        await connector.close()


def test_connectors_of_users_are_shared_unless_they_say_otherwise() -> None:
    for connector in (Empty(), Forgetful()):
        with Use(connector) as first, Use(connector) as second:
            assert first is second is connector


class OfOneRun(Forgetful):
    client: object = None

    def for_another_run(self) -> OfOneRun:
        return copy.copy(self)


def test_runs_at_the_same_time_have_objects_of_their_own() -> None:
    sink = OfOneRun()
    uses = [Use(sink)]
    sink.client = "connected"
    uses += [Use(sink) for _ in range(2)]
    assert [use.own is sink for use in uses] == [True, False, False]
    assert [use.own.client for use in uses] == ["connected", None, None]
    assert uses[1].own is not uses[2].own
    uses[1].end()
    assert Use(sink).own is not sink
    uses[0].end()
    assert Use(sink).own is sink


def test_the_use_of_a_run_that_was_forgotten_has_ended() -> None:
    sink = OfOneRun()
    assert [Use(sink).own is sink for _ in range(2)] == [True, True]


def test_a_source_has_no_end_unless_it_says_so() -> None:
    assert not Empty().bounded


@pytest.mark.parametrize("abstract", [Source, Sink])
def test_what_a_connector_must_have_is_asked_for(abstract: type) -> None:
    with pytest.raises(TypeError, match="abstract"):
        abstract()


def test_a_missing_package_is_named_with_its_extra() -> None:
    error = pickle.loads(pickle.dumps(ConnectorNotInstalled("confluent-kafka", "kafka")))

    assert (error.package, error.extra) == ("confluent-kafka", "kafka")
    assert "pip install 'keygroups[kafka]'" in str(error)
    assert isinstance(error, ImportError)
