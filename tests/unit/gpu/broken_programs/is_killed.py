# SPDX-License-Identifier: Apache-2.0
"""Measures something, then dies as a program with a bad pointer does."""

import json
import os
import signal

print(json.dumps({"measured": 7}), flush=True)
os.kill(os.getpid(), signal.SIGSEGV)
