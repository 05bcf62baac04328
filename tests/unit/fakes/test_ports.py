# SPDX-License-Identifier: Apache-2.0
"""A port that a server is told: nobody else gets it meanwhile, and the server does."""

import socket

import pytest

from tests.fakes.ports import free_port


def test_it_is_nobody_elses_and_a_server_can_listen_on_it_again_and_again():
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))  # as who asks for any port: without SO_REUSEADDR
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 20)
    for _ in range(2):
        with (
            socket.create_server(("127.0.0.1", port)) as server,
            socket.create_connection(("127.0.0.1", port), 20),
        ):
            server.accept()[0].close()
