# SPDX-License-Identifier: Apache-2.0
"""Runs in the container: two programs with memory, then nvidia-smi; prints what it said as JSON.

`scene.py CLIENT NVIDIA_SMI`; started by run.py, in a PID namespace where the machine allows it.
"""

from __future__ import annotations

import json
import subprocess
import sys

COMMANDS = (
    (),
    ("-q", "-d", "MEMORY,PIDS", "-i", "0"),
    ("--query-gpu=memory.total,memory.used,memory.free", "--format=csv"),
    ("--query-compute-apps=pid,name,used_memory", "--format=csv"),
    ("pmon", "-c", "1"),
)
MIB = 1 << 20
SIZES = (123, 1000)


def start(client: str, mib: int) -> subprocess.Popen[str]:
    """A program with a context and MIB of memory on GPU 0."""
    process = subprocess.Popen(
        ["train", "dlsym"], executable=client, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    for command in ("init", "retain z 0", "current z", f"alloc a {mib * MIB}"):
        process.stdin.write(command + "\n")
        process.stdin.flush()
        if not process.stdout.readline().startswith("0 "):
            sys.exit(f"{client}: {command} failed")
    return process


def main() -> None:
    """See above."""
    client, program = sys.argv[1:]
    running = [start(client, mib) for mib in SIZES]
    outputs = {}
    for command in COMMANDS:
        done = subprocess.run([program, *command], capture_output=True, timeout=60, check=False)
        outputs[" ".join(command)] = [done.returncode, (done.stdout + done.stderr).decode(errors="replace")]
    print(json.dumps({"pids": [process.pid for process in running], "outputs": outputs}))
    for process in running:
        process.kill()


if __name__ == "__main__":
    main()
