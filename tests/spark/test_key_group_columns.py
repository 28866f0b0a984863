"""Spark itself is the oracle: what the JVM computes must equal what Python computes."""

from __future__ import annotations

import datetime
import random
import string
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from keygroups import ConfigError, key_group_of, key_groups_of, subtask_of
from keygroups.spark import key_group_column, subtask_column
from tests.quick import first_is_quick

pytestmark = pytest.mark.spark

GROUPS = 1000
ROWS = 300

_random = random.Random(7)


def _integer(bits: int) -> Callable[[], int]:
    edges = [0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]
    return lambda: _random.choice([*edges, _random.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))])


def _text() -> str:
    alphabet = string.printable + "éß漢字🎉"
    return "".join(_random.choices(alphabet, k=_random.randrange(90)))


def _instant() -> datetime.datetime:
    since = datetime.timedelta(microseconds=_random.randrange(-(10**15), 10**16))
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + since


def _decimal(digits: int, scale: int) -> Callable[[], Decimal]:
    edges = [n for n in (0, 1, -1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1) if abs(n) < 10**digits]
    powers = [10**power for power in range(digits)]
    return lambda: Decimal(f"{_random.choice([*edges, _random.randrange(-10, 11) * _random.choice(powers)])}E-{scale}")


MAKERS: dict[str, Callable[[], object]] = {
    "tinyint": _integer(8),
    "smallint": _integer(16),
    "int": _integer(32),
    "bigint": _integer(64),
    "float": lambda: float(np.float32(_random.choice([0.0, -0.0, float("nan"), _random.gauss(0, 1e6)]))),
    "double": lambda: _random.choice([0.0, -0.0, float("nan"), float("-inf"), _random.gauss(0, 1e6)]),
    "string": _text,
    "binary": lambda: _random.randbytes(_random.randrange(90)),
    "boolean": lambda: _random.random() < 0.5,
    "date": lambda: _instant().date(),
    "timestamp": _instant,
    "timestamp_ntz": lambda: _instant().replace(tzinfo=None),
    "decimal(9,2)": _decimal(8, 2),
    "decimal(18,18)": _decimal(17, 18),
}
WIDE = {f"decimal({digits},{scale})": _decimal(digits - 2, scale) for digits, scale in [(19, 0), (38, 2), (38, 38)]}
WIDENED = {"tinyint": "bigint", "smallint": "bigint", "int": "bigint", "float": "double"}


def _frame(spark: SparkSession, *kinds: str) -> DataFrame:
    schema = ", ".join(f"c{index} {kind}" for index, kind in enumerate(kinds))
    makers = MAKERS | WIDE
    return spark.createDataFrame([tuple(makers[kind]() for kind in kinds) for _ in range(ROWS)], schema)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_key_has_the_same_group_in_python_and_in_spark(spark: SparkSession, kind: str) -> None:
    widened = F.col("c0").cast(WIDENED.get(kind, kind))
    oracle = F.pmod(F.xxhash64(widened), F.lit(GROUPS)).alias("oracle")
    table = _frame(spark, kind).select("c0", key_group_column("c0", GROUPS).alias("group"), oracle).toArrow()

    assert table["group"].to_pylist() == table["oracle"].to_pylist()
    assert key_groups_of(table["c0"], GROUPS).tolist() == table["oracle"].to_pylist()
    assert [key_group_of(key, GROUPS) for key in table["c0"].to_pylist()] == table["oracle"].to_pylist()


@pytest.mark.parametrize("kind", WIDE)
def test_a_decimal_of_more_digits_is_hashed_by_its_value(spark: SparkSession, kind: str) -> None:
    """As a long while it fits one, in which Spark's own hash differs; else as Spark hashes it."""
    frame = _frame(spark, kind)
    own = F.pmod(F.xxhash64("c0"), F.lit(GROUPS)).alias("own")
    table = frame.select("c0", key_group_column("c0", GROUPS).alias("group"), own).toArrow()
    keys = table["c0"].to_pylist()
    scale = table["c0"].type.scale

    assert table["group"].to_pylist() == key_groups_of(table["c0"], GROUPS).tolist()
    assert table["group"].to_pylist() == [key_group_of(key, GROUPS) for key in keys]
    unscaled = [int(f"{key:f}".replace(".", "")) for key in keys]
    for group, spark_group, number in zip(table["group"].to_pylist(), table["own"].to_pylist(), unscaled, strict=True):
        assert group == (key_group_of(number, GROUPS) if -(2**63) <= number < 2**63 else spark_group)
    assert {-(2**63) <= number < 2**63 for number in unscaled} == ({True, False} if kind != "decimal(19,0)" else {True})
    assert scale == frame.schema["c0"].dataType.scale


