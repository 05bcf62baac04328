# SPDX-License-Identifier: Apache-2.0
"""An HTTP server of files that lies in every way that a test asks for."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections import Counter
from urllib.parse import unquote


class HostileFiles:
    """Serves `files`; `trick(path, handler)` may answer instead, and returns whether it has."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.etags: dict[str, str] = {}
        self.trick = lambda path, handler: False
        self.asked: Counter[str] = Counter()
        self.headers: list[dict[str, str]] = []
        self.stop = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                outer.asked[self.path] += 1
                outer.headers.append(dict(self.headers))
                try:
                    if not outer.trick(self.path, self):
                        outer.answer(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_HEAD = do_GET  # noqa: N815

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def index(self, *, versions: bool = False) -> None:
        """Adds an index of the files that there are."""
        found = [
            {"path": path[len("/data/") :], "size": len(data)} | ({"version": "1"} if versions else {})
            for path, data in self.files.items()
        ]
        self.files["/data/index.json"] = json.dumps({"files": found}).encode()

    def answer(self, handler) -> None:
        """Like an honest server, with ranges and ETags."""
        path = unquote(handler.path)
        data = self.files.get(path)
        if data is None:
            handler.send_response(404)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        tag = self.etags.get(path, f'"{hash(data)}"')
        if handler.headers.get("If-Match", tag) != tag:
            handler.send_response(412)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        span = handler.headers.get("Range")
        if span:
            first, last = (int(one) for one in span.removeprefix("bytes=").split("-"))
            body = data[first : last + 1]
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{len(data)}")
        else:
            body = data
            handler.send_response(200)
        handler.send_header("ETag", tag)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    def plain(self, handler, status: int, body: bytes = b"", **headers: str) -> bool:
        """Sends an answer as it is given. `_` in names of headers is "-"."""
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        return True

    def hang(self, handler, after: bytes = b"") -> bool:
        """Sends AFTER, and nothing more until the end of the test."""
        if after:
            handler.wfile.write(after)
            handler.wfile.flush()
        self.stop.wait(30)
        handler.close_connection = True
        return True

    def close(self) -> None:
        """Ends the server."""
        self.stop.set()
        self.server.shutdown()
        self.server.server_close()
        time.sleep(0)
