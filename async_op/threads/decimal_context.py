"""Contexts that share no settings of decimal arithmetic: these are an object, which all copies of a context share."""

from __future__ import annotations

import decimal
from contextvars import Context, copy_context


def own_context() -> Context:
    """Return a copy of the current context whose precision, say, may be set without effect on anything else."""
    context, _ = with_own_decimals(copy_context())
    return context


def with_own_decimals(given: Context) -> tuple[Context, decimal.Context | None]:
    """Return a copy of a context, and its decimal context if that differs from the default.

    The settings of decimal arithmetic are an object which all copies of a context share, so a precision set by one call
    would hold for all of them. Without it in the context, decimal makes a new one wherever it is first asked for.
    """
    current = given.copy().run(decimal.getcontext)
    context = Context()
    for variable, value in given.items():
        if value is not current:
            context.run(variable.set, value)
    if _settings(current) == _settings(decimal.DefaultContext):
        return context, None
    own = current.copy()
    context.run(decimal.setcontext, own)
    return context, own


def _settings(context: decimal.Context) -> tuple[object, ...]:
    named = context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp
    return (*named, dict(context.traps))
