# SPDX-License-Identifier: Apache-2.0
"""What commands ask of this node's agent on its control socket."""

from __future__ import annotations

from pathlib import Path

from agent.control.messages import ResizeAnswer
from gigaslice.runtime.local_protocol import ask

__all__ = ["SOCKET", "resize"]

SOCKET = "control.sock"


def resize(state_dir: Path, **change: str | int | None) -> ResizeAnswer:
    """Requests a change of limits, a LimitChange, from the agent of STATE_DIR; None and what is left out stay.

    Raises MissingError, ConfigError or ControlError.
    """
    given = {name: value for name, value in change.items() if value is not None}
    return ResizeAnswer.decode(ask(state_dir / SOCKET, "agent", {"resize": given}))
