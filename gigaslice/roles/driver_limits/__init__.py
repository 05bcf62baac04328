# SPDX-License-Identifier: Apache-2.0
"""The role `gigaslice driver-limits`: sets the driver's own memory limits of pods' cgroups, and decides nothing."""
