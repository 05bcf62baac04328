# SPDX-License-Identifier: Apache-2.0
"""Claims to devices (resource.k8s.io): what one asks for, who uses it, what its containers get. Pure."""
