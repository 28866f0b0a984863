"""Whether sources and sinks do what their base class promises: their attributes, what methods return, and their end.

Users write sources and sinks. Without these checks, `def write` in place of `async def write` would raise an error from
deep inside a job, and a misspelt `on_error` would skip records in silence.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any, TypeAlias, TypeVar

from async_op.cancellation import closed_in_time
from async_op.connectors.sink import ShippedSink, Sink
from async_op.connectors.source import Source
from async_op.dead_letters import check_on_error
from async_op.retry import RetryPolicy
from keygroups.arguments import check_flag, check_instance, check_positive_duration
from keygroups.errors import ConfigError

Connector: TypeAlias = Source[Any] | Sink[Any]
_C = TypeVar("_C", bound=Connector)

CLOSE_SECONDS = 60.0
"""How long a source or a sink may take to close: longer than connectors of this package wait for their own threads."""


def check_connector(connector: Connector) -> None:
    """Check the attributes that a subclass may set.

    Raises
    ------
    ConfigError
        One of them has a wrong value.
    """
    check_on_error(connector.on_error)
    reason = "set a retry policy, or None for one attempt"
    check_instance("retry", connector.retry, (RetryPolicy, type(None)), reason=reason)
    if isinstance(connector, Source):
        check_flag("bounded", connector.bounded)
        check_flag("is_decoded", connector.is_decoded)
        check_positive_duration("look_interval", connector.look_interval)
        check_instance("origin", connector.origin, str, reason="set the name of what the positions belong to")


def letters_sink_of(sink: Sink[Any]) -> Sink[Any]:
    """Return the sink to which a sink has dead letters written.

    Raises
    ------
    ConfigError
        It returns no sink, or one with wrong attributes.
    """
    letters: object = sink.for_dead_letters()
    if not isinstance(letters, Sink):
        raise misbehaved(sink, "for_dead_letters()", letters, "return a sink")
    check_connector(letters)
    return letters


def for_another_run(connector: _C) -> _C:
    """Return what a run uses of a source or a sink while another run uses the object.

    Raises
    ------
    ConfigError
        The connector returns something else.
    """
    other: object = connector.for_another_run()
    if not isinstance(other, Source if isinstance(connector, Source) else Sink):
        raise misbehaved(connector, "for_another_run()", other, "return a copy, or the object itself")
    return other  # type: ignore[return-value]  # it is of the same kind


def check_sinks(sink: Sink[Any], letters: Sink[Any] | None) -> None:
    """Check the sink of the outputs together with the sink of the dead letters, None if there is none.

    Raises
    ------
    ConfigError
        One of them is missing, refers to the other, or takes the other's epochs for its own.
    """
    if sink.on_error == "dead_letter" and letters is None:
        raise ConfigError("dead_letters", None, "the sink has on_error='dead_letter': pass a sink for its dead letters")
    if letters is not None and letters.on_error == "dead_letter":
        raise ConfigError("dead_letters", letters, "its own on_error is 'fail' or 'skip'")
    if isinstance(sink, ShippedSink):
        sink.check_apart(letters)


def to_await(connector: Connector, method: str, given: Any) -> Awaitable[Any]:
    """Return what a method has returned, if it can be awaited.

    Raises
    ------
    ConfigError
        It cannot.
    """
    if not inspect.isawaitable(given):
        raise misbehaved(connector, f"{method}()", given, "write it with `async def`")
    return given


async def closed(connector: Connector) -> None:
    """Close a source or a sink, but wait no longer than `CLOSE_SECONDS`."""
    closing = to_await(connector, "close", connector.close())
    await closed_in_time(f"closing {type(connector).__name__}", closing, CLOSE_SECONDS)


def misbehaved(connector: Connector, method: str, given: object, hint: str) -> ConfigError:
    """Return the error for a method that has returned a wrong value; the hint says what to return."""
    name = "source" if isinstance(connector, Source) else "sink"
    return ConfigError(name, connector, f"its {method} gave a value of type {type(given).__name__}; {hint}")
