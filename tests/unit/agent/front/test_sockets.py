# SPDX-License-Identifier: Apache-2.0
import socket

import pytest

from agent.front import sockets
from gigaslice.core.errors import SocketError


@pytest.fixture
def listener(short_dir):
    opened = []

    def make(name="a.sock"):
        one = socket.socket(socket.AF_UNIX)
        one.bind(str(short_dir / name))
        one.listen()
        opened.append(one)
        return one

    yield make
    for one in opened:
        one.close()


def test_only_sockets_have_an_identity(short_dir, listener):
    listener()
    (short_dir / "file").touch()
    assert sockets.identify(short_dir / "a.sock")
    assert sockets.identify(short_dir / "file") is None
    assert sockets.identify(short_dir / "missing") is None
    assert sockets.identify(short_dir / "missing" / "deeper") is None


def test_a_socket_made_again_is_another_one(short_dir, listener):
    listener()
    before = sockets.identify(short_dir / "a.sock")
    (short_dir / "a.sock").unlink()
    listener()
    assert sockets.identify(short_dir / "a.sock") != before


def test_a_free_name_and_a_dead_socket_can_be_used(short_dir, listener):
    sockets.check_free(short_dir / "a.sock")
    listener().close()
    assert (short_dir / "a.sock").exists()
    sockets.check_free(short_dir / "a.sock")


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_is_not_a_socket_is_not_touched(short_dir, kind):
    path = short_dir / "a.sock"
    if kind == "file":
        path.write_text("important")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/etc/passwd")
    with pytest.raises(SocketError, match="is not a socket"):
        sockets.check_free(path)
    assert path.exists()


def test_a_socket_that_somebody_serves_is_refused(short_dir, listener):
    listener()
    with pytest.raises(SocketError, match="served by another program"):
        sockets.check_free(short_dir / "a.sock")


def test_only_hidden_sockets_are_swept_and_of_these_what_is_left_behind(short_dir, listener):
    listener(".gs-left").close()
    listener(".gs-used")  # of another resource, not renamed yet
    listener("kubelet.sock").close()
    (short_dir / ".gs-file").touch()
    sockets.sweep(short_dir)
    assert sorted(path.name for path in short_dir.iterdir()) == [".gs-file", ".gs-used", "kubelet.sock"]


def test_only_ones_own_socket_is_removed(short_dir, listener):
    path = short_dir / "a.sock"
    listener()
    mine = sockets.identify(path)
    path.unlink()
    listener()
    sockets.remove_if_same(path, mine)
    sockets.remove_if_same(path, None)
    assert path.exists()
    sockets.remove_if_same(path, sockets.identify(path))
    assert not path.exists()
