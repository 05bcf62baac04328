"""What unit tests of several parts of the agent stand on."""

import pytest

from agent.state.store import Store


@pytest.fixture
def store(tmp_path):
    library = tmp_path / "libvcuda.so"
    library.write_bytes(b"\x7fELF library")
    made = Store(tmp_path / "state", library)
    made.open()
    yield made
    made.close()
