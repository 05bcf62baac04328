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
        resource: With its API group, but for the core's.
        where: A namespace; empty for the whole cluster.
        names: The only objects that it is for; empty for all.
        verb: What is done.
    """

    account: str
    resource: str
    where: str
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
                        yield Right(
                            subject["name"],
                            _full_name(resource, group),
                            where,
                            tuple(rule.get("resourceNames", ())),
                            verb,
                        )


def _full_name(resource: str, group: str) -> str:
    kind, slash, part = resource.partition("/")
    return f"{kind}.{group}{slash}{part}" if group else resource


def chart_rights() -> set[Right]:
    """Those of the chart with everything switched on."""
    return rights_of(_rendered())


def rows() -> list[tuple[str, str, str, str]]:
    """Account, where, what may be done, and with which objects: one row for each set of verbs."""
    verbs: dict[tuple[str, str, tuple[str, ...], str], set[str]] = {}
    for right in chart_rights():
        verbs.setdefault((right.account, right.where, right.names, right.resource), set()).add(right.verb)
    objects: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (account, where, names, resource), done in verbs.items():
        only = tuple(f"`{name}`" for name in names)
        text = f"`{resource}`" + (f" ({', '.join(only)} only)" if only else "")
        objects.setdefault((account, where, tuple(sorted(done, key=_ORDER.index))), []).append(text)
    return [
        (
            f"`{account}`",
            f"namespace `{where}`" if where else "cluster",
            ", ".join(done),
            ", ".join(sorted(what)),
        )
        for (account, where, done), what in sorted(objects.items(), key=lambda item: (item[0][:2], item[1]))
    ]


_ORDER = ("get", "list", "watch", "create", "update", "patch", "delete")
