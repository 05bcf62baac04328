# SPDX-License-Identifier: Apache-2.0
"""The role `gigaslice controller`: objects made from the nodes' inventories, class status, hints, the web page."""
