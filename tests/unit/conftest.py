# SPDX-License-Identifier: Apache-2.0
"""What unit tests of several parts of the agent stand on."""

import logging
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from agent.persistence.store import Store
from agent.roles.records import CODEC


@pytest.fixture(autouse=True)
def _hooks():
    """An agent that a test starts inside of this process puts its log behind these."""
    before = sys.excepthook, threading.excepthook, sys.unraisablehook
    handlers = list(logging.getLogger().handlers)
    yield
    sys.excepthook, threading.excepthook, sys.unraisablehook = before
    logging.getLogger().handlers[:] = handlers
    logging.captureWarnings(False)


@pytest.fixture
def short_dir():
    """A directory whose path leaves room for the name of a unix socket, which tmp_path may not."""
    directory = Path(tempfile.mkdtemp(prefix="gs-", dir="/tmp"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def store(tmp_path):
    library = tmp_path / "libvcuda.so"
    library.write_bytes(b"\x7fELF library")
    made = Store(tmp_path / "state", library, codec=CODEC)
    made.open()
    yield made
    made.close()
