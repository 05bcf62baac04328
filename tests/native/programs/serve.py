# SPDX-License-Identifier: Apache-2.0
"""A program under the library that evaluates one Python expression a line, with a `Driver` at hand as `d`.

The first argument lists the devices whose contexts it makes. Answers are lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys

from tests.native.programs import vmm


def main() -> None:
    space: dict[str, object] = {**vars(vmm), "os": os}
    space["d"] = vmm.Driver(*(int(device) for device in sys.argv[1].split(",") if device))
    for line in sys.stdin:
        try:
            answer: object = {"value": eval(line, space)}
        except Exception as error:  # noqa: BLE001 - whatever it was, the test shall see it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
