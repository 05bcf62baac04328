# SPDX-License-Identifier: Apache-2.0
"""Whom rclone runs as."""

from __future__ import annotations

import os

import pytest

from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.sources.credentials import Credentials
from gigaslice.roles.dataset_node.sources.rclone_process import RcloneProcesses
from gigaslice.roles.dataset_node.sources.rclone_remote import remote_of


def user_of(processes: RcloneProcesses, *arguments: str) -> int:
    process = processes.start([*arguments], {}, output=True)
    assert process.stdout is not None
    with process.stdout as output:
        found = int(output.read())
    processes.end(process)
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a process as another user")
def test_each_source_s_runs_as_a_user_that_nothing_else_runs_as():
    remote = remote_of(SourceSpec.parse("sftp://host/data"), Credentials({"username": "u", "password": "p"}))
    one, other = (RcloneProcesses("/usr/bin/id", remote) for _ in range(2))
    users = [user_of(one, "-u"), user_of(one, "-u"), user_of(other, "-u")]
    assert users[0] == users[1] == one.user
    assert users[2] == other.user != one.user
    assert all(0x70000000 <= user < 0x78000000 for user in users)
    assert user_of(one, "-g") == user_of(one, "-G") == one.user, "no group of this process is kept"
