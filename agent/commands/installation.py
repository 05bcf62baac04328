# SPDX-License-Identifier: Apache-2.0
"""The parts of an installation, as `gigaslice doctor --parts` names them."""

from __future__ import annotations

__all__ = ["PARTS"]

PARTS = ("node", "scheduler", "controller", "webhook", "dataset")
"""What an installation may have: the component of its pods, and the webhook that the controller serves."""
