# SPDX-License-Identifier: Apache-2.0
"""What the dataset service is told: which sources pods may name, and whom it trusts."""

import pytest

from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.core.errors import GigasliceError
from gigaslice.roles.dataset_node.service import without_links
from gigaslice.roles.dataset_node.settings import DatasetSettings, admits
from gigaslice.runtime.settings import load


def told(**flags):
    return load(DatasetSettings, {key.replace("_", "-"): value for key, value in flags.items()}, {})


@pytest.mark.parametrize(
    ("allow", "source", "found"),
    [
        ("s3", "s3://bucket/x", True),
        ("s3,gs", "az://container/x", False),
        ("s3", "s3a://bucket", True),
        ("file", "/etc", True),
        ("/data", "/data", True),
        ("/data/", "/data/a", True),
        ("file:///data", "/data/a/b", True),
        ("/data", "/database", False),
        ("/data", "/data?/etc", False),
        ("/data", "/data?x", False),
        ("/data", "/", False),
        ("nfs://server/export", "nfs://server/export/a", True),
        ("nfs://server/export", "nfs://server/exports", False),
        ("nfs://server/export", "nfs://other/export", False),
        ("s3://bucket/a", "s3://bucket/a/b", True),
        ("s3://bucket/a", "s3://bucket/ab", False),
        ("rclone:remote", "rclone:remote:path", True),
        ("rclone:remote", "rclone:remote2:path", False),
        ("rclone:remote:path", "rclone:remote:path?x", False),
    ],
)
def test_a_source_is_allowed_by_its_kind_or_by_what_it_is_below(allow, source, found):
    assert admits(told(allow=allow).allow, SourceSpec.parse(source).canonical) is found


def test_the_options_of_a_source_are_no_part_of_where_it_is():
    spec = SourceSpec.parse("s3://bucket/a", {"endpoint": "http://minio"})
    assert admits(("s3://bucket/a",), spec.canonical)
    assert not admits(("s3://bucket/a/b",), spec.canonical)


@pytest.mark.parametrize("allow", ["nfs4", "data", "file://data", "s3,oops"])
def test_a_kind_that_there_is_none_of_is_refused(allow):
    with pytest.raises(GigasliceError):
        told(allow=allow)


def test_out_of_the_box_nothing_is_read_with_the_nodes_rights_and_nobody_is_trusted():
    settings = told()
    for source in ("/data", "nfs://s/e", "lustre://s/e", "beegfs://s/e", "cephfs://s/e", "rclone:a:b"):
        assert not admits(settings.allow, SourceSpec.parse(source).canonical)
    assert settings.trusted_namespaces == ()


def test_trusted_namespaces_are_names():
    assert told(trusted_namespaces="shared, datasets,").trusted_namespaces == ("shared", "datasets")
    for wrong in ("*", "Team", "a/b", "a b", "-a"):
        with pytest.raises(GigasliceError, match="is no name of a namespace"):
            told(trusted_namespaces=wrong)


def test_the_state_directory_is_what_the_mount_table_calls_it(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    settings = told(state_dir=str(tmp_path / "link" / "gigaslice"))
    assert without_links(settings).state_dir == tmp_path / "disk" / "gigaslice"
