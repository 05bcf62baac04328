# SPDX-License-Identifier: Apache-2.0
"""What each account of the chart may do at the API server, for the table in docs/threat-model.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.unit.manifests.test_chart import listed

__all__ = ["EVERYTHING", "Right", "rights_of", "rows"]

EVERYTHING = (
    *("--kube-version", "1.36.0"),
    *("--set", "cluster.enabled=true,dataset.enabled=true,driverLimits.enabled=true"),
    *("--set", "node.api=dra,rbac.evict=true"),
)
"""What of the chart's values switches every role and every right on."""
_ROLES = ("ClusterRole", "Role")


@dataclass(frozen=True, order=True, slots=True)
class Right:
    """One verb on one kind of object.

    Attributes:
        account: Of whom.
        where: A namespace; empty for the whole cluster.
        group: The API group; empty for the core's.
        resource: The kind, in the plural, and its part.
        names: The only objects that it is for; empty for all.
        verb: What is done.
    """

    account: str
    where: str
    group: str
    resource: str
    names: tuple[str, ...]
    verb: str


@cache
def _rendered() -> tuple[Mapping[str, Any], ...]:
    return tuple(listed(*EVERYTHING))


def rights_of(documents: Iterable[Mapping[str, Any]]) -> set[Right]:
    """The rights that roles and bindings among DOCUMENTS give to accounts."""
    documents = list(documents)
    rules = {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one["rules"]
        for one in documents
        if one["kind"] in _ROLES
    }
    return {right for one in documents for right in _bound(one, rules)}


def _bound(document: Mapping[str, Any], rules: Mapping[tuple[str, str, str], Any]) -> Iterator[Right]:
    if document["kind"] not in ("ClusterRoleBinding", "RoleBinding"):
        return
    role = document["roleRef"]
    where = document["metadata"].get("namespace", "") if document["kind"] == "RoleBinding" else ""
    place = where if role["kind"] == "Role" else ""
    for rule in rules.get((role["kind"], place, role["name"]), ()):
        for subject in document["subjects"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        names = tuple(rule.get("resourceNames", ()))
                        yield Right(subject["name"], where, group, resource, names, verb)


def chart_rights() -> set[Right]:
    """Those of the chart with everything switched on."""
    return rights_of(_rendered())


def rows() -> list[tuple[str, str, str, str, str]]:
    """Account, where, API group, objects, and what may be done with them: one row for each set of verbs."""
    verbs: dict[tuple[str, str, str, str], set[str]] = {}
    for right in chart_rights():
        only = f" ({', '.join(f'`{name}`' for name in right.names)} only)" if right.names else ""
        key = (right.account, right.where, right.group, f"`{right.resource}`{only}")
        verbs.setdefault(key, set()).add(right.verb)
    objects: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
    for (*place, what), done in sorted(verbs.items()):
        account, where, group = place
        objects.setdefault((account, where, group, tuple(sorted(done, key=_ORDER.index))), []).append(what)
    return [
        (
            f"`{account}`",
            f"namespace `{where}`" if where else "cluster",
            f"`{group}`" if group else "-",
            ", ".join(what),
            ", ".join(done),
        )
        for (account, where, group, done), what in objects.items()
    ]


_ORDER = ("get", "list", "watch", "create", "update", "patch", "delete")
