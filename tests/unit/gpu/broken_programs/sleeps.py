# SPDX-License-Identifier: Apache-2.0
"""Takes a minute."""

import json
import time

print(json.dumps({"begun": True}), flush=True)
time.sleep(60)
print(json.dumps({"done": True}), flush=True)
