# SPDX-License-Identifier: Apache-2.0
"""The manifests of docs/datasets.md are such as an API server and the dataset service take."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from gigaslice.core.dataset.objects import DRIVER, parse_dataset
from gigaslice.core.dataset.request import parse_attributes
from gigaslice.roles.dataset_node.control import CommandServer
from gigaslice.roles.dataset_node.packing import locate
from gigaslice.roles.dataset_node.packing.pack_location import refuse_overlap
from gigaslice.roles.dataset_node.settings import DatasetSettings
from gigaslice.roles.dataset_node.sources.credentials import Credentials
from gigaslice.runtime.settings import load
from gigaslice_cli import frame
from tests.unit.docs.test_docs import ROOT
from tests.unit.gigaslice.roles.controller.crd_schema import mistakes

PAGE = ROOT / "docs" / "datasets.md"
FENCES = re.findall(r"(?ms)^( *)```yaml\n(.*?)^\1```$", PAGE.read_text())  # those in lists are indented
DOCUMENTS = [yaml.safe_load(textwrap.dedent(text)) for _, text in FENCES]
OBJECTS = [one for one in DOCUMENTS if "apiVersion" in one]


def pods(document: Any) -> Iterator[dict[str, Any]]:
    """Every specification of a pod in a document."""
    if isinstance(document, dict):
        if "containers" in document:
            yield document
        for one in document.values():
            yield from pods(one)


def test_every_object_is_valid():
    kinds = [one["kind"] for one in OBJECTS]
    assert {"Pod", "Secret", "Dataset", "Job", "DaemonSet"} <= set(kinds)
    for one in OBJECTS:
        if one["kind"] == "Dataset":
            assert mistakes("datasets", one) == []
            assert parse_dataset({**one, "metadata": {**one["metadata"], "namespace": "team"}}).name
        else:
            kubernetes_validate.validate(one, "1.36", strict=True)


def test_every_volume_is_one_that_the_service_takes():
    seen = 0
    for spec in (spec for one in OBJECTS for spec in pods(one)):
        mounts = {mount["name"] for container in spec["containers"] for mount in container["volumeMounts"]}
        assert {one["name"] for one in spec["volumes"]} <= mounts | {
            one["name"] for container in spec.get("initContainers", []) for one in container["volumeMounts"]
        }
        for volume in (one for one in spec["volumes"] if not {"hostPath", "secret", "emptyDir"} & set(one)):
            assert volume["csi"]["driver"] == DRIVER
            assert volume["csi"]["readOnly"] is True
            assert parse_attributes(volume["csi"]["volumeAttributes"]).datasets
            assert volume["name"] in mounts
            seen += 1
    for one in DOCUMENTS:
        if "volumeAttributes" in one:
            assert parse_attributes(one["volumeAttributes"]).datasets
            seen += 1
    assert seen >= 4


def test_the_job_goes_to_different_nodes():
    (job,) = [one for one in OBJECTS if one["metadata"]["name"] == "prefetch-coco"]
    template = job["spec"]["template"]
    (term,) = template["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert job["spec"]["parallelism"] == job["spec"]["completions"]


def test_the_job_that_packs_runs_the_command_with_what_it_mounts():
    (job,) = [one for one in OBJECTS if one["metadata"]["name"] == "pack-imagenet"]
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    known = frame.make_parser().parse_args(container["args"])
    volumes = {one["name"]: one for one in spec["volumes"]}
    at = {one["mountPath"]: volumes[one["name"]] for one in container["volumeMounts"]}
    assert set(at) == {known.credentials, known.scratch}
    assert "emptyDir" in at[known.scratch]
    (secret,) = [one for one in OBJECTS if one["kind"] == "Secret"]
    assert at[known.credentials]["secret"]["secretName"] == secret["metadata"]["name"]
    assert all(Credentials(secret["stringData"]).get(name) for name in ("access_key", "secret_key"))
    option = dict(one.split("=", 1) for one in known.option)
    source = locate(known.source, option, None, {})
    pack = locate(known.pack, {}, None, {}, like=source)
    refuse_overlap(source, pack)
    assert pack.spec.option("endpoint") == option["endpoint"]
    text = PAGE.read_text()
    assert f"gigaslice dataset pack {known.source} {known.pack}\n" in text
    assert f"`source: {known.pack}`" in text


def test_the_page_begins_with_what_switches_the_service_on():
    text = PAGE.read_text()
    assert text.index("--set dataset.enabled=true") < text.index("kind: Secret")
    values = yaml.safe_load((ROOT / "deploy/helm/gigaslice/values.yaml").read_text())
    assert values["dataset"]["enabled"] is False
    (name,) = re.findall(r"rollout status daemonset/(\S+)", text)
    daemonsets = [
        one["metadata"]["name"]
        for one in yaml.safe_load_all((ROOT / "deploy/dataset.yaml").read_text())
        if one["kind"] == "DaemonSet"
    ]
    assert daemonsets == [name]
    assert re.findall(r"kubectl get csidriver (\S+)", text) == [DRIVER]


def test_the_pod_with_an_init_container_names_what_the_command_and_the_service_use():
    (spec,) = [found for one in OBJECTS for found in pods(one) if "initContainers" in found]
    (waiting,), (container,) = spec["initContainers"], spec["containers"]
    known = frame.make_parser().parse_args(waiting["args"])
    settings = load(DatasetSettings, {}, {})
    paths = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"]}
    assert paths == {
        "socket": str(settings.run_dir / "wait"),
        "data": str(settings.state_dir / "pods"),
    }
    assert waiting["volumeMounts"] == [{"name": "socket", "mountPath": str(Path(known.socket).parent)}]
    assert {"POD_UID", "POD_NAMESPACE", "POD_NAME"} < {one["name"] for one in waiting["env"]}
    server = CommandServer(None, None, settings.state_dir, settings.run_dir / "wait", threads=None)
    asked = {"uid": "uid-12345", "namespace": "ns", "pod": "p", "volume": known.volume}
    target = server._volume(asked).target
    (mount,) = container["volumeMounts"]
    below = mount["subPathExpr"].replace("$(POD_UID)", "uid-12345")
    assert f"{paths['data']}/{below}" == target
    assert [one["name"] for one in container["env"]] == ["POD_UID"]
