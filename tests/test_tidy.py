"""House rules that no linter knows: sizes, clocks, hashes and what is public.

The direction of imports is import-linter's matter (`make lint`); here is only what it is for.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("keygroups", "snapshots", "async_op")
MODULES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}

MODULE_LINES_MAX = 700
FUNCTION_LINES_MAX = 50

# How many there are today; less is better. A module that only one other uses may be a part of that one, and what a
# constructor is told to call hides who calls whom.
MODULES_WITH_ONE_USER_MAX = 60
CALLBACKS_OF_CONSTRUCTORS_MAX = 29

# Modules that may look at the wall clock or sleep, and why. Everything else takes a clock, or uses a monotonic one.
CLOCK_USERS: dict[str, str] = {
    "async_op/metrics/opentelemetry.py": "a span has the time of day at which it began",
    "async_op/spark/connect/query.py": "a client looks again and again at what the process beside the server wrote",
    "async_op/spark/restarts.py": "the thread of the caller waits before a restart; tests replace the wait",
    "async_op/threads/wait_strategies.py": "sleep(0) lets other threads run: the progressive wait's second level",
    "keygroups/ttl.py": "the system's processing time, for operators and backends without another clock",
}

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees() -> dict[str, ast.Module]:
    """Return the modules, parsed once: not when they are collected, which each process does."""
    return {name: ast.parse(text, name) for name, text in MODULES.items()}


def functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def body_lines(function: Function) -> int:
    statements = function.body[1:] if ast.get_docstring(function) else function.body
    return (function.end_lineno or 0) - statements[0].lineno + 1 if statements else 0


def calls_of(tree: ast.Module, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node


def clock_uses(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="time"), attr="time" | "time_ns" | "sleep"):
                yield node
            case ast.ImportFrom(module="time", names=names) if {alias.name for alias in names} & {"time", "sleep"}:
                yield node


def test_modules_are_short() -> None:
    sizes = {name: len(text.splitlines()) for name, text in MODULES.items()}

    assert {name: size for name, size in sizes.items() if size > MODULE_LINES_MAX} == {}


def test_functions_are_short() -> None:
    sizes = {
        f"{name}:{function.lineno} {function.name}": body_lines(function)
        for name, tree in trees().items()
        for function in functions(tree)
    }

    assert {name: size for name, size in sizes.items() if size > FUNCTION_LINES_MAX} == {}


def dotted(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports_of(tree: ast.Module) -> set[str]:
    """Return the modules, and the names in modules, that a module imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=taken):
                names |= {alias.name for alias in taken}
            case ast.ImportFrom(module=str(module), names=taken):
                names |= {module, *(f"{module}.{alias.name}" for alias in taken)}
    return names


def test_few_modules_have_only_one_user() -> None:
    entries = ("__init__.py", "__main__.py")
    users: dict[str, set[str]] = {dotted(name): set() for name in MODULES if not name.endswith(entries)}
    for name, tree in trees().items():
        for module in imports_of(tree) & users.keys() - {dotted(name)}:
            users[module].add(name)

    alone = sorted(module for module, names in users.items() if len(names) == 1)
    assert len(alone) <= MODULES_WITH_ONE_USER_MAX, alone


def test_few_constructors_are_told_what_to_call() -> None:
    callbacks = [
        f"{name} {node.name}({argument.arg})"
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for function in node.body
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
        for argument in (*function.args.args, *function.args.kwonlyargs)
        if argument.annotation is not None and "Callable" in ast.unparse(argument.annotation)
    ]

    assert len(callbacks) <= CALLBACKS_OF_CONSTRUCTORS_MAX, callbacks


def test_a_class_has_a_name_of_its_own() -> None:
    homes: dict[str, list[str]] = {}
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name)

    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_a_module_takes_nothing_from_the_package_that_it_is_in() -> None:
    """Such a circle is none of siblings, so import-linter does not see it."""
    names = {dotted(name) for name in MODULES}
    taken = [
        (name, alias.name)
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module is not None
        and name.startswith(node.module.replace(".", "/") + "/")
        for alias in node.names
        if f"{node.module}.{alias.name}" not in names
    ]

    assert taken == []


def test_nothing_depends_on_the_salted_hash() -> None:
    assert [f"{name}:{call.lineno}" for name, tree in trees().items() for call in calls_of(tree, "hash")] == []


def test_time_comes_from_a_clock_that_a_test_can_turn() -> None:
    users = {name for name, tree in trees().items() if any(clock_uses(tree))}

    assert users == set(CLOCK_USERS)


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_resolve_and_are_explained(package: str) -> None:
    module = importlib.import_module(package)
    public = {name: getattr(module, name) for name in module.__all__}

    explained = {name: value for name, value in public.items() if inspect.isclass(value) or inspect.isroutine(value)}
    assert [name for name, value in explained.items() if not inspect.getdoc(value)] == []


def test_everything_but_spark_imports_without_spark() -> None:
    names = [dotted(name) for name in MODULES]
    pure = [name for name in names if "spark" not in name.split(".")]
    program = f"import importlib, sys; sys.modules['pyspark'] = None; [importlib.import_module(n) for n in {pure}]"

    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr


def test_the_wheel_holds_the_packages_and_their_types() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert tuple(settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == PACKAGES
    assert [package for package in PACKAGES if not (ROOT / package / "py.typed").is_file()] == []


def test_every_folder_of_the_repository_is_on_the_map() -> None:
    listed = subprocess.run(["git", "ls-files", "*/*"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip(f"nothing tells the repository's folders from others: {listed.stderr.strip()}")
    folders = {path.split("/")[0] for path in listed.stdout.splitlines() if not path.startswith(".")}
    architecture = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")

    assert folders >= {*PACKAGES, "tests"}
    assert [folder for folder in sorted(folders) if f"`{folder}/`" not in architecture] == []


def test_a_class_that_says_who_may_call_what_names_what_it_has() -> None:
    named = [
        (name, node.name, method, {child.name for child in node.body if isinstance(child, Function)})
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for methods in re.findall(r"may\s+call\s+((?:`\w+`(?:,\s|\sand\s)?)+)", ast.get_docstring(node) or "")
        for method in re.findall(r"`(\w+)`", methods)
    ]

    assert named
    assert [(name, of, method) for name, of, method, members in named if method not in members] == []
