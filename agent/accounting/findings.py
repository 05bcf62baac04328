"""Whose the memory on the GPUs is, and what is wrong with that. Pure.

A process that owns a slot of a ledger belongs to that ledger's container; the kernel says so. A container can make the
kernel say it of others, though: the number it names is that of the process that took the lock, which may have ended and
left lock and number behind, and a descriptor can be passed on. So what it says is held against the process's cgroup and
mounts, which its container cannot choose. Every other process is searched by these two alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.accounting.processes import Sighting
from agent.ledgers.usage import Reading
from gigaslice.allocation.table import Allocation
from vcuda import ProcessUsage

__all__ = [
    "CONTEXT_BYTES",
    "Finding",
    "Survey",
    "credible",
    "examine",
    "named",
    "undeclared_overuse",
    "whose",
]

Memory = Mapping[str, Mapping[int, int]]  # GPU -> host PID -> bytes, as measured
CONTEXT_BYTES = 1 << 30
"""What a process may hold of a GPU undeclared without a suspicion: contexts, module code and libraries' workspaces."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One container with processes without the library. over: bytes beyond its limit by GPU, if any."""

    allocation: Allocation
    processes: tuple[tuple[Sighting, str, int], ...]
    over: Mapping[str, int]

    def text(self, size: object) -> str:
        """The processes for people; SIZE writes bytes."""
        return (
            ", ".join(
                f"process {process.pid} ({process.name}) holds {size(count)} of {gpu}"  # type: ignore[operator]
                for process, gpu, count in self.processes[:4]
            )
            + (f" and {len(self.processes) - 4} more" if len(self.processes) > 4 else "")
        )


@dataclass(frozen=True, slots=True)
class Survey:
    """What one round found.

    Attributes:
        without_library: Bytes of processes without the library, by allocation ID and GPU.
        foreign: Bytes of processes outside all allocations, by GPU.
        findings: The containers that have processes without the library.
    """

    without_library: Mapping[str, Mapping[str, int]]
    foreign: Mapping[str, int]
    findings: tuple[Finding, ...]


def whose(
    seen: Sighting,
    allocations: Sequence[Allocation],
    pods: Mapping[str, tuple[str, str]],
    siblings: Mapping[str, str],
) -> str | None:
    """The id of the allocation that a process belongs to, or None when it is none of ours, or nobody can tell.

    pods: namespace and name by UID. siblings: allocation ids by the container ids of processes that own slots.
    """
    known = {allocation.id for allocation in allocations}
    if seen.place is None:
        return seen.mounted if seen.mounted in known else None
    if seen.place.container in siblings:
        return siblings[seen.place.container]
    name = pods.get(seen.place.uid)
    mine = [allocation for allocation in allocations if _is_of(allocation, seen.place.uid, name)]
    if seen.mounted in {allocation.id for allocation in mine}:
        return seen.mounted
    if not mine and name is None:
        return seen.mounted if seen.mounted in known else None
    living = [allocation for allocation in mine if allocation.kept]
    return living[0].id if len(living) == 1 else None


def named(
    readings: Mapping[str, Reading], sightings: Iterable[Sighting], claimed: Collection[int]
) -> dict[str, Reading]:
    """READINGS, by allocation id, with the PIDs of living owners whose record locks are lost. CLAIMED: PIDs that locks
    name.

    Without them what is measured of such a process would be held against its container a second time.

    Such an owner is the process that has the allocation's files mounted and, inside, the number that its slot says. The
    container chooses that number, but not who has its files mounted.
    """
    unclaimed: dict[tuple[str, int], list[int]] = {}
    for one in sightings:
        if one.pid not in claimed:
            unclaimed.setdefault((one.mounted, one.inner), []).append(one.pid)

    def name(key: str, process: ProcessUsage) -> ProcessUsage:
        found = unclaimed.get((key, process.pid_inside), [])
        return replace(process, pid=found.pop()) if process.nameless and len(found) == 1 else process

    return {
        key: replace(reading, processes=tuple(name(key, one) for one in reading.processes))
        if any(one.nameless for one in reading.processes)
        else reading
        for key, reading in readings.items()
    }


def credible(
    claims: Mapping[int, Collection[str]],
    sightings: Iterable[Sighting],
    allocations: Sequence[Allocation],
    pods: Mapping[str, tuple[str, str]],
) -> dict[int, str]:
    """Whose each process is that holds a slot: allocation ids by PID, of allocations that have ended too. CLAIMS: ids
    of those whose ledgers it has slots of. One that runs in another pod, or has another allocation's files mounted, is
    not theirs; one of which several could say so is nobody's.
    """
    seen = {one.pid: one for one in sightings}
    by_id = {allocation.id: allocation for allocation in allocations}
    found = {}
    for pid, keys in claims.items():
        left = [key for key in keys if not _contradicts(seen.get(pid), key, by_id, pods)]
        mounted = [key for key in left if pid in seen and seen[pid].mounted == key]
        if len(mounted or left) == 1:
            found[pid] = (mounted or left)[0]
    return found


