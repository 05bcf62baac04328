# SPDX-License-Identifier: Apache-2.0
"""What tests of the role's process stand on."""

from tests.unit.conftest import short_dir

__all__ = ["short_dir"]
