# SPDX-License-Identifier: Apache-2.0
"""The small files of the store, as another version of the service writes them."""

import json

import pytest

from gigaslice.roles.dataset_node.store import DatasetMetadata, Volume, VolumeRecord, VolumeSource, documents

METADATA = DatasetMetadata(
    "ab" * 32, 100, "s3://bucket/x", 3, 77, "cd" * 32, 1.5, "ef" * 32, (100, 7), "s3://b"
)
RECORD = VolumeRecord(
    Volume("csi-a", "/pods/a", "uid", "team", "a"),
    (VolumeSource(key="ab" * 32, directory="d", name="coco"),),
    2.5,
)


def rewritten(path, change):
    """The file at PATH with what CHANGE makes of its content, and a checksum to match."""
    text = json.loads(path.read_text())
    change(text["body"])
    text["check"] = documents._checksum(text["body"])
    path.write_text(json.dumps(text))


def test_what_was_written_is_read(tmp_path):
    documents.write_document(tmp_path / "m", METADATA)
    documents.write_document(tmp_path / "r", RECORD)
    assert documents.read_metadata(tmp_path / "m") == METADATA
    assert documents.read_record(tmp_path / "r") == RECORD


def test_what_a_later_service_has_added_is_left_out(tmp_path):
    """Else a service that goes back would take each of its datasets for damaged, and delete it."""
    documents.write_document(tmp_path / "m", METADATA)
    rewritten(tmp_path / "m", lambda body: body.update(later=1))
    assert documents.read_metadata(tmp_path / "m") == METADATA
    documents.write_document(tmp_path / "r", RECORD)
    rewritten(
        tmp_path / "r",
        lambda body: [part.update(later=[]) for part in (body, body["volume"], *body["pieces"])],
    )
    assert documents.read_record(tmp_path / "r") == RECORD


@pytest.mark.parametrize("change", [lambda body: body.pop("size"), lambda body: body.update(stamp=3)])
def test_metadata_that_lack_something_are_refused(tmp_path, change):
    documents.write_document(tmp_path / "m", METADATA)
    rewritten(tmp_path / "m", change)
    with pytest.raises(documents.DocumentError, match="does not describe a dataset"):
        documents.read_metadata(tmp_path / "m")


@pytest.mark.parametrize("change", [lambda body: body.pop("volume"), lambda body: body.update(volume=[1])])
def test_records_that_lack_something_are_refused(tmp_path, change):
    documents.write_document(tmp_path / "r", RECORD)
    rewritten(tmp_path / "r", change)
    with pytest.raises(documents.DocumentError, match="does not describe a volume"):
        documents.read_record(tmp_path / "r")
