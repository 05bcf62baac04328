# SPDX-License-Identifier: Apache-2.0
"""What people are shown of the cluster: why a pod waits, tables, pictures. Pure."""
