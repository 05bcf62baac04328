# SPDX-License-Identifier: Apache-2.0
"""What installs Gigaslice in a cluster, and the programs that make it. Nothing here is installed with the package."""
