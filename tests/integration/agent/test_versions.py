# SPDX-License-Identifier: Apache-2.0
"""Two versions of the agent on one node: upgrade with running pods, and the way back.

The other version is this one with another number, another form of its files, and another library.
"""

import json
import re
import shutil

import pytest

import vcuda
from agent.persistence import codec
from agent.roles.records import CODEC
from tests.integration.agent.conftest import ROOT, allocation_dir, pod, wait_back, wait_until
from vcuda import contract

# Of which part, since which version, and what: as `codec.VERSION` tells it.
YOUNGER = (
    ("policy", 3, "parts"),
    ("grant", 2, "owner"),
    ("grant", 2, "policy"),
    ("grant", 2, "undecided"),
    ("grant", 3, "limits"),
    ("grant", 3, "resizes"),
    ("hold", 4, "physical"),
)


def copied(directory, version, file_version):
    """A tree of its own with the agent's code as VERSION, whose files have the form FILE_VERSION."""
    unwanted = shutil.ignore_patterns("__pycache__", "_lib")
    for name in ("agent", "gigaslice_cli", "vcuda"):
        shutil.copytree(ROOT / name, directory / name, ignore=unwanted)
    (directory / "build").mkdir()
    library = (ROOT / "build" / "libvcuda.so").read_bytes()
    (directory / "build" / "libvcuda.so").write_bytes(library + version.encode())
    for path, pattern, text in (
        (directory / "agent/persistence/codec.py", r"(?m)^VERSION = \d+$", f"VERSION = {file_version}"),
        (directory / "vcuda/version.py", r'(?m)^VERSION = ".*"$', f'VERSION = "{version}"'),
    ):
        changed, count = re.subn(pattern, text, path.read_text())
        assert count == 1, path
        path.write_text(changed)
    return directory


@pytest.fixture
def newer(directory, agent):
    agent.driver = {**agent.environment(), "PYTHONDONTWRITEBYTECODE": "1"}  # its tree is gone afterwards
    return copied(directory / "newer", "9.0.0", CODEC.newest + 1)


def holdings(agent):
    return sorted((row["allocation"], row["pod"], row["gpu"], row["limit_bytes"]) for row in agent.status())


def kept(agent):
    """Every file that something depends on; any process may clear hidden directories away."""
    return {
        path: path.read_bytes()
        for path in sorted(agent.state.rglob("*.json*"))
        if not path.parent.name.startswith(".new-")
    }


def untouched(pods):
    return all(one.container("c0").running and not one.container("c0").restarts for one in pods)


def preload(one):
    return (allocation_dir(one.container("c0")) / contract.PRELOAD_FILE).read_text()


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_an_upgrade_with_running_pods(node, agent, newer, end):
    pods = [node.run_pod(pod(f"p{number}", 8)) for number in range(3)]
    wait_until(lambda: all(row["pod"] for row in agent.status()), "names")
    before, lines = holdings(agent), [preload(one) for one in pods]
    getattr(agent, end)()
    agent.root = newer
    agent.start()
    wait_back(node, agent)
    assert agent.events("starting")[-1]["version"] == "9.0.0"
    assert holdings(agent) == before and untouched(pods)
    assert [preload(one) for one in pods] == lines, "running containers keep their library"
    more = node.run_pod(pod("more", 24))
    assert "9.0.0" in preload(more)
    names = {path.name for path in (agent.state / "lib").iterdir()}
    assert {f"libvcuda-{vcuda.__version__}.so", "libvcuda-9.0.0.so"} <= names
    pods[0].container("c0").process.kill()
    wait_until(lambda: pods[0].container("c0").restarts and pods[0].container("c0").running, "a restart")
    assert preload(pods[0]) == lines[0], "its mounts are what the kubelet remembers"
    for one in [*pods, more]:
        node.delete_pod(one)
    wait_until(lambda: agent.status() == [], "everything to be given up")


def test_a_downgrade_is_refused_with_what_to_do_and_loses_nothing(node, agent, newer):
    agent.kill()
    agent.root = newer
    agent.start()
    wait_back(node, agent)
    pods = [node.run_pod(pod(f"p{number}", 8)) for number in range(3)]
    wait_until(lambda: len(agent.status()) == 3 and all(row["pod"] for row in agent.status()), "names")
    before = holdings(agent)
    agent.kill()
    files = kept(agent)
    agent.root = ROOT
    for _ in range(2):  # as often as the kubelet starts it
        code, lines = agent.run()
        assert (code, len(lines)) == (1, 1)
        assert f"version {CODEC.newest + 1}" in lines[0] and f"up to {CODEC.newest}" in lines[0]
        assert "start the newer gigaslice again, or move the file away" in lines[0]
    assert kept(agent) == files
    assert untouched(pods)
    agent.root = newer
    agent.start()
    wait_back(node, agent)
    assert holdings(agent) == before and untouched(pods)


def test_a_downgrade_that_is_insisted_on_counts_what_runs(node, agent, newer):
    """The checkpoint moved away, as the refusal says: the kubelet's list is what is left."""
    agent.kill()
    agent.root = newer
    agent.start()
    wait_back(node, agent)
    pods = [node.run_pod(pod(f"p{number}", 12)) for number in range(2)]
    wait_until(lambda: len(agent.status()) == 2 and all(row["pod"] for row in agent.status()), "names")
    agent.kill()
    for path in agent.state.glob("checkpoint.json*"):
        path.rename(path.with_name(f"kept-{path.name}"))
    agent.root = ROOT
    agent.start()
    wait_back(node, agent)
    wait_until(lambda: {row["pod"] for row in agent.status()} == {"p0", "p1"}, "them to be counted")
    assert untouched(pods)
    assert node.run_pod(pod("big", 25)).reason == "Unschedulable"
    assert node.run_pod(pod("rest", 12)).phase == "Running"


@pytest.mark.parametrize("version", range(1, codec.VERSION))
def test_files_of_every_earlier_version_are_read(node, agent, version):
    """What a version did not have yet is taken out of its files."""
    pods = [node.run_pod(pod(f"p{number}", 8)) for number in range(3)]
    wait_until(lambda: all(row["pod"] for row in agent.status()), "names")
    before = holdings(agent)
    agent.kill()

    def aged(path, allocations):
        document = json.loads(path.read_bytes())["state"]
        for allocation in allocations(document):
            for part, since, name in YOUNGER:
                for item in {"hold": allocation["holds"], "policy": [allocation.get("policy", {})]}.get(
                    part, [allocation]
                ):
                    if version < since:
                        item.pop(name, None)
        path.write_bytes(codec.sealed(json.dumps(document).encode(), version))

    for path in agent.state.glob("checkpoint.json*"):
        if path.suffix != ".new":  # made ahead, empty
            aged(path, lambda document: document["grants"])
    for path in agent.state.glob("allocations/[!.]*/allocation.json"):
        aged(path, lambda document: [document])
    agent.start()
    wait_back(node, agent)
    assert holdings(agent) == before and untouched(pods)
    assert agent.events("checkpoint damaged") == []
    node.delete_pod(pods[0])
    wait_until(lambda: len(agent.status()) == 2, "its end")
    assert json.loads((agent.state / "checkpoint.json").read_bytes())["version"] == codec.VERSION
