# SPDX-License-Identifier: Apache-2.0
"""What no code has foreseen is a log line, wherever it happens, and shows no credential."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gigaslice.runtime.failures import describe_exception, mask_credentials

SECRET = "s3cr3t"
START = """
import asyncio, atexit, logging, sys, threading, warnings
from concurrent.futures import ThreadPoolExecutor
from gigaslice.runtime import logs
from gigaslice.runtime.failures import catch_all
logs.set_up("info", sys.argv[1])
catch_all(logs.get_logger("node"))
def fail():
    token = "s3cr3t"
    raise ValueError("why\\nnot: Bearer s3cr3t")
"""
PLACES = {
    "main thread": "fail()",
    "thread worker": "t = threading.Thread(target=fail, name='worker'); t.start(); t.join()",
    "a finalizer": "class A:\n    def __del__(self): fail()\na = A(); del a",
    "an exit handler": "atexit.register(fail)",
    "a task that no caller waits for": (
        "async def f(): fail()\nasync def main():\n    asyncio.create_task(f()); await asyncio.sleep(0)\n"
        "    await asyncio.sleep(0)\nasyncio.run(main())"
    ),
    "a callback of the loop": (
        "async def main():\n    asyncio.get_running_loop().call_soon(fail); await asyncio.sleep(0)\nasyncio.run(main())"
    ),
    "a callback of a future": (
        "with ThreadPoolExecutor() as pool: pool.submit(int).add_done_callback(lambda _: fail())"
    ),
    "a library's log": "try: fail()\nexcept ValueError: logging.getLogger('grpc._cython.cygrpc').exception('x %s', 1)",
    "a library's broken format": "try: fail()\nexcept ValueError: logging.getLogger('a').exception('x %d %d', 'y')",
    "a handler of grpc": """
import grpc
async def main():
    async def handler(request, context): fail()
    server = grpc.aio.server()
    methods = {"m": grpc.unary_unary_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            await channel.unary_unary("/s/m")(b"", timeout=30)
        except grpc.RpcError:
            pass
    await server.stop(None)
asyncio.run(main())
""",
    "beside a peer of grpc that says goodbye with an error": """
import grpc, socket
server = socket.create_server(("127.0.0.1", 0))
frames = bytes.fromhex("000000040000000000" "000008070000000000" "0000000000000002")  # SETTINGS, GOAWAY: error 2
def goodbye():
    while True:
        server.accept()[0].sendall(frames)
threading.Thread(target=goodbye, daemon=True).start()
with grpc.insecure_channel(f"127.0.0.1:{server.getsockname()[1]}") as channel:
    try:
        channel.unary_unary("/s/m")(b"", timeout=1)
    except grpc.RpcError:
        pass
fail()
""",
    "a logger of ours": "try: fail()\nexcept ValueError: logs.get_logger('x').exception('said')",
}


def run(place: str, style: str) -> str:
    """What the program writes to stderr, as in the image, where gRPC's core writes nothing beside errors of its own."""
    command = [sys.executable, "-c", START + PLACES[place], style]
    environment = {**os.environ, "GRPC_VERBOSITY": "ERROR"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize("place", PLACES)
def test_it_is_one_json_object_with_type_message_and_stack(place):
    lines = [json.loads(line) for line in run(place, "json").splitlines()]
    (found,) = [line for line in lines if "exception" in line]
    assert found["level"] == "error" and found["event"]
    assert found["exception"]["type"] == "ValueError"
    assert found["exception"]["message"] == "why not: Bearer ***"
    assert "in fail" in found["exception"]["stacktrace"]
    assert SECRET not in found["exception"]["message"]
    assert 'token = "s3cr3t"' not in found["exception"]["stacktrace"]


@pytest.mark.parametrize("place", PLACES)
def test_on_a_console_it_is_a_line_and_its_stack(place):
    text = run(place, "console")
    assert text.count("Traceback (most recent call last)") == 1
    assert "[error" in text.splitlines()[0] and "in fail" in text and "Bearer ***" in text


def test_what_a_warning_says_is_a_line():
    PLACES["warning"] = "warnings.warn('old ways')"
    (line,) = run("warning", "json").splitlines()
    del PLACES["warning"]
    found = json.loads(line)
    assert (found["event"], found["level"]) == ("library message", "warning") and "old ways" in found[
        "detail"
    ]


@pytest.mark.parametrize("text, clean", [
    ("Illegal header value b'Bearer abc.def\\n'", "Illegal header value b'Bearer ***'"),
    ("authorization: bearer  x, next", "authorization: bearer ***, next"), ("Basic dTpw", "Basic ***"),
    ("https://user:pass@host/path", "https://***@host/path"), ("https://host/a@b", "https://host/a@b"),
    ("nothing here", "nothing here"),
])  # fmt: skip
def test_credentials_in_texts(text, clean):
    assert mask_credentials(text) == clean


class OddError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_an_exception_without_a_text_or_with_a_long_one_is_described_too():
    assert "cannot be had" in describe_exception(OddError())["message"]
    assert describe_exception(KeyError())["type"] == "KeyError"
    try:
        raise ValueError("\x1b[31m" + "x" * 100_000) from OddError()
    except ValueError as error:
        found = describe_exception(error)
    assert len(found["stacktrace"]) < 20_000
    assert "\x1b" not in found["message"] + found["stacktrace"]
