# SPDX-License-Identifier: Apache-2.0
"""Processes of a /proc that the test has made: who has an allocation mounted."""

from agent.accounting.presence import Presence, find_mounted
from tests.unit.agent.accounting.test_processes import ID, UID, make, mount

A, B = "0a" * 16, "0b" * 16
OTHER = "3c48913c-b29f-11e7-9350-020968147796"


def page(allocation, mark=""):
    return mount(f"/var/lib/gigaslice/allocations/{allocation}/limits{mark}", "/etc/vcuda/limits")


def test_mounted_allocations_are_found_removed_ones_too(tmp_path):
    make(tmp_path, 7, mounts=page(A))
    make(tmp_path, 8, mounts=page(B, "//deleted"))
    assert find_mounted({A, B}, tmp_path).mounted == {A, B}
    assert find_mounted({B}, tmp_path).mounted == {B}


def test_an_empty_scan_counts_only_where_others_are_seen(tmp_path):
    make(tmp_path, 7, cgroup=f"0::/kubepods/pod{UID}/{ID}\n")
    (tmp_path / "self").symlink_to("7")
    assert find_mounted({A}, tmp_path) == Presence(frozenset(), others=False)
    make(tmp_path, 9, cgroup=f"0::/kubepods/pod{OTHER}/{ID}\n")
    assert find_mounted({A}, tmp_path) == Presence(frozenset(), others=True)


def test_a_missing_proc_shows_no_process(tmp_path):
    assert find_mounted({A}, tmp_path / "none") == Presence()
