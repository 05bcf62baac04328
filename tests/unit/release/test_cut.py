# SPDX-License-Identifier: Apache-2.0
"""Which releases are refused, and what a tree is after one."""

from datetime import date

import pytest

from release import changelog, versions
from release.cut import Tree, cut_tree, problems

DAY = date(2027, 1, 2)
TEXT = "# Changelog\n\n## [Unreleased]\n\n* New.\n\n## [0.2.0] - 2026-12-24\n\n* Old.\n"
GOOD = {"version": "0.3.0-dev", "changelog": TEXT, "tags": ["v0.2.0"], "changed": []}


@pytest.mark.parametrize("version", ["0.2.1", "0.3.0", "1.0.0"])
def test_what_comes_next_can_be_released(version):
    assert problems(Tree(**GOOD), version, DAY) == []


@pytest.mark.parametrize(
    ("change", "version", "says"),
    [
        ({}, "0.3", "'0.3' is no version to release"),
        ({}, "0.3.0-dev", "is no version to release"),
        ({"changed": ["b.py", "a.py"]}, "0.3.0", r"changes that are not committed \(a\.py, b\.py\)"),
        ({"tags": ["v0.3.0"]}, "0.3.0", r"the tag v0\.3\.0 exists"),
        ({}, "0.2.0", r"0\.2\.0 does not come after 0\.2\.0"),
        ({}, "0.1.9", r"0\.1\.9 does not come after 0\.2\.0"),
        ({"version": "0.2.0"}, "0.3.0", r"vcuda/version\.py says 0\.2\.0"),
        ({"changelog": TEXT.replace("* New.\n", "")}, "0.3.0", "nothing stands under"),
    ],
)
def test_what_cannot_be_released_is_said(change, version, says):
    import re

    found = problems(Tree(**{**GOOD, **change}), version, DAY)
    assert any(re.search(says, one) for one in found), found


def test_all_that_is_wrong_is_said_at_once():
    tree = Tree("0.2.0", TEXT, ["v0.2.0"], ["a.py"])
    assert len(problems(tree, "0.2.0", DAY)) == 4


def test_the_first_release_has_the_version_that_the_tree_has():
    first = Tree("0.1.0", "# Changelog\n\n## [Unreleased]\n\n* All.\n")
    assert problems(first, "0.1.0", DAY) == []


def test_a_tree_that_is_cut(tmp_path):
    (tmp_path / "vcuda").mkdir()
    (tmp_path / "vcuda/version.py").write_text('VERSION = "0.3.0-dev"\n')
    (tmp_path / "CHANGELOG.md").write_text(TEXT)
    for name in ("README.md", "Dockerfile", "daemonset.yaml"):
        (tmp_path / name).write_text("gigaslice:0.3.0-dev\n")
    (tmp_path / "deploy").mkdir()
    (tmp_path / "docs").mkdir()
    written = cut_tree(tmp_path, "0.3.0", DAY)
    assert len(written) == 5 and versions.present(tmp_path) == "0.3.0"
    assert changelog.section((tmp_path / "CHANGELOG.md").read_text(), "0.3.0") == "* New.\n"
