# SPDX-License-Identifier: Apache-2.0
"""What an agent that stands by shows of itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

from agent.config import Config
from agent.roles.standby import Standby
from tests.fakes.ports import free_port


def test_its_metrics_need_the_token_too(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")

    async def main() -> list[bytes]:
        config = Config(metrics_address=("127.0.0.1", port), metrics_token_file=token, node_name="n")
        standby = Standby(SimpleNamespace(), SimpleNamespace(), tmp_path, config)  # type: ignore[arg-type]
        work = asyncio.create_task(standby.http.run())
        answers = []
        for head in ("", "Authorization: Bearer secret\r\n"):
            reader, writer = await connected()
            writer.write(f"GET /metrics HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
            answers.append(await reader.read())
            writer.close()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return answers

    async def connected() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in range(500):
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.01)
        raise AssertionError("it does not listen")

    port = free_port()
    refused, shown = asyncio.run(main())
    assert refused.startswith(b"HTTP/1.1 401")
    assert b'gigaslice_standby{node="n"} 1.0' in shown
