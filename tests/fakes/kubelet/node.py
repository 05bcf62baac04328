# SPDX-License-Identifier: Apache-2.0
"""A node with a kubelet that can be started, stopped, restarted and rebooted, for tests and the demo.

What belongs to the kubelet process (sockets, device manager, workers) is made anew at each start; what belongs
to the API server (pods) and to the container runtime (running programs) stays.
"""

from __future__ import annotations

import functools
import random
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.fakes.kubeapi import NODE, ApiServer, published
from tests.fakes.kubeapi.refused import Refused
from tests.fakes.kubelet.admission import SyncLoop, admit
from tests.fakes.kubelet.devices import DeviceManager
from tests.fakes.kubelet.dra import ClaimManager, ClaimTimes, KeptClaims
from tests.fakes.kubelet.pod_claims import PodClaims
from tests.fakes.kubelet.podresources import PodResources
from tests.fakes.kubelet.pods import PENDING, Pod, PodSpec
from tests.fakes.kubelet.registry import Registry
from tests.fakes.kubelet.runtime import Launch, Process, Runtime
from tests.fakes.kubelet.topology import POLICIES
from tests.fakes.kubelet.worker import Pace, Worker
from tests.fakes.threads import await_end

SOCKET_PATH_BYTES = 107  # sun_path without its terminating NUL


@dataclass(frozen=True, slots=True)
class Settings:
    """Waiting times and sizes of the node; the real kubelet's values in comments where these are shorter."""

    numa_nodes: tuple[int, ...] = (0, 1)
    dial_timeout_s: float = 10.0
    status_period_s: float = 0.05  # 10 s
    stopped_grace_s: float = 300.0  # until a resource without plugin is dropped
    readmit_after_s: float = 1.0  # from a kubelet's start to the admission of the pods it finds
    readmit_with: str = (
        ""  # a resource that must be there before, for tests that are not about coming too late
    )
    pace: Pace = field(default_factory=Pace)
    claims: ClaimTimes = field(default_factory=ClaimTimes)


@dataclass(slots=True)
class _Kubelet:
    """One kubelet process."""

    manager: DeviceManager
    registry: Registry
    resources: PodResources
    loop: SyncLoop
    workers: dict[str, Worker]
    claims: ClaimManager | None

    def halt_workers(self) -> None:
        """Has those that there are by now end."""
        for worker in list(self.workers.values()):
            worker.halt.set()