@pytest.mark.parametrize(
    "kinds",
    first_is_quick(
        [
            list(MAKERS),
            ["int", "string"],
            ["decimal(18,18)", "decimal(9,2)"],
            ["string", "float", "date"],
            ["boolean", "binary"],
        ]
    ),
    ids=",".join,
)
def test_several_key_columns_have_the_same_group_in_python_and_in_spark(spark: SparkSession, kinds: list[str]) -> None:
    names = [f"c{index}" for index in range(len(kinds))]
    oracle = F.xxhash64(*[F.col(name).cast(WIDENED.get(kind, kind)) for name, kind in zip(names, kinds, strict=True)])
    frame = _frame(spark, *kinds)
    table = frame.select(
        F.struct(*names).alias("key"),
        key_group_column(names, GROUPS).alias("group"),
        F.pmod(oracle, F.lit(GROUPS)).alias("oracle"),
    ).toArrow()

    assert table["group"].to_pylist() == table["oracle"].to_pylist()
    assert key_groups_of(table["key"], GROUPS).tolist() == table["oracle"].to_pylist()
    tuples = [tuple(key.values()) for key in table["key"].to_pylist()]
    assert [key_group_of(key, GROUPS) for key in tuples] == table["oracle"].to_pylist()


def test_both_columns_are_ints(spark: SparkSession) -> None:
    frame = spark.range(1).select(key_group_column("id", 128), subtask_column(F.col("id"), 3, 128))
    assert [kind for _, kind in frame.dtypes] == ["int", "int"]


@pytest.mark.parametrize("kind", first_is_quick(MAKERS))
def test_a_null_key_fails_the_query(spark: SparkSession, kind: str) -> None:
    frame = spark.createDataFrame([(1, MAKERS[kind]()), (2, None)], f"id int, user {kind}")
    with pytest.raises(PySparkException, match=r"null key in .*user.*: every element needs a key"):
        frame.select(key_group_column(["id", "user"], GROUPS)).collect()


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("array(id)", "array<bigint>"),
        ("'a' COLLATE UTF8_LCASE", "string collate UTF8_LCASE"),
    ],
)
def test_a_key_of_another_type_fails_the_query(spark: SparkSession, key: str, kind: str) -> None:
    with pytest.raises(PySparkException, match=f"keys of type {kind} have no xxhash64 hash"):
        spark.range(1).select(key_group_column(F.expr(key), GROUPS)).collect()


def test_a_struct_key_is_refused_before_the_query(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="cannot cast"):
        spark.range(1).select(key_group_column(F.struct("id"), GROUPS))


@pytest.mark.parametrize("kind", ["bigint", "string"])
def test_the_optimizer_removes_the_forms_for_other_types(spark: SparkSession, kind: str) -> None:
    frame = spark.range(5).select(F.col("id").cast(kind).alias("key"))
    explained = _optimized(frame.select(key_group_column("key", GROUPS).alias("group")))

    assert "xxhash64" in explained
    for leftover in ("typeof", "variant", "double", "IN (", "raise_error"):
        assert leftover not in explained


def _optimized(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().optimizedPlan().toString())


@pytest.mark.parametrize("parallelism", first_is_quick([3, 1, 5]))
def test_rows_are_routed_to_the_partition_of_their_subtask(spark: SparkSession, parallelism: int) -> None:
    frame = _frame(spark, "int", "decimal(38,2)")
    routed = frame.repartitionById(parallelism, subtask_column(["c0", F.col("c1")], parallelism, 128))
    rows = routed.withColumn("partition", F.spark_partition_id()).collect()

    assert len(rows) == ROWS
    for row in rows:
        assert row.partition == subtask_of(key_group_of((row.c0, row.c1), 128), parallelism, 128)


def test_impossible_arguments_are_refused_before_the_query(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="parallelism=129"):
        subtask_column("id", 129, 128)
    with pytest.raises(ConfigError, match="max_parallelism=0"):
        key_group_column("id", 0)
    with pytest.raises(ConfigError, match="at least one key column"):
        key_group_column([], 128)
