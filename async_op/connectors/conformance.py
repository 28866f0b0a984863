"""Whether a source or a sink is as its base class says: its attributes, and what its methods give.

Users write sources and sinks. Without these checks a slip, such as `def write` in place of `async def write`, would be
an error from somewhere inside of a job, and an `on_error` that is misspelt would leave out records in silence.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any, TypeAlias

from async_op.connectors.sink import Sink
from async_op.connectors.source import Source
from async_op.dead_letters import check_on_error
from async_op.retry import RetryPolicy
from keygroups.arguments import check_flag, check_instance
from keygroups.errors import ConfigError

Connector: TypeAlias = Source[Any] | Sink[Any]


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


def to_await(connector: Connector, method: str, given: Any) -> Awaitable[Any]:
    """Return what a method has given, if it can be awaited.

    Raises
    ------
    ConfigError
        It cannot.
    """
    if not inspect.isawaitable(given):
        raise misbehaved(connector, f"{method}()", given, "write it with `async def`")
    return given


def misbehaved(connector: Connector, method: str, given: object, hint: str) -> ConfigError:
    """Return the error about a method that has given something else than it should."""
    name = "source" if isinstance(connector, Source) else "sink"
    return ConfigError(name, connector, f"its {method} gave a value of type {type(given).__name__}; {hint}")
