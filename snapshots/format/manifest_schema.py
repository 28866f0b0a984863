"""The schema of a manifest: the type and the bounds of every field.

A check takes a value as decoded from JSON and returns what is wrong with it, or None. Booleans are not integers, and
2.0 is not 2: values that a reader would misinterpret are refused here, before they are used. Fields that a newer
release adds are not checked. Fields that are only for people may have any value of the right type.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, get_args

from keygroups.names import LINEAGE_NAME, OPERATOR_ID, OPERATOR_STATE_NAME, STATE_NAME, STEP_NAME, NameRule, split_step
from keygroups.ranges import MAX_KEY_GROUPS

FileKind = Literal["keyed", "delta", "in_flight", "operator", "output"]
OperatorStateMode = Literal["split", "union", "broadcast"]

FILES_MAX = 1_000_000
STATES_MAX = 10_000
CHANNELS_MAX = 1_000_000
LISTS_MAX = 1_000_000
"""A manifest that claims more of anything is refused before memory is allocated for it."""

Check: TypeAlias = Callable[[Any], str | None]

_INT64_MAX = 2**63 - 1
_VERSION_MAX = 10**20 - 1


def _is(value: object, wanted: str) -> str:
    return f" is {reprlib.repr(value)}, not {wanted}"


def _integer(least: int, most: int = _INT64_MAX) -> Check:
    def check(value: Any) -> str | None:
        fits = type(value) is int and least <= value <= most
        return None if fits else _is(value, f"an integer from {least} to {most}")

    return check


def _typed(wanted: str, *kinds: type) -> Check:
    return lambda value: None if type(value) in kinds else _is(value, wanted)


def _one_of(*values: str) -> Check:
    return lambda value: None if type(value) is str and value in values else _is(value, f"one of {', '.join(values)}")


def _named(rule: NameRule) -> Check:
    return lambda value: None if rule.fits(value) else _is(value, f"a name that may be: {rule.allowed}")


def _state_named(rule: NameRule) -> Check:
    """Check the name of a state, or, in a job, of a step and a state; whether there are steps is checked later."""

    def check(value: Any) -> str | None:
        if rule.fits(value):
            return None
        step, name = split_step(value) if type(value) is str else ("", "")
        return None if STEP_NAME.fits(step) and rule.fits(name) else _is(value, f"a name that may be: {rule.allowed}")

    return check


def _or_null(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _list(item: Check, most: int) -> Check:
    def check(values: Any) -> str | None:
        if type(values) is not list:
            return _is(values, "a list")
        if len(values) > most:
            return f" has {len(values)} items, not 0 to {most}"
        for index, value in enumerate(values):
            wrong = item(value)
            if wrong is not None:
                return f"[{index}]{wrong}"
        return None

    return check


def _mapping(item: Check) -> Check:
    def check(values: Any) -> str | None:
        if type(values) is not dict:
            return _is(values, "an object")
        wrong = ((name, item(value)) for name, value in values.items())
        return next((f"[{reprlib.repr(name)}]{problem}" for name, problem in wrong if problem is not None), None)

    return check


def _fields(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    checks = [(name, check, True) for name, check in required.items()]
    checks += [(name, check, False) for name, check in (optional or {}).items()]

    def check(values: Any) -> str | None:
        if type(values) is not dict:
            return _is(values, "an object")
        for name, field, is_required in checks:
            if name not in values:
                if is_required:
                    return f".{name} is missing"
                continue
            wrong = field(values[name])
            if wrong is not None:
                return f".{name}{wrong}"
        return None

    return check


def _anything(_: Any) -> None:
    return None


_TEXT = _typed("text", str)
_NUMBER = _typed("a number", int, float)
_SUBTASK = _integer(0, MAX_KEY_GROUPS - 1)
_PARALLELISM = _integer(1, MAX_KEY_GROUPS)
_VERSION = _integer(1, _VERSION_MAX)
_COUNT = _integer(0)
_KEY_GROUPS = _fields({"start": _SUBTASK, "end": _SUBTASK})

_FILE = _fields(
    {
        "kind": _one_of(*get_args(FileKind)),
        "state": _or_null(_state_named(OPERATOR_STATE_NAME)),
        "subtask": _SUBTASK,
        "version": _VERSION,
        "key_groups": _KEY_GROUPS,
        "file_key_groups": _KEY_GROUPS,
        "path": _TEXT,
        "rows": _COUNT,
        "bytes": _COUNT,
        "sha256": _TEXT,
        "footer_bytes": _COUNT,
        "footer_sha256": _TEXT,
    },
    {"parent_id": _or_null(_TEXT), "folds": _typed("true or false", bool)},
)

_STATE = _fields(
    {
        "name": _state_named(STATE_NAME),
        "kind": _one_of("value", "list", "map", "reducing", "aggregating"),
        "type": _or_null(_TEXT),
        "schema": _or_null(_TEXT),
        "codec": _one_of("arrow-1", "msgpack-1"),
        "field_ids": _mapping(_COUNT),
        "last_field_id": _COUNT,
    },
    {"codecs": _list(_TEXT, STATES_MAX)},
)

_OPERATOR_STATE = _fields({"name": _state_named(OPERATOR_STATE_NAME), "mode": _one_of(*get_args(OperatorStateMode))})

_CHANNEL = _fields(
    {
        "subtask": _SUBTASK,
        "key_groups": _KEY_GROUPS,
        "watermark": _or_null(_integer(-_INT64_MAX - 1)),
        "cut_id": _or_null(_TEXT),
        "keyless": _COUNT,
    },
    {"step": _or_null(_named(STEP_NAME))},
)

_LIST_INFO = _fields(
    {
        "path": _TEXT,
        "key_groups": _KEY_GROUPS,
        "files": _integer(0, FILES_MAX),
        "channels": _integer(0, CHANNELS_MAX),
        "bytes": _COUNT,
        "sha256": _TEXT,
    }
)

_LIST = _fields({"files": _list(_FILE, FILES_MAX), "channels": _list(_CHANNEL, CHANNELS_MAX)})

_MANIFEST = _fields(
    {
        "version": _VERSION,
        "snapshot_id": _TEXT,
        "parent_version": _or_null(_VERSION),
        "parent_id": _or_null(_TEXT),
        "created_at": _TEXT,
        "operator_id": _named(OPERATOR_ID),
        "max_parallelism": _PARALLELISM,
        "parallelism": _PARALLELISM,
        "hash": _one_of("xxhash64", "flink"),
        "key_encoding": _one_of("columns-1"),
        "states": _list(_STATE, STATES_MAX),
        "files": _list(_FILE, FILES_MAX),
        "channels": _list(_CHANNEL, CHANNELS_MAX),
        "in_flight_count": _COUNT,
        "source_position": _anything,
        "metrics": _mapping(_NUMBER),
        "operator_states": _list(_OPERATOR_STATE, STATES_MAX),
        "operation": _TEXT,
        "required_features": _list(_TEXT, STATES_MAX),
        "written_by": _mapping(_TEXT),
    },
    {
        "file_lists": _list(_LIST_INFO, LISTS_MAX),
        "lineage": _named(LINEAGE_NAME),
        "output_schema": _or_null(_TEXT),
    },
)


def wrong_field(body: Mapping[str, Any]) -> str | None:
    """Return the first missing or wrong field with an explanation, or None if the manifest follows the schema.

    Examples
    --------
    >>> wrong_field({"version": 2.0})
    'version is 2.0, not an integer from 1 to 99999999999999999999'
    """
    return _wrong(_MANIFEST, body)


def wrong_field_of_list(body: Mapping[str, Any]) -> str | None:
    """Return what `wrong_field` does, of a list of files."""
    return _wrong(_LIST, body)


def _wrong(check: Check, body: Mapping[str, Any]) -> str | None:
    wrong = check(body)
    return None if wrong is None else wrong.removeprefix(".")
