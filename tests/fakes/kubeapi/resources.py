# SPDX-License-Identifier: Apache-2.0
"""What the API server stand-in serves: one line for each resource, and how a path names it.

This table is the only routing there is. A resource is named by its plural, which is unique among these.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Resource:
    """A kind of objects.

    prefix: of its paths. custom: from a definition, which may not be installed. status: written by paths of its own
    only. versioned: an update must name the version it has read. fields: those a field selector may name; any where
    there are none.
    """

    prefix: str
    plural: str
    kind: str
    namespaced: bool = True
    custom: bool = False
    status: bool = False
    versioned: bool = False
    fields: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        """As in messages of a real server: the plural and its group."""
        group = self.prefix.split("/")[2] if self.prefix.startswith("/apis/") else ""
        return f"{self.plural}.{group}" if group else self.plural


_CORE, _OWN = "/api/v1", "/apis/gigaslice.io/v1alpha1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_DEVICES = "/apis/resource.k8s.io/v1"
_NAMES = frozenset(("metadata.name", "metadata.namespace"))
RESOURCES = {
    one.plural: one
    for one in (
        Resource(_CORE, "nodes", "Node", namespaced=False, status=True),
        Resource(_CORE, "namespaces", "Namespace", namespaced=False),
        Resource(_CORE, "pods", "Pod", status=True),
        Resource(_CORE, "events", "Event"),
        Resource(_CORE, "secrets", "Secret"),
        Resource(_CORE, "resourcequotas", "ResourceQuota", status=True),
        Resource(
            _DEVICES,
            "resourceslices",
            "ResourceSlice",
            namespaced=False,
            fields=frozenset(("metadata.name", "spec.driver", "spec.nodeName")),
        ),
        Resource(
            _DEVICES, "deviceclasses", "DeviceClass", namespaced=False, fields=frozenset(("metadata.name",))
        ),
        Resource(_DEVICES, "resourceclaims", "ResourceClaim", status=True, fields=_NAMES),
        Resource(_DEVICES, "resourceclaimtemplates", "ResourceClaimTemplate", fields=_NAMES),
        Resource("/apis/storage.k8s.io/v1", "csinodes", "CSINode", namespaced=False),
        Resource("/apis/coordination.k8s.io/v1", "leases", "Lease", versioned=True),
        Resource("/apis/batch/v1", "jobs", "Job", status=True),
        Resource(
            _ADMISSION, "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", namespaced=False
        ),
        Resource(
            _ADMISSION, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False
        ),
        Resource(
            _OWN,
            "resourceclasses",
            "ResourceClass",
            namespaced=False,
            custom=True,
            status=True,
            versioned=True,
        ),
        Resource(
            _OWN,
            "extendedresources",
            "ExtendedResource",
            namespaced=False,
            custom=True,
            status=True,
            versioned=True,
        ),
        Resource(_OWN, "datasets", "Dataset", custom=True, status=True, versioned=True),
        Resource(_OWN, "datasetnodes", "DatasetNode", namespaced=False, custom=True, versioned=True),
        Resource(
            "/apis/authorization.k8s.io/v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False
        ),
    )
}


@dataclass(frozen=True)
class Target:
    """What a path names: objects of a resource, one of them, or what is below it (status, binding, eviction)."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    below: str = ""


def target_of(path: str) -> Target | None:
    """The target of PATH; None where no resource has such paths."""
    for resource in RESOURCES.values():
        if not path.startswith(f"{resource.prefix}/"):
            continue
        parts = path[len(resource.prefix) + 1 :].split("/")
        namespace = ""
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        if parts[0] == resource.plural and len(parts) <= 3:
            name, below = [*parts[1:], "", ""][:2]
            return Target(resource, namespace, name, below)
    return None
