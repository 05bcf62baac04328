# SPDX-License-Identifier: Apache-2.0
"""A pod's resources as claims: who shares what, what the pod looks like then, and what cannot be."""

from __future__ import annotations

import copy
import json

import pytest

from gigaslice.core.claims.templates import CLAIMS, decode_templates
from gigaslice.core.cluster.demand import ClusterUnits
from gigaslice.core.model import AnnotationRights
from gigaslice.roles.webhook.admission_pod import read_admission_pod
from gigaslice.roles.webhook.claim_plan import plan_claims, without_resources
from tests.unit.gigaslice.roles.webhook.pods import asks, facts, inventory, pod

FACTS = facts(units=ClusterUnits(rights=AnnotationRights.CHECKED))
GIB = 1 << 30
MEMORY = "gigaslice.io/vgpu-memory"


def slices(count, name=MEMORY, **more):
    return asks(limits={name: count}, **more)


def planned(document, known=FACTS):
    return plan_claims(read_admission_pod(document), known)


def patched(document, patch):
    """The document with the operations of a JSON Patch."""
    document = copy.deepcopy(document)
    for operation in patch:
        *path, last = (
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        )
        place = document
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if operation["op"] == "remove":
            del place[last]
        elif last == "-":
            place.append(operation["value"])
        else:
            place[last] = operation["value"]
    return document


def claimed(document, known=FACTS):
    """The pod with its claims: its document, and the parts of each claim in bytes by the claim's name in the pod."""
    plan = planned(document, known)
    assert plan.mistakes == ()
    found = patched(document, plan.patch)
    templates = {template.name: template for template in plan.templates}
    assert decode_templates(found["metadata"]["annotations"][CLAIMS]) == templates
    claims = {
        one["name"]: [claim.parts for claim in templates[one["resourceClaimTemplateName"]].containers]
        for one in found["spec"]["resourceClaims"]
        if one["name"].startswith("gigaslice-")
    }
    return found, claims


def uses(document, field="containers"):
    return [one.get("resources", {}).get("claims") for one in document["spec"].get(field, ())]


def test_the_resource_is_replaced_by_a_claim():
    document = pod(slices(8), asks(limits={"cpu": 1}))
    found, claims = claimed(document)
    assert claims == {"gigaslice-0": [(8 * GIB,)]}
    assert uses(found) == [[{"name": "gigaslice-0"}], None]
    assert found["spec"]["containers"][0]["resources"] == {
        "limits": {}, "requests": {}, "claims": [{"name": "gigaslice-0"}],
    }  # fmt: skip
    assert found["spec"]["schedulerName"] == "default-scheduler"
    again = planned(found)
    assert (again.patch, again.templates, again.mistakes) == ((), (), ())


def test_what_the_pod_has_already_stays():
    document = pod(
        asks(limits={MEMORY: 8, "cpu": 2}),
        annotations={"a": "b", "gigaslice.io/elastic": "true"},
        resourceClaims=[{"name": "gigaslice-0", "resourceClaimName": "theirs"}],
    )
    document["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gigaslice-0"}]
    found = patched(document, planned(document).patch)
    assert [one["name"] for one in found["spec"]["resourceClaims"]] == ["gigaslice-0", "gigaslice-1"]
    resources = found["spec"]["containers"][0]["resources"]
    assert resources["claims"] == [{"name": "gigaslice-0"}, {"name": "gigaslice-1"}]
    assert resources["limits"] == resources["requests"] == {"cpu": "2"}
    assert found["metadata"]["annotations"].keys() == {"a", "gigaslice.io/elastic", CLAIMS}


def test_each_container_has_its_own_claim_and_equal_ones_the_same_template():
    found, claims = claimed(pod(slices(8), slices(12), slices(8)))
    assert claims == {"gigaslice-0": [(8 * GIB,)], "gigaslice-1": [(12 * GIB,)], "gigaslice-2": [(8 * GIB,)]}
    names = [one["resourceClaimTemplateName"] for one in found["spec"]["resourceClaims"]]
    assert names[0] == names[2] != names[1]


def test_an_init_container_shares_the_claim_of_one_that_asks_for_the_same():
    plan = planned(pod(slices(8), init=(slices(8), slices(4), slices(4))))
    found, claims = claimed(pod(slices(8), init=(slices(8), slices(4), slices(4))))
    assert claims == {"gigaslice-0": [(8 * GIB,)], "gigaslice-1": [(4 * GIB,)]}
    assert uses(found) == [[{"name": "gigaslice-0"}]]
    assert uses(found, "initContainers") == [
        [{"name": "gigaslice-0"}], [{"name": "gigaslice-1"}], [{"name": "gigaslice-1"}],
    ]  # fmt: skip
    (warning,) = plan.warnings
    assert "container i1: its claim (4 GiB) is held beside the others' as long as the pod lives" in warning


def test_a_sidecar_shares_with_nobody_and_other_options_are_another_claim():
    sidecar = {**slices(8), "restartPolicy": "Always"}
    assert len(claimed(pod(asks(), init=(sidecar, slices(8))))[1]) == 2
    document = pod(slices(8), init=(slices(8),), annotations={"gigaslice.io/priority.i0": "best-effort"})
    assert len(claimed(document)[1]) == 2


