"""The API server's stand-in does what a test asks of it, however slowly its threads run."""

from __future__ import annotations

import http.client
from http.server import BaseHTTPRequestHandler

import pytest

from tests.fakes.kubeapi import KubeApi


def test_a_watch_that_is_dropped_as_soon_as_it_is_there_is_dropped(monkeypatch):
    """Under load the server's thread stood still between its answer and its next line, and the watch went on."""
    with KubeApi() as server:
        real = BaseHTTPRequestHandler.end_headers

        def dropped_at_once(handler):
            real(handler)
            server.drop_watches()

        monkeypatch.setattr(BaseHTTPRequestHandler, "end_headers", dropped_at_once)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        headers = {"Authorization": f"Bearer {server.token}"}
        connection.request("GET", "/api/v1/pods?watch=1&resourceVersion=1&timeoutSeconds=5", headers=headers)
        with pytest.raises(http.client.IncompleteRead):
            connection.getresponse().read()
        connection.close()
