# SPDX-License-Identifier: Apache-2.0
"""What pages and boards name by a public name exists: metrics, annotations, resources, reasons, values of the chart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.telemetry.metrics import METRICS as AGENT_METRICS
from gigaslice.core.classes.resource_class import parse_resource_class
from gigaslice.core.cluster import names as cluster_names
from gigaslice.core.kube.reasons import REASONS
from gigaslice.core.model.annotations import ANNOTATIONS
from gigaslice.roles.controller.config import ControllerConfig
from gigaslice.roles.controller.metrics import METRICS as CONTROLLER_METRICS
from gigaslice.roles.dataset_node.metrics import METRICS as DATASET_METRICS
from gigaslice.roles.dataset_node.settings import DatasetSettings
from gigaslice.roles.scheduler.metrics import METRICS as SCHEDULER_METRICS
from gigaslice.roles.scheduler.settings import SchedulerSettings
from gigaslice.runtime.settings import Setting
from gigaslice.runtime.settings import table as settings_of
from gigaslice_cli import frame
from tests.unit.docs import tables
from tests.unit.docs.page_tables import blocks
from tests.unit.docs.test_docs import PAGES, REFERENCE, ROOT, code_spans, fences, names, prose
from tests.unit.gigaslice.roles.controller.crd_schema import mistakes

MANUAL = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which names what was renamed, too
METRICS = {
    row.name
    for table in (AGENT_METRICS, CONTROLLER_METRICS, SCHEDULER_METRICS, DATASET_METRICS)
    for row in table
}
KUBERNETES = {
    "OnDelete",
    "FailedPrepareDynamicResources",
    "OutOfcpu",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "WaitForFirstConsumer",
}
"""Names of Kubernetes' own that no source of ours has."""


def sources(*tops: str) -> str:
    """The texts of the code and of the charts."""
    found = (path for top in tops for path in sorted((ROOT / top).rglob("*")))
    return "".join(path.read_text() for path in found if path.suffix in (".py", ".yaml", ".tpl"))


SOURCES = sources("agent", "gigaslice", "gigaslice_cli", "vcuda", "deploy")


def test_every_metric_that_is_named_exists() -> None:
    boards = sorted((ROOT / "deploy").rglob("*.json"))
    assert boards
    seen = 0
    for page in [*MANUAL, *boards]:
        for name in set(re.findall(r"\bgigaslice_(?!cli\b)[a-z_]+\b", page.read_text())):
            whole = {name, re.sub(r"_(bucket|count|sum)$", "", name)}
            assert whole & METRICS, f"{names(page)}: {name}"
            seen += 1
    assert seen > 60


def test_every_name_of_ours_exists() -> None:
    """Annotations, labels and resources: names that users make, of classes and types, come after a known prefix."""
    known = {f"gigaslice.io/{row.name}" for row in ANNOTATIONS}
    known |= {
        row.option.namespace_label for row in ANNOTATIONS if row.option.free_values or row.option.free_up_to
    }
    made = (cluster_names.CLASS_PREFIX, f"{cluster_names.MEMORY_RESOURCE}.")
    seen = 0
    for page in MANUAL:
        for name in set(re.findall(r"(?:[a-z-]+\.)*gigaslice\.io/[A-Za-z][\w.-]*[\w]", page.read_text())):
            own = name.removeprefix("requests.").removeprefix("limits.")
            option = own.rpartition(".")[0]  # an option of one container
            assert own in known or option in known or own.startswith(made) or own in SOURCES, (
                f"{names(page)}: {name}"
            )
            seen += 1
    assert seen > 50


def test_every_reason_and_kind_that_is_named_exists() -> None:
    reasons = {row.name for row in REASONS}
    for page in MANUAL:
        for span in code_spans(page):
            if re.fullmatch(r"[A-Z][a-z]+(GPU)?([A-Z][a-z]+)+", span):
                assert span in reasons | KUBERNETES or span in SOURCES, f"{names(page)}: {span}"


def test_every_value_of_the_chart_that_is_named_exists() -> None:
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "gigaslice" / "values.yaml").read_text())
    known = set(paths(values))
    settings = {f"{path}." for path in known if path.endswith("settings")}
    seen = 0
    for page in MANUAL:
        for span in code_spans(page):
            match = re.fullmatch(rf"(({'|'.join(values)})(\.\w+)+)(=.*)?", span)
            if match and not span.endswith(
                (".json", ".io")
            ):  # dataset.json is a file, dataset.gigaslice.io a driver
                own = match[1]
                free = [one for one in settings if own.startswith(one)]
                assert own in known or free, f"{names(page)}: {span}"
                if free and own not in known:
                    key = own.removeprefix(free[0])
                    assert key in keys_of(free[0]), f"{names(page)}: {span}"
                seen += 1
    assert seen > 10


def paths(values: dict[str, Any], above: str = "") -> Iterator[str]:
    """The values with their paths."""
    for key, value in values.items():
        yield f"{above}{key}"
        if isinstance(value, dict):
            yield from paths(value, f"{above}{key}.")


def keys_of(role: str) -> set[str]:
    """The settings that a role takes from the chart."""
    found: dict[str, list[Setting]] = {
        "settings.": list(tables.config.SETTINGS),
        "scheduler.settings.": list(settings_of(SchedulerSettings)),
        "controller.settings.": list(settings_of(ControllerConfig)),
        "dataset.settings.": list(settings_of(DatasetSettings)),
    }
    return {one.key for one in found[role]}


@pytest.mark.parametrize(
    ("command", "settings"),
    [("scheduler", settings_of(SchedulerSettings)), ("controller", settings_of(ControllerConfig))],
)
def test_every_setting_of_a_role_of_the_cluster_is_there(command: str, settings: list[Setting]) -> None:
    table = blocks(REFERENCE)[f"gigaslice {command}"]
    for field in settings:
        assert f"`--{field.flag}`" in table
    parser = tables.subcommands(frame.make_parser())[command]
    flags = {option for action in parser._actions for option in action.option_strings} - {"-h", "--help"}
    assert flags - {"--config"} == {f"--{field.flag}" for field in settings}


@pytest.mark.parametrize("page", ["cluster.md", "resource-classes.md"])
def test_the_classes_of_the_pages_are_taken(page: str) -> None:
    """By the API server's rules, and by our own reading."""
    found = [one for text in fences(ROOT / "docs" / page, "yaml") for one in yaml.safe_load_all(text)]
    classes = [one for one in found if one.get("kind") == "ResourceClass"]
    assert classes
    for one in classes:
        assert mistakes("resourceclasses", one) == []
        assert parse_resource_class(one).name == one["metadata"]["name"]


def test_every_page_is_in_the_table_of_the_first() -> None:
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| [")]
    listed = [target for row in rows for target in re.findall(r"\]\((docs/[\w-]+\.md)\)", row)]
    assert sorted(listed) == sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))


OTHERS = [
    path
    for top in ("docs/proofs", "native", "tests", "proto", "deploy")
    for path in sorted((ROOT / top).rglob("*.md"))
]


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("https://"):
            continue
        file, _, heading = target.partition("#")
        found = page.parent / file if file else page
        assert found.exists(), target
        if heading and found.suffix == ".md":
            assert heading in headings(found), target


def headings(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    titles = (
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", one) for one in re.findall(r"(?m)^#+ (.*)$", prose(page))
    )
    return {re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).replace(" ", "-") for title in titles}
