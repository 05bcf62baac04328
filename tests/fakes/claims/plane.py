# SPDX-License-Identifier: Apache-2.0
"""Controller and allocator beside an API server: both run whenever something has changed there."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from tests.fakes.claims.allocator import Allocator
from tests.fakes.claims.controller import ClaimController
from tests.fakes.claims.search import Selector
from tests.fakes.kubeapi.server import ApiServer
from tests.fakes.threads import await_end


class ClaimPlane:
    """Runs both in a thread of its own between entry and exit."""

    def __init__(
        self,
        api: ApiServer,
        classes: Mapping[str, Selector] | None = None,
        expressions: Mapping[str, Selector] | None = None,
    ) -> None:
        self.allocator = Allocator(api, classes, expressions)
        self.controller = ClaimController(api)
        self._listeners = api.store.listeners
        self._changed = threading.Event()
        self._halt = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="claims", daemon=True)

    def __enter__(self) -> ClaimPlane:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begins with what there is."""
        self._listeners.append(self._note)
        self._changed.set()
        self._thread.start()

    def stop(self) -> None:
        """Ends; what the thread failed with is raised here."""
        self._halt = True
        self._changed.set()
        await_end(self._thread)
        self._listeners.remove(self._note)
        if self._error is not None:
            raise self._error

    def _note(self, resource: str, kind: str, document: Mapping[str, Any]) -> None:
        self._changed.set()

    def _run(self) -> None:
        try:
            while not self._halt:
                self._changed.wait()
                self._changed.clear()
                self.controller.run_once()
                self.allocator.run_once()
        except BaseException as error:  # noqa: BLE001  (shown by the thread that ends it)
            self._error = error
