"""``keygroups doctor``: whether this machine has what the project needs, and what to do where it has not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import typer
from packaging.requirements import Requirement

from keygroups.java import JavaNotFound, use_java
from snapshots.cli.errors import CHECK_FAILED
from snapshots.cli.options import AsJson
from snapshots.cli.output import Table, output_for

Verdict = Literal["ok", "warning", "fault"]

_DISTRIBUTION = "keygroups"

# What each extra is for. Those that only make a demo or a development environment are no matter of health.
_EXTRAS = {
    "spark": "Spark pipelines",
    "s3": "snapshots on S3",
    "gcs": "snapshots on Google Cloud Storage",
    "azure": "snapshots on Azure Blob Storage",
    "uvloop": "a faster event loop",
    "cli": "the command line",
}

# Where the module is not named as the distribution.
_MODULES = {"protobuf": "google.protobuf"}


def doctor(as_json: AsJson = False) -> None:
    """Check Python, Java, Spark and the packages of this environment."""
    diagnosis = Diagnosis(tuple(_checks()))
    output_for(as_json=as_json).show(diagnosis)
    if not diagnosis.ok:
        raise typer.Exit(CHECK_FAILED)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes
    ----------
    name : str
        The thing.
    verdict : {"ok", "warning", "fault"}
        A warning limits what can be done; with a fault, something that should work does not.
    found : str
        What is there.
    advice : str
        What to do about it; empty where it is ok.
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
        """Whether there is no fault."""
        return all(check.verdict != "fault" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the stable form."""
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks]}

    def tables(self) -> Iterable[Table]:
        """Return the form for people."""
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
    seen: set[str] = set()
    for extra in ("", *_EXTRAS):
        for requirement in requirements:
            is_wanted = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
            if is_wanted and requirement.name not in seen:
                seen.add(requirement.name)
                yield _check_package(requirement, extra)


def _check_java() -> Check:
    try:
        java = use_java()
    except JavaNotFound as error:
        return Check("java", "fault" if _is_importable("pyspark") else "warning", "none for Spark", str(error))
    return Check("java", "ok", f"{java.version} from {java.source}, at {java.home}")


def _check_package(requirement: Requirement, extra: str) -> Check:
    """Check one package without importing it: pyspark would take seconds, a broken one would end the report."""
    name = requirement.name
    is_importable = _is_importable(_MODULES.get(name, name))
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if is_importable:
            advice = f"it was not installed by pip (a cluster's own?): make sure that it is {requirement.specifier}"
            return Check(name, "warning", "of an unknown version", advice)
        if extra:
            advice = f"for {_EXTRAS[extra]}: pip install '{_DISTRIBUTION}[{extra}]'"
            return Check(name, "warning", "not installed", advice)
        return Check(name, "fault", "not installed", f"pip install '{name}{requirement.specifier}'")
    if not is_importable:
        return Check(name, "fault", f"{version}, but it cannot be imported", f"pip install --force-reinstall {name}")
    if not requirement.specifier.contains(version, prereleases=True):
        return Check(
            name, "fault", f"{version}, not {requirement.specifier}", f"pip install '{name}{requirement.specifier}'"
        )
    return Check(name, "ok", version)


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # The package around it (google of google.protobuf) is missing as well.
        return False
