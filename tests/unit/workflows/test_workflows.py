# SPDX-License-Identifier: Apache-2.0
"""The public CI's workflows call targets that there are, with the Pythons of the package, and pin what they use.

Whether they are right by GitHub's rules, actionlint and zizmor say (`make workflows`).
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from release.__main__ import GENERATED

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
USES = re.compile(r"uses: (?P<action>[\w.-]+/[\w./-]+)@(?P<digest>\S+)(?P<rest>.*)")
BESIDE_MAKE = ["git diff --exit-code"]
every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def workflow(name: str) -> dict[Any, Any]:
    document: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())
    return document


def jobs(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from workflow(path.name)["jobs"].items()


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def targets() -> set[str]:
    run = ["make", "-C", str(ROOT), "--no-print-directory", "help"]
    text = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True).stdout
    return {line.split()[0] for line in text.splitlines()}


def pyproject() -> str:
    return (ROOT / "pyproject.toml").read_text()


def test_what_a_workflow_runs_is_a_target_of_the_makefile():
    offered = targets()
    called = set()
    for path in WORKFLOWS:
        for name, job in jobs(path):
            for command in commands(job):
                if command in BESIDE_MAKE:
                    continue
                program, *words = shlex.split(command)
                assert program == "make", f"{path.name}, {name}: logic belongs into a target: {command}"
                called |= {word for word in words if "=" not in word}
    assert called >= {"check", "test", "image", "lock", "publish"}
    assert called - offered == set()


def test_everything_that_is_generated_is_made_anew_and_compared():
    made, compared = commands(workflow("ci.yml")["jobs"]["docs"])
    assert set(GENERATED) <= set(made.split()[1:])
    assert compared == BESIDE_MAKE[0]


def test_both_images_of_a_release_have_one_base():
    jobs = workflow("release.yml")["jobs"]
    (build,) = (step for step in jobs["image"]["steps"] if step.get("run") == "make image")
    assert build["env"]["BASE_IMAGE"] == "${{ needs.base.outputs.image }}"
    assert (
        "strategy" not in jobs["base"]
        and jobs["image"]["needs"] == "base"
        and jobs["base"]["needs"] == "test"
    )


def test_the_chart_is_packed_after_the_image_and_the_files_are_attested_after_the_chart():
    steps = workflow("release.yml")["jobs"]["publish"]["steps"]
    place = {step["run"].partition("STEP=")[2]: at for at, step in enumerate(steps) if "run" in step}
    attested = next(
        at for at, step in enumerate(steps) if step.get("with", {}).get("subject-path") == "dist/*"
    )
    assert place["index"] < place["chart"] < place["files"] < attested < place["release"]
    assert steps[place["chart"]]["env"]["DIGEST"] == "${{ steps.index.outputs.digest }}"


@every_workflow
def test_nothing_is_pasted_into_a_command(path: Path):
    """A value that somebody else chose, such as a tag, reaches a command by its environment alone."""
    pasted = [command for _, job in jobs(path) for command in commands(job) if "${{" in command]
    assert pasted == []


def test_steps_of_publishing_exist():
    script = (ROOT / ".ci" / "publish").read_text()
    steps = {
        word.removeprefix("STEP=")
        for path in WORKFLOWS
        for _, job in jobs(path)
        for command in commands(job)
        for word in shlex.split(command)
        if word.startswith("STEP=")
    }
    assert steps == set(re.findall(r"^#     \.ci/publish (\w+)", script, re.MULTILINE))


def test_the_pythons_are_those_of_the_package():
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', pyproject())
    matrix = workflow("ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == named
    assert re.findall(r'requires-python = ">=(3\.\d+)"', pyproject()) == named[:1]
    assert named == [f"3.{minor}" for minor in range(10, 10 + len(named))]
    assert len(named) > 3


def test_both_processors_are_tested_and_imaged():
    both = {"ubuntu-24.04", "ubuntu-24.04-arm"}
    assert set(workflow("ci.yml")["jobs"]["test"]["strategy"]["matrix"]["runner"]) == both
    assert set(workflow("ci.yml")["jobs"]["image"]["strategy"]["matrix"]["runner"]) == both
    released = workflow("release.yml")["jobs"]["image"]["strategy"]["matrix"]["include"]
    assert {row["arch"]: row["runner"] for row in released} == {
        "amd64": "ubuntu-24.04",
        "arm64": "ubuntu-24.04-arm",
    }


def test_actions_are_pinned_to_one_commit_each_and_say_its_version():
    pins: dict[str, set[tuple[str, str]]] = {}
    for path in WORKFLOWS:
        lines = [line for line in path.read_text().splitlines() if "uses:" in line]
        assert lines, path.name
        for line in lines:
            match = USES.search(line)
            assert match, f"{path.name}: {line}"
            assert re.fullmatch(r"[0-9a-f]{40}", match["digest"]), f"{path.name}: {line}"
            version = re.fullmatch(r" # (v\d+\.\d+\.\d+)", match["rest"])
            assert version, f"{path.name}: {line}"
            owner_and_name = "/".join(match["action"].split("/")[:2])
            pins.setdefault(owner_and_name, set()).add((match["digest"], version[1]))
    assert {action: found for action, found in pins.items() if len(found) > 1} == {}


@every_workflow
def test_rights_are_given_job_by_job(path: Path):
    assert workflow(path.name)["permissions"] == {}
    for name, job in jobs(path):
        assert "permissions" in job, name
        assert job["timeout-minutes"] <= 120, name


@every_workflow
def test_what_builds_cannot_publish(path: Path):
    """A build runs the code of a hundred packages: it may write nothing but the image of its processor."""
    for name, job in jobs(path):
        writes = {right for right, access in job["permissions"].items() if access == "write"}
        builds = any("STEP=" not in command for command in commands(job))
        if builds:
            assert writes <= {"packages", "security-events"}, name
        if "packages" in writes and builds:
            steps = [step.get("run") or step["uses"].partition("@")[0] for step in job["steps"]]
            assert steps.index("make image") < steps.index("docker/login-action"), (
                "no credentials while it builds"
            )


@every_workflow
def test_what_others_built_is_laid_where_nothing_is_run_from(path: Path):
    """A job that may write runs `.ci/publish` of the checkout, and not what a build has left in its place."""
    for name, job in jobs(path):
        for step in job["steps"]:
            if "download-artifact" in step.get("uses", ""):
                assert step["with"]["path"] in ("dist", "docs", "deploy/image"), name
