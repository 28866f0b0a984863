"""The files for platforms on which no test can run: linters and the platforms' own models look at them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.docs.pages import ROOT, Page

HOWTO = ROOT / "docs" / "howto"
PLATFORMS = ("databricks", "emr", "dataproc", "kubernetes")
PROGRAM = "enrich.py"  # on the page `clusters`, whose test runs it


class File(NamedTuple):
    page: str
    name: str
    language: str
    text: str


FILES = [
    File(page, str(block.lexemes["title"]), block.lexemes["language"], str(block.lexemes["source"]))
    for page in PLATFORMS
    for block in Page(HOWTO / f"{page}.md").blocks()
    if block.lexemes["title"]
]


def files(language: str) -> list[Any]:
    return [pytest.param(file, id=f"{file.page}-{file.name}") for file in FILES if file.language == language]


def linted(file: File, linter: str, *options: str) -> str:
    path = shutil.which(linter, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if path is None:
        pytest.skip(f"needs {linter}, of the dependency group `dev`")
    return subprocess.run(
        [path, *options, "-"], input=file.text, capture_output=True, text=True, check=False, timeout=600
    ).stdout


@pytest.mark.parametrize("file", files("sh"))
def test_shellcheck_has_nothing_to_say(file: File) -> None:
    assert linted(file, "shellcheck", "--enable=all", "--exclude=SC2250,SC2310,SC2312") == ""


@pytest.mark.parametrize("file", files("dockerfile"))
def test_hadolint_has_nothing_to_say(file: File) -> None:
    assert linted(file, "hadolint", "--no-color") == ""


@pytest.mark.parametrize("file", files("yaml"))
def test_the_models_of_the_platform_know_every_field(file: File) -> None:
    for document in yaml.safe_load_all(file.text):
        match document:
            case {"bundle": _, "resources": {"jobs": jobs}}:
                model = pytest.importorskip("databricks.bundles.jobs", reason="needs databricks-bundles").Job
                for job in jobs.values():
                    model.from_dict(job)  # refuses what it does not know
            case {"kind": "SparkApplication" as kind} | {"kind": "ServiceAccount" as kind}:
                models = pytest.importorskip("kubeflow_spark_api.models", reason="needs kubeflow-spark-api")
                name = {"SparkApplication": "SparkV1beta2SparkApplication"}.get(kind, f"IoK8sApiCoreV1{kind}")
                # It leaves out what it does not know.
                assert getattr(models, name).from_dict(document).to_dict() == document
            case {"kind": "Deployment", "spec": {"selector": selector, "template": template} as spec}:
                models = pytest.importorskip("kubeflow_spark_api.models", reason="needs kubeflow-spark-api")
                assert models.IoK8sApiCoreV1PodTemplateSpec.from_dict(template).to_dict() == template
                assert selector == {"matchLabels": template["metadata"]["labels"]}
                # Two pods of a job would take over from each other.
                assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
                assert spec.keys() == {"replicas", "strategy", "selector", "template"}
            case _:
                pytest.fail(f"{file.name} has a document that no model is known for")


@pytest.mark.parametrize("page", PLATFORMS)
def test_files_name_only_files_that_the_reader_has(page: str) -> None:
    own = {file.name for file in FILES if file.page == page} | {PROGRAM}
    texts = "\n".join(file.text for file in FILES if file.page == page)

    assert {Path(name).name for name in re.findall(r"[\w./$:-]+\.(?:py|sh)\b", texts)} <= own


@pytest.mark.parametrize("page", PLATFORMS)
def test_the_program_gets_all_of_its_arguments(page: str) -> None:
    texts = [file.text for file in FILES if file.page == page]
    starts = [
        match for text in texts for match in re.findall(rf"{PROGRAM} +(\S+) (\S+) (\S+) (\S+)$", text, re.MULTILINE)
    ]
    lists = [text for text in texts if re.search(r"^ +(arguments|parameters):(\n +- \S+){4}\n", text, re.MULTILINE)]

    assert starts or lists


def test_the_job_on_kubernetes_gets_all_of_its_arguments() -> None:
    texts = {file.name: file.text for file in FILES if file.page == "kubernetes"}
    *_, deployment = yaml.safe_load_all(texts["visits.yaml"])
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    names = re.findall(r"[A-Z]{2,}", texts["visits.py"].splitlines()[0])

    assert len(container["args"]) == len(names) == 3
    assert 'ENTRYPOINT ["python", "/app/visits.py"]' in texts["Dockerfile.visits"]


def test_one_version_of_spark_is_named_and_it_is_new_enough() -> None:
    named = {version for file in FILES for version in re.findall(r"\b4\.1\.\d\b", file.text)}
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["spark"]

    assert len(named) == 1
    assert "pyspark>=4.1" in extra
