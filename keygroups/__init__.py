"""Key groups: the atomic units by which keyed state is partitioned, stored and moved."""

from __future__ import annotations

import logging

from keygroups.codec import register_codec
from keygroups.descriptors import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    StateDescriptor,
    ValueState,
)
from keygroups.errors import (
    ConfigError,
    KeyGroupOutOfRange,
    KeyGroupsError,
    MissingCodec,
    NullKey,
    UnstorableValue,
    UnsupportedKey,
)
from keygroups.hashing import key_group_of, key_groups_of, key_hasher
from keygroups.ranges import (
    MAX_KEY_GROUPS,
    KeyGroup,
    KeyGroupRange,
    default_max_parallelism,
    range_of,
    subtask_of,
)
from keygroups.rescale import Move, RescalePlan, plan_rescale
from keygroups.state.disk import DiskStateBackend
from keygroups.state.timers import Timer
from keygroups.ttl import StateTtl

__all__ = [
    "MAX_KEY_GROUPS",
    "AggregatingState",
    "ConfigError",
    "DiskStateBackend",
    "KeyGroup",
    "KeyGroupOutOfRange",
    "KeyGroupRange",
    "KeyGroupsError",
    "ListState",
    "MapState",
    "MissingCodec",
    "Move",
    "NullKey",
    "ReducingState",
    "RescalePlan",
    "StateDescriptor",
    "StateTtl",
    "Timer",
    "UnstorableValue",
    "UnsupportedKey",
    "ValueState",
    "default_max_parallelism",
    "key_group_of",
    "key_groups_of",
    "key_hasher",
    "plan_rescale",
    "range_of",
    "register_codec",
    "subtask_of",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())  # who wants to read it says so
