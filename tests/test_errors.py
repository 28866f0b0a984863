"""Every error of the project says something, keeps its arguments as attributes, and survives pickling whole.

Spark carries errors from a worker to the driver, and a host sends them to the task that feeds it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import pickle
import pkgutil
import textwrap
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import async_op
import keygroups
import snapshots
from keygroups import KeyGroupRange, KeyGroupsError
from tests.examples import scaled

PACKAGES = (keygroups, snapshots, async_op)

_SECONDS = st.floats(0, 1e9)
_RANGES = st.builds(lambda start, more: KeyGroupRange(start, start + more), st.integers(0, 9), st.integers(0, 9))

ARGUMENTS: dict[Any, st.SearchStrategy[Any]] = {
    object: st.one_of(st.integers(), st.text(max_size=5), st.tuples(st.integers(), st.text(max_size=5)), st.none()),
    str: st.text(min_size=10, max_size=15),
    int: st.integers(0, 2**40),
    float: _SECONDS,
    float | None: st.none() | _SECONDS,
    float | timedelta: _SECONDS | st.timedeltas(timedelta()),
    KeyGroupRange | None: st.none() | _RANGES,
    BaseException: st.sampled_from([OSError("the connection is lost"), SystemExit(3)]),
    Iterable[int]: st.lists(st.integers(0, 9)),
}
"""What an argument of a type may be; all other types are Hypothesis's matter."""


def of_the_project(root: type[KeyGroupsError]) -> Iterator[type[KeyGroupsError]]:
    for one in root.__subclasses__():
        if one.__module__.partition(".")[0] in {package.__name__ for package in PACKAGES}:
            yield one
        yield from of_the_project(one)


def every_kind() -> list[type[KeyGroupsError]]:
    """Return the errors that are raised: a class without arguments of its own is the root of others."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    kinds = {one for one in of_the_project(KeyGroupsError) if one.__init__ is not KeyGroupsError.__init__}
    return sorted(kinds, key=lambda one: (one.__module__, one.__name__))


def errors_of(kind: type[KeyGroupsError]) -> st.SearchStrategy[KeyGroupsError]:
    """Return errors of a kind. Its fields have the hints of its constructor, unless it has written that itself."""
    is_declared = hasattr(kind.__init__, "__signature__")
    hints = get_type_hints(kind if is_declared else kind.__init__)
    names = inspect.signature(kind).parameters
    return st.builds(kind, **{name: argument_of(hints[name]) for name in names})


def argument_of(hint: Any) -> st.SearchStrategy[Any]:
    return ARGUMENTS[hint] if hint in ARGUMENTS else st.from_type(hint)


@pytest.mark.parametrize("kind", every_kind(), ids=lambda kind: kind.__name__)
@given(st.data())
@settings(max_examples=scaled(30))
def test_an_error_survives_pickling_with_its_message_and_attributes(
    kind: type[KeyGroupsError], data: st.DataObject
) -> None:
    error = data.draw(errors_of(kind))
    assert len(str(error)) > 20
    assert bool(vars(error)) == bool(inspect.signature(kind).parameters)
    error.add_note("raised in subtask 3")
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is kind
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_an_error_takes_its_fields_by_position_or_name_with_their_defaults() -> None:
    by_position = snapshots.SnapshotNotFound("file:///tmp/counts", 7)

    assert vars(by_position) == {"uri": "file:///tmp/counts", "version": 7, "nearby": (), "advice": None}
    assert vars(snapshots.SnapshotNotFound(version=7, uri="file:///tmp/counts")) == vars(by_position)
    with pytest.raises(TypeError, match="missing a required argument: 'uri'"):
        snapshots.SnapshotNotFound()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="too many positional arguments"):
        keygroups.NullKey("a column", "another")  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", every_kind(), ids=lambda kind: kind.__name__)
def test_every_field_of_an_error_is_described(kind: type[KeyGroupsError]) -> None:
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]

    undescribed = [
        ast.unparse(statement)
        for statement, after in itertools.pairwise([*body, ast.Pass()])
        if isinstance(statement, ast.AnnAssign) and not isinstance(getattr(after, "value", None), ast.Constant)
    ]

    assert undescribed == []


def test_an_error_is_also_the_builtin_that_callers_may_catch() -> None:
    assert issubclass(keygroups.ConfigError, ValueError)
    assert issubclass(keygroups.NullKey, ValueError)
    assert issubclass(keygroups.UnsupportedKey, TypeError)
    assert issubclass(keygroups.KeyGroupOutOfRange, LookupError)
    assert issubclass(keygroups.UnstorableValue, TypeError)
