# SPDX-License-Identifier: Apache-2.0
"""The device manager: who may have which device, the answers that came with them, and the checkpoint.

It follows the kubelet's device manager step by step, including what looks like oversight there: the rest of
a short preferred set is drawn at random, freed devices are noticed at the next allocation and not before,
and an empty answer leaks its devices until then.

All calls to a plugin are made without holding the lock, for the plugin may ask pod-resources meanwhile.
"""

from __future__ import annotations

import base64
import json
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as pb
from tests.fakes.kubelet import topology
from tests.fakes.kubelet.pods import ContainerSpec, Pod
from tests.fakes.kubelet.registry import Endpoint, EndpointError

CHECKPOINT = "kubelet_internal_checkpoint"


class AdmissionError(Exception):
    """The pod cannot be admitted; the text is the kubelet's."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one container holds of one resource."""

    ids: frozenset[str]
    response: pb.ContainerAllocateResponse


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """WANTED devices of one resource for one container."""

    pod: Pod
    spec: ContainerSpec
    resource: str
    requested: int
    affinity: int | None  # NUMA mask
    reusable: frozenset[str]  # lent by init containers that will have ended by then


class DeviceManager:
    """State of one kubelet process; a restart is a new one that reads the checkpoint."""

    def __init__(
        self,
        directory: Path,
        active_pods: Callable[[], Sequence[Pod]],
        rng: random.Random,
        nodes: Sequence[int] = (0,),
        grace_s: float = 300.0,
    ) -> None:
        self.checkpoint = directory / CHECKPOINT
        self.active_pods = active_pods
        self.rng = rng
        self.nodes = tuple(nodes)
        self.grace_s = grace_s
        self.lock = threading.RLock()
        self.changed = threading.Event()  # capacity may have changed
        self.sources_ready = True  # False while a new kubelet does not know the pods of its node yet
        self.endpoints: dict[str, Endpoint] = {}
        self.known: dict[str, dict[str, pb.Device]] = {}
        self.healthy: dict[str, set[str]] = {}
        self.unhealthy: dict[str, set[str]] = {}
        self.allocated: dict[str, set[str]] = {}
        self.held: dict[str, dict[str, dict[str, Held]]] = {}  # pod uid -> container -> resource
        self.lent: tuple[str, dict[str, set[str]]] = ("", {})  # pod uid, resource -> ids for re-use
        self._read_checkpoint()

    # --- what the registry reports ---------------------------------------------------------------------------

    def connected(self, resource: str, endpoint: Endpoint) -> None:
        """The newest registration takes the name."""
        with self.lock:
            self.endpoints[resource] = endpoint

    def devices(self, resource: str, devices: Sequence[pb.Device]) -> None:
        """Each list replaces the one before."""
        with self.lock:
            self.known[resource] = {device.ID: device for device in devices}
            self.healthy[resource] = {d.ID for d in devices if d.health == "Healthy"}
            self.unhealthy[resource] = {d.ID for d in devices if d.health != "Healthy"}
            self._write_checkpoint()
        self.changed.set()

    def disconnected(self, resource: str) -> None:
        """Everything of the resource turns unhealthy at once; its holders keep it."""
        with self.lock:
            if resource in self.endpoints:
                self.unhealthy.setdefault(resource, set()).update(self.healthy.get(resource, ()))
                self.healthy[resource] = set()
                self.endpoints[resource].stopped_at = time.monotonic()
        self.changed.set()

    def capacity(self) -> tuple[dict[str, int], dict[str, int]]:
        """(capacity, allocatable); a resource whose plugin is gone for the grace period counts 0 and is dropped."""
        with self.lock:
            for resource, endpoint in list(self.endpoints.items()):
                stopped = endpoint.stopped_at
                if stopped is not None and time.monotonic() - stopped > self.grace_s:
                    for table in (self.endpoints, self.healthy, self.unhealthy, self.known):
                        table.pop(resource, None)
                    self._write_checkpoint()
            names = set(self.healthy) | set(self.unhealthy)
            allocatable = {name: len(self.healthy.get(name, ())) for name in names}
            return {n: allocatable[n] + len(self.unhealthy.get(n, ())) for n in names}, allocatable

    # --- allocation ------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Takes back what pods that are no longer active held. Only ever called on the way to something else.

        Nothing is taken back before the kubelet knows its pods. What an Allocate that is under way has reserved is
        forgotten as soon as anything is taken back: the kubelet counts anew from what is finished.
        """
        if not self.sources_ready:
            return
        active = {pod.uid for pod in self.active_pods()}
        with self.lock:
            gone = [uid for uid in self.held if uid not in active]
            for uid in gone:
                del self.held[uid]
            if gone:
                self._recount()

    def affinity(self, policy: str, pod: Pod, spec: ContainerSpec) -> tuple[int | None, bool]:
        """NUMA mask for the container's devices under POLICY, and whether it is admitted."""
        if policy == "none":
            return None, True
        self.collect()
        with self.lock:
            hints = [self._hints(pod, spec, r, n) for r, n in spec.resources.items() if r in self.known]
        return topology.merge(policy, self.nodes, hints)

    def _hints(
        self, pod: Pod, spec: ContainerSpec, resource: str, requested: int
    ) -> list[topology.Hint] | None:
        placed = {
            ident: tuple(node.ID for node in device.topology.nodes if node.ID in self.nodes)
            for ident, device in self.known[resource].items()
        }
        mine = self.held.get(pod.uid, {}).get(spec.name, {}).get(resource)
        if mine is not None:
            return topology.resource_hints(self.nodes, placed, mine.ids, set(), requested)
        free = self.healthy.get(resource, set()) - self.allocated.get(resource, set())
        return topology.resource_hints(
            self.nodes, placed, free, self._reusable(pod).get(resource, set()), requested
        )

    def _reusable(self, pod: Pod) -> dict[str, set[str]]:
        if self.lent[0] != pod.uid:
            self.lent = (pod.uid, {})
        return self.lent[1]

    def allocate(self, pod: Pod, spec: ContainerSpec, affinity: int | None, started: bool) -> None:
        """Gives the container all its devices, or raises AdmissionError. STARTED: its process runs already."""
        reusable = self._reusable(pod)
        resources = [(r, n) for r, n in spec.resources.items() if n > 0]
        self.rng.shuffle(resources)  # the order of a Go map
        self.collect()
        for resource, requested in resources:
            if not started:
                lent = frozenset(reusable.get(resource, ()))
                self._allocate_one(RequestOptions(pod, spec, resource, requested, affinity, lent))
        with self.lock:
            self._write_checkpoint()
            init = next((c for c in pod.spec.init_containers if c.name == spec.name), None)
            for resource, held in self.held.get(pod.uid, {}).get(spec.name, {}).items():
                if init is not None and not init.sidecar:
                    reusable.setdefault(resource, set()).update(held.ids)
                else:
                    reusable.get(resource, set()).difference_update(held.ids)

    def _allocate_one(self, options: RequestOptions) -> None:
        resource = options.resource
        try:
            ids = self._choose(options)
            if not ids:
                return
            endpoint = self.endpoints.get(resource)
            if endpoint is None:
                raise EndpointError(f"unknown Device Plugin {resource}")
            answer = endpoint.allocate(self.rng.sample(sorted(ids), len(ids)))
        except EndpointError as error:
            with self.lock:
                self._recount()
            raise AdmissionError(str(error)) from error
        if not answer.container_responses:
            raise AdmissionError(f"no containers return in allocation response {answer}")
        with self.lock:
            containers = self.held.setdefault(options.pod.uid, {})
            held = Held(frozenset(ids), answer.container_responses[0])
            containers.setdefault(options.spec.name, {})[resource] = held

    def _choose(self, options: RequestOptions) -> set[str]:
        resource, requested = options.resource, options.requested
        with self.lock:
            mine = self.held.get(options.pod.uid, {}).get(options.spec.name, {}).get(resource)
            held = set(mine.ids) if mine else set()
            if resource not in self.healthy:
                raise AdmissionError(f"cannot allocate unregistered device {resource}")
            if not self.healthy[resource]:
                raise AdmissionError(
                    f"no healthy devices present; cannot allocate unhealthy devices {resource}"
                )
            if not held <= self.healthy[resource]:
                raise AdmissionError(
                    "previously allocated devices are no longer healthy; "
                    f"cannot allocate unhealthy devices {resource}"
                )
            if len(held) == requested:
                return set()
            draw = Draw(self.rng, self.allocated.setdefault(resource, set()), requested)
            if draw.take(set(options.reusable)):
                return draw.taken
            available = self.healthy[resource] - self.allocated[resource]
            if len(available) < draw.needed:
                raise AdmissionError(
                    f"requested number of devices unavailable for {resource}. "
                    f"Requested: {draw.needed}, Available: {len(available)}"
                )
            aligned, unaligned, neutral = self._by_affinity(resource, available, options.affinity)
        if draw.needed < len(aligned):
            preferred = self._preferred(resource, aligned | draw.taken, draw.taken, requested)
            steps: tuple[set[str], ...] = (preferred & aligned, aligned)
        elif draw.take(aligned):
            return draw.taken
        else:
            preferred = self._preferred(resource, available | draw.taken, draw.taken, requested)
            steps = (preferred & available, unaligned, neutral)
        with self.lock:
            if any(draw.take(step) for step in steps):
                return draw.taken
        raise AdmissionError(f"unexpectedly allocated less resources than required. Requested: {requested}")

    def _by_affinity(
        self, resource: str, available: set[str], affinity: int | None
    ) -> tuple[set[str], set[str], set[str]]:
        if affinity is None:
            return set(), set(), available
        aligned, unaligned, neutral = set(), set(), set()
        for ident in available:
            nodes = [node.ID for node in self.known[resource][ident].topology.nodes]
            if not nodes:
                neutral.add(ident)
            elif topology.on(affinity, nodes):
                aligned.add(ident)
            else:
                unaligned.add(ident)
        return aligned, unaligned, neutral

    def _preferred(self, resource: str, available: set[str], must: set[str], size: int) -> set[str]:
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            return set()
        shuffled = self.rng.sample(sorted(available), len(available))
        return set(endpoint.preferred(shuffled, sorted(must), size))

    def _recount(self) -> None:
        self.allocated = {}
        for containers in self.held.values():
            for resources in containers.values():
                for resource, held in resources.items():
                    self.allocated.setdefault(resource, set()).update(held.ids)

    # --- start of a container --------------------------------------------------------------------------------

    def responses(self, pod: Pod, spec: ContainerSpec) -> list[pb.ContainerAllocateResponse]:
        """The answers kept for the container, in an order that differs from time to time."""
        with self.lock:
            held = list(self.held.get(pod.uid, {}).get(spec.name, {}).values())
        return [one.response for one in self.rng.sample(held, len(held))]

    def pre_start(self, pod: Pod, spec: ContainerSpec, timeout_s: float) -> None:
        """EndpointError when a plugin that asked for it does not let the container start."""
        with self.lock:
            held = dict(self.held.get(pod.uid, {}).get(spec.name, {}))
        for resource, requested in spec.resources.items():
            endpoint = self.endpoints.get(resource)
            if requested and endpoint is not None:
                ids = sorted(held[resource].ids) if resource in held else []
                if endpoint.options.pre_start_required and not ids:
                    raise EndpointError(f"no devices found allocated in local cache for pod {pod.uid}")
                endpoint.pre_start(ids, timeout_s)

    # --- checkpoint ------------------------------------------------------------------------------------------

    def _write_checkpoint(self) -> None:
        entries = []
        for uid, containers in self.held.items():
            for name, resources in containers.items():
                for resource, held in resources.items():
                    entries.append(
                        {
                            "PodUID": uid,
                            "ContainerName": name,
                            "ResourceName": resource,
                            "DeviceIDs": self._by_node(resource, held.ids),
                            "AllocResp": base64.b64encode(held.response.SerializeToString()).decode(),
                        }
                    )
        registered = {name: sorted(ids) for name, ids in self.healthy.items()}
        data = {"PodDeviceEntries": entries, "RegisteredDevices": registered}
        document = {"Data": data, "Checksum": _checksum(data)}
        scratch = self.checkpoint.with_suffix(".new")
        scratch.write_text(json.dumps(document))
        scratch.replace(self.checkpoint)

    def _by_node(self, resource: str, ids: Iterable[str]) -> dict[str, list[str]]:
        nodes: dict[str, list[str]] = {}
        for ident in sorted(ids):
            device = self.known.get(resource, {}).get(ident)
            where = [node.ID for node in device.topology.nodes] if device is not None else []
            for node in where or [-1]:
                nodes.setdefault(str(node), []).append(ident)
        return nodes

    def _read_checkpoint(self) -> None:
        """A damaged one is left aside, as by the kubelet: it goes on as if nothing had been allocated."""
        try:
            document = json.loads(self.checkpoint.read_text())
            data = document["Data"]
            if document["Checksum"] != _checksum(data):
                return
        except (OSError, ValueError, KeyError, TypeError):
            return
        for entry in data["PodDeviceEntries"]:
            ids = frozenset(ident for group in entry["DeviceIDs"].values() for ident in group)
            answer = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
            containers = self.held.setdefault(entry["PodUID"], {})
            containers.setdefault(entry["ContainerName"], {})[entry["ResourceName"]] = Held(ids, answer)
        for resource in data["RegisteredDevices"]:
            self.healthy[resource] = set()
            self.unhealthy[resource] = set()
            self.endpoints[resource] = Endpoint(resource, None)
            self.endpoints[resource].stopped_at = time.monotonic()
        self._recount()


class Draw:
    """Collects WANTED devices from one set after the other, at random within a set, marking them as in use."""

    def __init__(self, rng: random.Random, in_use: set[str], requested: int) -> None:
        self.rng = rng
        self.in_use = in_use
        self.needed = requested
        self.taken: set[str] = set()

    def take(self, source: set[str]) -> bool:
        """Takes what is missing from SOURCE; True when nothing is missing any more."""
        candidates = sorted(source - self.taken)
        chosen = self.rng.sample(candidates, min(self.needed, len(candidates)))
        self.taken.update(chosen)
        self.in_use.update(chosen)
        self.needed -= len(chosen)
        return self.needed == 0


def _checksum(data: object) -> int:
    """The kubelet hashes a Go printout of the structure, which only a kubelet can make; this is a stand-in."""
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())
