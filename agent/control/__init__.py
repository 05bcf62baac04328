# SPDX-License-Identifier: Apache-2.0
"""What can be asked of a running agent and what it does by itself to running containers: limits, CPUs, the socket."""
