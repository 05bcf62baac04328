# SPDX-License-Identifier: Apache-2.0
"""The index of files, read in pieces: the same entries as of the whole document, and nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.dataset.errors import ListingError
from gigaslice.core.dataset.listing import Limits
from gigaslice.roles.dataset_node.sources.web_index import index_entries

NAMES = st.text(st.characters(blacklist_categories=("Cs",)) | st.sampled_from('},]"[{\\'), max_size=20)
FILES = st.lists(
    st.fixed_dictionaries(
        {"path": NAMES, "size": st.integers(0, 1 << 60)}, optional={"version": st.just("v")}
    ),
    max_size=30,
)
OTHER = st.recursive(
    st.none() | st.integers() | NAMES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner)
)


def read(document, size, **bounds):
    pieces = [document[at : at + size] for at in range(0, len(document), size)]
    entries = index_entries(pieces, "x", Limits(), **bounds)
    return [(one.path.decode(), one.size, one.version) for one in entries]


@given(
    FILES,
    st.dictionaries(NAMES.filter(lambda name: name != "files"), OTHER, max_size=2),
    st.booleans(),
    st.data(),
)
def test_it_has_the_entries_of_the_document(files, others, ascii_only, data):
    keys = data.draw(st.permutations([*others, "files"]))
    indent = data.draw(st.sampled_from([None, 1]))
    document = json.dumps({**others, "files": files} if not keys else
                          {key: files if key == "files" else others[key] for key in keys},
                          ensure_ascii=ascii_only, indent=indent).encode()  # fmt: skip
    found = read(document, data.draw(st.integers(1, 300)))
    assert found == [(one["path"], one["size"], one.get("version", "")) for one in files]


def test_elements_over_several_windows():
    files = [{"path": f"{'a' * (number % 200)}}},{number}", "size": number} for number in range(500)]
    assert len(read(json.dumps({"files": files}).encode(), 100, longest=600)) == 500


@pytest.mark.parametrize(
    "document",
    [
        b"", b"[]", b"{}", b'{"files": {}}', b'{"files": [}', b'{"files": []', b'{"files": []} x', b'{"files": [],}',
        b'{"files": [{"path": "a"}]}', b'{"files": [{"path": 1, "size": 1}]}',
        b'{"files": [{"path": "a", "size": true}]}',
        b'{"files": [{"path": "a", "size": 1},]}', b'{"files": [{"path": "a", "size": 1}], "files": 5 5}',
        b'{"files": [{"path": "a", "size": 1}], "x": [{"path": "b", "size": 1}}',
        b'{"files": [{"path": "\xff", "size": 1}]}',
        b'{"files": [null]}', b'{"files": ["a"]}', b"\x00",
    ],
)  # fmt: skip
def test_anything_else_is_no_index(document):
    with pytest.raises(ListingError, match="x is no index"):
        read(document, 7)
