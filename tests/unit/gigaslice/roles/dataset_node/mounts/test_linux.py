# SPDX-License-Identifier: Apache-2.0
"""What a mount that mount(8) refuses is reported with."""

from __future__ import annotations

import pytest

from gigaslice.roles.dataset_node.mounts import MountError, linux

UTIL_LINUX = """mount: /mnt: bad option; for several filesystems (e.g. nfs, cifs) you might need a helper program.
       dmesg(1) may have more information after failed mount system call."""
STATD = """mount.nfs: rpc.statd is not running but is required for remote locking.
mount.nfs: Either use '-o nolock' to keep locks local, or start statd."""
CEPH = """did not load config file, using default settings.
mount error 110 = Connection timed out"""


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """Mounts KIND by a mount(8) that says TEXT, on a system with HELPERS."""

    def mount(kind, text, *helpers):
        (tmp_path / "text").write_text(text)
        program = tmp_path / "mount"
        program.write_text(f"#!/bin/sh\n/bin/cat {tmp_path}/text >&2\nexit 32\n")
        program.chmod(0o755)
        for one in helpers:
            (tmp_path / one).touch()
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(MountError) as caught:
            linux.LinuxMounts(helpers=(tmp_path,)).network(kind, "server:/export", tmp_path / "where", ())
        return str(caught.value)

    return mount


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("nfs", UTIL_LINUX, "server:/export not mounted: mount: /mnt: bad option; "),
        ("nfs", STATD, "rpc.statd is not running"),
        ("ceph", CEPH, "mount error 110 = Connection timed out"),
        ("nfs", "", "exit code 32"),
        ("lustre", "mount.lustre: no such\x1b[31m file", "no such"),
    ],
)
def test_every_line_of_it_that_has_a_reason_is_shown(failing, kind, text, says):
    shown = failing(kind, text, "mount.nfs", "mount.ceph")
    assert says in shown
    assert "dmesg(1)" not in shown and "missing" not in shown
    assert shown.isprintable() and len(shown) < 500


def test_a_long_text_is_cut(failing):
    assert len(failing("lustre", "x" * 10_000)) < 500


@pytest.mark.parametrize(("kind", "package"), [("nfs", "nfs-common"), ("ceph", "ceph-common")])
def test_a_helper_that_is_missing_is_named_with_its_package(failing, kind, package):
    assert f"mount.{kind} is missing; add the package {package}" in failing(kind, UTIL_LINUX)
