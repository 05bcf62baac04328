# SPDX-License-Identifier: Apache-2.0
"""Trees of cgroups in ordinary directories, as tests of this role need them."""

from tests.fakes.cgroup_trees import version_2_at

__all__ = ["version_2_at"]
