"""What unit tests of several parts of the agent stand on."""

import shutil
import tempfile
from pathlib import Path

import pytest

from agent.state.store import Store


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
    made = Store(tmp_path / "state", library)
    made.open()
    yield made
    made.close()
