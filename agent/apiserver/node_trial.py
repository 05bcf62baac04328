"""Whether the API server keeps this agent to its own annotations of its own Node.

RBAC cannot say "its own Node, and of it these annotations": that is a policy's, and a policy may be missing, be an old
one or fit another account. So nobody is asked for it. What the policy must refuse is tried, by a dry run, which changes
nothing.
"""

from __future__ import annotations

from agent.apiserver.wire import MERGE_PATCH, Api
from gigaslice.kubeapi.failures import ApiFailure, object_path

__all__ = ["REMEDY", "UnboundedError", "check_bounds"]

_FOREIGN = "trial.gigaslice.invalid/is-refused"  # of a domain that nobody has, and outside of gigaslice.io/
REMEDY = "apply deploy/node-policy.yaml, or install the chart (both: Kubernetes 1.30)"
"""What to do about an UnboundedError."""


class UnboundedError(ApiFailure):
    """The API server would have carried out what no agent may do."""


async def check_bounds(api: Api, node: str) -> None:
    """Returns where the API server refuses a change of another's annotation of NODE.

    Raises UnboundedError where it would make that change, and ApiFailure where it does not say.
    """
    body = {"metadata": {"annotations": {_FOREIGN: "x"}}}
    reply = await api.request(
        "PATCH", object_path("api", "v1", "nodes", node), {"dryRun": "All"}, body, MERGE_PATCH
    )
    if reply.status < 300:
        raise UnboundedError(
            f"the agent may change others' annotations of {node}, and so may whoever takes its token"
        )
    if reply.status != 403:
        raise reply.failure("trial of the node's policy not answered")
