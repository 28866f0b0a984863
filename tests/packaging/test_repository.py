"""The files that people expect of a public repository: they name what exists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import QUICK_SEEDS, SEEDS
from tests.packaging.conftest import ROOT, SUPPORTED, run

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
LINTERS = re.findall(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]


def steps_of(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_targets_and_files_that_exist(path: Any) -> None:
    commands = "\n".join(step.get("run", "") for step in steps_of(yaml.safe_load(path.read_text())))

    assert set(re.findall(r"\bmake ([a-z-]+)", commands)) <= TARGETS
    assert [name for name in re.findall(r"^\.ci/\w+", commands, re.MULTILINE) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_few_rights_and_a_time_limit(path: Any) -> None:
    workflow = yaml.safe_load(path.read_text())

    assert workflow["permissions"] == {"contents": "read"}
    assert [name for name, job in workflow["jobs"].items() if job.get("timeout-minutes", 1000) > 120] == []


@pytest.mark.skipif(sys.platform != "linux", reason="the wheels of actionlint are for Linux")
def test_actionlint_finds_no_fault_in_the_workflows() -> None:
    tools = Path(sys.executable).parent
    run([tools / "actionlint", f"-shellcheck={tools / 'shellcheck'}", *WORKFLOWS], cwd=ROOT)


def test_the_tests_run_on_every_supported_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())

    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == list(SUPPORTED)


def tool(command: str) -> str:
    return re.sub(r" (--check|--force-exclude|\.)(?= |$)", "", command)


def test_a_commit_is_checked_by_the_linters_of_make_lint() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    linters = LINTERS.replace("$(python)", ".venv/bin/python").replace("$(venv)", ".venv").split("\n\t")

    assert [tool(hook["entry"]) for hook in repository["hooks"]] == [tool(line.strip()) for line in linters]


def test_the_other_files_can_be_parsed() -> None:
    for path in (*(ROOT / ".github").rglob("*.yml"), ROOT / "CITATION.cff"):
        assert yaml.safe_load(path.read_text())
    assert json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())


def test_every_target_of_the_makefile_has_a_recipe() -> None:
    for target in sorted(TARGETS):
        assert subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_the_page_of_contributors_says_what_runs_where() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (seeds,) = re.findall(r"^\| seeds .*?\| (\d+) \| (\d+) \| (\d+) \| ([\d,]+) \|", page, re.MULTILINE)
    (continuous,) = re.findall(r"--seeds (\d+)", (ROOT / ".ci" / "run").read_text())
    quick = re.findall(r"^test: .*\n\t.*--quick", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert [int(number.replace(",", "")) for number in seeds] == [SEEDS, QUICK_SEEDS, SEEDS, int(continuous)]
    assert len(quick) == 1
    assert set(re.findall(r"^    make ([a-z-]+)", page, re.MULTILINE)) <= TARGETS
