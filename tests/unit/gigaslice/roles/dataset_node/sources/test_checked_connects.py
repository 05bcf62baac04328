# SPDX-License-Identifier: Apache-2.0
"""A library's own connect(2) is one of ours: what may not be connected to is refused, and all else is the kernel's."""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gigaslice.roles.dataset_node.sources.checked_connects import CheckedConnects, _address

SOURCE = """
#include <sys/socket.h>
int go(int fd, const void *address, unsigned length) { return connect(fd, address, length); }
"""


@pytest.fixture
def library(tmp_path):
    """A library that calls connect(2), by both kinds of pointers that linkers make."""

    def made(*flags):
        (tmp_path / "l.c").write_text(SOURCE)
        path = tmp_path / f"l{len(flags)}.so"
        subprocess.run(["cc", "-shared", "-fPIC", *flags, "-o", path, tmp_path / "l.c"], check=True)
        return path, ctypes.CDLL(str(path), use_errno=True)

    return made


def sockaddr(text, port):
    if ":" in text:
        packed = socket.inet_pton(socket.AF_INET6, text)
        return (
            socket.AF_INET6.to_bytes(2, sys.byteorder)
            + port.to_bytes(2, "big")
            + bytes(4)
            + packed
            + bytes(4)
        )
    return (
        socket.AF_INET.to_bytes(2, sys.byteorder)
        + port.to_bytes(2, "big")
        + socket.inet_aton(text)
        + bytes(8)
    )


def go(loaded, text, port=9):
    """The number of the error, or 0."""
    with socket.socket(socket.AF_INET6 if ":" in text else socket.AF_INET) as one:
        address = sockaddr(text, port)
        ctypes.set_errno(0)
        return 0 if loaded.go(one.fileno(), address, len(address)) == 0 else ctypes.get_errno()


@pytest.mark.parametrize(
    "flags", [("-Wl,-z,now,-z,relro",), ("-Wl,-z,lazy",), ("-fno-plt", "-Wl,-z,now,-z,relro")]
)
def test_what_is_refused_is_not_connected_to_and_all_else_is(library, flags):
    path, loaded = library(*flags)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert go(loaded, "127.0.0.1", port) == 0
        asked = []
        connects = CheckedConnects(lambda address: asked.append(address) or address == "127.0.0.1")
        connects.replace_in(path)
        del connects
        gc.collect()
        assert go(loaded, "127.0.0.1", port) == 0
        assert go(loaded, "127.0.0.1", 1) == errno.ECONNREFUSED, "the kernel's own errors stay"
        assert go(loaded, "127.0.0.2", port) == errno.EACCES
        assert go(loaded, "::ffff:127.0.0.1", port) == errno.EACCES
        assert asked == ["127.0.0.1", "127.0.0.1", "127.0.0.2", "::ffff:7f00:1"]


def test_a_second_mapping_of_the_librarys_file_is_not_the_library(library):
    """A library in Rust that has panicked maps its own file, to print names of functions."""
    path, loaded = library("-Wl,-z,now")
    with path.open("rb") as file:
        mappings = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) for _ in range(8)]
    CheckedConnects(lambda _: False).replace_in(path)
    assert go(loaded, "127.0.0.1", 1) == errno.EACCES
    for mapping in mappings:
        mapping.close()


def test_others_connect_as_before(library):
    path, _ = library("-Wl,-z,now")
    CheckedConnects(lambda _: False).replace_in(path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()


def test_at_the_end_of_the_process_the_library_connects_by_itself(library):
    """Its threads may not call into an interpreter that is ending."""
    path, loaded = library("-Wl,-z,now")
    connects = CheckedConnects(lambda _: False)
    connects.replace_in(path)
    assert go(loaded, "127.0.0.1", 1) == errno.EACCES
    connects.put_back()
    assert go(loaded, "127.0.0.1", 1) == errno.ECONNREFUSED
    connects.put_back()


def test_a_check_that_fails_refuses(library):
    path, loaded = library("-Wl,-z,now")

    def fails(_):
        raise RuntimeError

    CheckedConnects(fails).replace_in(path)
    assert go(loaded, "127.0.0.1") == errno.EACCES


def test_a_socket_of_the_machine_is_none_of_ip():
    assert _address(socket.AF_UNIX.to_bytes(2, sys.byteorder) + b"/run/x\0") is None
    assert _address(sockaddr("10.1.2.3", 5)) == "10.1.2.3"
    assert _address(sockaddr("fd00::1", 5)) == "fd00::1"
    for cut in (b"", b"\2", sockaddr("10.1.2.3", 5)[:6], sockaddr("fd00::1", 5)[:12]):
        with pytest.raises(Exception):  # noqa: B017  (every one is refused)
            _address(cut)


def test_what_is_no_such_library_is_said(tmp_path):
    connects = CheckedConnects(lambda _: True)
    text = tmp_path / "x.so"
    text.write_text("no library, but long enough to be read as the header of one, which it is not")
    with pytest.raises(ValueError, match="no ELF"):
        connects.replace_in(text)
    with pytest.raises(OSError, match="not loaded"):
        connects.replace_in(_not_loaded(tmp_path))
    import gigaslice.roles.dataset_node.sources._tree as tree

    with pytest.raises(ValueError, match=r"calls no connect\(2\)"):
        connects.replace_in(Path(tree.__file__))


def _not_loaded(directory):
    (directory / "n.c").write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", directory / "n.so", directory / "n.c"], check=True)
    return directory / "n.so"
