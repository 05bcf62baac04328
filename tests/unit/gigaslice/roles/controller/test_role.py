# SPDX-License-Identifier: Apache-2.0
"""What the controller sets before it works."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.arenas import count_arenas

RUN = """
from gigaslice.core.errors import MissingError
from gigaslice.role_settings import load
from gigaslice.roles.controller import role
from gigaslice.roles.controller.config import ControllerConfig
try:
    role.run(load(ControllerConfig, {}, {}))
except MissingError as error:
    assert "no API server" in str(error)
"""


def test_the_pages_thread_has_no_arena_of_its_own(tmp_path: Path) -> None:
    """Else what a page took would stay with the thread that has written it: 9 MiB of 70 at 200 nodes."""
    assert count_arenas(RUN, tmp_path) == 1
