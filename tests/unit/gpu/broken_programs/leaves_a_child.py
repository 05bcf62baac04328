# SPDX-License-Identifier: Apache-2.0
"""Leaves a process in a session of its own."""

import json
import subprocess

left = subprocess.Popen(["sleep", "300"], start_new_session=True)
print(json.dumps({"left": left.pid, "done": True}), flush=True)
