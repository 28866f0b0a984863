"""Key groups: the atomic units by which keyed state is partitioned, stored and moved."""

from .codec import register_codec
from .descriptors import (
    AggregatingState,
    ListState,
    MapState,
    OperatorListState,
    OperatorMapState,
    OperatorStateDescriptor,
    ReducingState,
    StateDescriptor,
    ValueState,
)
from .errors import (
    ConfigError,
    KeyGroupOutOfRange,
    KeyGroupsError,
    MissingCodec,
    NullKey,
    PackageNotInstalled,
    SparkNotInstalled,
    UnstorableValue,
    UnsupportedKey,
)
from .hashing import key_group_of, key_groups_of, key_hasher
from .ranges import (
    MAX_KEY_GROUPS,
    KeyGroup,
    KeyGroupRange,
    default_max_parallelism,
    range_of,
    subtask_of,
)
from .rescale import Move, RescalePlan, plan_rescale
from .state.disk import DiskStateBackend
from .state.timers import Timer
from .ttl import StateTtl

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
    "OperatorListState",
    "OperatorMapState",
    "OperatorStateDescriptor",
    "PackageNotInstalled",
    "ReducingState",
    "RescalePlan",
    "SparkNotInstalled",
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