def _contradicts(
    seen: Sighting | None, key: str, by_id: Mapping[str, Allocation], pods: Mapping[str, tuple[str, str]]
) -> bool:
    """Whether what is SEEN of a process says that it is not of the allocation KEY; what is not known says nothing."""
    if seen is None:
        return False
    if seen.mounted in by_id and seen.mounted != key:
        return True
    allocation = by_id.get(key)
    if allocation is None or allocation.ref is None or seen.place is None:
        return False
    uid, name = seen.place.uid, pods.get(seen.place.uid)
    if allocation.owner is not None:
        return allocation.owner.uid != uid
    return name is not None and (allocation.ref.namespace, allocation.ref.pod) != name


def undeclared_overuse(allocation: Allocation, reading: Reading, measured: Memory) -> dict[str, int]:
    """Bytes by GPU that ALLOCATION's processes with slots hold beyond its limit because no call has declared them:
    plug-ins that pass the library by. What contexts take is let pass: the library cannot know it beforehand everywhere.

    READING: its ledger as far as it counts. A limit that was lowered below what was declared is another matter.
    """
    found = {}
    may_shrink = allocation.policy.elastic or allocation.resizes > 0
    for gpu, limit in {} if allocation.whole or reading.problem else reading.limits.items():
        sizes = {pid: measured.get(gpu, {}).get(pid, 0) for pid in reading.pids}
        declared = dict.fromkeys(sizes, 0)
        for one in reading.processes:
            if one.pid in declared:
                declared[one.pid] += one.used.get(gpu, 0) - one.undeclared.get(gpu, 0)
        held = sum(sizes.values())
        silent = sum(max(0, count - declared[pid]) for pid, count in sizes.items())
        if not may_shrink:  # nobody was ever allowed to declare more than that
            silent = max(silent, held - limit)
        if held > limit and silent > CONTEXT_BYTES * sum(count > 0 for count in sizes.values()):
            found[gpu] = min(held - limit, silent)
    return found


def examine(
    measured: Memory,
    owners: Mapping[int, str],
    sightings: Iterable[Sighting],
    allocations: Sequence[Allocation],
    pods: Mapping[str, tuple[str, str]],
    *,
    limits: Mapping[str, Mapping[str, int]] | None = None,
) -> Survey:
    """Divides what was MEASURED. owners: allocation ids by PID of processes that own slots, of allocations that have
    ended too.

    limits: what limits pages say now, by allocation id and GPU; without, it is what was promised.
    """
    seen = {one.pid: one for one in sightings}
    by_id = {allocation.id: allocation for allocation in allocations}
    siblings = {
        one.place.container: owners[pid]
        for pid, one in seen.items()
        if owners.get(pid) in by_id and one.place is not None and one.place.container
    }
    belongs = {pid: whose(one, allocations, pods, siblings) for pid, one in seen.items() if pid not in owners}
    without_library: dict[str, dict[str, int]] = {}
    foreign: dict[str, int] = dict.fromkeys(measured, 0)
    listed: dict[str, list[tuple[Sighting, str, int]]] = {}
    for gpu, processes in measured.items():
        for pid, count in processes.items():
            if pid not in belongs:
                continue
            owner = belongs[pid]
            if owner is None:
                foreign[gpu] += count
                continue
            by_gpu = without_library.setdefault(owner, {})
            by_gpu[gpu] = by_gpu.get(gpu, 0) + count
            listed.setdefault(owner, []).append((seen[pid], gpu, count))
    findings = tuple(
        Finding(
            by_id[owner],
            tuple(rows),
            _over(
                owner,
                (limits or {}).get(owner) or by_id[owner].quota(),
                measured,
                owners,
                without_library[owner],
            ),
        )
        for owner, rows in listed.items()
        if not by_id[owner].whole  # there nothing is limited, and no library expected
    )
    return Survey(without_library, foreign, findings)


def _is_of(allocation: Allocation, uid: str, name: tuple[str, str] | None) -> bool:
    if allocation.owner is not None:
        return allocation.owner.uid == uid
    return (
        allocation.container is not None
        and (allocation.container.namespace, allocation.container.pod) == name
    )


def _over(
    owner: str,
    limits: Mapping[str, int],
    measured: Memory,
    owners: Mapping[int, str],
    without_library: Mapping[str, int],
) -> dict[str, int]:
    over = {}
    for gpu, count in without_library.items():
        own = sum(size for pid, size in measured[gpu].items() if owners.get(pid) == owner)
        beyond = own + count - limits.get(gpu, 0)
        if beyond > 0:
            over[gpu] = beyond
    return over
