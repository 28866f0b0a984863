"""Settings of all tests: Hypothesis profiles and the options of the simulation."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from keygroups import codec
from keygroups.errors import SHOW_VALUES
from tests import jvm
from tests.backends import BACKENDS, chosen, end_stores, watch_stores
from tests.quick import in_turn, is_left_out
from tests.snapshot_kit import forget_stores

if TYPE_CHECKING:
    from tests.s3_server import S3Server

# The limit of pytest-timeout stands for all of an example's runs together; a deadline per example would only measure
# how busy the machine is.
settings.register_profile("default", deadline=None, max_examples=25)
# A landing must not depend on luck: the same examples for the same commit. Whoever hunts for more runs the default
# profile, which draws new ones each time.
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=100,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# One test for each rule is the point of a quick run, not many examples for one.
settings.register_profile("quick", deadline=None, max_examples=10)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")

os.environ.setdefault("SPARK_SUBMIT_OPTS", jvm.options())

# Many tests look for the value that a message names. What messages hide without it has tests of its own.
os.environ.setdefault(SHOW_VALUES, "1")

# Hundreds of processes that tests start import the packages: without bytecode, each compiles them anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


SEEDS = 100
QUICK_SEEDS = 5


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    seeds = f"how many seeds the simulation runs (default: {SEEDS}, with --quick {QUICK_SEEDS})"
    group.addoption("--seeds", type=int, default=None, help=seeds)
    group.addoption("--seed", type=int, default=None, help="the only seed that the simulation runs, to replay it")
    group.addoption("--quick", action="store_true", help="leave out what is marked `thorough`, as `make test` does")
    spark = parser.getgroup("spark")
    spark.addoption("--kills", default="1", help="the seed of the sample of crash points, or all")
    packaging = parser.getgroup("packaging")
    choices = ("none", "sample", "all")
    packaging.addoption("--matrix", choices=choices, default="none", help="try the wheel with other Pythons and Sparks")
    documentation = parser.getgroup("documentation")
    documentation.addoption("--record", action="store_true", help="write what terminal sessions print into the pages")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.seeds is None:
        config.option.seeds = QUICK_SEEDS if config.option.quick else SEEDS
    if config.option.quick and os.environ.get("CI") != "true":
        settings.load_profile("quick")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the collector of garbage the tests themselves: 1.7 million objects, and no garbage.

    Its looks at them took half the time of collecting them, in each process, and a second for each `gc.collect()`.
    """
    gc.disable()
    result = yield
    gc.enable()
    gc.freeze()
    atexit.register(gc.unfreeze)  # a module of C++ counts what Python has not freed at its end, and prints it
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, object, object]:
    """Mark what needs a JVM as `spark`; with --quick leave out what is `thorough`: two thirds of the time of all."""
    for item in items:
        if "java" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
    if config.option.quick:
        config.hook.pytest_deselected(items=[item for item in items if is_left_out(item)])
        items[:] = [item for item in items if not is_left_out(item)]
    result = yield
    _keep_folders_together(items)
    return result


def _keep_folders_together(items: list[pytest.Item]) -> None:
    """Have one process run the tests of a folder, as far as it can, because they share servers, a site or a wheel.

    The order of folders, of modules and of tests is random all the same. Modules with Spark stay apart: they take most
    of the time, and each process has a JVM. All tests of Spark Connect are together, because a server takes as long to
    start as most of them.
    """
    places: dict[Path | str, int] = {}
    for place, item in enumerate(items):
        places.setdefault(_kept_together(item), place)
    items.sort(key=lambda item: places[_kept_together(item)])


def _kept_together(item: pytest.Item) -> Path | str:
    if "connect_url" in getattr(item, "fixturenames", ()):
        return "Spark Connect"
    return item.path if item.get_closest_marker("spark") else item.path.parent


@pytest.hookimpl(optionalhook=True)  # the matrix of versions runs without xdist
def pytest_xdist_auto_num_workers() -> int:
    """Two more than there are processors: some tests wait most of their time, for leases and other processes."""
    return (os.cpu_count() or 1) + 2


def pytest_sessionfinish() -> None:
    """Write what `make coverage` has measured: xdist kills a process that takes long to end."""
    if "coverage" in sys.modules and (measuring := sys.modules["coverage"].Coverage.current()) is not None:
        measuring.save()


@pytest.fixture(scope="session", autouse=True)
def watched_stores() -> Iterator[None]:
    """Know of every store on disk that a test opens."""
    with pytest.MonkeyPatch.context() as patch:
        watch_stores(patch)
        yield


@pytest.fixture(autouse=True)
def no_store_left_open(watched_stores: None) -> Iterator[None]:
    """Fail a test that leaves a store to the garbage collector, which would remove its files within a later test."""
    yield
    assert end_stores() == 0


@pytest.fixture(autouse=True)
def no_files_left_in_memory() -> Iterator[None]:
    """Forget the stores in memory, or each test would be slower than the one before it."""
    yield
    forget_stores()


@pytest.fixture(autouse=True)
def no_codec_left_registered() -> Iterator[None]:
    """Forget the codecs that a test registered: they hold for the process, and a later test may use the name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "_codecs", dict(codec._codecs))
        patch.setattr(codec, "_codecs_of_types", dict(codec._codecs_of_types))
        yield


# pytest notes its own progress there, and pyspark what it has found out about itself.
_MAY_CHANGE = ("PYTEST_", "PYSPARK_", "SPARK_")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_MAY_CHANGE)}


@pytest.fixture(autouse=True)
def environment_left_as_it_was() -> Iterator[None]:
    """Fail a test that leaves a variable behind, which would be the fault of whatever runs after it."""
    before = _environment()
    yield
    assert _environment() == before


@pytest.fixture(scope="session")
def running_s3() -> Iterator[S3Server]:
    from tests.s3_server import s3_server  # whose packages are not there where only a subset of the tests runs

    with s3_server() as server:
        yield server


@pytest.fixture(params=in_turn(BACKENDS))
def each_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test with each backend of keyed state; its name."""
    with chosen(request.param) as kind:
        yield kind
