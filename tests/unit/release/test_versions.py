# SPDX-License-Identifier: Apache-2.0
"""The version of this tree: one home, and the same in every other place."""

import re
from pathlib import Path

import pytest

from release import versions
from release.changelog import releases
from vcuda.version import VERSION

ROOT = Path(__file__).resolve().parents[3]


def test_all_places_say_the_same_version():
    found = list(versions.occurrences(ROOT))
    assert {said for _, said in found} == {VERSION}
    files = {str(path) for path, _ in found}
    assert {
        "vcuda/version.py",
        "deploy/helm/gigaslice/Chart.yaml",
        "daemonset.yaml",
        "README.md",
        "Dockerfile",
    } <= files


def test_the_chart_has_both_of_its_versions():
    chart = Path("deploy/helm/gigaslice/Chart.yaml")
    assert [said for path, said in versions.occurrences(ROOT) if path == chart] == [VERSION, VERSION]


def test_the_version_is_the_last_release_or_comes_after_it():
    """Between releases it says so: what is built from there is no release."""
    released = releases((ROOT / "CHANGELOG.md").read_text())
    newest = max(released, key=versions.key, default=None)
    if VERSION.endswith("-dev"):
        assert newest is None or versions.key(VERSION.removesuffix("-dev")) > versions.key(newest)
    else:
        assert newest == VERSION or not released


def test_pip_helm_and_registries_take_it():
    pep440 = r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))*((a|b|rc)(0|[1-9][0-9]*))?(\.dev[0-9]+)?"
    semver = r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
    for version in (VERSION, "0.1.0", versions.following("0.1.0")):
        assert re.fullmatch(pep440, versions.package_version(version)), version
        assert re.fullmatch(semver, version), version
        assert re.fullmatch(r"[\w][\w.-]{0,127}", version), version


@pytest.mark.parametrize(
    ("released", "next_one"), [("0.1.0", "0.2.0-dev"), ("0.1.7", "0.2.0-dev"), ("1.9.0", "1.10.0-dev")]
)
def test_after_a_release_the_tree_is_on_its_way_to_the_next(released, next_one):
    assert versions.following(released) == next_one


@pytest.mark.parametrize("version", ["1.2", "v1.2.3", "1.2.3-dev", "1.2.3rc1", "01.2.3", "", "1.2.3\n"])
def test_what_is_no_release(version):
    assert not versions.is_release(version)


@pytest.fixture
def tree(tmp_path):
    texts = {
        "vcuda/version.py": 'VERSION = "0.1.0"\n',
        "README.md": "This is version 0.1.0. It needs glibc 0.1.0 or so.\n",
        "Dockerfile": '# build --tag gigaslice:0.1.0 .\nLABEL org.opencontainers.image.version="0.1.0"\n',
        "daemonset.yaml": "image: gigaslice:0.1.0\nother: gigaslice:0.1.0.1\n",
        "deploy/helm/gigaslice/Chart.yaml": "version: 0.1.0\nappVersion: 0.1.0\nkubeVersion: '>=0.1.0'\n",
        "deploy/dataset.yaml": 'image: "gigaslice:0.1.0"\nlabels: {app.kubernetes.io/version: "0.1.0"}\n',
        "docs/operations.md": "push registry.example.com/gigaslice:0.1.0`, libvcuda-0.1.0.so\n",
        "docs/adr/0001-a.md": "gigaslice:0.1.0 did this\n",
        "docs/picture.png": "gigaslice:0.1.0",
        "tests/test_a.py": "gigaslice:0.1.0\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_every_place_is_rewritten_and_nothing_else(tree):
    changed = versions.rewrite(tree, "0.2.0-dev")
    assert {str(path) for path in changed} == {
        "vcuda/version.py", "README.md", "Dockerfile", "daemonset.yaml", "deploy/helm/gigaslice/Chart.yaml",
        "deploy/dataset.yaml", "docs/operations.md",
    }  # fmt: skip
    assert {said for _, said in versions.occurrences(tree)} == {"0.2.0-dev"}
    assert (tree / "README.md").read_text() == "This is version 0.2.0-dev. It needs glibc 0.1.0 or so.\n"
    assert (tree / "daemonset.yaml").read_text() == "image: gigaslice:0.2.0-dev\nother: gigaslice:0.1.0.1\n"
    assert "kubeVersion: '>=0.1.0'" in (tree / "deploy/helm/gigaslice/Chart.yaml").read_text()
    assert (tree / "docs/operations.md").read_text().endswith("libvcuda-0.1.0.so\n")
    versions.rewrite(tree, "0.2.0")
    assert versions.present(tree) == "0.2.0"


def test_a_home_without_a_version_is_said(tree):
    (tree / "vcuda/version.py").write_text("NAME = 1\n")
    with pytest.raises(ValueError, match="no line VERSION"):
        versions.present(tree)
