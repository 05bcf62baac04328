# SPDX-License-Identifier: Apache-2.0
"""The changelog's sections, cut as text."""

from datetime import date

import pytest

from release.changelog import ChangelogError, cut, releases, section

TEXT = """# Changelog

The form.

## [Unreleased]

### Added

* A thing ([page](docs/a.md)).

### Fixed

* [Unreleased] in a line changes nothing.

## [0.2.0] - 2026-12-24

### Added

* Before.

## [0.1.0] - 2026-11-28

* First.
"""
DAY = date(2027, 1, 2)


def test_what_is_unreleased_becomes_the_section_of_the_version():
    after = cut(TEXT, "0.3.0", DAY)
    assert after == TEXT.replace("## [Unreleased]", "## [Unreleased]\n\n## [0.3.0] - 2027-01-02", 1)
    assert section(after, "Unreleased") == "\n"
    assert section(after, "0.3.0") == section(TEXT, "Unreleased")
    assert releases(after) == {"0.3.0": "2027-01-02", "0.2.0": "2026-12-24", "0.1.0": "2026-11-28"}


def test_a_section_ends_where_the_next_begins():
    assert section(TEXT, "0.2.0") == "### Added\n\n* Before.\n"
    assert section(TEXT, "0.1.0") == "* First.\n"


@pytest.mark.parametrize("body", ["", "\n\n", "\n### Added\n\n### Fixed\n"])
def test_nothing_that_is_unreleased_is_no_release(body):
    text = f"# Changelog\n\n## [Unreleased]\n{body}\n## [0.1.0] - 2026-11-28\n\n* First.\n"
    with pytest.raises(ChangelogError, match="nothing stands under"):
        cut(text, "0.2.0", DAY)


def test_a_version_has_one_section():
    with pytest.raises(ChangelogError, match=r"has a section 0\.1\.0 already"):
        cut(TEXT, "0.1.0", DAY)


@pytest.mark.parametrize("text", ["# Changelog\n", "# Changelog\n\n## [0.1.0] - 2026-11-28\n\n* x\n"])
def test_without_an_unreleased_section_the_form_is_asked_for(text):
    with pytest.raises(ChangelogError, match=r"no section ## \[Unreleased\]"):
        cut(text, "0.2.0", DAY)


LINKS = """
[Unreleased]: https://code.example/g/compare/v0.2.0...HEAD
[0.2.0]: https://code.example/g/compare/v0.1.0...v0.2.0
"""


def test_links_that_compare_are_moved_on():
    after = cut(TEXT + LINKS, "0.3.0", DAY)
    assert after.endswith(
        "\n[Unreleased]: https://code.example/g/compare/v0.3.0...HEAD\n"
        "[0.3.0]: https://code.example/g/compare/v0.2.0...v0.3.0\n"
        "[0.2.0]: https://code.example/g/compare/v0.1.0...v0.2.0\n"
    )
    assert section(after, "0.1.0") == "* First.\n"
