"""Spark carries errors from a worker to the driver, so every one must survive pickling whole."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest

from keygroups import errors

SAMPLES: dict[Any, object] = {str: "a value", int: 7, object: (1, "x")}


def _subclasses(root: type[errors.KeyGroupsError]) -> Iterator[type[errors.KeyGroupsError]]:
    for one in root.__subclasses__():
        if one.__module__ == errors.__name__:
            yield one
        yield from _subclasses(one)


ERRORS = sorted(_subclasses(errors.KeyGroupsError), key=lambda one: one.__name__)


def _instance(kind: type[errors.KeyGroupsError]) -> errors.KeyGroupsError:
    hints = get_type_hints(kind.__init__)
    return kind(*[SAMPLES[hints[name]] for name in list(inspect.signature(kind).parameters)])


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_survives_pickling(kind: type[errors.KeyGroupsError]) -> None:
    error = _instance(kind)
    error.add_note("raised in subtask 3")
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is kind
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_keeps_its_arguments_as_attributes_and_has_a_message(kind: type[errors.KeyGroupsError]) -> None:
    error = _instance(kind)

    assert vars(error)
    assert len(str(error)) > 20


def test_an_error_is_also_the_builtin_that_callers_may_catch() -> None:
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.NullKey, ValueError)
    assert issubclass(errors.UnsupportedKey, TypeError)
    assert issubclass(errors.KeyGroupOutOfRange, LookupError)
    assert issubclass(errors.UnstorableValue, TypeError)
