# SPDX-License-Identifier: Apache-2.0
"""The commands `gigaslice cordon` and `gigaslice uncordon`."""

import pytest

from agent.health.health_files import GpuRecord, Report, read_cordons, write_report
from gigaslice_cli.frame import main
from tests.fakes.nodes import uuid


@pytest.fixture
def state(tmp_path):
    gpus = tuple(GpuRecord(uuid(n), n, "NVIDIA L4", 24, True, False) for n in range(2))
    write_report(tmp_path, Report("", gpus, {}))
    return tmp_path


@pytest.mark.parametrize("name", [uuid(1), "1"])
def test_a_gpu_is_named_by_uuid_or_index(state, name, capsys):
    assert main(["cordon", name, "--reason", "fan\nis loud", "--state-dir", str(state)]) == 0
    assert uuid(1) in capsys.readouterr().out
    assert {key: one.reason for key, one in read_cordons(state).items()} == {uuid(1): "fan is loud"}
    assert main(["uncordon", name, "--state-dir", str(state)]) == 0
    assert read_cordons(state) == {}


@pytest.mark.parametrize("name", ["7", "GPU-ffff", "GPU-6e1b", ""])
def test_a_name_that_is_none_or_several_is_refused_with_those_that_there_are(state, name, capsys):
    assert main(["cordon", name, "--state-dir", str(state)]) == 1
    assert uuid(0) in capsys.readouterr().err
    assert read_cordons(state) == {}


def test_before_an_agent_ran_it_says_so(tmp_path, capsys):
    assert main(["cordon", "0", "--state-dir", str(tmp_path)]) == 1
    assert "no agent has run" in capsys.readouterr().err
