# SPDX-License-Identifier: Apache-2.0
"""What a pod's annotations may take, on a real API server: by every request that can change them, and for whom.

The policies are the chart's, without the rest of the cluster half. What each text means is tested without an API server
(tests/unit/manifests/test_pod_policies.py); here it is that the API server asks them, about what, and at which cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import string
from collections.abc import Iterator
from typing import Any

import pytest

from agent.apiserver.node_client import node_client
from agent.apiserver.node_trial import UnboundedError, check_bounds
from gigaslice.core.model.annotations import ANNOTATIONS
from gigaslice.core.model.environment import MEMORY_VARIABLES, MOST_VARIABLES, environment_mistakes
from gigaslice.core.model.options import PREFIX
from gigaslice.kubeapi.access import Access
from tests.cluster.control_plane import MANAGER, Api, ControlPlane, Refused, find_binaries, until
from tests.fakes.kubeapi import new_pod
from tests.unit.manifests.test_chart import listed

NAMESPACE = "gigaslice"
BOUNDED = [
    row for row in ANNOTATIONS if row.option.free_values is not None or row.option.free_up_to is not None
]
KEYS = [(row, f"{PREFIX}{row.name}{end}") for row in BOUNDED for end in ("", ".c0")]
SENTENCE = "needs the label"
ANNOTATION_BYTES = 256 << 10
"""Bytes of keys and values that a pod's annotations may have."""
Document = dict[str, Any]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With the policies, a namespace without labels (team), and one with all of them (trusted)."""
    binaries = find_binaries()
    if isinstance(binaries, str):
        pytest.skip(binaries)
    with ControlPlane(tmp_path_factory.mktemp("rights"), binaries) as found:
        api = found.admin
        labels = {row.option.namespace_label: "true" for row in BOUNDED}
        for name, given in ((NAMESPACE, {}), ("team", {}), ("trusted", labels)):
            api.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": given}})
        old = pod({key: "true" for _, key in KEYS})
        old["metadata"] |= {"name": "older", "finalizers": ["example.com/kept"]}
        api.post(pods("team"), old)  # before the policies
        for document in listed(
            "--set", "admission.freeCores=30", "--kube-version", "1.36.0", "--namespace", NAMESPACE
        ):
            if document["kind"] not in ("DaemonSet", "ServiceAccount"):
                api.apply(document)
        until(lambda: refused(api, "team", "gigaslice.io/exclusive", "true"))
        until(lambda: refused(api, "trusted", "gigaslice.io/assignment", "{}"))
        yield found


def pods(namespace: str, *rest: str) -> str:
    return "/".join((f"/api/v1/namespaces/{namespace}/pods", *rest))


def pod(annotations: dict[str, str]) -> Document:
    return new_pod(f"p{next(_numbers)}", {}, annotations=annotations)


def refused(api: Api, namespace: str, key: str, text: str) -> bool:
    try:
        api.post(f"{pods(namespace)}?dryRun=All", pod({key: text}))
    except Refused:
        return True
    return False


def change(key: str, text: str | None) -> Document:
    return {"metadata": {"annotations": {key: text}}}


# --- every request ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row, key", KEYS, ids=[key for _, key in KEYS])
def test_a_text_that_needs_a_label_is_refused_at_creation_and_at_every_update(plane, row, key):
    api = plane.admin
    free = row.option.free_values[0] if row.option.free_values else "30"
    name = api.post(pods("team"), pod({key: free}))["metadata"]["name"]
    for text in ("true ", "x", "YES"):
        with pytest.raises(Refused, match=SENTENCE):
            api.post(pods("team"), pod({key: text}))
        for part in ((), ("status",)):
            with pytest.raises(Refused, match=SENTENCE):
                api.patch(pods("team", name, *part), change(key, text))
    binding = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "n"}}
    binding["metadata"] = {"name": name, "annotations": {key: "x"}}
    for path in (pods("team", name, "binding"), "/api/v1/namespaces/team/bindings"):
        with pytest.raises(Refused, match=SENTENCE):
            api.post(path, binding)
    api.patch(pods("team", name), change(key, None))
    assert api.get(pods("team", name))["metadata"].get("annotations", {}).get(key) is None
    trusted = api.post(pods("trusted"), pod({key: "true"}))["metadata"]
    assert trusted["annotations"] == {key: "true"}
    api.patch(pods("trusted", trusted["name"]), change(key, "x"))


@pytest.mark.parametrize("row, key", KEYS, ids=[key for _, key in KEYS])
def test_subresources_that_reset_annotations_write_none(plane, row, key):
    """resize and ephemeralcontainers put back what the pod has, before policies are asked."""
    api = plane.admin
    name = api.post(pods("team"), pod({}))["metadata"]["name"]
    containers = [{"name": f"debug-{row.name}", "image": "x", "terminationMessagePolicy": "File"}]
    debug = {**change(key, "true"), "spec": {"ephemeralContainers": containers}}
    resize = {
        **change(key, "true"),
        "spec": {"containers": [{"name": "c0", "resources": {"limits": {"cpu": "2"}}}]},
    }
    strategic = "application/strategic-merge-patch+json"
    for part, body in (("ephemeralcontainers", debug), ("resize", resize)):
        with contextlib.suppress(Refused):
            api.patch(pods("team", name, part), body, strategic)
        assert key not in api.get(pods("team", name))["metadata"].get("annotations", {})


def test_what_was_there_before_blocks_no_label_no_finalizer_and_no_end(plane):
    api = plane.admin
    path = pods("team", "older")
    assert api.get(path)["metadata"]["annotations"]
    api.patch(path, {"metadata": {"labels": {"a": "b"}}})
    api.patch(path, change("example.com/note", "x"))
    api.patch(f"{path}/status", {"status": {"phase": "Running"}})
    with pytest.raises(Refused, match=SENTENCE):
        api.patch(path, change("gigaslice.io/exclusive", "yes"))
    api.delete(path, {"gracePeriodSeconds": 0})
    api.patch(path, {"metadata": {"finalizers": None}})
    with pytest.raises(Refused, match="not found"):
        api.get(path)


def test_a_containers_own_annotation_is_not_taken_away_from_above_the_pods(plane):
    api = plane.admin
    pair = {"gigaslice.io/exclusive": "true", "gigaslice.io/exclusive.c0": "false"}
    name = api.post(pods("trusted"), pod(pair))["metadata"]["name"]
    namespace = "/api/v1/namespaces/trusted"
    label = "gigaslice.io/allow-exclusive"
    api.patch(namespace, {"metadata": {"labels": {label: None}}})
    try:
        until(lambda: refused(api, "trusted", "gigaslice.io/exclusive", "true"))
        with pytest.raises(Refused, match=SENTENCE):
            api.patch(pods("trusted", name), change("gigaslice.io/exclusive.c0", None))
        api.patch(pods("trusted", name), {"metadata": {"annotations": dict.fromkeys(pair)}})
    finally:
        api.patch(namespace, {"metadata": {"labels": {label: "true"}}})
    until(lambda: not refused(api, "trusted", "gigaslice.io/exclusive", "true"))


# --- limits of the driver ---------------------------------------------------------------------------------------------


def asking(*variables: str) -> Document:
    """A pod with a slice, and variables in its container's environment."""
    document = pod({})
    limits = {"gigaslice.io/vgpu-memory": "1"}
    environment = [{"name": variable, "value": "1"} for variable in variables]
    document["spec"]["containers"][0] |= {"resources": {"limits": limits}, "env": environment}
    return document


