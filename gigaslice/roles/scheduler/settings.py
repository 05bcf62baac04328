# SPDX-License-Identifier: Apache-2.0
"""The settings of `gigaslice scheduler`: one field is one setting, with its flag, default and help."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gigaslice.role_settings import ClusterRoleSettings
from gigaslice.runtime import setting_values as values
from gigaslice.runtime.settings import setting

__all__ = ["SchedulerSettings"]


def _lease(text: str) -> tuple[str, str] | None:
    if values.is_off(text):
        return None
    match = re.fullmatch(r"([a-z0-9][-a-z0-9]{0,62})/([a-z0-9][-a-z0-9.]{0,252})", text)
    if match is None:
        raise ValueError(
            "must be off, or a namespace and a name, such as gigaslice/gigaslice-scheduler-service"
        )
    return match[1], match[2]


@dataclass(frozen=True, slots=True)
class SchedulerSettings(ClusterRoleSettings):
    """Everything the scheduler service can be told."""

    # fmt: off
    listen_address: tuple[str | None, int] | None = setting("HOST:PORT", values.address, "127.0.0.1:8090",
        "where kube-scheduler finds the service; it takes no credentials, so only the same pod should reach it")
    metrics_address: tuple[str | None, int] | None = setting("HOST:PORT|off", values.address, "off",
        "where /metrics, /healthz and /readyz are served apart from the listen address, which asks for no token; off: "
        "there alone")
    leader_lease: tuple[str, str] | None = setting("NAMESPACE/NAME|off", _lease, "off",
        "the lease by which one of several replicas is chosen to decide; off: there is no other")
    identity: str = setting("NAME", str, "",
        "this replica's name; no other may have it at the same time. Empty: the host's, in a pod the pod's")
    policy: str = setting("binpack|spread", values.choice("binpack", "spread"), "binpack",
        "which of the nodes that fit is better: the one on which the pod leaves the least behind, or the emptiest")
    filter_reply: str = setting("best|all", values.choice("best", "all"), "best",
        "nodes that filter names of those that fit: the best one, so that kube-scheduler need not score them; or all, "
        "where another extender follows, or kube-scheduler's own scores are to choose")
    reserve: float = setting("TIME", values.seconds, "2s",
        "how long GPUs are kept for a pod between its scoring and its binding")
    bind_timeout: float = setting("TIME", values.seconds, "10s",
        "how long the API server may take for a binding; kube-scheduler itself waits for its httpTimeout")
    dataset_affinity: str = setting("bytes|paper|off", values.choice("bytes", "paper", "off"), "bytes",
        "whether nodes that have a pod's datasets are preferred: by the share of the bytes, by all or nothing, or not")
    dataset_weight: float = setting("NUMBER", values.weight, "0.5",
        "how much having all of the datasets counts against the way from the worst to the best node for the GPUs")
    # fmt: on

    def contradictions(self) -> list[str]:
        """A service that does not listen is none."""
        return [] if self.listen_address else ["--listen-address: off is impossible; name a host and a port"]
