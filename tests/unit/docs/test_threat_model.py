# SPDX-License-Identifier: Apache-2.0
"""docs/threat-model.md names a test or a decision for each of its lines, and they exist. And rights, and licences."""

from __future__ import annotations

import re

import pytest

from tests.unit.docs import accounts, licences
from tests.unit.docs.test_docs import ROOT, names
from tests.unit.manifests.test_chart import documents_of

PAGE = ROOT / "docs" / "threat-model.md"
TEXT = PAGE.read_text()
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")
DECISION = re.compile(r"\]\((adr/\d{4}-[\w-]+\.md)\)")
SOURCE = re.compile(r"\b\w+\.[ch]`|\bCVE-\d|\barXiv|\bCCS \d{4}")
SECTIONS = {
    "A tenant": 2,
    "A node that was taken over": 2,
    "A stranger on the network": 2,
    "What connects where": 3,
}
"""With their columns, of which the last one has the test or the decision."""
LISTS = ("What is left in a GPU's memory", "Not protected", "Provenance")
NOT_FOUND = "we found no word of NVIDIA's about them"
"""A claim about what is not known, which nothing can show."""


def lines(section: str) -> list[list[str]]:
    """The cells of the rows of a section's table, without its head."""
    text = TEXT.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"
    ]
    return rows[2:]


def points(section: str) -> list[str]:
    """The points of a section's list, each with the lines below it."""
    text = TEXT.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [point.partition("\n\n")[0] for point in re.split(r"(?m)^\* ", text)[1:]]


@pytest.mark.parametrize("section", LISTS)
def test_each_point_has_its_test_its_decision_or_its_source(section: str) -> None:
    """The source, for what is said of other people's programs: a file of theirs or a publication."""
    assert len(points(section)) >= 5
    for point in points(section):
        outside = section == LISTS[0] and (SOURCE.search(point) or NOT_FOUND in point)
        assert TEST.search(point) or DECISION.search(point) or outside, point


def test_no_section_is_left_out() -> None:
    headings = set(re.findall(r"(?m)^## (.+)$", TEXT))
    told = {
        "What there is to protect",
        "Who is trusted with what",
    }  # whose lines are what the others are about
    assert headings == {*SECTIONS, *LISTS, *told}


@pytest.mark.parametrize("section", SECTIONS)
def test_each_line_has_its_test_or_its_decision(section: str) -> None:
    rows = lines(section)
    assert len(rows) > 5
    for cells in rows:
        assert len(cells) == SECTIONS[section], cells
        assert TEST.search(cells[-1]) or DECISION.search(cells[-1]), cells[0]


def test_the_tests_that_are_named_exist() -> None:
    found = TEST.findall(TEXT)
    assert len(found) > 25
    for path, function in found:
        source = (ROOT / path).read_text()
        assert not function or re.search(rf"(?m)^\s*(async )?def {function}\(", source), f"{path}::{function}"


def test_what_no_section_claims_is_in_the_list_of_what_is_not_protected() -> None:
    kept = TEXT.partition("\n## Not protected\n")[2].partition("\n## ")[0]
    for word in (
        "same GPU",
        "privileged",
        "`hostNetwork`",
        "without TLS",
        "Before Kubernetes 1.30",
        "`vcuda run`",
    ):
        assert word in kept, word


def test_the_bound_that_is_named_is_that_of_the_webhook() -> None:
    from gigaslice.roles.controller.claim_templates import UNNAMED_SECONDS
    from gigaslice.roles.webhook import claim_admission

    assert f"up to {claim_admission._MOST_UNNAMED} in a namespace that no pod names" in TEXT
    assert (UNNAMED_SECONDS, "they go after ten minutes" in TEXT) == (600.0, True)


def test_the_plain_manifests_give_no_right_that_the_chart_does_not_give() -> None:
    plain = [
        document
        for path in (ROOT / "daemonset.yaml", *sorted((ROOT / "deploy").glob("*.yaml")))
        for document in documents_of(path.read_text())
    ]
    rights, of_chart = accounts.rights_of(plain), accounts.chart_rights()
    assert len(rights) > 10
    assert rights - of_chart == set()


def test_an_agent_reads_pods_and_writes_events_and_what_else_the_table_says() -> None:
    """In every namespace, since nothing says whose pods a node will have."""
    everywhere = {right for right in accounts.chart_rights() if right.account == "gigaslice"}
    assert {right.where for right in everywhere} == {""}
    verbs = {
        of: {right.verb for right in everywhere if right.resource == of and not right.names}
        for of in ("pods", "events")
    }
    assert verbs == {"pods": {"get", "list", "watch", "patch"}, "events": {"create", "patch"}}


def test_the_accounts_are_the_charts() -> None:
    rows = accounts.rows()
    assert {row[0] for row in rows} == {
        "`gigaslice`", "`gigaslice-scheduler`", "`gigaslice-controller`", "`gigaslice-dataset`",
    }  # fmt: skip
    dangerous = {"secrets", "pods/exec", "nodes", "pods/eviction", "pods/binding", "pods"}
    writes = {
        (right.account, right.resource, right.names)
        for right in accounts.chart_rights()
        if right.resource in dangerous and right.verb not in ("get", "list", "watch")
    }
    assert writes == {
        ("gigaslice", "nodes", ()),
        ("gigaslice", "pods", ()),
        ("gigaslice", "pods/eviction", ()),
        ("gigaslice-scheduler", "pods/binding", ()),
        ("gigaslice-controller", "secrets", ("gigaslice-webhook",)),
    }
    assert not [right for right in accounts.chart_rights() if "*" in (right.verb, right.resource)]


# --- licences --------------------------------------------------------------------------------------------------------


def test_the_page_has_the_packages_of_the_image() -> None:
    assert licences.on_page().keys() == licences.locked().keys()


def test_no_package_asks_for_more_than_the_page_says() -> None:
    text = licences.PAGE.read_text()
    for package, licence in {**licences.on_page(), **licences.said()}.items():
        if licences.is_met_by(licence, licences.PERMISSIVE):
            continue
        assert licences.is_met_by(licence, licences.PERMISSIVE | licences.WEAK), f"{package}: {licence}"
        assert f"**`{package}` is partly under" in text, package


def test_the_page_says_what_the_packages_say() -> None:
    """Of those that are installed here in the image's version, which is most of them after `make lock`."""
    assert licences.on_page() == {row[0].strip("`"): row[1] for row in licences.rows()}


@pytest.mark.parametrize(
    ("licence", "met"),
    [
        ("MIT", True), ("GPL-3.0-only", False), ("GPL-3.0-only OR MIT", True), ("MIT AND GPL-3.0-only", False),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", False), ("(GPL-2.0-only OR BSD-3-Clause) AND MIT", True),
    ],
)  # fmt: skip
def test_one_of_several_licences_is_enough_and_all_of_several_are_kept(licence: str, met: bool) -> None:
    assert licences.is_met_by(licence, licences.PERMISSIVE) == met


def test_words_that_are_no_licence_are_refused() -> None:
    assert licences.spdx("MIT License") == "MIT"
    with pytest.raises(Exception, match="Unknown license"):
        licences.spdx("Some License")


# --- security --------------------------------------------------------------------------------------------------------


def test_security_md_leads_to_the_threat_model() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    for page in ("docs/threat-model.md", "docs/limits.md"):
        assert f"]({page}" in text, page
    assert "](SECURITY.md)" in (ROOT / "README.md").read_text(), names(ROOT / "README.md")