@pytest.mark.parametrize("variable", MEMORY_VARIABLES)
def test_no_pod_of_ours_sets_limits_of_the_driver(plane, variable):
    """Not at its creation, in no kind of container, and not by an ephemeral one later."""
    api = plane.admin
    (sentence,) = environment_mistakes([MEMORY_VARIABLES], "gigaslice.io/vgpu-memory")
    init = asking()
    init["spec"]["initContainers"] = [{"name": "i0", "image": "x", "env": [{"name": variable, "value": "1"}]}]
    for document in (asking("PATH", variable), init):
        with pytest.raises(Refused) as refusal:
            api.post(pods("trusted"), document)
        assert refusal.value.message.endswith(sentence)
    others = asking(variable)
    others["spec"]["containers"][0]["resources"] = {}
    api.post(pods("team"), others)
    name = api.post(pods("team"), asking("PATH"))["metadata"]["name"]
    path, strategic = pods("team", name, "ephemeralcontainers"), "application/strategic-merge-patch+json"

    def debug(container: str, variable: str) -> Document:
        environment = [{"name": variable, "value": "1"}]
        fields = {"name": container, "image": "x", "terminationMessagePolicy": "File", "env": environment}
        return {"spec": {"ephemeralContainers": [fields]}}

    api.patch(path, debug("a", "PATH"), strategic)
    with pytest.raises(Refused, match=variable):
        api.patch(path, debug("b", variable), strategic)
    api.patch(path, debug("c", "HOME"), strategic)


