# SPDX-License-Identifier: Apache-2.0
"""The manifests for kubectl and the list of images are what the chart renders, and the text says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.generated import old_files
from deploy.helm import manifests
from tests.unit.manifests.test_chart import CHART, ROOT, documents_of, listed
from vcuda.version import VERSION

HAND_WRITTEN = {"namespace.yaml"}
"""What has no counterpart in the chart: Helm makes a namespace without labels."""


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    texts: dict[Path, str] = manifests.made()
    return texts


def test_every_file_is_what_the_program_makes(made: dict[Path, str]) -> None:
    assert old_files(made) == [], "run make manifests"


def test_no_manifest_is_left_out(made: dict[Path, str]) -> None:
    there = {ROOT / "daemonset.yaml", *(ROOT / "deploy").glob("*.yaml")}
    assert {path.name for path in there - set(made)} == HAND_WRITTEN
    plain = {path.name for path in (ROOT / "deploy" / "helm" / "plain").iterdir()}
    assert plain == {path.name for path in made if path.suffix == ".yaml"}


def test_each_object_is_the_charts(made: dict[Path, str]) -> None:
    """With the values of a whole installation the same objects come out of Helm as it is used."""
    values = "node.api=dra,dataset.enabled=true,settings.overuse=evict"
    rendered = {
        (one["kind"], one["metadata"]["name"]): one
        for one in listed("--set", values, "--kube-version", "1.36.0")
    }
    compared = 0
    for path, text in made.items():
        if path.suffix != ".yaml" or path.name in (
            "daemonset.yaml",
            "claims-node.yaml",
            "driver-limits.yaml",
        ):
            continue  # the agents' pods depend on those values
        for one in documents_of(text):
            assert rendered[one["kind"], one["metadata"]["name"]] == one, path.name
            compared += 1
    assert compared > 20


def test_what_a_file_says_at_its_top_stays_there(made: dict[Path, str]) -> None:
    for path, text in made.items():
        if path.suffix != ".yaml":
            continue
        template = (ROOT / "deploy" / "helm" / "plain" / path.name).read_text()
        assert text.splitlines()[0] == template.splitlines()[0], path.name
        top = text.partition("\napiVersion")[0]
        assert f"from the chart and deploy/helm/plain/{path.name}" in top


def test_a_policy_stands_before_the_right_that_it_bounds(made: dict[Path, str]) -> None:
    """Helm would sort them; kubectl applies a file from its top."""
    kinds = [one["kind"] for one in documents_of(made[ROOT / "deploy" / "node-policy.yaml"])]
    assert kinds.index("ValidatingAdmissionPolicyBinding") < kinds.index("ClusterRole")


def test_a_value_with_an_empty_line_is_not_spoiled_in_silence() -> None:
    assert manifests.tidy("# top\n---\n\na: 1\n\nb: 2\n---\n# nothing\n") == "# top\na: 1\nb: 2\n"
    with pytest.raises(ValueError, match="an empty line is part of a value"):
        manifests.tidy("a: |\n  x\n\n  y\n")


def test_helm_says_what_it_does_not_render() -> None:
    with pytest.raises(RuntimeError, match=r"needs Kubernetes 1\.30"):
        manifests.helm(str(CHART), "--set", "cluster.enabled=true", "--kube-version", "1.26.0")


def images_of(*words: str) -> set[str]:
    names: set[str] = set()
    for document in listed(*words, tests=True):
        pod: dict[str, Any] = document.get("spec", {}).get("template", {}).get("spec", {}) or document.get(
            "spec", {}
        )
        names |= {one["image"] for one in [*pod.get("containers", []), *pod.get("initContainers", [])]}
    return names


EVERYTHING = "cluster.enabled=true,dataset.enabled=true,driverLimits.enabled=true"
DIGEST, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def test_the_list_of_images_is_complete() -> None:
    listing = (CHART / "images.txt").read_text().splitlines()
    names = {line for line in listing if not line.startswith("#")}
    assert names == images_of("--set", EVERYTHING, "--kube-version", manifests.KUBERNETES)
    assert len(names) == 2 and any("kube-scheduler" in name for name in names)


@pytest.mark.parametrize(
    ("repository", "name"),
    [
        ("gigaslice", "gigaslice"),
        ("team/gigaslice", "team/gigaslice"),
        ("example.com/team/gigaslice", "team/gigaslice"),
        ("localhost/gigaslice", "gigaslice"),
        ("host:5000/gigaslice", "gigaslice"),
    ],
)
def test_one_registry_takes_the_place_of_every_other(repository: str, name: str) -> None:
    values = f"{EVERYTHING},global.imageRegistry=reg.example:5000/mirror,image.repository={repository}"
    ours = f"reg.example:5000/mirror/{name}:{VERSION}"
    assert images_of("--set", values, "--kube-version", "1.34.7") == {
        ours,
        "reg.example:5000/mirror/kube-scheduler:v1.34.7",
    }


@pytest.mark.parametrize(
    ("value", "image"),
    [
        (f"image.digest={DIGEST}", f"gigaslice@{DIGEST}"),
        (f"image.tag=v9,image.digest={DIGEST}", f"gigaslice:v9@{DIGEST}"),
        ("image.tag=v9", "gigaslice:v9"),
    ],
)
def test_a_digest_names_the_image_of_every_container(value: str, image: str) -> None:
    words = f"{EVERYTHING},{value},scheduler.kubeScheduler.tag=v1.36.1,scheduler.kubeScheduler.digest={OTHER}"
    assert images_of("--set", words) == {image, f"registry.k8s.io/kube-scheduler:v1.36.1@{OTHER}"}


def test_a_digest_of_kube_scheduler_needs_its_version() -> None:
    with pytest.raises(AssertionError, match=r"write scheduler\.kubeScheduler\.tag too"):
        listed("--set", f"cluster.enabled=true,scheduler.kubeScheduler.digest={OTHER}")


@pytest.mark.parametrize(
    "mistake",
    [
        "image.digest=latest",
        "image.digest=sha256:12",
        "global.imageRegistry=https://reg.example",
        "global.imageRegistry=reg.example/",
    ],
)
def test_a_name_that_no_runtime_takes_is_refused(mistake: str) -> None:
    with pytest.raises(AssertionError, match="values don't meet the specifications"):
        listed("--set", mistake)
