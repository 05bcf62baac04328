# SPDX-License-Identifier: Apache-2.0
"""Pods as the stand-in knows them: what was asked for (frozen), and what has become of it (Pod, Container)."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fakes.kubelet.runtime import Launch, Process

PENDING, RUNNING, SUCCEEDED, FAILED = "Pending", "Running", "Succeeded", "Failed"


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """A claim of a pod: one that exists, or one that is made of a template. name: as its containers name it."""

    name: str = "vgpu"
    claim: str = ""
    template: str = ""


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container. An empty command stands for a program that only waits to be killed.

    claims: those of the pod that it uses, each as NAME, or as NAME/REQUEST for one request of it.
    """

    name: str = "main"
    resources: Mapping[str, int] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # of the pod: wins over the plugin's
    image_env: Mapping[str, str] = field(default_factory=dict)  # of the image: loses to the plugin's
    mounts: Mapping[str, str] = field(default_factory=dict)  # container path -> host path, over the plugin's
    stdin: bool = False  # the program gets a pipe that Process.write writes to
    sidecar: bool = False  # of an init container: restartPolicy Always
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodSpec:
    """One pod. bind=True is a pod with nodeName set: no scheduler has seen it."""

    name: str
    containers: tuple[ContainerSpec, ...] = (ContainerSpec(),)
    init_containers: tuple[ContainerSpec, ...] = ()
    namespace: str = "default"
    restart_policy: str = "Always"  # Always, OnFailure, Never
    annotations: Mapping[str, str] = field(default_factory=dict)
    bind: bool = False
    grace_s: float = 1.0
    claims: tuple[ClaimSpec, ...] = ()

    def __post_init__(self) -> None:
        """Names are what devices are recorded under, so two containers cannot share one."""
        names = [container.name for container in self.all_containers]
        if len(set(names)) != len(names):
            raise ValueError(f"pod {self.name}: container names must differ, got {', '.join(names)}")

    @property
    def all_containers(self) -> tuple[ContainerSpec, ...]:
        """In the order of admission."""
        return (*self.init_containers, *self.containers)

    def requests(self, resource: str) -> int:
        """What the scheduler counts: app containers and sidecars together, or the largest init container."""
        running = sum(c.resources.get(resource, 0) for c in self.containers)
        peak = 0
        for container in self.init_containers:
            requested = container.resources.get(resource, 0)
            if container.sidecar:
                running += requested
                peak = max(peak, sum(c.resources.get(resource, 0) for c in self.init_containers if c.sidecar))
            else:
                peak = max(peak, requested)
        return max(running, peak)


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes event of the pod."""

    kind: str  # Normal, Warning
    reason: str
    message: str


class Container:
    """State of one container. All fields are written by the pod's worker only."""

    def __init__(self, spec: ContainerSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.process: Process | None = None
        self.last: Process | None = None  # the run before, or the only one when it has ended
        self.launch: Launch | None = None  # what the latest run was started with
        self.restarts = 0
        self.waiting = "ContainerCreating"  # reason while it does not run; "" when it runs or has ended
        self.problem = ""  # of the latest attempt to start it, in the words of who refused
        self.exit_code: int | None = None  # of the last run; 128 + signal
        self.runs = 0

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def started(self) -> Launch:
        """What the latest run was started with. AssertionError with the container's state when there was none."""
        assert self.launch is not None, f"container {self.name} has not started: {self.state}"
        return self.launch

    @property
    def state(self) -> str:
        """Why it does not run, or how it ended, in one line for whoever reads a failed test."""
        words = [
            self.waiting or ("running" if self.running else f"ended with {self.exit_code}"),
            self.problem,
        ]
        words += [f"{self.restarts} restarts", f"stderr {self.read('stderr')[-500:]!r}"]
        return ", ".join(word for word in words if word)

    def read(self, stream: str = "stdout") -> str:
        """What the latest run has written so far to "stdout" or "stderr"."""
        process = self.process or self.last
        return "" if process is None else process.read(stream)


class Pod:
    """A pod and its status; wait() and the properties may be used from any thread."""

    def __init__(self, spec: PodSpec) -> None:
        self.spec = spec
        self.uid = str(uuid.uuid4())
        self.phase = PENDING
        self.reason = ""
        self.message = ""
        self.bound = False  # the scheduler, or bind=True, has given it to this node
        self.active = False  # being admitted, or admitted; what pod-resources shows
        self.deleted = False  # gone from the API server
        self.sandbox = False  # it has one; what comes before that is done
        self.metadata: Mapping[str, object] = {}  # annotations and labels as last heard of
        self.news_at: float | None = None  # when its metadata changed last, since claims were prepared last
        self.deleting = threading.Event()
        self.ended = threading.Event()  # nothing of it runs any more
        self.events: list[Event] = []
        self.init_containers = tuple(Container(c) for c in spec.init_containers)
        self.containers = tuple(Container(c) for c in spec.containers)
        self.changed = threading.Condition()
        self.report: Callable[[str], None] = lambda phase: None  # to the API server

    def __repr__(self) -> str:
        return f"<Pod {self.spec.namespace}/{self.spec.name} {self.phase} {self.reason}>"

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def terminal(self) -> bool:
        return self.phase in (SUCCEEDED, FAILED)

    @property
    def all_containers(self) -> tuple[Container, ...]:
        return (*self.init_containers, *self.containers)

    def container(self, name: str = "") -> Container:
        """By name; without one, the first app container."""
        if not name:
            return self.containers[0]
        return next(c for c in self.all_containers if c.name == name)

    def set(self, phase: str, reason: str = "", message: str = "") -> None:
        """Moves to PHASE; a terminal phase is never left."""
        with self.changed:
            if not self.terminal:
                news = phase != self.phase
                self.phase, self.reason, self.message = phase, reason, message
                if news:
                    self.report(phase)
            self.changed.notify_all()

    def event(self, kind: str, reason: str, message: str) -> None:
        """Records an event; the same one twice in a row is recorded once, as the API server folds them."""
        with self.changed:
            event = Event(kind, reason, message)
            if not self.events or self.events[-1] != event:
                self.events.append(event)
            self.changed.notify_all()

    def notify(self) -> None:
        """Wakes every thread that waits for something about this pod."""
        with self.changed:
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[Pod], bool], timeout_s: float = 60.0) -> Pod:
        """Returns the pod when CONDITION holds; TimeoutError with the pod's state when it does not in time."""
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while not condition(self):
                left = deadline - time.monotonic()
                if left <= 0:
                    states = [f"{c.name}: {c.state}" for c in self.all_containers]
                    raise TimeoutError(f"{self!r} {self.message} after {timeout_s} s; containers {states}")
                self.changed.wait(min(left, 0.05))
        return self

    def wait(self, phase: str, timeout_s: float = 60.0) -> Pod:
        """Returns the pod once it is in PHASE."""
        return self.wait_for(lambda pod: pod.phase == phase, timeout_s)
