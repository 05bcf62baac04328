# SPDX-License-Identifier: Apache-2.0
"""The clock that no change of the machine's time reaches, and that nothing else compares spans with."""

import ast
import time
from pathlib import Path

from gigaslice.runtime.clock import steady

ROOT = Path(__file__).resolve().parents[4]
# What may read the wall clock: the clock itself, commands of people, times that people or the API server read, and
# the validity of certificates. No decision over GPUs, pods or leases does.
WALL = {
    "gigaslice/runtime/clock.py",
    "agent/apiserver/own_node.py",  # a metric shows when
    "agent/commands/cordon.py",
    "gigaslice/roles/dataset_node/subcommands/service_requests.py",
    "gigaslice/roles/dataset_node/subcommands/prefetch_nodes.py",  # compared with other machines' times
    "gigaslice/kubeapi/events.py",
    "agent/front/log.py",
    "gigaslice/roles/controller/dataset_statuses.py",  # the same
    "gigaslice/roles/controller/parts.py",  # the page shows ages of what the API server dated
    "gigaslice/roles/dataset_node/publishing.py",  # written for other machines
    "gigaslice/roles/dataset_node/sources/posix.py",  # compared with times of files
    "gigaslice/roles/dataset_node/sources/http_client.py",  # Retry-After as a date
    "agent/apiserver/pod_waker.py",  # for people who read the annotation
    "gigaslice/kubeapi/lease.py",
    "gigaslice/roles/scheduler/pod_conditions.py",
    "gigaslice/roles/scheduler/service.py",
    "gigaslice/roles/webhook/rotation.py",
}


def test_it_tells_the_time_and_does_not_follow_when_that_is_set(monkeypatch):
    wall, passed = [1.7e9], [50.0]
    monkeypatch.setattr(time, "time", lambda: wall[0])
    monkeypatch.setattr(time, "monotonic", lambda: passed[0])
    now = steady()
    assert now() == 1.7e9
    wall[0] -= 1e8
    passed[0] += 3
    assert now() == 1.7e9 + 3
    wall[0] += 1e9
    assert now() == 1.7e9 + 3
    assert steady()() == wall[0], "the next start reads it again"


def test_nobody_else_looks_at_the_wall():
    found = set()
    for path in (
        path for top in ("agent", "gigaslice", "gigaslice_cli") for path in (ROOT / top).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            names = ("time", "time_ns", "now", "utcnow", "today")
            wall = isinstance(node, ast.Attribute) and node.attr in names
            of = getattr(node, "value", None)
            if wall and getattr(of, "id", getattr(of, "attr", "")) in ("time", "datetime", "date"):
                found.add(str(path.relative_to(ROOT)))
    assert found == WALL
