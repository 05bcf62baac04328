# SPDX-License-Identifier: Apache-2.0
"""What a release has written, read by the code of today, and what that writes, read by the release.

`make fixtures` keeps the files of a release in tests/fixtures/releases/<version>, with the code that reads them. That
directory never changes once the release is in CHANGELOG.md. docs/compatibility.md says what the tests here hold.
"""