def test_containers_on_the_same_gpu_have_one_claim():
    document = pod(slices(8), slices(4), init=(slices(8),), annotations={"gigaslice.io/same-gpu": "true"})
    found, claims = claimed(document)
    assert claims == {"gigaslice-0": [(8 * GIB,), (4 * GIB,)]}
    assert uses(found) == [
        [{"name": "gigaslice-0", "request": "container-0-gpu-0"}],
        [{"name": "gigaslice-0", "request": "container-1-gpu-0"}],
    ]
    assert uses(found, "initContainers") == [[{"name": "gigaslice-0", "request": "container-0-gpu-0"}]]


def test_annotations_of_the_choice_are_in_the_claim_and_those_that_are_followed_are_not():
    def template(**annotations):
        names = {f"gigaslice.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
        (found,) = planned(pod(slices(8), annotations=names)).templates
        return found.name

    plain = template()
    live = {"elastic": "true", "priority": "guaranteed", "time_slicing": "false"}
    assert all(template(**{name: text}) == plain for name, text in live.items())
    choice = {
        "gpus": "2", "memory": "4,4", "gpu_type": "A100", "exclude_gpu_type": "T4", "exclusive": "true", "cores": "30",
        "oversubscribe": "true", "gpu_uuid": "GPU-6e1b5c1e", "exclude_gpu_uuid": "GPU-6e1b5c1e",
    }  # fmt: skip
    names = [template(**{name: text}) for name, text in choice.items()]
    assert len({plain, *names}) == len(choice) + 1


def test_a_type_is_its_models_where_they_are_known():
    (template,) = planned(pod(slices(8, f"{MEMORY}.big")), facts(nodes={
        "a": inventory(("H100", 80), resource=f"{MEMORY}.big"), "b": inventory(("T4", 15)),
    })).templates  # fmt: skip
    assert template.containers[0].models == ("H100",)
    (template,) = planned(pod(slices(8, f"{MEMORY}.l4"))).templates
    assert template.containers[0].kind == "l4"


def test_whole_gpus_are_requests_without_memory():
    found, claims = claimed(pod(asks(limits={"gigaslice.io/gpu": 2})))
    assert claims == {"gigaslice-0": [(0, 0)]} and uses(found) == [[{"name": "gigaslice-0"}]]


def ours(name="gigaslice-0123456789ab"):
    return [{"name": "mine", "resourceClaimTemplateName": name}]


@pytest.mark.parametrize("document, sentence", [
    (pod(asks(limits={"gpuclass.gigaslice.io/nvidia.h100": 1})), "GPU classes are no claims yet"),
    (pod(slices(8), resourceClaims=ours()), "the pod names claims of ours already (mine)"),
    (pod(slices(8), nodeName="n"), "leave spec.nodeName out"),
    (pod(slices(8), ephemeralContainers=[{"name": "e", **slices(1)}]), "container e: an ephemeral container"),
    (pod(slices(8), annotations={"gigaslice.io/split": "whole-first"}), "write gigaslice.io/memory"),
    (pod(slices(8), annotations={"gigaslice.io/gpus": "x"}), "must be a whole number"),
    (pod(slices(8), annotations={"gigaslice.io/memory": "4,5"}), "9, or the sizes add up to 8"),
    (pod(slices(0)), "must be a whole number from 1 up"),
    (pod(slices(100)), "100 GiB of one GPU are more than any has, which is 80 GiB; write the annotation"),
    (pod(slices(4), slices(4), annotations={"gigaslice.io/same-gpu": "true", "gigaslice.io/gpus.c0": "2"}),
     "containers c0 and c1 ask for different numbers of GPUs"),
    (pod(slices(4), slices(4), annotations={"gigaslice.io/same-gpu": "true", "gigaslice.io/exclusive": "true"}),
     "cannot be on the same one"),
    (pod(slices(8, env=[{"name": "NVIDIA_GPU_MEMORY_LIMIT", "value": "1"}])), "NVIDIA_GPU_MEMORY_LIMIT"),
])  # fmt: skip
def test_what_cannot_be_is_a_sentence(document, sentence):
    plan = planned(document)
    assert sentence in "; ".join(plan.mistakes) and not plan.patch and not plan.templates


def test_a_right_that_nobody_has_checked_is_refused():
    document = pod(slices(8), annotations={"gigaslice.io/exclusive": "true"})
    assert planned(document).mistakes == ()
    assert "allow-exclusive" in "; ".join(planned(document, facts()).mistakes)


def test_larger_nodes_may_come():
    assert planned(pod(slices(100)), facts(nodes_may_come=True)).mistakes == ()


def test_other_resources_of_ours_stay():
    plan = planned(pod(asks(limits={"gigaslice.io/rdma": 1})))
    assert (plan.patch, plan.templates, plan.mistakes) == ((), (), ())
    found, _ = claimed(pod(asks(limits={"gigaslice.io/rdma": 1, MEMORY: 8})))
    assert found["spec"]["containers"][0]["resources"]["limits"] == {"gigaslice.io/rdma": "1"}


def test_a_pod_that_was_not_completed_is_told():
    (sentence,) = without_resources(read_admission_pod(pod(slices(8))), FACTS)
    assert "container c0: gigaslice.io/vgpu-memory" in sentence
    found, _ = claimed(pod(slices(8)))
    assert without_resources(read_admission_pod(found), FACTS) == []


def test_a_copy_of_a_completed_pod_is_taken_as_it_is():
    found, _ = claimed(pod(slices(8)))
    found["metadata"]["annotations"]["gigaslice.io/wake"] = "1"
    assert json.dumps(found) and planned(found).mistakes == ()
