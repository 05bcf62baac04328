# SPDX-License-Identifier: Apache-2.0
"""How long a pod takes to start whose image has to be pulled and whose data have to be fetched: both, and each alone.

    python -m tests.cluster.dataset_overlap

Takes what tests/cluster/dataset_site.py says, and K8S_NODE_IMAGE_TAR, the node's image as `docker save` writes it. The
image is served by a registry of this program on loopback, with a layer that nothing has and that comes late; the data
are read with a bound. Times are the kernel's, from the pod's creation to the first line of its program.
"""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.cluster.dataset_site import DatasetSite, missing

RATE = 4 << 20
SCRIPT = "cat /proc/uptime; exec sleep 100000"


class Registry:
    """Serves the image of a `docker save` archive under any name; the last layer comes after `delay` seconds."""

    def __init__(self, archive: Path, delay: float) -> None:
        self.delay = delay
        self.blobs: dict[str, bytes] = {}
        with tarfile.open(archive) as tar:
            self._read = lambda name: tar.extractfile(name).read()  # type: ignore[union-attr]
            (entry,) = json.loads(self._read("manifest.json"))
            layers = [self._read(name) for name in entry["Layers"]]
            config = json.loads(self._read(entry["Config"]))
        late = io.BytesIO()
        with tarfile.open(fileobj=late, mode="w") as tar:
            one = tarfile.TarInfo("late")
            one.size = 64
            tar.addfile(one, io.BytesIO(os.urandom(64)))
        layers.append(late.getvalue())
        config["rootfs"]["diff_ids"] = [_digest(layer) for layer in layers]
        config.pop("history", None)
        self.late = self._keep(layers[-1])
        kind = "application/vnd.docker.distribution.manifest.v2+json"
        self.manifest = self._keep(
            json.dumps(
                {
                    "schemaVersion": 2,
                    "mediaType": kind,
                    "config": self._entry("container.image.v1+json", json.dumps(config).encode()),
                    "layers": [self._entry("image.rootfs.diff.tar", layer) for layer in layers],
                }
            ).encode()
        )
        self.kinds = {self.manifest: kind}
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                registry.answer(self)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.image = f"127.0.0.1:{self.server.server_port}/late:{os.urandom(4).hex()}"

    def _keep(self, blob: bytes) -> str:
        self.blobs[_digest(blob)] = blob
        return _digest(blob)

    def _entry(self, kind: str, blob: bytes) -> dict[str, Any]:
        return {"mediaType": f"application/vnd.docker.{kind}", "size": len(blob), "digest": self._keep(blob)}

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        """Answers one request."""
        name = request.path.rpartition("/")[2]
        digest = self.manifest if "/manifests/" in request.path and ":" not in name else name
        blob = b"{}" if request.path == "/v2/" else self.blobs.get(digest)
        request.send_response(404 if blob is None else 200)
        request.send_header("Content-Type", self.kinds.get(digest, "application/octet-stream"))
        request.send_header("Content-Length", str(len(blob or b"")))
        if digest in self.blobs:
            request.send_header("Docker-Content-Digest", digest)
        request.end_headers()
        if request.command == "GET" and blob:
            if digest == self.late:
                request.wfile.flush()
                time.sleep(self.delay)
            request.wfile.write(blob)


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


class Overlap:
    """Measures on a site."""

    def __init__(self, site: DatasetSite, archive: Path) -> None:
        self.site, self._archive, self._number = site, archive, 0
        self.data = ""

    def start(self, pull: float, fetch: float, *, gpu: bool) -> float:
        """Seconds until a pod has started whose image takes PULL and whose data take FETCH seconds; 0: are there."""
        self._number += 1
        name = f"gs-overlap-{self._number}"
        more: dict[str, Any] = {}
        registry = Registry(self._archive, pull) if pull else None
        if registry is not None:
            more = {"image": registry.image, "imagePullPolicy": "IfNotPresent"}
        data = self.site.fill(name if fetch else "small", 8, int(fetch * RATE / 8) if fetch else 1000)
        begun = _uptime()
        self.site.pod(name, {"d": {"source": data}}, gpu=gpu, script=SCRIPT, **more)
        self.site.until(lambda: self.site.log(name), f"{name} runs", 240)
        ended = float(self.site.log(name).split()[0])
        self.site.kubectl("delete", "pod", name, "--wait=true")
        if registry is not None:
            registry.server.shutdown()
        return ended - begun


def _uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def main() -> int:
    """Measures, and prints a table."""
    if why := missing() or ("" if "K8S_NODE_IMAGE_TAR" in os.environ else "takes K8S_NODE_IMAGE_TAR"):
        print(why, file=sys.stderr)
        return 3
    cases = [(10, 5), (5, 10), (10, 10), (5, 25), (5, 45)]
    with DatasetSite(f"--bandwidth={RATE >> 20}MiB") as site:
        site.start_agent()
        overlap = Overlap(site, Path(os.environ["K8S_NODE_IMAGE_TAR"]))
        nothing = [min(overlap.start(0, 0, gpu=gpu) for _ in range(3)) for gpu in (True, False)]
        print(f"image and data there: {nothing[0]:.1f} s with a GPU, {nothing[1]:.1f} s without", flush=True)
        print("| pull alone | fetch alone | early: both | more than the longer | held: both |", flush=True)
        for pull, fetch in cases:
            alone = overlap.start(pull, 0, gpu=True), overlap.start(0, fetch, gpu=True)
            both, held = overlap.start(pull, fetch, gpu=True), overlap.start(pull, fetch, gpu=False)
            row = (*alone, both, both - max(alone), held)
            print(f"| {' | '.join(f'{one:.1f}' for one in row)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
