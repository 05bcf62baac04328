# SPDX-License-Identifier: Apache-2.0
"""Processes of a /proc that the test has made, and of the real one."""

import os

from agent.accounting.processes import read_process
from gigaslice.core.kube.cgroups import Place

UID = "2c48913c-b29f-11e7-9350-020968147796"
ID, ALLOCATION = "a1" * 32, "0b" * 16


def make(root, pid, *, comm="python\n", cgroup="0::/\n", mounts="", status=""):
    directory = root / str(pid)
    directory.mkdir()
    for name, text in (("comm", comm), ("cgroup", cgroup), ("mountinfo", mounts), ("status", status)):
        (directory / name).write_text(text)


def mount(path, point):
    return f"913 880 259:1 {path} {point} ro,relatime - ext4 /dev/root rw\n"


def test_name_place_and_allocation(tmp_path):
    path = f"/var/lib/gigaslice/allocations/{ALLOCATION}/limits"
    make(
        tmp_path,
        7,
        cgroup=f"0::/kubepods/pod{UID}/{ID}\n",
        mounts=mount("/", "/") + mount(path, "/etc/vcuda/limits"),
    )
    seen = read_process(7, tmp_path)
    assert (seen.name, seen.place, seen.mounted) == ("python", Place(UID, ID), ALLOCATION)


def test_the_state_directory_may_be_a_file_system_of_its_own(tmp_path):
    make(tmp_path, 7, mounts=mount(f"/allocations/{ALLOCATION}/limits", "/etc/vcuda/limits"))
    assert read_process(7, tmp_path).mounted == ALLOCATION


def test_only_the_limits_page_at_its_place_counts(tmp_path):
    path = f"/x/allocations/{ALLOCATION}/limits"
    make(tmp_path, 7, mounts=mount(path, "/mnt/limits") + mount(path + "x", "/etc/vcuda/limits"))
    assert read_process(7, tmp_path).mounted == ""


def test_a_name_cannot_break_a_log_line(tmp_path):
    make(tmp_path, 7, comm="a\x1b[31m\tb\n")
    assert read_process(7, tmp_path).name == "a?[31m?b"


def test_a_process_that_ended_was_never_there(tmp_path):
    assert read_process(7, tmp_path) is None


def test_the_real_proc_can_be_read():
    seen = read_process(os.getpid())
    assert seen.name
    assert seen.mounted == ""


def test_the_number_inside_is_the_innermost_one(tmp_path):
    make(tmp_path, 7, status="Name:\tpython\nNStgid:\t7\t90\t1\nNSpid:\t7\t90\t12\nNSpgid:\t7\t90\t1\n")
    make(tmp_path, 8, status="Name:\told kernel\n")
    assert (read_process(7, tmp_path).inner, read_process(8, tmp_path).inner) == (12, 0)
    assert read_process(os.getpid()).inner in (0, os.getpid())
