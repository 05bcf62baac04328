# SPDX-License-Identifier: Apache-2.0
"""The service as a process: real mounts, a stand-in kubelet."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.fakes.eventually import until
from tests.integration.dataset.service import ROOT, ServiceNode, can_mount


@pytest.fixture
def node():
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:  # the paths of sockets must be short
        if not can_mount(Path(name)):
            pytest.skip("mounting needs root and a kernel with EROFS")
        made = ServiceNode(Path(name))
        yield made
        made.clear()


def play(node, story, seconds=120):
    async def main():
        async with node.running():
            await asyncio.wait_for(story(), seconds)

    asyncio.run(main())


def test_a_pod_reads_its_data_and_nothing_is_left_of_it(node):
    files = node.fill()

    async def story():
        one, two = node.kubelet.run(node.pod("one")), node.kubelet.run(node.pod("two"))
        await asyncio.gather(one.ready.wait(), two.ready.wait())
        assert node.contents(one) == node.contents(two) == files
        with pytest.raises(OSError, match="Read-only"):
            (node.kubelet.target(one, "data") / "new").write_text("x")
        (dataset,) = node.ask(ps={})["datasets"]
        assert (dataset["state"], dataset["files"], dataset["holders"]) == (
            "in use",
            200,
            ["default/one", "default/two"],
        )
        refused = node.ask(evict={"names": [dataset["source"]]})["refused"]
        assert refused == {dataset["source"]: "in use by default/one, default/two"}
        for pod in (one, two):
            node.kubelet.delete(pod)
        await until(lambda: not node.kubelet.pods)
        assert node.mounted() == []
        evicted = node.ask(evict={"idle_seconds": 0})["evicted"]
        assert [one["key"] for one in evicted] == [dataset["key"]]
        assert not list((node.root / "s" / "objects").iterdir())
        assert await node.end() == 0

    play(node, story)


def test_readers_go_on_while_the_service_is_dead_and_a_deleted_pod_goes_when_it_is_back(node):
    files = node.fill(20)

    async def story():
        one, two = node.kubelet.run(node.pod("one")), node.kubelet.run(node.pod("two"))
        await asyncio.gather(one.ready.wait(), two.ready.wait())
        before = node.mounted()
        await node.end(signal.SIGKILL)
        assert node.contents(one) == files
        node.kubelet.delete(two)
        await asyncio.sleep(0.5)
        assert node.mounted() == before, "what is in use is what is mounted, not what the API lists"
        await node.start()
        await until(lambda: two.uid not in node.kubelet.pods)
        assert node.mounted() == [str(node.kubelet.target(one, "data"))]
        assert node.contents(one) == files
        calls = len(node.kubelet.rpcs("NodePublishVolume"))
        await node.kubelet.stop()
        await node.kubelet.start()
        await until(lambda: len(node.kubelet.rpcs("NodePublishVolume")) > calls)
        await until(lambda: "reply" in node.kubelet.rpcs("NodePublishVolume")[-1])
        assert node.contents(one) == files

    play(node, story)


def test_a_publish_of_what_is_there_is_fast(node):
    node.fill(50)

    async def story():
        await node.kubelet.run(node.pod("first")).ready.wait()
        took = []
        for number in range(20):
            one = node.kubelet.run(node.pod(f"p{number}"))
            await one.ready.wait()
            took.append(node.kubelet.rpcs("NodePublishVolume")[-1]["ms"])
        assert sorted(took)[10] < 2000, "no figure is asserted; this is a hang"

    play(node, story)


def test_the_init_container_form(node):
    files = node.fill(30)
    uid = "0a166372-f499-4a38-a84b-44af398b9c63"
    environment = {
        **os.environ,
        "DATASET_TYPE": "file",
        "DATASET_PATH": str(node.data),
        "POD_UID": uid,
        "POD_NAME": "p",
        "POD_NAMESPACE": "default",
    }

    async def story():
        (node.root / "k" / "pods" / uid).mkdir()
        command = [
            sys.executable,
            "-m",
            "gigaslice_cli",
            "dataset",
            "wait",
            f"--socket={node.root}/r/wait/wait.sock",
        ]
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr.count("internal error")) == (0, 0), done.stderr
        where = done.stdout.strip()
        assert where == f"{node.root}/s/pods/{uid}/data/mount"
        found = {name: (node.root / where / name).read_bytes() for name in files}
        assert found == files
        again = await asyncio.to_thread(
            subprocess.run,
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert again.stdout == done.stdout, "one record, however often the container restarts"

    play(node, story)


def test_an_idle_service_is_small(node):
    async def story():
        process = psutil.Process(node.process.pid)

        def worked():
            times = process.cpu_times()
            return times.user + times.system

        last = -1.0
        while worked() - last > 0.05:  # its start is not over
            last = worked()
            await asyncio.sleep(2)
        before, begun = process.cpu_times(), time.monotonic()
        await asyncio.sleep(5)
        after = process.cpu_times()
        busy = (after.user + after.system - before.user - before.system) / (time.monotonic() - begun)
        size = process.memory_info().rss / (1 << 20)
        assert busy < 0.05 and size < 80, f"{busy:.3f} core, {size:.0f} MiB"
        print(f"idle: {size:.0f} MiB, {busy:.4f} core")

    play(node, story)
