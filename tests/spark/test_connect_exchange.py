"""What client and worker tell each other over Spark Connect arrives as it was said."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op import BlocksEventLoop
from async_op.spark import EpochProgress, ScalingDecision
from async_op.spark.connect.exchange import Answer, Exchange, Wishes
from snapshots.filesystem import open_folder

NUMBERS = {int: st.integers(0, 2**53), float: st.floats(0, 1e6)}
EPOCHS = st.builds(
    EpochProgress,
    **{name: NUMBERS[kind] for name, kind in get_type_hints(EpochProgress).items() if kind in NUMBERS},
    hosts=st.lists(st.text(), max_size=2).map(tuple),
    scaling=st.none() | st.from_type(ScalingDecision),
)
PARALLELISMS = st.lists(st.none() | st.integers(1, 99), min_size=1, max_size=3).map(tuple)
WISHES = st.builds(Wishes, parallelism=PARALLELISMS, timeout=st.none() | NUMBERS[float])
ANSWERS = st.builds(Answer, progress=st.lists(st.lists(EPOCHS, max_size=2).map(tuple), max_size=2).map(tuple))


def test_functions_that_block_arrive(tmp_path: Path) -> None:
    exchange = Exchange(open_folder(str(tmp_path)), "run")
    exchange.answer(Answer(blocking=(BlocksEventLoop("shop", "look", "shop.py", 12),)))
    [found] = exchange.answered().blocking
    assert found.args == ("shop", "look", "shop.py", 12)


@given(WISHES, ANSWERS)
def test_what_is_said_arrives(tmp_path_factory: pytest.TempPathFactory, wishes: Wishes, answer: Answer) -> None:
    exchange = Exchange(open_folder(str(tmp_path_factory.mktemp("operator"))), "run")
    assert exchange.wishes() is None
    assert exchange.answered() == Answer()
    exchange.wish(wishes)
    exchange.answer(answer)
    assert exchange.wishes() == wishes
    assert exchange.answered() == answer


def test_of_an_operator_with_many_hosts_fewer_epochs_arrive(tmp_path: Path) -> None:
    counts: dict[str, Any] = {name: 1 for name, kind in get_type_hints(EpochProgress).items() if kind in NUMBERS}
    hosts = tuple(f"pod-{number}.of-a-service-with-a-long-name.example:{number}" for number in range(1000))
    epochs = tuple(
        EpochProgress(**{**counts, "epoch": number, "kind": "batch", "batch_id": number, "hosts": hosts})
        for number in range(100)
    )
    exchange = Exchange(open_folder(str(tmp_path)), "run")

    exchange.answer(Answer(failure="an error", progress=(epochs, epochs)))

    answer = exchange.answered()
    assert answer.failure == "an error"
    for found in answer.progress:
        assert found == epochs[-len(found) :] != ()
