# SPDX-License-Identifier: Apache-2.0
"""Messages and services by which any plugin makes itself known to a kubelet, generated from proto/ by `make proto`; do not edit the other files.

They are here because a process can have only one copy of them, and more than one role is a plugin.
"""
