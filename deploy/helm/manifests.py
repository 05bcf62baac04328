# SPDX-License-Identifier: Apache-2.0
"""Writes the manifests for kubectl, and the list of images, from the chart.

    python -m deploy.helm.manifests            daemonset.yaml, deploy/*.yaml and the chart's images.txt anew
    python -m deploy.helm.manifests --check    whether they are what this program makes

Each file of plain/ is a template: what a manifest says at its top, and which templates of the chart follow. It is
rendered inside a copy of the chart, so that both have every helper and every line in common. Helm itself sorts objects
by kind, and a policy must stand before the right that it bounds; so the text is carried out of Helm in a ConfigMap, as
one string.
deploy/namespace.yaml has no counterpart in the chart and is written by hand: Helm makes a namespace without labels.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from deploy.generated import ROOT, write_or_check

HERE = Path(__file__).resolve().parent
CHART = HERE / "gigaslice"
IMAGES = CHART / "images.txt"
KUBERNETES = "1.36.0"
"""For which version the manifests are; those that work before it say so at their top."""

MANIFESTS: dict[str, tuple[str, ...]] = {
    # What the agents refuse themselves until deploy/pod-policy.yaml is applied.
    "daemonset.yaml": ("admission.rights=off",),
    "deploy/claims.yaml": ("node.api=dra",),
    "deploy/claims-node.yaml": ("node.api=dra", "admission.rights=off"),
    "deploy/dataset.yaml": ("dataset.enabled=true",),
    "deploy/driver-limits.yaml": ("driverLimits.enabled=true",),
    "deploy/eviction.yaml": ("settings.overuse=evict",),
    "deploy/node-policy.yaml": (),
    "deploy/pod-policy.yaml": (),
}
"""Manifest -> the values with which its template of the same name is rendered."""

EVERY_CONTAINER = ("cluster.enabled=true", "dataset.enabled=true", "driverLimits.enabled=true")
"""The values with which the chart starts every container that it has."""

_CARRIER = """apiVersion: v1
kind: ConfigMap
metadata:
  name: carrier
data:
  text: {{ include "gigaslice/templates/TEMPLATE" . | toJson }}
"""
_ORIGIN = """#
# `make manifests` makes this file from the chart and deploy/helm/plain/{name}:
# the project is changed there. Your copy of this file is yours to edit.
"""
_IMAGES_HEAD = """# Every image that the chart starts, made by `make manifests`; not to be edited. For a registry of
# your own copy them there, and write its name into global.imageRegistry. kube-scheduler (scheduler.mode second) is of
# your cluster's version, which is Kubernetes {version} here. The list for your version and values:
#   helm template gigaslice . --kube-version 1.34.1 --values my-values.yaml \\
#     | sed -n 's/^ *image: "\\(.*\\)"/\\1/p' | sort -u
"""


def helm(*words: str) -> str:
    """What `helm template` prints for a release of the name and namespace that the manifests have.

    Raises:
        RuntimeError: Helm is missing, or does not render it; with what it says.
    """
    program = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    if program is None:
        raise RuntimeError("helm is missing: run make, which installs it into build/venv")
    command = [
        program,
        "template",
        "gigaslice",
        "--namespace",
        "gigaslice",
        "--kube-version",
        KUBERNETES,
        *words,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def carried(template: Path | str, *words: str, chart: Path = CHART) -> str:
    """What a template makes, as it stands, with nothing sorted or left out.

    Args:
        template: A file of plain/, or the name of a template of the chart that Helm prints nowhere, such as NOTES.txt.
        words: Further words for Helm, such as --set and a value.
        chart: Whose templates it includes.

    Raises:
        RuntimeError: Helm does not render it.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "gigaslice"
        shutil.copytree(chart, copy)
        if isinstance(template, Path):
            shutil.copy(template, copy / "templates" / "_plain.yaml")
        name = "_plain.yaml" if isinstance(template, Path) else template
        (copy / "templates" / "plain.yaml").write_text(_CARRIER.replace("TEMPLATE", name), encoding="utf-8")
        printed = helm(str(copy), *words, "--show-only", "templates/plain.yaml")
    return str(yaml.safe_load(printed)["data"]["text"])


def manifest(template: Path, values: Sequence[str], chart: Path = CHART) -> str:
    """The text of one manifest.

    Args:
        template: Of plain/.
        values: Of the chart, as name=value.
        chart: Whose templates it includes.

    Raises:
        RuntimeError: Helm does not render it.
    """
    given = [word for value in values for word in ("--set", value)]
    return with_origin(tidy(carried(template, *given, chart=chart)), template)


def tidy(text: str) -> str:
    """TEXT without the empty lines of template code; comments that stand alone belong to the object that follows.

    Raises:
        ValueError: An object would be another one.
    """
    documents, comments = [], ""
    for document in f"\n{text}\n".split("\n---\n"):
        lines = comments + "".join(f"{line}\n" for line in document.splitlines() if line.strip())
        comments = "" if yaml.safe_load(lines) is not None else lines
        if not comments and lines:
            documents.append(lines)
    joined = "---\n".join(documents)
    if documents_of(joined) != documents_of(text):
        raise ValueError("an empty line is part of a value; quote it in the template")
    return joined


def with_origin(text: str, template: Path) -> str:
    """TEXT with where it comes from, behind what TEMPLATE says at its top."""
    written = template.read_text(encoding="utf-8").splitlines()
    top = next(number for number, line in enumerate(written) if not line.startswith("#"))
    lines = text.splitlines(keepends=True)
    gap = "\n" * lines[top].startswith("#")
    return "".join([*lines[:top], _ORIGIN.format(name=template.name), gap, *lines[top:]])


def documents_of(text: str) -> list[Any]:
    """The objects of TEXT."""
    return [document for document in yaml.safe_load_all(text) if document is not None]


def images() -> str:
    """The list of images with what stands at its top."""
    printed = helm(str(CHART), *(word for value in EVERY_CONTAINER for word in ("--set", value)))
    names = {name for document in documents_of(printed) for name in images_of(document)}
    return _IMAGES_HEAD.format(version=KUBERNETES) + "".join(f"{name}\n" for name in sorted(names))


def images_of(value: object) -> list[str]:
    """The images of all containers below VALUE."""
    if isinstance(value, list):
        return [name for item in value for name in images_of(item)]
    if not isinstance(value, dict):
        return []
    own = [value["image"]] if isinstance(value.get("image"), str) and "name" in value else []
    return own + [name for item in value.values() for name in images_of(item)]


def made() -> dict[Path, str]:
    """The text of every file that this program makes."""
    texts = {
        ROOT / name: manifest(HERE / "plain" / Path(name).name, values) for name, values in MANIFESTS.items()
    }
    return {**texts, IMAGES: images()}


if __name__ == "__main__":
    sys.exit(write_or_check(made, "manifests", __doc__))