class FakeKubelet:
    """The node. A context manager: starts on entry; on exit stops the kubelet and ends every container."""

    def __init__(
        self,
        directory: Path,
        seed: int = 0,
        policy: str = "none",
        settings: Settings | None = None,
        runtime: Runtime | None = None,
        *,
        api: ApiServer | None = None,
    ) -> None:
        if policy not in POLICIES:
            raise ValueError(f"topology policy {policy!r} is none of {', '.join(POLICIES)}")
        self.directory = Path(directory)
        self.policy = policy
        self.settings = settings or Settings()
        self.runtime = runtime or Runtime()
        self.api = api  # told of every pod before the kubelet sees it, as a real one is told by it
        self.rng = random.Random(seed)
        self.pods: list[Pod] = []
        self._running: _Kubelet | None = None
        self._claims: KeptClaims = {}  # what a kubelet has on disk of them
        if api is not None:
            api.store.listeners.append(self._noted)
        longest = max(len(str(self.kubelet_socket)), len(str(self.pod_resources_socket)))
        if longest > SOCKET_PATH_BYTES:
            raise ValueError(
                f"{directory}: socket paths below it are too long ({longest} bytes); take a shorter one"
            )

    @property
    def plugin_directory(self) -> Path:
        return self.directory / "device-plugins"

    @property
    def kubelet_socket(self) -> Path:
        return self.plugin_directory / "kubelet.sock"

    @property
    def pod_resources_socket(self) -> Path:
        return self.directory / "pod-resources" / "kubelet.sock"

    @property
    def plugins_registry(self) -> Path:
        """Where drivers of claims put their registration's socket."""
        return self.directory / "plugins_registry"

    @property
    def cdi_directory(self) -> Path:
        """Where the container runtime looks for what devices of CDI are; gone with a reboot."""
        return self.directory / "cdi"

    def __enter__(self) -> FakeKubelet:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the kubelet process ---------------------------------------------------------------------------------

    @property
    def _now(self) -> _Kubelet:
        if self._running is None:
            raise RuntimeError("the kubelet is not running: start() it first")
        return self._running

    @property
    def manager(self) -> DeviceManager:
        return self._now.manager

    @property
    def registry(self) -> Registry:
        return self._now.registry

    @property
    def claims(self) -> ClaimManager:
        """The part that has claims prepared; only beside an API server."""
        assert self._now.claims is not None, "there are no claims without an API server"
        return self._now.claims

    @property
    def pod_resources(self) -> PodResources:
        return self._now.resources

    def start(self) -> None:
        """Wipes old sockets, reads the checkpoint, serves; then admits again the pods that it finds."""
        if self._running is not None:
            raise RuntimeError("the kubelet is already running")
        self.plugin_directory.mkdir(parents=True, exist_ok=True)
        settings = self.settings
        manager = DeviceManager(
            self.plugin_directory, self.active_pods, self.rng, settings.numa_nodes, settings.stopped_grace_s
        )
        registry = Registry(self.plugin_directory, manager, settings.dial_timeout_s)
        claims = None
        if self.api is not None:
            for directory in (self.cdi_directory, self.plugins_registry, self.directory / "plugins"):
                directory.mkdir(exist_ok=True)
            claims = ClaimManager(self.api, NODE, self.plugins_registry, self._claims, settings.claims)
        resources = PodResources(self.pod_resources_socket, manager, self.active_pods, claims)
        loop = SyncLoop(
            manager,
            self.policy,
            lambda: list(self.pods),
            self._admitted,
            settings.status_period_s,
            scheduled=self._scheduled,
        )
        self._running = _Kubelet(manager, registry, resources, loop, {}, claims)
        manager.sources_ready = False
        for pod in self.pods:
            pod.active = False  # not listed before this kubelet has heard of it
        registry.start()
        resources.start()
        if claims is not None:
            claims.start()
        found = [pod for pod in self.pods if pod.bound and not pod.ended.is_set()]
        if found:
            time.sleep(settings.readmit_after_s)
            self._wait_for(settings.readmit_with)
        for pod in found:
            if admit(pod, manager, self.policy) or any(c.running for c in pod.all_containers):
                self._admitted(pod)
            else:
                pod.ended.set()
        manager.sources_ready = True
        loop.start()

    def _wait_for(self, resource: str) -> None:
        deadline = time.monotonic() + 60.0
        while resource and not self.allocatable().get(resource) and time.monotonic() < deadline:
            time.sleep(0.01)

    def stop(self) -> None:
        """Ends the kubelet process. Containers keep running, files stay, nothing is restarted."""
        kubelet = self._now
        kubelet.loop.halt.set()
        kubelet.manager.changed.set()
        kubelet.halt_workers()
        if kubelet.claims is not None:
            kubelet.claims.stop()
        kubelet.registry.stop()
        kubelet.resources.stop()
        await_end(kubelet.loop)
        self._running = None
        kubelet.halt_workers()  # the loop may have begun another one
        for worker in kubelet.workers.values():
            await_end(worker)
        if kubelet.loop.errors:
            raise kubelet.loop.errors[0]

    def restart(self) -> None:
        """A new kubelet process on the same node."""
        self.stop()
        self.start()

    def reboot(self, before_start: Callable[[], None] = lambda: None) -> None:
        """Kubelet and containers end; then the kubelet starts. Plugins are the caller's (BEFORE_START)."""
        self.stop()
        for pod in self.pods:
            for container in pod.all_containers:
                if container.process is not None:
                    container.process.kill()
                container.process, container.exit_code, container.runs = None, None, 0
            pod.sandbox = False
        shutil.rmtree(self.cdi_directory, ignore_errors=True)
        before_start()
        self.start()

    def close(self) -> None:
        """Stops the kubelet if it runs, and ends every container."""
        if self.api is not None and self._noted in self.api.store.listeners:
            self.api.store.listeners.remove(self._noted)
        try:
            if self._running is not None:
                self.stop()
        finally:
            for pod in self.pods:
                for container in pod.all_containers:
                    if container.process is not None:
                        container.process.kill()

    # --- pods ------------------------------------------------------------------------------------------------

    def active_pods(self) -> list[Pod]:
        """Pods that hold or are getting devices."""
        return [pod for pod in self.pods if pod.active and not pod.terminal and not pod.deleted]

    def create_pod(self, spec: PodSpec, uid: str = "", report: Callable[[str], None] | None = None) -> Pod:
        """Hands the pod to the scheduler and returns at once.

        Without an API server of its own the node may be one of several of a cluster: UID is then the pod's there, and
        REPORT is told its phases.
        """
        names = [(p.spec.namespace, p.spec.name) for p in self.pods if not p.deleted]
        if (spec.namespace, spec.name) in names:
            raise ValueError(f"pod {spec.namespace}/{spec.name} exists")
        if spec.claims and self.api is None:
            raise ValueError(f"pod {spec.name} has claims, and there is no API server")
        pod = Pod(spec)
        pod.uid, pod.report = uid or pod.uid, report or pod.report
        self.pods.append(pod)  # before it is published: its scheduler may be quick
        if self.api is not None:
            waits = spec.claims and not spec.bind
            pod.report = functools.partial(self.api.set_phase, spec.namespace, spec.name, pod.uid)
            self.api.put("pods", published(spec, pod.uid, "" if waits else NODE))
        self.manager.changed.set()
        return pod

    def run_pod(self, spec: PodSpec, timeout_s: float = 60.0) -> Pod:
        """As create_pod, but returns at a verdict: a container runs or cannot, rejected, or Unschedulable."""
        pod = self.create_pod(spec)

        def settled(pod: Pod) -> bool:
            blocked = any(c.waiting.startswith("CreateContainer") for c in pod.all_containers)
            begun = any(c.runs for c in pod.init_containers)
            return pod.phase != PENDING or pod.reason != "" or blocked or begun

        return pod.wait_for(settled, timeout_s)

    def delete_pod(self, pod: Pod, force: bool = False, timeout_s: float = 60.0) -> None:
        """Waits until nothing of it runs; with FORCE only until its devices are free, which is before that.

        The kubelet hears of it from the API server, where the pod is being deleted, or is gone, before it does a thing.
        """
        if self.api is not None and force:
            self.api.delete("pods", pod.spec.name, pod.spec.namespace)
        elif self.api is not None:
            ending = {"metadata": {"deletionTimestamp": "2026-11-22T00:00:00Z"}}
            self.api.change("pods", pod.spec.name, ending, pod.spec.namespace)
        if force:
            pod.deleted = True
        pod.deleting.set()
        if not pod.bound or (self._running is not None and pod.uid not in self._running.workers):
            pod.deleted = True
            pod.ended.set()
        if not force and not pod.ended.wait(timeout_s):
            raise TimeoutError(f"{pod!r} still runs {timeout_s} s after its deletion")
        if self.api is not None and not force:
            self.api.delete("pods", pod.spec.name, pod.spec.namespace)
        if self._running is not None:
            self._running.manager.changed.set()
        pod.notify()

    def exec(
        self,
        pod: Pod,
        command: tuple[str, ...],
        container: str = "",
        env: Mapping[str, str] | None = None,
        interactive: bool = False,
    ) -> Process:
        """Starts another program in a running container, with the container's environment and ENV."""
        state = pod.container(container)
        if state.process is None or state.launch is None:
            raise RuntimeError(f"container {state.name} of {pod!r} is not running")
        begun = state.launch
        launch = Launch(command, {**begun.env, **(env or {})}, begun.mounts, interactive, begun.gpus)
        logs = self.directory / "pods" / pod.uid / state.name / f"exec-{self.rng.getrandbits(64):016x}"
        return self.runtime.exec(state.process, launch, logs)

    def syncs(self, pod: Pod) -> bool:
        """Whether this kubelet process has begun to look after a pod."""
        return self._running is not None and pod.uid in self._running.workers

    def _admitted(self, pod: Pod) -> None:
        kubelet = self._now
        logs = self.directory / "pods" / pod.uid
        claims = None if kubelet.claims is None else PodClaims(pod, kubelet.claims, self.cdi_directory)
        worker = Worker(pod, kubelet.manager, self.runtime, logs, self.settings.pace, claims=claims)
        kubelet.workers[pod.uid] = worker
        worker.start()

    def kill_sandbox(self, pod: Pod) -> None:
        """The pod's sandbox dies, and every container with it; the kubelet makes another."""
        pod.sandbox = False
        for container in pod.all_containers:
            if container.process is not None:
                container.process.kill()

    def _scheduled(self, pod: Pod) -> bool:
        """Whether the cluster's scheduler has bound a pod to this node; if not, why is in its status."""
        assert self.api is not None
        try:
            document = self.api.get("pods", pod.spec.name, pod.spec.namespace)
        except Refused:
            return False
        if document["spec"].get("nodeName") == NODE:
            return True
        for condition in document["status"].get("conditions") or []:
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                pod.set(PENDING, condition["reason"], condition["message"])
                pod.event("Warning", "FailedScheduling", condition["message"])
        return False

    def _noted(self, resource: str, kind: str, document: Mapping[str, Any]) -> None:
        """A change in the API server: of a pod's metadata its worker has news, of its binding the sync loop has."""
        if resource != "pods":
            return
        metadata = document["metadata"]
        pod = next((one for one in list(self.pods) if one.uid == metadata["uid"]), None)
        if pod is None:
            return
        shown = {key: dict(metadata.get(key) or {}) for key in ("annotations", "labels")}
        if kind == "MODIFIED" and shown != pod.metadata:
            pod.news_at = time.monotonic()
        pod.metadata = shown
        running = self._running
        if running is not None and pod.spec.claims and not pod.bound:
            running.manager.changed.set()

    # --- what the node says ----------------------------------------------------------------------------------

    def report_every(self, seconds: float) -> None:
        """From the next report on this is the node's period, until the kubelet restarts."""
        self._now.loop.period_s = seconds

    def capacity(self) -> dict[str, int]:
        """As last reported: what the scheduler counts with."""
        return self._reported()[0]

    def allocatable(self) -> dict[str, int]:
        """As last reported."""
        return self._reported()[1]

    def _reported(self) -> tuple[dict[str, int], dict[str, int]]:
        loop = self._now.loop
        return loop.report if loop.is_alive() else self.manager.capacity()

    def wait_allocatable(self, resource: str, count: int, timeout_s: float = 60.0) -> None:
        """Returns when the node has reported COUNT of RESOURCE to the scheduler, and has it.

        A report alone may be older than what the caller has just done.
        """
        deadline = time.monotonic() + timeout_s
        while not (self._counted(resource) == self._now.loop.report[1].get(resource, 0) == count):
            if time.monotonic() > deadline:
                seen = self.allocatable().get(resource, 0)
                text = f"{seen} allocatable, not {count}, and {self._counted(resource)} healthy"
                raise TimeoutError(f"{resource}: {text}, after {timeout_s} s")
            time.sleep(0.01)

    def _counted(self, resource: str) -> int:
        """What the next report will say."""
        return self.manager.capacity()[1].get(resource, 0)

    def device_ids(self, pod: Pod, resource: str, container: str = "") -> set[str]:
        """What the container holds by the kubelet's records."""
        name = container or pod.containers[0].name
        with self.manager.lock:
            held = self.manager.held.get(pod.uid, {}).get(name, {}).get(resource)
            return set(held.ids) if held else set()

    def resource_health(self, pod: Pod, resource: str, container: str = "") -> dict[str, str]:
        """As in the pod's allocatedResourcesStatus: a device that is no longer listed counts as healthy."""
        with self.manager.lock:
            bad = self.manager.unhealthy.get(resource, set())
            ids = self.device_ids(pod, resource, container)
            return {ident: "Unhealthy" if ident in bad else "Healthy" for ident in sorted(ids)}
