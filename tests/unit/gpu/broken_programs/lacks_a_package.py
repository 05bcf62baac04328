# SPDX-License-Identifier: Apache-2.0
"""Imports what no machine has."""

import no_such_package_as_this  # noqa: F401
