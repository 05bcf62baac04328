# SPDX-License-Identifier: Apache-2.0
"""The kubelet's pod-resources API on its own socket.

List shows active pods, the one that is being admitted included (with the containers that already got theirs),
but no plain init containers; one ContainerDevices entry per device. Calls beyond 100 per second are refused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path

import grpc

from agent.kubelet.pb import podresources_v1_pb2 as pb
from agent.kubelet.pb import podresources_v1_pb2_grpc as rpc
from tests.fakes.kubelet.devices import DeviceManager
from tests.fakes.kubelet.dra import ClaimManager
from tests.fakes.kubelet.pods import Pod

RATE, BURST = 100.0, 10  # calls per second, and at once


class RateLimit:
    """A device ID bucket over a clock that is read by the caller."""

    def __init__(self, now: float, rate: float = RATE) -> None:
        self.device_ids, self.last, self.rate = float(BURST), now, rate

    def admit(self, now: float) -> bool:
        self.device_ids = min(BURST, self.device_ids + (now - self.last) * self.rate)
        self.last = now
        if self.device_ids < 1:
            return False
        self.device_ids -= 1
        return True


class PodResources(rpc.PodResourcesListerServicer):
    """Serves the socket for one kubelet process."""

    def __init__(
        self,
        socket: Path,
        manager: DeviceManager,
        active_pods: Callable[[], Sequence[Pod]],
        claims: ClaimManager | None = None,
    ) -> None:
        self.socket = socket
        self.manager = manager
        self.active_pods = active_pods
        self.claims = claims
        self.limit = RateLimit(time.monotonic())
        self.lock = threading.Lock()
        self.calls = 0
        self.delay_s = 0.0  # before each answer: a busy kubelet's
        self.server: grpc.Server | None = None

    def start(self) -> None:
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        self.server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=4, thread_name_prefix="pod-resources")
        )
        rpc.add_PodResourcesListerServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{self.socket}")
        self.server.start()

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop(0).wait()

    def List(  # noqa: N802
        self, request: pb.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> pb.ListPodResourcesResponse:
        self._admit(context)
        time.sleep(self.delay_s)
        self.manager.collect()
        return pb.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self.active_pods()])

    def Get(  # noqa: N802
        self, request: pb.GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> pb.GetPodResourcesResponse:
        self._admit(context)
        for pod in self.active_pods():
            if (pod.spec.namespace, pod.spec.name) == (request.pod_namespace, request.pod_name):
                return pb.GetPodResourcesResponse(pod_resources=self._pod(pod))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        context.abort(grpc.StatusCode.UNKNOWN, text)
        raise AssertionError("abort raises")

    def GetAllocatableResources(  # noqa: N802
        self, request: pb.AllocatableResourcesRequest, context: grpc.ServicerContext
    ) -> pb.AllocatableResourcesResponse:
        self._admit(context)
        with self.manager.lock:
            devices = [
                self._device(resource, ident)
                for resource, healthy in self.manager.healthy.items()
                for ident in sorted(healthy)
            ]
        return pb.AllocatableResourcesResponse(devices=devices)

    def _admit(self, context: grpc.ServicerContext) -> None:
        with self.lock:
            self.calls += 1
            admitted = self.limit.admit(time.monotonic())
        if not admitted:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    def _pod(self, pod: Pod) -> pb.PodResources:
        listed = [c.name for c in pod.spec.init_containers if c.sidecar]
        listed += [c.name for c in pod.spec.containers]
        with self.manager.lock:
            held = self.manager.held.get(pod.uid, {})
            containers = [
                pb.ContainerResources(
                    name=name,
                    devices=[
                        self._device(resource, ident)
                        for resource, one in held.get(name, {}).items()
                        for ident in sorted(one.ids)
                    ],
                    dynamic_resources=self._claims_of(pod, name),
                )
                for name in listed
            ]
        return pb.PodResources(name=pod.spec.name, namespace=pod.spec.namespace, containers=containers)

    def _claims_of(self, pod: Pod, name: str) -> list[pb.DynamicResource]:
        if self.claims is None:
            return []
        return [
            pb.DynamicResource(
                claim_name=claim.name,
                claim_namespace=claim.namespace,
                claim_resources=[
                    pb.ClaimResource(
                        cdi_devices=[pb.CDIDevice(name=ident) for ident in device.cdi_device_ids],
                        driver_name=driver,
                        pool_name=device.pool_name,
                        device_name=device.device_name,
                    )
                    for driver, device in devices
                ],
            )
            for claim, devices in self.claims.held(pod, pod.container(name).spec)
        ]

    def _device(self, resource: str, ident: str) -> pb.ContainerDevices:
        known = self.manager.known.get(resource, {}).get(ident)
        nodes = [pb.NUMANode(ID=node.ID) for node in known.topology.nodes] if known is not None else []
        topology = pb.TopologyInfo(nodes=nodes) if nodes else None
        return pb.ContainerDevices(resource_name=resource, device_ids=[ident], topology=topology)
