# SPDX-License-Identifier: Apache-2.0
"""The life of an admitted pod: init containers one after the other, sidecars, app containers, restarts, the end.

One thread per pod and per kubelet process. All state is in the Pod, so that the worker of the next kubelet
process takes over where this one stopped; the programs themselves outlive both.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as pb
from tests.fakes.kubelet.devices import DeviceManager
from tests.fakes.kubelet.pod_claims import PodClaims
from tests.fakes.kubelet.pods import FAILED, RUNNING, SUCCEEDED, Container, ContainerSpec, Pod
from tests.fakes.kubelet.registry import EndpointError
from tests.fakes.kubelet.runtime import Bind, Launch, Runtime, StartError

POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Pace:
    """Waiting times; a real kubelet's are 10 s doubled per crash, 30 s and about 1 s, and these after refused starts.

    start_retries_s: see Repeats.
    """

    crash_backoff_s: float = 0.1
    start_retries_s: tuple[float, float] = (0.5, 12.0)
    pre_start_timeout_s: float = 30.0
    force_kill_delay_s: float = 1.0


class Repeats:
    """When a refused start is repeated: soon where news of the pod came during the call, and late otherwise.

    The first refusal always has news, the pod's new status. Later ones have it where the next sync of the pod, for
    which a refusal sets the time, has become due before the call was over. So starts that are held for longer than that
    have no pause between them: of kubelet 1.36.2 all of 32 repeats of calls of 25 s came within 1.0 s of the refusals.
    """

    def __init__(self, pauses_s: tuple[float, float]) -> None:
        self._soon, self._late = pauses_s
        self._syncs: dict[str, float] = {}  # when, by container

    def refused(self, container: str, now: float) -> float:
        """When the start of CONTAINER that is refused NOW is repeated."""
        news = self._syncs.get(container, now) <= now
        self._syncs[container] = now + self._late
        return now + (self._soon if news else self._late)

    def started(self, container: str) -> None:
        """The next refusal of CONTAINER is a first one."""
        self._syncs.pop(container, None)


def injection(spec: ContainerSpec, responses: list[pb.ContainerAllocateResponse]) -> Launch:
    """What the container is started with. Of two plugins' words the first counts; the pod's own beat both."""
    env: dict[str, str] = {}
    mounts: dict[str, Bind] = {}
    for response in responses:
        for name, value in response.envs.items():
            env.setdefault(name, value)
        for mount in response.mounts:
            bind = Bind(mount.host_path, mount.container_path, mount.read_only)
            mounts.setdefault(mount.container_path, bind)
        for device in response.devices:
            if not Path(device.host_path).exists():
                raise StartError(f"lstat {device.host_path}: no such file or directory")
    for target, source in spec.mounts.items():
        mounts[target] = Bind(source, target, False)
    merged = {**spec.image_env, **env, **spec.env}
    return Launch(spec.command, merged, tuple(mounts.values()), spec.stdin)


class Worker(threading.Thread):
    """Drives one pod until it has ended or the kubelet has."""

    def __init__(
        self,
        pod: Pod,
        manager: DeviceManager,
        runtime: Runtime,
        logs: Path,
        pace: Pace,
        *,
        claims: PodClaims | None = None,
    ) -> None:
        super().__init__(name=f"pod {pod.name}", daemon=True)
        self.pod = pod
        self.manager = manager
        self.runtime = runtime
        self.logs = logs
        self.pace = pace
        self.claims = claims
        self.halt = threading.Event()
        self.retry_at: dict[str, float] = {}
        self.repeats = Repeats(pace.start_retries_s)

    def run(self) -> None:
        """Syncs the pod again and again, as the kubelet does; decisions depend on the pod's state alone."""
        while not self.halt.is_set():
            if self.pod.deleting.is_set() or self.pod.terminal:
                self._end()
                return
            if self._sandbox():
                for container in self._due():
                    self._start(container)
            self._judge()
            self.halt.wait(POLL_S)

    def _sandbox(self) -> bool:
        """Whether the pod has a sandbox. Claims are prepared before one is made, and at no other time."""
        if not self.pod.sandbox and (self.claims is None or self.claims.prepare(self._breaks_off)):
            self.pod.sandbox = True
        return self.pod.sandbox

    def _breaks_off(self) -> bool:
        return self.halt.is_set() or self.pod.deleting.is_set()

    def _due(self) -> list[Container]:
        """The containers that should run now and do not."""
        now = time.monotonic()
        starting = []
        for container in self.pod.init_containers:
            if container.spec.sidecar:
                starting.append(container)
                if container.runs == 0:
                    break  # what follows waits until it has started
            elif container.exit_code != 0 or container.running:
                starting.append(container)
                break  # what follows waits until it has succeeded
        else:
            starting += [c for c in self.pod.containers if self._restarts(c)]
        due = [c for c in starting if not c.running]
        for container in due:
            self._note_exit(container)
        return [
            c for c in due if self.retry_at.get(c.name, 0.0) <= now and (c.runs == 0 or self._restarts(c))
        ]

    def _restarts(self, container: Container) -> bool:
        if container.runs == 0 or container.running or container.spec.sidecar:
            return True
        self._note_exit(container)
        policy = self.pod.spec.restart_policy
        if container in self.pod.init_containers:
            return policy != "Never" and container.exit_code != 0
        return policy == "Always" or (policy == "OnFailure" and container.exit_code != 0)

    def _note_exit(self, container: Container) -> None:
        """Once per run: the code, and the wait before the next one, longer each time."""
        process = container.process
        if process is None or process.returncode is None:
            return
        container.exit_code, container.process = process.returncode, None
        container.last = process
        process.close()
        if self.halt.is_set():
            return
        container.restarts += 1
        container.waiting = "CrashLoopBackOff"
        delay = self.pace.crash_backoff_s * 2 ** min(container.restarts - 1, 5)
        self.retry_at[container.name] = time.monotonic() + delay
        self.pod.notify()

    def _start(self, container: Container) -> None:
        try:
            self.manager.pre_start(self.pod, container.spec, self.pace.pre_start_timeout_s)
        except EndpointError as error:
            self._not_started(container, "CreateContainerConfigError", str(error))
            return
        if self.halt.is_set() or self.pod.deleting.is_set():
            return
        logs = self.logs / container.name / str(container.runs)
        try:
            launch = injection(container.spec, self.manager.responses(self.pod, container.spec))
            if self.claims is not None:
                launch = self.claims.injected(launch, container.spec)
            container.process = self.runtime.start(launch, logs)
        except EndpointError as error:
            self._not_started(container, "CreateContainerConfigError", str(error))
            return
        except (StartError, OSError) as error:
            self._not_started(container, "CreateContainerError", str(error))
            return
        container.launch = launch
        container.runs += 1
        container.exit_code = None
        container.waiting = container.problem = ""
        self.repeats.started(container.name)
        self.pod.event("Normal", "Started", f"Started container {container.name}")

    def _not_started(self, container: Container, waiting: str, text: str) -> None:
        container.waiting, container.problem = waiting, text
        self.retry_at[container.name] = self.repeats.refused(container.name, time.monotonic())
        self.pod.event("Warning", "Failed", f"Error: {text}")

    def _judge(self) -> None:
        """The pod's phase follows from its containers."""
        pod = self.pod
        for container in pod.init_containers:
            ended = container.runs > 0 and not container.running and not container.spec.sidecar
            if ended and not self._restarts(container) and container.exit_code:
                text = f"init container {container.name} ended with {container.exit_code}"
                self._conclude(FAILED, "Error", text)
                return
        started = [c for c in pod.containers if c.runs > 0]
        if len(started) == len(pod.containers) and not any(self._restarts(c) for c in started):
            codes = [c.exit_code for c in started]
            self._conclude(FAILED if any(codes) else SUCCEEDED)
        elif started and pod.phase != RUNNING:
            pod.set(RUNNING)

    def _conclude(self, phase: str, reason: str = "", message: str = "") -> None:
        """The last phase is told once the pod's claims are unprepared."""
        if self.claims is None or self.claims.unprepare(self.halt.is_set):
            self.pod.set(phase, reason, message)

    def _end(self) -> None:
        """SIGTERM, the grace period, SIGKILL, unprepared claims; a forced deletion is late and without grace."""
        pod = self.pod
        alive = [c.process for c in pod.all_containers if c.process is not None]
        if pod.deleted:
            self.halt.wait(self.pace.force_kill_delay_s)
        elif alive:
            for process in alive:
                process.signal(signal.SIGTERM)
            deadline = time.monotonic() + pod.spec.grace_s
            while time.monotonic() < deadline and any(p.returncode is None for p in alive):
                if self.halt.wait(POLL_S):
                    return
        for container in pod.all_containers:
            if container.process is not None:
                with contextlib.suppress(OSError):
                    container.process.kill()
                container.exit_code = container.process.returncode
                container.last, container.process = container.process, None
        while self.claims is not None and not self.claims.unprepare(self.halt.is_set):
            if self.halt.wait(POLL_S):
                return  # the next kubelet goes on with it
        if pod.deleting.is_set():
            pod.deleted = True
        pod.ended.set()
        pod.notify()
