# SPDX-License-Identifier: Apache-2.0
"""One thread for all calls of the driver, and a time limit for who waits for it.

A call that hangs in the driver never returns. Then the thread is lost with it, every request is refused in one
sentence until it comes back, and everything else goes on. The thread keeps no process from ending.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from gigaslice.core.errors import ControlError

__all__ = ["DriverThread"]

T = TypeVar("T")


class DriverThread:
    """Does one piece of work after the other."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._hung: Future[Any] | None = None
        self._begun = 0.0
        threading.Thread(target=self._do, name="driver", daemon=True).start()

    async def run(self, work: Callable[[], T], seconds: float) -> T:
        """What WORK returns or raises. Raises ControlError after SECONDS, and at once while a call hangs."""
        if self._hung is not None and not self._hung.done():
            waiting = time.monotonic() - self._begun
            raise ControlError(
                f"a call of the NVIDIA driver has not come back for {waiting:.0f} s; nothing was done"
            )
        future: Future[T] = Future()
        self._work.put((future, work))
        wrapped = asyncio.wrap_future(future)
        done, _ = await asyncio.wait({wrapped}, timeout=seconds)
        if done:
            return wrapped.result()
        wrapped.cancel()  # work that has not begun is dropped
        if future.cancel():
            raise ControlError(f"the NVIDIA driver was busy for {seconds:g} s; nothing was done")
        self._hung = future
        raise ControlError(f"a call of the NVIDIA driver has not come back within {seconds:g} s")

    def _do(self) -> None:
        while True:
            future, work = self._work.get()
            if not future.set_running_or_notify_cancel():
                continue
            self._begun = time.monotonic()
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  (whoever waits raises it)
                future.set_exception(error)
