# SPDX-License-Identifier: Apache-2.0
"""A node that serves claims: API server, allocator and claim controller, kubelet, and the agent as a process.

claims = begin(gpus=2, gib=24)
pod = claims.run("train", memory="8Gi")                      # a claim of a template of its own
claims.claim("shared", request_document(memory="4Gi"))
other = claims.run("other", claims.named("shared"))
gpu_limits(pod.container())                                  # as the library of its programs reads them
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.fakes.claims import ClaimPlane
from tests.fakes.kubeapi import NODE, ApiServer
from tests.fakes.kubeapi.device_documents import DRIVER, claim_document, request_document, template_document
from tests.fakes.kubelet import ClaimSpec, ClaimTimes, Container, ContainerSpec, FakeKubelet, Pod, PodSpec
from tests.integration.agent.conftest import PATIENCE, QUICK, AgentProcess, wait_until

CLAIM = "vgpu"
"""What pods call their claim."""
CLAIM_QUICK = replace(
    QUICK,
    # The agent holds a call for as long as the kubelet's deadline lets it, less 4 s: 6 of these 10, 40 of its 45.
    claims=ClaimTimes(
        call_s=10.0,
        resync_s=6.0,
        news_s=0.05,
        unprepare_retry_s=0.2,
        wipe_after_s=3.0,
        register_pauses_s=(0.1, 2.0),
    ),
)


@dataclass
class ClaimNode:
    """The parts, and what tests do with them."""

    api: ApiServer
    plane: ClaimPlane
    kubelet: FakeKubelet
    agent: AgentProcess

    def wait_served(self, gpus: int) -> None:
        """Returns when the agent is registered and its slice has so many devices, as first fit sees them."""
        plugins = self.kubelet.claims.plugins
        wait_until(
            lambda: any(one.connected for one in plugins.instances(DRIVER)),
            "the driver's registration",
            PATIENCE,
        )
        wait_until(lambda: len(self.devices()) == gpus, f"{gpus} published devices", PATIENCE)

    def devices(self) -> list[dict[str, Any]]:
        """What the agent has published, in its order."""
        slices = [one for one in self.api.all("resourceslices") if one["spec"]["driver"] == DRIVER]
        return [device for one in slices for device in one["spec"].get("devices") or []]

    def claim(self, name: str, *requests: dict[str, Any], **devices: Any) -> dict[str, Any]:
        """Makes a claim."""
        return self.api.create("resourceclaims", claim_document(name, *requests, **devices))

    def template(self, name: str, *requests: dict[str, Any], **devices: Any) -> dict[str, Any]:
        """Makes a template of claims."""
        return self.api.create("resourceclaimtemplates", template_document(name, *requests, **devices))

    @staticmethod
    def named(name: str) -> tuple[ClaimSpec, ...]:
        """The claims of a pod that has this one."""
        return (ClaimSpec(CLAIM, claim=name),)

    def spec(
        self,
        name: str,
        claims: Sequence[ClaimSpec] = (),
        *,
        containers: Sequence[ContainerSpec] = (),
        config: Sequence[dict[str, Any]] = (),
        **more: Any,
    ) -> PodSpec:
        """A pod with CLAIMS, or with one of a template of its own that asks for MEMORY and CORES.

        MORE that is neither is as for PodSpec. Where no CONTAINERS are named there is one, which has all claims.
        """
        asked = {key: more.pop(key) for key in ("memory", "cores") if key in more}
        if not claims:
            options = {"config": list(config)} if config else {}
            self.template(f"{name}-template", request_document(**asked), **options)
            claims = (ClaimSpec(CLAIM, template=f"{name}-template"),)
        one = ContainerSpec(claims=tuple(claim.name for claim in claims))
        return PodSpec(name, tuple(containers) or (one,), claims=tuple(claims), **more)

    def create(self, name: str, *claims_of: Sequence[ClaimSpec], **more: Any) -> Pod:
        """Hands a pod, as spec(), to the scheduler and returns at once."""
        return self.kubelet.create_pod(self.spec(name, *claims_of, **more))

    def run(self, name: str, *claims_of: Sequence[ClaimSpec], **more: Any) -> Pod:
        """As create(), and returns when it runs."""
        return self.create(name, *claims_of, **more).wait("Running", PATIENCE)

    def begin_deleting(self, pod: Pod) -> threading.Thread:
        """Deletes a pod in a thread, which ends when nothing of the pod runs."""
        thread = threading.Thread(target=self.kubelet.delete_pod, args=(pod,), daemon=True)
        thread.start()
        return thread

    def claim_of(self, pod: Pod) -> dict[str, Any]:
        """The first claim of a pod as the API server has it."""
        own = pod.spec.claims[0]
        status = self.api.get("pods", pod.spec.name, pod.spec.namespace)["status"]
        made = {one["name"]: one["resourceClaimName"] for one in status.get("resourceClaimStatuses") or []}
        return self.api.get("resourceclaims", own.claim or made[own.name], pod.spec.namespace)


def claim_flags(kubelet: FakeKubelet) -> dict[str, object]:
    """Of an agent that serves claims on this kubelet's node."""
    return {
        "--api": "dra",
        "--kubelet-root": kubelet.directory,
        "--cdi-dir": kubelet.cdi_directory,
        "--node-name": NODE,
    }


def gpus_of(container: Container) -> tuple[str, ...]:
    """The GPUs that a container's programs see, in their order."""
    launch = container.started
    return launch.gpus or tuple(launch.env["NVIDIA_VISIBLE_DEVICES"].split(","))
