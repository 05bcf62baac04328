# SPDX-License-Identifier: Apache-2.0
"""Whether the API server keeps this agent to its own annotations of its own Node, and of that one's pods.

RBAC cannot say "its own Node, and of it these annotations": that is a policy's, and a policy may be missing, be an old
one or fit another account. So nobody is asked for it. What the policy must refuse is tried, by a dry run, which changes
nothing.
"""

from __future__ import annotations

from gigaslice.kubeapi.client import MERGE_PATCH, ApiFailure, KubeClient, object_path

__all__ = ["REMEDY", "UnboundedError", "check_bounds"]

_FOREIGN = "trial.gigaslice.invalid/is-refused"  # of a domain that nobody has, and outside of gigaslice.io/
REMEDY = "apply deploy/node-policy.yaml, or install the chart (both: Kubernetes 1.30)"
"""What to do about an UnboundedError."""


class UnboundedError(ApiFailure):
    """The API server would have carried out what no agent may do."""


async def check_bounds(client: KubeClient, *path: str) -> None:
    """Returns where the API server refuses a change of another's annotation of the core object at PATH, such as
    "nodes" and its name.

    Raises UnboundedError where it would make that change, and ApiFailure where it does not say.
    """
    body = {"metadata": {"annotations": {_FOREIGN: "x"}}}
    whole_path = object_path("api", "v1", *path)
    try:
        await client.request("PATCH", whole_path, {"dryRun": "All"}, body, MERGE_PATCH, patient=False)
    except ApiFailure as failure:
        if failure.status != 403:
            raise
    else:
        raise UnboundedError(
            f"the agent may change others' annotations of {path[-1]}, and so may whoever takes its token"
        )
