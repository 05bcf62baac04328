# SPDX-License-Identifier: Apache-2.0
"""Who may do what with the agent's files and sockets, whatever umask it was started with."""

import os
import stat

import pytest

from tests.integration.agent.conftest import PATIENCE, RESOURCE, allocation_dir, pod, wait_until
from vcuda import contract


def modes(directory, *paths):
    """Permissions of PATHS, and of all that is at DIRECTORY itself."""
    found = {path.name: path for path in directory.iterdir()}
    return {name: oct(stat.S_IMODE(path.lstat().st_mode)) for name, path in {**found, **dict(paths)}.items()}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o027, 0o077, 0o777])
def test_permissions_are_the_agents_own(umask, kubelet, agent):
    kubelet.start()
    before = os.umask(umask)
    try:
        agent.start()
    finally:
        os.umask(before)
    kubelet.wait_allocatable(RESOURCE, 48, PATIENCE)
    container = kubelet.run_pod(pod("a", 8)).container("c0")
    wait_until(lambda: all(row["pod"] for row in agent.status()), "the name")
    wait_until((agent.state / "control.sock").exists, "the control socket")
    (library,) = (agent.state / "lib").iterdir()
    more = [("state", agent.state), ("library", library), ("plugin", agent.socket)]
    more.append(("plugin lock", agent.socket.with_name(agent.socket.name + ".lock")))
    found = modes(agent.state, *more)
    found.pop("checkpoint.json.previous", None)
    found.pop("checkpoint.json.new", None)
    found = {name: mode for name, mode in found.items() if "ended" not in name}
    assert found == {
        "state": "0o755", "allocations": "0o700", "lib": "0o755", "library": "0o755", "checkpoint.json": "0o600",
        "lock": "0o600", "health.json": "0o644", "driver-limits.json": "0o644",
        "control.sock": "0o600", "handover.sock": "0o600",
        "plugin": "0o600", "plugin lock": "0o600",
    }  # fmt: skip
    assert modes(allocation_dir(container)) == {
        "allocation.json": "0o600", contract.LEDGER_FILE: oct(contract.LEDGER_MODE),
        contract.LIMITS_FILE: oct(contract.LIMITS_MODE), contract.OWNER_FILE: "0o600",
        contract.PRELOAD_FILE: oct(contract.PRELOAD_MODE),
    }  # fmt: skip
