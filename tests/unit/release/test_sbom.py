# SPDX-License-Identifier: Apache-2.0
"""The list of components: each with its licence, whether the package says it or the page about licences."""

from __future__ import annotations

import pytest

from release.sbom import LICENCES, constraints_of, with_licences


def test_a_package_that_names_no_licence_has_that_of_the_page():
    said = [{"license": {"id": "MIT"}}]
    document = {
        "components": [
            {"name": "attrs", "licenses": said},
            {"name": "protobuf"},
            {"name": "Typing_Extensions"},
        ]
    }
    attrs, protobuf, typing = with_licences(document, LICENCES.read_text())["components"]
    assert attrs["licenses"] == said
    assert protobuf["licenses"] == [{"expression": "BSD-3-Clause"}]
    assert typing["licenses"] == [{"expression": "PSF-2.0"}]


def test_a_package_of_no_licence_is_an_error_that_says_what_to_do():
    with pytest.raises(LookupError, match=r"nobody names no licence.*make lock tables"):
        with_licences({"components": [{"name": "nobody", "licenses": []}]}, LICENCES.read_text())


def test_constraints_are_versions_without_hashes():
    assert constraints_of("# a\nattrs==25.1 \\\n    --hash=sha256:0\nidna==3\n") == "attrs==25.1\nidna==3\n"
