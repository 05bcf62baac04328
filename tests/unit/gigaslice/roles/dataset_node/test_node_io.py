# SPDX-License-Identifier: Apache-2.0
"""The real sources and mounts, as the service opens them."""

import asyncio
import time

from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.node_io import node_io
from gigaslice.roles.dataset_node.settings import DatasetSettings
from gigaslice.roles.dataset_node.sources.kernel_mounts import KernelMounts
from gigaslice.runtime.settings import load


def test_what_an_earlier_process_left_is_unmounted_once_and_before_any_source_is_open(tmp_path, monkeypatch):
    told = []

    def reconcile(self):
        told.append("begun")
        time.sleep(0.1)
        told.append("done")

    monkeypatch.setattr(KernelMounts, "reconcile", reconcile)
    (tmp_path / "data").mkdir()
    directories = {"state_dir": str(tmp_path / "state"), "run_dir": str(tmp_path / "run")}
    io = node_io(load(DatasetSettings, directories, {}))

    async def story():
        async def one():
            opened = await io.open_source(SourceSpec.parse(str(tmp_path / "data")), {})
            told.append("open")
            await opened.close()

        await asyncio.gather(one(), one(), one())

    asyncio.run(story())
    assert told == ["begun", "done", "open", "open", "open"]
