# SPDX-License-Identifier: Apache-2.0
"""Resources beside GPU memory. `provider` has the interface, the other modules implement it."""
