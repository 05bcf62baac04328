# SPDX-License-Identifier: Apache-2.0
"""Hangs, and so does its child, which keeps the output open."""

import json
import signal
import subprocess
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "300"])
print(json.dumps({"child": child.pid}), flush=True)
time.sleep(300)
