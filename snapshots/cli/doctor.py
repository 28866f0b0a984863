"""``keygroups doctor``: checks whether this machine has what the project needs, and says what to do if not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath
from typing import Any, Literal

import typer
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from snapshots.cli.options import AsJson
from snapshots.cli.output import CHECK_FAILED, Table, output_for
from snapshots.java import JavaNotFound, use_java

Verdict = Literal["ok", "warning", "fault"]

_DISTRIBUTION = "keygroups"

# The purpose of each extra. The demo's is left out, because it does not affect health.
_EXTRAS = {
    "spark": "Spark pipelines",
    "connect": "Spark Connect",
    "s3": "snapshots on S3",
    "gcs": "snapshots on Google Cloud Storage",
    "azure": "snapshots on Azure Blob Storage",
    "disk": "state on disk",
    "kafka": "sources and sinks of Kafka",
    "delta": "sinks of Delta Lake",
    "iceberg": "sinks of Apache Iceberg",
    "postgres": "sinks of PostgreSQL",
    "prometheus": "metrics in Prometheus",
    "opentelemetry": "metrics and traces in OpenTelemetry",
    "uvloop": "a faster event loop",
    "cli": "the command line",
}


def doctor(as_json: AsJson = False) -> None:
    """Check Python, Java, Spark and the packages of this environment."""
    diagnosis = Diagnosis(tuple(_checks()))
    output_for(as_json=as_json).show(diagnosis)
    if not diagnosis.ok:
        raise typer.Exit(CHECK_FAILED)


@dataclass(frozen=True, slots=True)
class Check:
    """One item that was checked.

    Attributes
    ----------
    name : str
        The item.
    verdict : {"ok", "warning", "fault"}
        A warning means that some features are not available; a fault means that something does not work.
    found : str
        What was found.
    advice : str
        What to do about it; empty if the verdict is "ok".
    """

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The report of ``keygroups doctor``."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether no item has a fault."""
        return all(check.verdict != "fault" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks]}

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        rows = tuple((check.verdict, check.name, check.found, check.advice) for check in self.checks)
        yield Table("doctor", ("verdict", "what", "found", "what to do"), rows)


def _checks() -> Iterable[Check]:
    yield Check("python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield _check_java()
    try:
        requirements = [Requirement(text) for text in importlib.metadata.requires(_DISTRIBUTION) or ()]
    except importlib.metadata.PackageNotFoundError:
        advice = "packages cannot be checked: run `pip install --editable .` in its folder"
        yield Check(_DISTRIBUTION, "warning", "imported from a folder, not installed", advice)
        return
    yield Check(_DISTRIBUTION, "ok", importlib.metadata.version(_DISTRIBUTION))
    for name, package in _packages(requirements).items():
        yield _check_package(name, package)


def _check_java() -> Check:
    try:
        java = use_java()
    except JavaNotFound as error:
        return Check("java", "fault" if _is_importable("pyspark") else "warning", "none for Spark", str(error))
    return Check("java", "ok", f"{java.version} from {java.source}, at {java.home}")


@dataclass(frozen=True, slots=True)
class _Package:
    """What is asked for of a package.

    Attributes
    ----------
    specifier : SpecifierSet
        The versions with which the library and the extras in use work.
    extra : str
        The first extra that asks for it; empty for the library itself.
    is_used : bool
        Whether the library itself asks for it, or an extra that is in use.
    """

    specifier: SpecifierSet
    extra: str
    is_used: bool


def _packages(requirements: Sequence[Requirement]) -> dict[str, _Package]:
    """Return what is asked for of each package; an extra is in use if all of its packages are installed."""
    packages: dict[str, _Package] = {}
    for extra in ("", *_EXTRAS):
        # An extra may ask for another one.
        wanted = [one for one in requirements if one.name != _DISTRIBUTION and _is_of(one, extra)]
        is_used = not extra or all(_is_importable(_module_of(one.name)) for one in wanted)
        for one in wanted:
            known = packages.get(one.name)
            if known is None or (is_used and not known.is_used):
                packages[one.name] = _Package(one.specifier, extra, is_used)
            elif is_used:
                packages[one.name] = replace(known, specifier=known.specifier & one.specifier)
    return packages


def _is_of(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    if marker is None or marker.evaluate({"extra": ""}):
        return not extra
    return marker.evaluate({"extra": extra})


def _check_package(name: str, package: _Package) -> Check:
    """Check one package without importing it: importing pyspark takes seconds, and a broken package would raise."""
    specifier, extra = package.specifier, package.extra
    is_importable = _is_importable(_module_of(name))
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if is_importable:
            advice = f"it was not installed by pip (a cluster's own?): make sure that it is {specifier}"
            return Check(name, "warning", "of an unknown version", advice)
        if extra:
            return Check(name, "warning", "not installed", _advice(extra))
        return Check(name, "fault", "not installed", f"pip install '{name}{specifier}'")
    if not is_importable:
        return Check(name, "fault", f"{version}, but it cannot be imported", f"pip install --force-reinstall {name}")
    if specifier.contains(version, prereleases=True):
        return Check(name, "ok", version)
    found = f"{version}, not {specifier}"
    if package.is_used:
        return Check(name, "fault", found, f"pip install '{name}{specifier}'")
    return Check(name, "warning", found, _advice(extra))


def _advice(extra: str) -> str:
    return f"for {_EXTRAS[extra]}: pip install '{_DISTRIBUTION}[{extra}]'"


def _module_of(name: str) -> str:
    """Return the top-level module of a package, found among its installed files because its name may differ."""
    try:
        files = importlib.metadata.files(name) or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    modules = [_module_in(file) for file in files if file.suffix in {".py", ".so"} and ".." not in file.parts]
    outermost = min(filter(None, modules), key=lambda parts: (len(parts), parts), default=(name.replace("-", "_"),))
    return ".".join(outermost)


def _module_in(file: PurePath) -> tuple[str, ...]:
    return file.parent.parts if file.name == "__init__.py" else (*file.parent.parts, file.name.partition(".")[0])


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # The parent package (google of google.protobuf) is missing as well.
        return False
