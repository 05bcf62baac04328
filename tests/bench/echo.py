# SPDX-License-Identifier: Apache-2.0
"""A gRPC server of the agent's kind that does nothing: what a call costs before any work is done for it.

`python -m tests.bench.echo SOCKET`: every call of the device plugin's name is answered with as many bytes as its
request's first eight say in decimal digits. Ends when its standard input does. Used by `agent.py` beside the agent.
"""

from __future__ import annotations

import asyncio
import sys

import grpc

SERVICE, METHOD = "bench.Echo", "Call"
DIGITS = 8


async def _answer(request: bytes, _context: object) -> bytes:
    return b"x" * int(request[:DIGITS])


async def main(socket: str) -> None:
    """Serves until standard input ends."""
    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(_answer)  # type: ignore[arg-type]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
