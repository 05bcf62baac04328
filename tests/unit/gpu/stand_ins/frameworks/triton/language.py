# SPDX-License-Identifier: Apache-2.0
"""Names that kernels use."""

constexpr = int
