"""Whose the memory on the cards is, and what is wrong with that. Pure.

A process that owns a slot of a ledger belongs to that ledger's container; the kernel says so. Every other one is
searched by its cgroup, which the container cannot choose, and by its mounts where that leaves a question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.audit.processes import Sighting
from agent.state.records import Grant

__all__ = ["Finding", "Survey", "examine", "whose"]

Memory = Mapping[str, Mapping[int, int]]  # GPU -> host PID -> bytes, as measured


@dataclass(frozen=True, slots=True)
class Finding:
    """One container with processes without the library. over: bytes beyond its limit by GPU, if any."""

    grant: Grant
    strangers: tuple[tuple[Sighting, str, int], ...]
    over: Mapping[str, int]

    def text(self, size: object) -> str:
        """The processes for people; SIZE writes bytes."""
        return (
            ", ".join(
                f"process {process.pid} ({process.name}) holds {size(count)} of {gpu}"  # type: ignore[operator]
                for process, gpu, count in self.strangers[:4]
            )
            + (f" and {len(self.strangers) - 4} more" if len(self.strangers) > 4 else "")
        )


@dataclass(frozen=True, slots=True)
class Survey:
    """strangers: bytes by grant id and GPU. foreign: bytes by GPU. findings: containers with strangers."""

    strangers: Mapping[str, Mapping[str, int]]
    foreign: Mapping[str, int]
    findings: tuple[Finding, ...]


def whose(
    seen: Sighting,
    grants: Sequence[Grant],
    pods: Mapping[str, tuple[str, str]],
    siblings: Mapping[str, str],
) -> str | None:
    """The id of the grant that a process belongs to, or None when it is none of ours, or nobody can tell.

    pods: namespace and name by UID. siblings: grant ids by the container ids of processes that own slots.
    """
    known = {grant.id for grant in grants}
    if seen.place is None:
        return seen.mounted if seen.mounted in known else None
    if seen.place.container in siblings:
        return siblings[seen.place.container]
    name = pods.get(seen.place.uid)
    mine = [grant for grant in grants if _is_of(grant, seen.place.uid, name)]
    if seen.mounted in {grant.id for grant in mine}:
        return seen.mounted
    if not mine and name is None:
        return seen.mounted if seen.mounted in known else None
    living = [grant for grant in mine if not grant.gone and grant.held]
    return living[0].id if len(living) == 1 else None


def examine(
    measured: Memory,
    owners: Mapping[int, str],
    sightings: Iterable[Sighting],
    grants: Sequence[Grant],
    pods: Mapping[str, tuple[str, str]],
    *,
    limits: Mapping[str, Mapping[str, int]] | None = None,
) -> Survey:
    """Divides what was MEASURED. owners: grant ids by PID of processes that own slots, of grants that have ended too.

    limits: what limits pages say now, by grant id and GPU; without, it is what was promised.
    """
    seen = {one.pid: one for one in sightings}
    by_id = {grant.id: grant for grant in grants}
    siblings = {
        one.place.container: owners[pid]
        for pid, one in seen.items()
        if owners.get(pid) in by_id and one.place is not None and one.place.container
    }
    belongs = {pid: whose(one, grants, pods, siblings) for pid, one in seen.items() if pid not in owners}
    strangers: dict[str, dict[str, int]] = {}
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
            by_gpu = strangers.setdefault(owner, {})
            by_gpu[gpu] = by_gpu.get(gpu, 0) + count
            listed.setdefault(owner, []).append((seen[pid], gpu, count))
    findings = tuple(
        Finding(
            by_id[owner],
            tuple(rows),
            _over(
                owner, (limits or {}).get(owner) or by_id[owner].quota(), measured, owners, strangers[owner]
            ),
        )
        for owner, rows in listed.items()
        if not by_id[owner].whole  # there nothing is limited, and no library expected
    )
    return Survey(strangers, foreign, findings)


def _is_of(grant: Grant, uid: str, name: tuple[str, str] | None) -> bool:
    if grant.owner is not None:
        return grant.owner.uid == uid
    return grant.container is not None and (grant.container.namespace, grant.container.pod) == name


def _over(
    owner: str,
    limits: Mapping[str, int],
    measured: Memory,
    owners: Mapping[int, str],
    strangers: Mapping[str, int],
) -> dict[str, int]:
    over = {}
    for gpu, count in strangers.items():
        own = sum(size for pid, size in measured[gpu].items() if owners.get(pid) == owner)
        excess = own + count - limits.get(gpu, 0)
        if excess > 0:
            over[gpu] = excess
    return over