def test_long_environments_are_looked_through_or_refused(plane):
    """An expression that costs too much is an error. Of 30,000 variables of one container it took 9 seconds."""
    api = plane.admin
    document = asking()
    document["spec"]["containers"] += [
        {"name": f"m{number}", "image": "x", "env": [{"name": f"v{n}"} for n in range(MOST_VARIABLES)]}
        for number in range(10)
    ]
    api.post(pods("team"), document)
    with pytest.raises(Refused, match=f"at most {MOST_VARIABLES} variables"):
        api.post(pods("team"), asking(*(f"v{number}" for number in range(20_000))))


# --- for whom ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def controllers(plane: ControlPlane) -> Iterator[None]:
    """What makes ReplicaSets of Deployments and pods of those."""
    if MANAGER not in plane.binaries:
        pytest.skip(f"no {MANAGER} in K8S_BIN and PATH")
    process = plane.start(
        MANAGER, f"--kubeconfig={plane.kubeconfig()}", "--leader-elect=false", "--secure-port=0",
        "--controllers=deployment-controller,replicaset-controller",
    )  # fmt: skip
    yield
    process.send_signal(signal.SIGTERM)
    process.wait(20)


@pytest.mark.parametrize("row, key", KEYS, ids=[key for _, key in KEYS])
def test_pods_of_a_deployment_are_judged_by_their_namespace(plane, controllers, row, key):
    api = plane.admin
    name = f"d{next(_numbers)}"
    labels = {"app": name}
    template = {"metadata": {"labels": labels, "annotations": {key: "x"}}, "spec": pod({})["spec"]}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    for namespace in ("team", "trusted"):
        api.post(
            f"/apis/apps/v1/namespaces/{namespace}/deployments", {"metadata": {"name": name}, "spec": spec}
        )

    def made(namespace: str) -> list[Document]:
        found: list[Document] = api.get(f"{pods(namespace)}?labelSelector=app%3D{name}")["items"]
        return found

    def reasons() -> str:
        path = f"/apis/apps/v1/namespaces/team/replicasets?labelSelector=app%3D{name}"
        conditions = [each for one in api.get(path)["items"] for each in one["status"].get("conditions", [])]
        return " ".join(one.get("message", "") for one in conditions)

    until(lambda: made("trusted"), 60)
    until(lambda: SENTENCE in reasons(), 60)
    assert row.option.namespace_label in reasons() and made("team") == []


# --- the cost ---------------------------------------------------------------------------------------------------------


def test_the_largest_pods_are_made_changed_and_ended(plane):
    """An expression that costs too much is an error, and would keep such a pod from its finalizer."""
    letters = string.ascii_letters + string.digits
    names = ("".join(word) for word in itertools.product(letters, repeat=3))
    annotated = pod(dict.fromkeys(itertools.islice(names, ANNOTATION_BYTES // 3 - 20), ""))
    assert len(annotated["metadata"]["annotations"]) > 80_000
    many = pod({row.option.namespace_label: "" for row in BOUNDED})
    many["spec"]["containers"] = [{"name": f"c{number}", "image": "x"} for number in range(5_000)]
    api = plane.admin
    for document in (annotated, many):
        document["metadata"]["finalizers"] = ["example.com/kept"]
        path = pods("team", api.post(pods("team"), document)["metadata"]["name"])
        key = next(iter(document["metadata"]["annotations"]))
        api.patch(path, change(key, None))
        api.patch(path, {"metadata": {"labels": {"a": "b"}}})
        last = document["spec"]["containers"][-1]["name"]
        with pytest.raises(Refused, match=SENTENCE):
            api.patch(path, change(f"gigaslice.io/elastic.{last}", "1"))
        api.delete(path, {"gracePeriodSeconds": 0})
        api.patch(path, {"metadata": {"finalizers": None}})


# --- the agent's token ------------------------------------------------------------------------------------------------


def test_the_agents_trial_tells_whether_the_policy_holds(plane):
    """With a token of the agent's account that names its node; of an administrator the trial says that nothing does."""
    api = plane.admin
    node = api.post("/api/v1/nodes", {"metadata": {"name": "tried"}})["metadata"]
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    with contextlib.suppress(Refused):
        api.post(account, {"metadata": {"name": "gigaslice"}})
    bound = {"apiVersion": "v1", "kind": "Node", "name": "tried", "uid": node["uid"]}
    token = api.post(f"{account}/gigaslice/token", {"spec": {"boundObjectRef": bound}})["status"]["token"]

    def tried(secret: str) -> None:
        async def ask() -> None:
            access = Access("127.0.0.1", plane.port, token=secret, insecure=True)
            async with node_client(access) as client:
                await check_bounds(client, "nodes", "tried")

        asyncio.run(ask())

    tried(token)
    with pytest.raises(UnboundedError):
        tried("admin-token")
    assert "annotations" not in api.get("/api/v1/nodes/tried")["metadata"]
