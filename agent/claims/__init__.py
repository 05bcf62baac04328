# SPDX-License-Identifier: Apache-2.0
"""The kubelet's API for claims to devices (DRA) as an adapter: claims are prepared and unprepared, slices published."""
