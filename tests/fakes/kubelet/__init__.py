# SPDX-License-Identifier: Apache-2.0
"""A kubelet stand-in that treats device plugins as a real one does, the unpleasant parts included.

    with FakeKubelet(directory, seed=1) as kubelet:       # starts kubelet.sock and pod-resources
        ...start a plugin on kubelet.plugin_directory...
        kubelet.wait_allocatable("example.com/thing", 24)
        pod = kubelet.run_pod(PodSpec("p", (ContainerSpec(resources={"example.com/thing": 8}),)))
        kubelet.restart(); kubelet.delete_pod(pod, force=True)

registry: the sockets of plugins · topology: NUMA hints · devices: device manager and checkpoint ·
podresources: its API · admission: scheduler's count and sync loop · worker: a pod's life ·
runtime, sandbox: programs in namespaces · node: all of it together.
dra, dra_plugins: claims to devices and their drivers, beside an API server · pod_claims: those of one pod ·
cdi: what a container gets of them.

Behaviour was taken from observing Kubernetes 1.36. What differs on purpose: waiting times are settings, the
checkpoint's checksum is another one, and there is no API server behind the pods unless it is given one.
"""

from tests.fakes.kubelet.dra import ClaimTimes
from tests.fakes.kubelet.node import FakeKubelet, Settings
from tests.fakes.kubelet.pods import ClaimSpec, Container, ContainerSpec, Event, Pod, PodSpec
from tests.fakes.kubelet.runtime import Bind, Launch, Process, Runtime, StartError
from tests.fakes.kubelet.worker import Pace

__all__ = [
    "Bind",
    "ClaimSpec",
    "ClaimTimes",
    "Container",
    "ContainerSpec",
    "Event",
    "FakeKubelet",
    "Launch",
    "Pace",
    "Pod",
    "PodSpec",
    "Process",
    "Runtime",
    "Settings",
    "StartError",
]
