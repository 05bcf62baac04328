# SPDX-License-Identifier: Apache-2.0
"""The requests of early volumes, kept in memory outside of the process."""

from pathlib import Path

import pytest

from gigaslice.roles.dataset_node.mounts import MountEntry
from gigaslice.roles.dataset_node.store import Volume
from gigaslice.roles.dataset_node.tasks.early_requests import EarlyRequest, EarlyRequests, in_memory

ONE = EarlyRequest(
    Volume("csi-1", "/pods/u/mount", "u", "team", "p"), {"source": "s3://coco"}, {"password": "TopSecret77"}
)


def test_what_was_kept_is_found_and_forgotten(tmp_path):
    kept = EarlyRequests(tmp_path / "early")
    assert kept.requests() == []
    kept.keep(ONE)
    kept.keep(ONE)
    assert EarlyRequests(tmp_path / "early").requests() == [ONE]
    kept.forget("csi-1")
    kept.forget("csi-1")
    assert kept.requests() == []


def test_only_root_reads_it_and_its_text_shows_no_secret(tmp_path):
    EarlyRequests(tmp_path / "early").keep(ONE)
    (file,) = (tmp_path / "early").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert "csi-1" in repr(ONE) and "TopSecret77" not in repr(ONE)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"volume": {}}', b'{"volume": {"id": 1}, "attributes": {}}']
)
def test_a_file_that_cannot_be_used_is_removed_and_its_contents_are_not_logged(tmp_path, capsys, text):
    kept = EarlyRequests(tmp_path)
    kept.keep(ONE)
    (tmp_path / "csi-2.json").write_bytes(text + b"TopSecret77")
    assert kept.requests() == [ONE]
    assert not (tmp_path / "csi-2.json").exists()
    shown = capsys.readouterr()
    assert "a request that was kept cannot be used" in shown.out + shown.err
    assert "TopSecret77" not in shown.out + shown.err


def entry(point, filesystem):
    return MountEntry(
        id=1, point=point, root="/", device="0:1", filesystem=filesystem, source="x", options=frozenset()
    )


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ([("/", "ext4"), ("/run", "tmpfs")], True),
        ([("/", "ext4"), ("/run", "tmpfs"), ("/run/gs", "ext4")], False),
        ([("/", "ext4"), ("/run/g", "tmpfs")], False),
        ([("/", "tmpfs")], True),
        ([("/", "ext4"), ("/run/gs/early", "tmpfs")], False),
        ([("/run/gs", "tmpfs"), ("/run/gs", "ext4")], False),
        ([], False),
    ],
)
def test_in_memory_is_what_the_last_mount_above_it_says(table, found):
    assert in_memory(Path("/run/gs"), [entry(*one) for one in table]) is found
