# SPDX-License-Identifier: Apache-2.0
"""What pods ask for: one task per volume, from the request to the mounted data."""
