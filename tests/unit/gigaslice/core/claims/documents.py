# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims as the API server writes them, for tests."""

from typing import Any

from hypothesis import strategies as st

UID = "0b7b5a34-37d5-4d8e-8d2c-1d0a6f1f7a11"
SHARE = "a671734a-e8e5-11e4-8fde-42010af09327"
DEVICE = "gpu-58a9c2ed-a697-4a1c-9aa1-906b87e19b3f"


def result(request: str = "gpu", **fields: Any) -> dict[str, Any]:
    """One result; FIELDS replace what is there, None takes away."""
    document = {
        "request": request,
        "driver": "gigaslice.io",
        "pool": "node-a",
        "device": DEVICE,
        "shareID": SHARE,
        "consumedCapacity": {"memory": "8Gi", "cores": "30"},
        **fields,
    }
    return {key: value for key, value in document.items() if value is not None}


def config(
    *requests: str, source: str = "FromClaim", driver: str = "gigaslice.io", **parameters: Any
) -> dict[str, Any]:
    """Parameters for some requests."""
    document: dict[str, Any] = {
        "source": source,
        "opaque": {
            "driver": driver,
            "parameters": {"apiVersion": "config.gigaslice.io/v1alpha1", "kind": "VGPU", **parameters},
        },
    }
    return {**document, "requests": list(requests)} if requests else document


def claim(
    *results: dict[str, Any], configs: tuple[dict[str, Any], ...] = (), requests: tuple[str, ...] = ("gpu",)
) -> dict[str, Any]:
    """A claim that is allocated and reserved for one pod."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "team-a", "name": "train-vgpu-x7f2k", "uid": UID, "resourceVersion": "17"},
        "spec": {
            "devices": {
                "requests": [
                    {"name": name, "exactly": {"deviceClassName": "vgpu.gigaslice.io"}} for name in requests
                ]
            }
        },
        "status": {
            "allocation": {
                "devices": {"results": list(results or (result(),)), "config": list(configs)},
                "nodeSelector": {"nodeSelectorTerms": []},
            },
            "reservedFor": [
                {"resource": "pods", "name": "train", "uid": "e1b0c6a8-1f0e-4a51-9d0c-6d1f3a0f4b5e"}
            ],
        },
    }


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def broken_claims(draw: st.DrawFn) -> Any:
    """A claim in which values at some places are anything at all."""
    document = claim(
        result(),
        result("b/c"),
        configs=(config("gpu", elastic=True), config(source="FromClass")),
        requests=("gpu", "b"),
    )
    for _ in range(draw(st.integers(0, 3))):
        node: Any = document
        while isinstance(node, (dict, list)) and node:
            key = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
            if not isinstance(node[key], (dict, list)) or not node[key] or draw(st.integers(0, 3)) == 0:
                node[key] = draw(JSON)
                break
            node = node[key]
    return document
